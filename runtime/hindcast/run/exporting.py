"""Export of a policy for use without Hindcast: as ONNX, as a torch program, or as its own files."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hindcast import onnx_policy
from hindcast.episodes.columns import Columns
from hindcast.episodes.nested import flatten
from hindcast.episodes.spaces import flatten_space, space_to_json
from hindcast.errors import DataError, SpecError
from hindcast.models import policy_files
from hindcast.models.exported_policy import ExportedPolicy, Port
from hindcast.models.policy import Policy
from hindcast.onnx_policy import DESCRIPTION, FORMAT_VERSION, LOADER, PROGRAM
from hindcast.run.checkpoint_evaluation import load_policy
from hindcast.run.export_folder import TORCH_PROGRAM, refuse_foreign_files
from hindcast.storage.location import resolve

Format = Literal["onnx", "torch", "safetensors"]
Arrays = dict[str, NDArray[Any]]
Step = Callable[[Arrays], Sequence[NDArray[Any]]]
_FILES: dict[Format, tuple[str, ...]] = {
    "onnx": (DESCRIPTION, LOADER, PROGRAM),
    "torch": (DESCRIPTION, TORCH_PROGRAM),
    "safetensors": policy_files.FILE_NAMES,
}
"""Form -> files that it writes, in order; the description comes first, because it alone identifies an export."""
_NUM_SLOTS, _NUM_STEPS, _EPISODE_STEPS = 3, 24, 8
_TOLERANCE = 1e-5


class ExportResult(NamedTuple):
    """Files of an export, and its comparison with the original policy.

    Attributes:
        policy: location of the original policy.
        files: paths of the written files.
        max_difference: largest difference between an element of an exported action and of the original one; None for
            "safetensors", which copies the policy's own files.
        num_steps: number of actions that were compared.
    """

    policy: str
    files: list[str]
    max_difference: float | None
    num_steps: int


def export_policy(
    path: str | Path, folder: str | Path, form: Format = "onnx", module_class: str | None = None
) -> ExportResult:
    """Export the greedy policy of a checkpoint and compare it with the original.

    Args:
        path: a checkpoint, its `module`, a folder of checkpoints, a run folder, or a dataset.
        folder: path or URI of the target: new, empty, or with an earlier export (of any form).
        form: "onnx" (`policy.onnx`, for any runtime, and `policy.py`, which acts with numpy and onnxruntime alone),
            "torch" (`policy.pt2`, of `torch.export`) or "safetensors" (weights and JSON, for `Policy.load`). The first
            two map raw observations to the environment's actions; `policy.json` describes both, and how states are
            carried.
        module_class: the policy's `model.moduleClass`, if it has one.

    Raises:
        DataError: there is no checkpoint at `path`, or the exported policy acts differently.
        OutputConflict: the folder contains files that no export wrote; it is left unchanged.
        SpecError: the policy's network cannot be exported, or a package is missing.
    """
    policy, module_path = load_policy(path, module_class)
    target, names = resolve(folder), _FILES[form]
    refuse_foreign_files(target, names)
    paths = [str(target.child(name)) for name in names]
    if form == "safetensors":
        policy.save(target)
        return ExportResult(module_path, paths, None, 0)
    function = ExportedPolicy(policy)
    if form == "torch":
        program = _torch_program(function)
        files, step = {TORCH_PROGRAM: program}, _run_torch(program)
    else:
        program = _onnx_program(function)
        loader = Path(onnx_policy.__file__).read_bytes()  # self-contained: imports nothing from Hindcast
        files, step = {PROGRAM: program, LOADER: loader}, _run_onnx(program, function)
    difference = _measure_difference(policy, function, step)
    files[DESCRIPTION] = json.dumps(_describe_export(policy, function), indent=1).encode()
    for name in names:
        target.child(name).write_bytes(files[name])
    return ExportResult(module_path, paths, difference, _NUM_STEPS * _NUM_SLOTS)


def _torch_program(function: ExportedPolicy) -> bytes:
    file = io.BytesIO()
    with _quiet_export("torch.export"):
        torch.export.save(_trace(function), file)
    return file.getvalue()


def _onnx_program(function: ExportedPolicy) -> bytes:
    missing = [name for name in ("onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecError(f"ONNX requires the package {missing[0]}: pip install 'hindcast-rl[export]'.")
    with _quiet_export("ONNX"):
        program = torch.onnx.export(
            _trace(function),
            dynamo=True,
            verbose=False,
            input_names=list(function.inputs),
            output_names=list(function.outputs),
        )
        assert program is not None
        return bytes(program.model_proto.SerializeToString())


def _run_torch(data: bytes) -> Step:
    program = torch.export.load(io.BytesIO(data)).module()

    def step(inputs: Arrays) -> list[NDArray[Any]]:
        with torch.inference_mode():
            return [output.numpy() for output in program(*map(torch.from_numpy, inputs.values()))]

    return step


def _run_onnx(data: bytes, function: ExportedPolicy) -> Step:
    import onnxruntime

    session, names = onnxruntime.InferenceSession(data), list(function.outputs)
    return lambda inputs: session.run(names, dict(inputs))


def _trace(function: ExportedPolicy) -> torch.export.ExportedProgram:
    # torch.export treats sizes 0 and 1 as constants, so the example batch has two rows.
    batch = torch.export.Dim("batch")
    values = tuple(
        torch.from_numpy(np.zeros((2, *port.shape), port.dtype)) for port in function.inputs.values()
    )
    return torch.export.export(function, values, dynamic_shapes=(tuple({0: batch} for _ in values),))


@contextmanager
def _quiet_export(exporter: str) -> Iterator[None]:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about torch's own internals
        logger.setLevel(logging.ERROR)
        try:
            yield
        except Exception as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise SpecError(f"the policy's network cannot be exported with {exporter}: {reason}") from error
        finally:
            logger.setLevel(level)


def _measure_difference(policy: Policy, function: ExportedPolicy, step: Step) -> float:
    """Return the largest difference between actions over whole episodes of random observations.

    Args:
        step: runs the exported policy: input name -> `[B, *shape]` in, one `[B, *shape]` per output out.

    Raises:
        DataError: the difference is not small.
    """
    policy.reset()
    spaces = flatten_space(policy.observation_space, Columns.OBS)
    for number, space in enumerate(spaces.values()):
        space.seed(number)
    state: Arrays = {}
    max_gap = 0.0
    for number in range(_NUM_STEPS):
        is_start = number % _EPISODE_STEPS == 0
        obs = {leaf: np.stack([space.sample() for _ in range(_NUM_SLOTS)]) for leaf, space in spaces.items()}
        rewards = np.linspace(-1.0, 1.0, _NUM_SLOTS)
        actions = policy.act(obs, is_first=np.full(_NUM_SLOTS, is_start), rewards=rewards)
        if is_start:
            state = _initial_state(function)
        values = {**obs, **state, Columns.PREV_REWARDS: rewards}
        inputs = {name: values[name].astype(port.dtype) for name, port in function.inputs.items()}
        outputs = dict(zip(function.outputs, step(inputs), strict=True))
        state = {name: outputs[port.next_state] for name, port in function.inputs.items() if port.next_state}
        max_gap = max(max_gap, _max_action_gap(actions.env_actions, outputs))
    if max_gap > _TOLERANCE:
        raise DataError(
            f"the exported policy acts differently from the original: an action differs by {max_gap:.3g}; nothing "
            "was written."
        )
    return max_gap


def _initial_state(function: ExportedPolicy) -> Arrays:
    return {
        name: np.broadcast_to(port.start, (_NUM_SLOTS, *port.shape))
        for name, port in function.inputs.items()
        if port.start is not None
    }


def _max_action_gap(actions: Any, outputs: Arrays) -> float:
    """Return the largest element-wise difference between B environment actions and the exported ones."""
    gaps = [
        np.abs(np.asarray(value, np.float64) - outputs[leaf][row].astype(np.float64)).max(initial=0.0)
        for row in range(_NUM_SLOTS)
        for leaf, value in flatten(actions[row], Columns.ACTIONS).items()
    ]
    return float(max(gaps))


def _describe_export(policy: Policy, function: ExportedPolicy) -> dict[str, Any]:
    """Return the content of `policy.json`."""
    return {
        "formatVersion": FORMAT_VERSION,
        "observationSpace": space_to_json(policy.observation_space),
        "actionSpace": space_to_json(policy.action_space),
        "inputs": [_describe_port(name, port) for name, port in function.inputs.items()],
        "outputs": [_describe_port(name, port) for name, port in function.outputs.items()],
        "policy": policy.digest,
    }


def _describe_port(name: str, port: Port) -> dict[str, Any]:
    state = {} if port.start is None else {"start": port.start.tolist(), "follows": port.next_state}
    return {"name": name, "dtype": port.dtype.name, "shape": list(port.shape), **state}
