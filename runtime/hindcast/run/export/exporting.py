"""Export of a policy for use without Hindcast: as ONNX, as a torch program, or as its own files."""

from __future__ import annotations

import importlib.util
import io
import json
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
from hindcast.log_levels import errors_only
from hindcast.models import policy_files
from hindcast.models.exported_policy import NOISE, ExportedPolicy, Port
from hindcast.models.policy import Policy
from hindcast.onnx_policy import DESCRIPTION, FORMAT_VERSION, LOADER, PROGRAM
from hindcast.run.checkpoint_evaluation import load_policy
from hindcast.run.export.export_folder import TORCH_PROGRAM, refuse_foreign_files
from hindcast.storage.location import resolve

Form = Literal["onnx", "torch", "safetensors"]
Arrays = dict[str, NDArray[Any]]
"""Name of an input or output -> `[B, *shape]`."""
Step = Callable[[Arrays], Sequence[NDArray[Any]]]
"""Runs an exported policy for one timestep of B environments: converts its inputs to the list of its outputs."""
_FILES_BY_FORM: dict[Form, tuple[str, ...]] = {
    "onnx": (DESCRIPTION, LOADER, PROGRAM),
    "torch": (DESCRIPTION, TORCH_PROGRAM),
    "safetensors": policy_files.FILE_NAMES,
}
"""Form -> files of the export, in the order in which they are written.

The description comes first: if writing stops early, it still identifies the folder as an export, which a repeated
export may overwrite.
"""
_NUM_SLOTS, _NUM_STEPS, _EPISODE_STEPS = 3, 24, 8
"""For the comparison of actions: number of parallel episodes, of steps of each slot, and of steps of an episode."""
_MISSING_SHARE = 0.25
"""Share of values that are missing in the comparison of actions, if the policy replaces missing values."""
_TOLERANCE = 1e-5
"""Maximum difference between an exported action and the original one."""


class ExportResult(NamedTuple):
    """Files of an export, and its comparison with the original policy.

    Attributes:
        policy: location of the original policy.
        files: paths of the written files.
        max_difference: largest difference between an element of an exported action and of the original one; None for
            "safetensors", which copies the policy's own files.
        num_actions: number of actions that were compared.
    """

    policy: str
    files: list[str]
    max_difference: float | None
    num_actions: int


def export_policy(
    path: str | Path,
    folder: str | Path,
    form: Form = "onnx",
    module_class: str | None = None,
    *,
    explore: bool = False,
) -> ExportResult:
    """Export the policy of a checkpoint and compare it with the original.

    Args:
        path: a checkpoint, its `module`, a folder of checkpoints, a run folder, or a dataset.
        folder: path or URI of the target: new, empty, or with an earlier export (of any form).
        form: "onnx" (`policy.onnx`, for any runtime, and `policy.py`, which acts with numpy and onnxruntime alone),
            "torch" (`policy.pt2`, of `torch.export`) or "safetensors" (weights and JSON, for `Policy.load`). "onnx" and
            "torch" map raw observations to the environment's actions; `policy.json` describes observations and actions,
            and how recurrent states are passed from step to step.
        module_class: the policy's `model.moduleClass`, if it has one.
        explore: True to sample actions from an input `noise`, False to take their mode; no effect on "safetensors".

    Raises:
        DataError: there is no checkpoint at `path`, or the exported policy acts differently.
        OutputConflict: the folder contains files that no export wrote; it is left unchanged.
        SpecError: the policy's network cannot be exported, or a package is missing.
    """
    policy, module_path = load_policy(path, module_class)
    target, file_names = resolve(folder), _FILES_BY_FORM[form]
    refuse_foreign_files(target, file_names)
    paths = [str(target.child(name)) for name in file_names]
    if form == "safetensors":
        policy.save(target)
        return ExportResult(module_path, paths, None, 0)
    function = ExportedPolicy(policy, explore)
    if form == "torch":
        program = _export_torch(function)
        files, step = {TORCH_PROGRAM: program}, _make_torch_step(program)
    else:
        program = _export_onnx(function)
        loader = Path(onnx_policy.__file__).read_bytes()  # self-contained: imports nothing from Hindcast
        files, step = {PROGRAM: program, LOADER: loader}, _make_onnx_step(program, function)
    difference = _measure_difference(policy, function, step)
    files[DESCRIPTION] = json.dumps(_describe_export(policy, function), indent=1).encode()
    for name in file_names:
        target.child(name).write_bytes(files[name])
    return ExportResult(module_path, paths, difference, _NUM_STEPS * _NUM_SLOTS)


def _export_torch(function: ExportedPolicy) -> bytes:
    file = io.BytesIO()
    with _quiet_export("torch.export"):
        torch.export.save(_trace(function), file)
    return file.getvalue()


def _export_onnx(function: ExportedPolicy) -> bytes:
    missing_packages = [
        name for name in ("onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None
    ]
    if missing_packages:
        raise SpecError(
            f"ONNX requires the package {missing_packages[0]}: pip install 'hindcast-rl[export]'."
        )
    with _quiet_export("ONNX"):
        program = torch.onnx.export(
            _trace(function),
            dynamo=True,
            verbose=False,
            input_names=list(function.inputs),
            output_names=list(function.outputs),
        )
        assert program is not None
        model = program.model_proto
        for name, port in function.inputs.items():
            if port.names:
                entry = model.metadata_props.add()
                entry.key, entry.value = f"{name}.names", json.dumps(list(port.names), ensure_ascii=False)
        return bytes(model.SerializeToString())


def _make_torch_step(data: bytes) -> Step:
    program = torch.export.load(io.BytesIO(data)).module()

    def step(inputs: Arrays) -> list[NDArray[Any]]:
        with torch.inference_mode():
            return [output.numpy() for output in program(*map(torch.from_numpy, inputs.values()))]

    return step


def _make_onnx_step(data: bytes, function: ExportedPolicy) -> Step:
    import onnxruntime

    session, names = onnxruntime.InferenceSession(data), list(function.outputs)
    return lambda inputs: session.run(names, dict(inputs))


def _trace(function: ExportedPolicy) -> torch.export.ExportedProgram:
    """Trace the policy for batches of any size."""
    # torch.export treats sizes 0 and 1 as constants, so the example batch has two rows.
    batch = torch.export.Dim("batch")
    example_inputs = tuple(
        torch.from_numpy(np.zeros((2, *port.shape), port.dtype)) for port in function.inputs.values()
    )
    return torch.export.export(
        function, example_inputs, dynamic_shapes=(tuple({0: batch} for _ in example_inputs),)
    )


@contextmanager
def _quiet_export(exporter: str) -> Iterator[None]:
    """Hide the exporter's warnings and convert its errors to a SpecError."""
    with warnings.catch_warnings(), errors_only("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter warns about torch's own internals
        try:
            yield
        except Exception as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise SpecError(f"the policy's network cannot be exported with {exporter}: {reason}") from error


def _measure_difference(policy: Policy, function: ExportedPolicy, step: Step) -> float:
    """Return the largest difference between actions of the two policies over whole episodes of random observations.

    Args:
        policy: the original policy.
        function: names and shapes of the exported policy's inputs and outputs.
        step: runs the exported policy.

    Raises:
        DataError: the difference is larger than `_TOLERANCE`.
    """
    policy.reset()
    spaces = flatten_space(policy.observation_space, Columns.OBS)
    for seed, space in enumerate(spaces.values()):
        space.seed(seed)
    state: Arrays = {}
    max_difference, generator = 0.0, np.random.default_rng(0)
    for t in range(_NUM_STEPS):
        is_start = t % _EPISODE_STEPS == 0
        obs = {leaf: np.stack([space.sample() for _ in range(_NUM_SLOTS)]) for leaf, space in spaces.items()}
        for leaf, fillable in policy.preprocessing.fillable.items():
            is_missing = fillable & (generator.random(obs[leaf].shape) < _MISSING_SHARE)
            obs[leaf] = np.where(is_missing, np.nan, obs[leaf]).astype(obs[leaf].dtype)
        rewards = np.linspace(-1.0, 1.0, _NUM_SLOTS)
        noise = policy.draw_noise(generator, _NUM_SLOTS)
        actions = policy.act(
            obs, noise if function.explore else None, is_first=np.full(_NUM_SLOTS, is_start), rewards=rewards
        )
        if is_start:
            state = _initial_state(function)
        values = {**obs, **state, Columns.PREV_REWARDS: rewards, NOISE: noise}
        inputs = {name: values[name].astype(port.dtype) for name, port in function.inputs.items()}
        outputs = dict(zip(function.outputs, step(inputs), strict=True))
        state = {name: outputs[port.next_state] for name, port in function.inputs.items() if port.next_state}
        max_difference = max(max_difference, _max_action_difference(actions.env_actions, outputs))
    if max_difference > _TOLERANCE:
        raise DataError(
            f"the exported policy acts differently from the original: an action differs by {max_difference:.3g}; "
            "nothing was written."
        )
    return max_difference


def _initial_state(function: ExportedPolicy) -> Arrays:
    """Return the initial value of each recurrent state, `[B, *shape]`."""
    return {
        name: np.broadcast_to(port.start, (_NUM_SLOTS, *port.shape))
        for name, port in function.inputs.items()
        if port.start is not None
    }


def _max_action_difference(actions: Any, outputs: Arrays) -> float:
    """Return the largest element-wise difference between B environment actions and the exported ones."""
    differences = [
        np.abs(np.asarray(value, np.float64) - outputs[leaf][row].astype(np.float64)).max(initial=0.0)
        for row in range(_NUM_SLOTS)
        for leaf, value in flatten(actions[row], Columns.ACTIONS).items()
    ]
    return float(max(differences))


def _describe_export(policy: Policy, function: ExportedPolicy) -> dict[str, Any]:
    """Return the content of `policy.json`."""
    return {
        "formatVersion": FORMAT_VERSION,
        "observationSpace": space_to_json(policy.observation_space),
        "actionSpace": space_to_json(policy.action_space),
        "inputs": [_describe_port(name, port) for name, port in function.inputs.items()],
        "outputs": [_describe_port(name, port) for name, port in function.outputs.items()],
        "policy": policy.digest,
        "explore": function.explore,
    }


def _describe_port(name: str, port: Port) -> dict[str, Any]:
    state_fields = {} if port.start is None else {"start": port.start.tolist(), "follows": port.next_state}
    element_fields: dict[str, Any] = {"names": list(port.names)} if port.names else {}
    if port.fillable is not None:
        element_fields["fillable"] = port.fillable.tolist()
    if port.noise is not None:
        element_fields["noise"] = port.noise
    return {
        "name": name,
        "dtype": port.dtype.name,
        "shape": list(port.shape),
        **element_fields,
        **state_fields,
    }
