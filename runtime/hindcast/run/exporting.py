"""Takes a policy away from Hindcast: as ONNX, as a torch program, or as its own files."""

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
    "safetensors": policy_files.NAMES,
}
"""What each form writes, in order. The description comes first, which tells an export by itself."""
_SLOTS, _STEPS, _EPISODE = 3, 24, 8
_TOLERANCE = 1e-5


class ExportResult(NamedTuple):
    """What was written, and how it compares.

    Attributes:
        policy: the checkpoint's.
        files: written.
        difference: greatest between an element of its actions and of the policy's own, over `steps`; None of files
            that are the policy's own.
        steps: that were compared.
    """

    policy: str
    files: list[str]
    max_difference: float | None
    num_steps: int


def export_policy(
    path: str | Path, folder: str | Path, form: Format = "onnx", module_class: str | None = None
) -> ExportResult:
    """Write the policy of a checkpoint, which acts greedily, and compare it with what it came from.

    Args:
        path: a checkpoint, its `module`, a folder of checkpoints, a run folder, or a dataset.
        folder: where to write: new, empty, or with an earlier export, also of another form; plain path or URI.
        form: "onnx" (`policy.onnx`, for any runtime, and `policy.py`, which acts with numpy and onnxruntime alone),
            "torch" (`policy.pt2`, of `torch.export`) or "safetensors" (weights and JSON, for `Policy.load`). The first
            two take raw observations and give the environment's actions; `policy.json` says which, and how states are
            carried.
        module_class: the policy's `model.moduleClass`, where it has one.

    Raises:
        DataError: no checkpoint there, or the exported policy acts differently.
        OutputConflict: files that no export wrote are in the folder; it is left as it is.
        SpecError: the policy's network cannot be exported, or a package is missing.
    """
    policy, where = load_policy(path, module_class)
    target, names = resolve(folder), _FILES[form]
    refuse_foreign_files(target, names)
    written = [str(target.child(name)) for name in names]
    if form == "safetensors":
        policy.save(target)
        return ExportResult(where, written, None, 0)
    function = ExportedPolicy(policy)
    if form == "torch":
        program = _torch_program(function)
        files, step = {TORCH_PROGRAM: program}, _run_torch(program)
    else:
        program = _onnx_program(function)
        loader = Path(onnx_policy.__file__).read_bytes()  # imports nothing of Hindcast
        files, step = {PROGRAM: program, LOADER: loader}, _run_onnx(program, function)
    difference = _compared(policy, function, step)
    files[DESCRIPTION] = json.dumps(_description(policy, function), indent=1).encode()
    for name in names:
        target.child(name).write_bytes(files[name])
    return ExportResult(where, written, difference, _STEPS * _SLOTS)


def _torch_program(function: ExportedPolicy) -> bytes:
    file = io.BytesIO()
    with _exporting("torch.export"):
        torch.export.save(_traced(function), file)
    return file.getvalue()


def _onnx_program(function: ExportedPolicy) -> bytes:
    missing = [name for name in ("onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecError(f"ONNX needs the package {missing[0]}: pip install 'hindcast-rl[export]'.")
    with _exporting("ONNX"):
        program = torch.onnx.export(
            _traced(function),
            dynamo=True,
            verbose=False,
            input_names=list(function.inputs),
            output_names=list(function.outputs),
        )
        assert program is not None
        return bytes(program.model_proto.SerializeToString())


def _run_torch(data: bytes) -> Step:
    program = torch.export.load(io.BytesIO(data)).module()

    def step(given: Arrays) -> list[NDArray[Any]]:
        with torch.inference_mode():
            return [found.numpy() for found in program(*map(torch.from_numpy, given.values()))]

    return step


def _run_onnx(data: bytes, function: ExportedPolicy) -> Step:
    import onnxruntime

    session, names = onnxruntime.InferenceSession(data), list(function.outputs)
    return lambda given: session.run(names, dict(given))


def _traced(function: ExportedPolicy) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    values = tuple(
        torch.from_numpy(np.zeros((2, *port.shape), port.dtype)) for port in function.inputs.values()
    )
    return torch.export.export(function, values, dynamic_shapes=(tuple({0: batch} for _ in values),))


@contextmanager
def _exporting(what: str) -> Iterator[None]:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's, about torch
        logger.setLevel(logging.ERROR)
        try:
            yield
        except Exception as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise SpecError(f"the policy's network cannot be exported with {what}: {reason}") from error
        finally:
            logger.setLevel(level)


def _compared(policy: Policy, function: ExportedPolicy, step: Step) -> float:
    """The greatest difference over whole episodes of random observations.

    Args:
        step: carries out what was exported: `[B, *shape]` of each input in, of each output out.

    Raises:
        DataError: it is not small.
    """
    policy.reset()
    spaces = flatten_space(policy.observation_space, Columns.OBS)
    for number, space in enumerate(spaces.values()):
        space.seed(number)
    state: Arrays = {}
    greatest = 0.0
    for number in range(_STEPS):
        begins = number % _EPISODE == 0
        obs = {leaf: np.stack([space.sample() for _ in range(_SLOTS)]) for leaf, space in spaces.items()}
        rewards = np.linspace(-1.0, 1.0, _SLOTS)
        acted = policy.act(obs, is_first=np.full(_SLOTS, begins), rewards=rewards)
        if begins:
            state = _started(function)
        known = {**obs, **state, Columns.PREV_REWARDS: rewards}
        given = {name: known[name].astype(port.dtype) for name, port in function.inputs.items()}
        found = dict(zip(function.outputs, step(given), strict=True))
        state = {name: found[port.next_state] for name, port in function.inputs.items() if port.next_state}
        greatest = max(greatest, _gap(acted.env_actions, found))
    if greatest > _TOLERANCE:
        raise DataError(
            f"the exported policy acts differently from the original: an action differs by {greatest:.3g}; nothing "
            "was written."
        )
    return greatest


def _started(function: ExportedPolicy) -> Arrays:
    return {
        name: np.broadcast_to(port.start, (_SLOTS, *port.shape))
        for name, port in function.inputs.items()
        if port.start is not None
    }


def _gap(actions: Any, found: Arrays) -> float:
    """Between B actions of the environment and the exported ones."""
    gaps = [
        np.abs(np.asarray(value, np.float64) - found[leaf][row].astype(np.float64)).max(initial=0.0)
        for row in range(_SLOTS)
        for leaf, value in flatten(actions[row], Columns.ACTIONS).items()
    ]
    return float(max(gaps))


def _description(policy: Policy, function: ExportedPolicy) -> dict[str, Any]:
    """What `policy.json` says."""
    return {
        "formatVersion": FORMAT_VERSION,
        "observationSpace": space_to_json(policy.observation_space),
        "actionSpace": space_to_json(policy.action_space),
        "inputs": [_described(name, port) for name, port in function.inputs.items()],
        "outputs": [_described(name, port) for name, port in function.outputs.items()],
        "policy": policy.digest,
    }


def _described(name: str, port: Port) -> dict[str, Any]:
    state = {} if port.start is None else {"start": port.start.tolist(), "follows": port.next_state}
    return {"name": name, "dtype": port.dtype.name, "shape": list(port.shape), **state}
