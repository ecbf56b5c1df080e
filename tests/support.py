"""What the tests of records and runs share."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hindcast.api import EnvironmentSpec, ModelSpec, OfflineRecording, OfflineTraining
from hindcast.api.loading import validate_resource
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted, OutputConflict
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.format import ReadOptions
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.pipeline.offline_data import Source
from hindcast.record.environments import make_environment
from hindcast.report.events import Outcome, Progress
from hindcast.run.inputs import Input, sources_of
from hindcast.run.interruption import Interruption
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.recording import RecordingRun
from hindcast.run.training import TrainingRun
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Location, resolve
from warm_python import parent_of

WALK = {"id": "toy_environments:Walk"}
CARTPOLE = {"id": "CartPole-v1"}


class MemoryReporter:
    """A reporter that keeps everything in memory."""

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
    """Asks to stop at the n-th look."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._left = looks

    def check(self) -> None:
        if self._left == 0:
            raise Interrupted("interrupted by the test")
        self._left -= 1


def recording(path: object, **spec: Any) -> OfflineRecording:
    """An OfflineRecording; by default 40 episodes of `Walk` at random. `output` adds to its section."""
    output = {"path": str(path), **spec.pop("output", {})}
    defaults = {"environment": WALK, "policy": {"random": {}}, "duration": {"episodes": 40}}
    defaults["runners"] = {"envsPerRunner": 4}
    resource = validate_resource(_document("OfflineRecording", {**defaults, **spec, "output": output}))
    assert isinstance(resource, OfflineRecording)
    return resource


def training(folder: object, data: object, **spec: Any) -> OfflineTraining:
    """An OfflineTraining; by default BC of a small network for 3 iterations, not evaluated."""
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
    """Carry the recording out."""
    return RecordingRun(
        resource, reporter or MemoryReporter(), interruption or Interruption(), checkpoint
    ).execute()


def train(
    resource: OfflineTraining,
    interruption: Interruption | None = None,
    reporter: MemoryReporter | None = None,
    placement: Placement = LOCAL,
) -> Outcome:
    """Carry the training out."""
    run = TrainingRun(
        resource, sources(resource), reporter or MemoryReporter(), interruption or Interruption(), placement
    )
    return run.execute()


def sources(resource: OfflineTraining) -> list[Source]:
    """The recorded data of a training, of which nothing but columns and shares is asked."""
    readings = [
        Reading((str(source.path),), options=ReadOptions(columns=source.columns))
        for source in resource.spec.recorded
    ]
    return sources_of(
        [
            Input(reading, source.weight, source.top, open_reading(reading))
            for reading, source in zip(readings, resource.spec.recorded, strict=True)
        ]
    )


def make_policy(environment: dict[str, Any], seed: int = 0, **model: Any) -> Policy:
    """A policy for an environment, with weights away from the nearly uniform start."""
    spec = EnvironmentSpec.model_validate(environment)
    made = make_environment(spec)
    made.close()
    options = ModelSpec.model_validate({"fcnetHiddens": [16], **model})
    preprocessing = Preprocessing.from_specs(made.observation_space, made.action_space, options, spec)
    torch.manual_seed(seed)
    module = build_module(preprocessing.observation_space, preprocessing.action_space, options, value=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return Policy(module.eval(), preprocessing, made.observation_space, made.action_space)


def add_position_dependence(policy: Policy) -> Policy:
    """The policy, whose outputs now depend on the row's position in the batch: much as matrix kernels' last bits do."""

    def shift(_module: object, _inputs: object, outputs: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.meshgrid(*(torch.arange(size) for size in outputs.shape), indexing="ij")
        return outputs + 0.5 * rows * columns

    policy.module.pi.register_forward_hook(shift)
    return policy


def read_all(path: object) -> Block:
    """All episodes of data of any kind; what is prepared for it is forgotten."""
    with TemporaryDirectory() as cache:
        dataset = open_data(str(path), verify=True, cache=cache)
        return Block.concat([dataset.read(unit) for unit in dataset.units])


def episode_hashes(block: Block) -> dict[str, str]:
    """eps_id -> hash of everything that an episode holds."""
    hashes: dict[str, str] = {}
    for i, eps_id in enumerate(block.eps_id):
        sha = hashlib.sha256(f"{block.length[i]} {block.terminated[i]} {block.truncated[i]}".encode())
        for name in sorted(block.columns):
            rows = block.columns[name][block.rows_of(name, i)]
            sha.update(name.encode() + repr(rows.tolist()).encode() + str(rows.dtype).encode())
        assert eps_id not in hashes, f"{eps_id} is there twice"
        hashes[str(eps_id)] = sha.hexdigest()
    return hashes


def leftovers(path: object) -> list[str]:
    """Files of a dataset's folder that are temporary, or data that no commit lists."""
    folder = resolve(str(path))
    listed = {file.path for commit in read_commits(folder).values() for file in commit.files}
    return [
        entry.relative_path
        for entry in folder.files(recursive=True)
        if entry.relative_path.endswith(".tmp")
        or Path(entry.relative_path).parent.name == "lock"
        or (
            "/" not in entry.relative_path
            and entry.relative_path.endswith((".parquet", ".json", ".csv"))
            and entry.relative_path not in listed
        )
    ]


def descendants(process: int) -> list[int]:
    """The processes below another."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = parent_of(int(entry.name))
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {process})


def command_line(process: int) -> str:
    """Its command line."""
    try:
        return (Path("/proc") / str(process) / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def race_for_lease(state: Location) -> list[bool]:
    """Two writers that ask for a folder at the same moment: whether each got it, sorted."""
    ready, done = (threading.Barrier(2, timeout=60) for _ in range(2))

    def write() -> bool:
        ready.wait()
        try:
            with sole_writer(state) as guard:
                done.wait()
                if guard is not None:
                    guard()
                return True
        except OutputConflict:
            done.wait()
            return False

    with ThreadPoolExecutor(2) as pool:
        return sorted(future.result() for future in [pool.submit(write) for _ in range(2)])
