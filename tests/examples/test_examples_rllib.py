"""Run every code block of RLlib's pages, one after the other, as a reader would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hindcast.api import EnvironmentSpec, load_resources
from hindcast.evaluate.environment import evaluate_policy
from hindcast.models.policy import Policy
from layers import LAYER, repeats
from support import leftovers, read_all
from warm_python import WarmPython

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from reference_examples import read_blocks  # noqa: E402
from run_reference import SHORTER_CODE  # noqa: E402

CARTPOLE = EnvironmentSpec(id="CartPole-v1")
FILES = [ROOT / block.file for block in read_blocks(ROOT) if block.file is not None]
EPISODES = repeats(50, soak=500)
MIN_RETURN = repeats(120, soak=400)
"""Minimum return of the expert and its clone, which train until an evaluation reaches 150, or 450 in a soak."""
SHARED_MARKS = [pytest.mark.docs, pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(900)]


class BlockRunner:
    """A process that runs the blocks in the order of the pages, as far as tests request.

    Attributes:
        folder: working directory of the blocks; `ray_results` in it has the experiments of the expert and the clone.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._process = process
        self._outcomes_file = folder / "outcomes.jsonl"

    def run_through(self, file: Path) -> str | None:
        """Run all blocks through this one that have not run yet; return its traceback, or None if it succeeded."""
        index = FILES.index(file)
        while len(outcomes := self._outcomes()) <= index:
            print(FILES[len(outcomes)], file=self._process.stdin, flush=True)
            while len(self._outcomes()) == len(outcomes):
                assert self._process.poll() is None, (self.folder / "log.txt").read_text()[-3000:]
                time.sleep(0.05)
        return outcomes[index]

    def _outcomes(self) -> list[str | None]:
        if not self._outcomes_file.exists():
            return []
        lines = self._outcomes_file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, warm: WarmPython) -> Iterator[BlockRunner]:
    """Start the process that runs the blocks, in a new folder."""
    folder = tmp_path_factory.mktemp("reference")
    search_path = os.pathsep.join([str(warm.folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    with (folder / "log.txt").open("w") as log:
        program = str(Path(__file__).with_name("run_reference.py"))
        process = subprocess.Popen(
            [str(warm.folder / "python"), program, str(folder), "whole" if LAYER == "soak" else "shorter"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "runtime"), "PATH": search_path, "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
        )
        with process:
            yield BlockRunner(folder, process)


@pytest.fixture(scope="module")
def folder(pages: BlockRunner) -> Path:
    """Return the working directory of the blocks after all of them have run."""
    pages.run_through(FILES[-1])
    return pages.folder


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem, marks=SHARED_MARKS) for file in FILES])
def test_block_runs(pages: BlockRunner, file: Path) -> None:
    assert pages.run_through(file) is None, pages.run_through(file)


def test_shortened_code_occurs_in_examples() -> None:
    text = "".join(file.read_text() for file in FILES)
    assert [code for code in SHORTER_CODE if code not in text] == []


@pytest.mark.docs
@pytest.mark.ray
def test_examples_train_record_and_clone_expert(folder: Path) -> None:
    expert = Policy.load(find_last_checkpoint(folder, "docs_rllib_offline_pretrain_ppo"))
    assert np.mean(evaluate_policy(expert, CARTPOLE, duration=20).returns) >= MIN_RETURN

    data = folder / "docs_rllib_offline_recording"
    block = read_all(data)
    assert len(set(block.eps_id)) == block.num_episodes == EPISODES
    assert block.columns["rewards"].sum() / EPISODES >= MIN_RETURN
    rows = [pq.ParquetFile(file).metadata.num_rows for file in data.glob("*.parquet")]
    assert rows == [25] * (EPISODES // 25)
    assert leftovers(data) == []

    clone = Policy.load(find_last_checkpoint(folder, "docs_rllib_offline_bc"))
    assert np.mean(evaluate_policy(clone, CARTPOLE, duration=20).returns) >= MIN_RETURN


@pytest.mark.docs
@pytest.mark.ray
def test_table_recipe_keeps_every_timestep(folder: Path) -> None:
    """RLlib's own recipe loses each episode's last timestep, and mixes episodes if Ray mixes blocks of files."""
    table, episodes = (
        read_all(folder / name) for name in ("tmp/docs_rllib_offline_recording_tabular", "test_converting")
    )
    lengths = [dict(zip(block.eps_id, block.length, strict=True)) for block in (table, episodes)]
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) == EPISODES


def find_last_checkpoint(folder: Path, experiment: str) -> Path:
    """Return the last checkpoint of a Tune experiment."""
    return max((folder / "ray_results" / experiment).glob("*/checkpoint_*"))


def test_example_yaml_equals_demo() -> None:
    demo = (ROOT / "runtime" / "hindcast" / "cli" / "demo.yaml").read_text()
    expected = demo.replace("FOLDER/cartpole.yaml", "examples/cartpole.yaml").replace("FOLDER", "demo")
    assert (ROOT / "examples" / "cartpole.yaml").read_text() == expected
    kinds = [entry.resource.kind for entry in load_resources(ROOT / "examples" / "cartpole.yaml")]
    assert kinds == ["OfflineRecording", "OfflineTraining"]
