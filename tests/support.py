"""Helpers that run recordings and trainings in tests."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import torch

from hindcast.algorithms import build
from hindcast.api import EnvironmentSpec, ModelSpec, OfflineRecording, OfflineTraining
from hindcast.api.loading import validate_resource
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted, OutputConflict, SpecError
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.format import ReadOptions
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule, build_module
from hindcast.pipeline.offline_data import Source
from hindcast.record.environments import make_environment
from hindcast.report.events import Outcome, Progress
from hindcast.run.inputs import Input, make_sources
from hindcast.run.interruption import Interruption
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.recording.recording_run import RecordingRun
from hindcast.run.training.training_run import TrainingRun
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Location, resolve
from warm_python import parent_of

WALK = {"id": "toy_environments:Walk"}
CARTPOLE = {"id": "CartPole-v1"}


class MemoryReporter:
    """A reporter that stores everything in memory.

    Attributes:
        stages: all progress reports, in order.
        notes: all notes, without the names of resources.
        outcomes: all outcomes.
    """

    def __init__(self) -> None:
        self.stages: list[Progress] = []
        self.notes: list[str] = []
        self.outcomes: list[Outcome] = []

    def progress(self, progress: Progress) -> None:
        self.stages.append(progress)

    def note(self, resource: str, message: str) -> None:
        self.notes.append(message)

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class StopAfter(Interruption):
    """An interruption that passes `num_checks` checks and raises Interrupted at the next one."""

    def __init__(self, num_checks: int) -> None:
        super().__init__()
        self._num_remaining = num_checks

    def check(self) -> None:
        if self._num_remaining == 0:
            raise Interrupted("interrupted by the test")
        self._num_remaining -= 1


def recording(path: object, **spec: Any) -> OfflineRecording:
    """Make an OfflineRecording; by default 40 random episodes of `Walk`. `output` is merged into its section."""
    output = {"path": str(path), **spec.pop("output", {})}
    defaults = {"environment": WALK, "policy": {"random": {}}, "duration": {"episodes": 40}}
    defaults["runners"] = {"envsPerRunner": 4}
    resource = validate_resource(_document("OfflineRecording", {**defaults, **spec, "output": output}))
    assert isinstance(resource, OfflineRecording)
    return resource


def trainable_space(algorithm: str, *action_spaces: gym.Space) -> gym.Space:
    """Return the first of these action spaces for which an algorithm builds networks with its default options."""
    observation_space = gym.spaces.Box(-1, 1, (3,))
    for action_space in action_spaces:
        with suppress(SpecError):
            inputs = ModelInputs(observation_space, action_space, ModelSpec(fcnet_hiddens=[4]))
            new_networks(build(algorithm, {}), inputs, seed=0)
            return action_space
    raise AssertionError(f"{algorithm} trains none of {action_spaces}")


def training(folder: object, data: object, **spec: Any) -> OfflineTraining:
    """Make an OfflineTraining; by default BC of a small network for 3 iterations, without evaluation."""
    checkpoint = {"path": str(folder), **spec.pop("checkpoint", {})}
    defaults: dict[str, Any] = {
        "algorithm": "BC",
        "config": {"lr": 1e-3, "trainBatchSizePerLearner": 32},
        "model": {"fcnetHiddens": [16]},
        "input": [{"path": str(data)}],
        "stop": {"iterations": 3},
    }
    resource = validate_resource(_document("OfflineTraining", {**defaults, **spec, "checkpoint": checkpoint}))
    assert isinstance(resource, OfflineTraining)
    return resource


def _document(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "hindcast.dev/v1alpha1", "kind": kind, "metadata": {"name": "test"}, "spec": spec}


def record(
    resource: OfflineRecording,
    interruption: Interruption | None = None,
    checkpoint: str | None = None,
    reporter: MemoryReporter | None = None,
) -> Outcome:
    """Execute a recording."""
    return RecordingRun(
        resource, reporter or MemoryReporter(), interruption or Interruption(), checkpoint
    ).execute()


def train(
    resource: OfflineTraining,
    interruption: Interruption | None = None,
    reporter: MemoryReporter | None = None,
    placement: Placement = LOCAL,
) -> Outcome:
    """Execute a training."""
    run = TrainingRun(
        resource, sources(resource), reporter or MemoryReporter(), interruption or Interruption(), placement
    )
    return run.execute()


def sources(resource: OfflineTraining) -> list[Source]:
    """Open the recorded data of a training; only columns, weights and `top` of its inputs are used."""
    readings = [
        Reading((str(source.path),), options=ReadOptions(columns=source.columns))
        for source in resource.spec.recorded_inputs
    ]
    return make_sources(
        [
            Input(reading, source.weight, source.top, open_reading(reading))
            for reading, source in zip(readings, resource.spec.recorded_inputs, strict=True)
        ]
    )


def make_policy(
    environment: dict[str, Any], seed: int = 0, module_class: type[RLModule] | None = None, **model: Any
) -> Policy:
    """Make a policy for an environment, with noise added to its weights: an untrained policy acts almost uniformly."""
    spec = EnvironmentSpec.model_validate(environment)
    env = make_environment(spec)
    env.close()
    options = ModelSpec.model_validate({"fcnetHiddens": [16], **model})
    preprocessing = Preprocessing.from_specs(env.observation_space, env.action_space, options, spec)
    torch.manual_seed(seed)
    spaces = preprocessing.observation_space, preprocessing.action_space
    module = build_module(*spaces, options, value=True, module_class=module_class)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return Policy(module.eval(), preprocessing, env.observation_space, env.action_space)


def add_position_dependence(policy: Policy) -> Policy:
    """Let the policy's outputs depend on the row's position in the batch, as the last bits of matrix products do."""

    def shift(_module: object, _inputs: object, outputs: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.meshgrid(*(torch.arange(size) for size in outputs.shape), indexing="ij")
        return outputs + 0.5 * rows * columns

    policy.module.pi.register_forward_hook(shift)
    return policy


def read_all(path: object) -> Block:
    """Read all episodes of data in any format; a prepared copy is deleted."""
    with TemporaryDirectory() as cache:
        dataset = open_data(str(path), verify=True, cache=cache)
        return Block.concat([dataset.read(unit) for unit in dataset.units])


def episode_hashes(block: Block) -> dict[str, str]:
    """Return eps_id -> hash of the episode's content."""
    hashes: dict[str, str] = {}
    for i, eps_id in enumerate(block.eps_id):
        sha = hashlib.sha256(f"{block.length[i]} {block.terminated[i]} {block.truncated[i]}".encode())
        for name in sorted(block.columns):
            rows = block.columns[name][block.rows_of(name, i)]
            sha.update(name.encode() + repr(rows.tolist()).encode() + str(rows.dtype).encode())
        assert eps_id not in hashes, f"{eps_id} occurs twice"
        hashes[str(eps_id)] = sha.hexdigest()
    return hashes


def leftovers(path: object) -> list[str]:
    """Return temporary files, marks of the lease and uncommitted data files of a dataset's folder."""
    folder = resolve(str(path))
    committed_files = {file.path for commit in read_commits(folder).values() for file in commit.files}
    return [
        entry.relative_path
        for entry in folder.files(recursive=True)
        if entry.relative_path.endswith(".tmp")
        or Path(entry.relative_path).parent.name == "lock"
        or (
            "/" not in entry.relative_path
            and entry.relative_path.endswith((".parquet", ".json", ".csv"))
            and entry.relative_path not in committed_files
        )
    ]


def descendants(process: int) -> list[int]:
    """Return the ids of the children of a process, of their children, and so on."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = parent_of(int(entry.name))
    processes = {process}
    while new_processes := {child for child, parent in parents.items() if parent in processes} - processes:
        processes |= new_processes
    return sorted(processes - {process})


def command_line(process: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return (Path("/proc") / str(process) / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def race_for_lease(state: Location) -> list[bool]:
    """Let two writers request a folder's lease at the same time; return whether each got it, False first."""
    start, end = (threading.Barrier(2, timeout=60) for _ in range(2))

    def write() -> bool:
        start.wait()
        try:
            with sole_writer(state) as guard:
                end.wait()
                if guard is not None:
                    guard()
                return True
        except OutputConflict:
            end.wait()
            return False

    with ThreadPoolExecutor(2) as pool:
        return sorted(future.result() for future in [pool.submit(write) for _ in range(2)])
