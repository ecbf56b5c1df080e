"""`hindcast gate`: decisions from a log that grows, with the state of the run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from visit_log import SPACES, log_visits, train

from hindcast.datasets.hooks import Hooks
from hindcast.episodes.spaces import space_to_json
from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.run.evaluation.trained_episodes import TRAINED_EPISODES_FILE
from hindcast.run.gate import GATE_FILE, look


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and with the episodes that trained it in `expert`."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, log_visits(folder / "expert", "expert", 40, share=0.95))
    return folder


@pytest.fixture
def run(trained_folder: Path, tmp_path: Path) -> str:
    """The folder of a run whose policy always takes action 1, and is tested greedily; a copy for each test."""
    shutil.copytree(trained_folder, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "runs" / "clone" / "r1")


def test_better_policy_is_promoted_from_growing_log_with_any_looks(tmp_path: Path, run: str) -> None:
    straight, looked = tmp_path / "straight", tmp_path / "looked"
    results = []
    for part in range(6):
        log_visits(straight, "x" * (part + 1), 5)
        results.append(look(run, [log_visits(looked, "x" * (part + 1), 5)]))
    assert [result.num_new for result in results[:2]] == [5, 5]
    assert results[0].test.decision == "undecided"
    assert results[-1].test.decision == "promoted"
    assert results[-1].to_json()["condition"]["status"] == "True"
    state = Path(run, GATE_FILE)
    counted = results[-1].test
    state.unlink()
    assert look(run, [str(straight)]).test.to_json() == counted.to_json()
    assert look(run, [str(straight)]).test.to_json() == counted.to_json()


def test_trained_episodes_are_not_counted(tmp_path: Path, run: str) -> None:
    result = look(run, [str(tmp_path / "expert")])
    assert (result.num_new, result.test.episodes, result.test.decision) == (0, 0, "undecided")


def write_steps(file: Path, num_steps: list[int], is_end: list[bool]) -> str:
    """Write episodes numbered from 0; every third one takes action 1 and has the reward 1 after its last step."""
    rows = [
        {
            "eps_id": str(episode),
            "obs": [0.0],
            "new_obs": [0.0],
            "actions": int(episode % 3 == 0),
            "rewards": float(episode % 3 == 0 and step == length - 1),
            "terminateds": step == length - 1 and is_end[episode],
            "action_logp": np.log(0.5),
        }
        for episode, length in enumerate(num_steps)
        for step in range(length)
    ]
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file)
    return str(file)


def test_unfinished_episode_is_counted_once_it_has_ended(tmp_path: Path, run: str) -> None:
    log = tmp_path / "log" / "steps.parquet"
    result = look(run, [write_steps(log, [1, 1, 1], [True, True, False])])
    assert (result.num_new, result.num_unfinished, result.test.episodes) == (2, 1, 2)
    assert "1 unfinished and left out" in result.sentence
    result = look(run, [write_steps(log, [1, 1, 2], [True, True, True])])
    assert (result.num_new, result.num_unfinished, result.test.episodes) == (1, 0, 3)
    assert result.to_json()["unfinished_episodes"] == 0


def test_other_episodes_with_repeated_ids_are_counted(tmp_path: Path, run: str) -> None:
    first = write_steps(tmp_path / "1" / "steps.parquet", [1, 1], [True, True])
    second = write_steps(tmp_path / "2" / "steps.parquet", [1, 2], [True, True])
    assert look(run, [first]).num_new == 2
    assert look(run, [second]).num_new == 1


def test_episodes_after_decision_are_not_new(tmp_path: Path, run: str) -> None:
    log = write_steps(tmp_path / "log" / "steps.parquet", [1] * 90, [True] * 90)
    result = look(run, [log])
    assert result.test.decision == "promoted"
    assert result.num_new == result.test.episodes < 90
    assert look(run, [log]).num_new == 0


def test_unknown_trained_episodes_are_noted(tmp_path: Path, run: str) -> None:
    log, notes = log_visits(tmp_path / "log", "a", 4), list[str]()
    look(run, [log], hooks=Hooks(note=notes.append))
    assert not any("trained this policy" in note for note in notes)
    fields = {
        "pipeline": {"preLearnerBuffer": {}},
        "observationSpace": space_to_json(SPACES["observation_space"]),
        "actionSpace": space_to_json(SPACES["action_space"]),
    }
    buffered = train(tmp_path / "buffered", str(tmp_path / "expert"), fields=fields)
    assert not Path(buffered, TRAINED_EPISODES_FILE).exists()
    look(buffered, [log], hooks=Hooks(note=notes.append))
    assert any("it is not known which episodes trained this policy" in note for note in notes)


def test_log_without_log_probabilities_is_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(DataError, match=r"has no action_logp, the log-probabilities of the recorded actions"):
        look(run, [log_visits(tmp_path / "log", "a", 4, logp=False)])


def test_return_outside_of_bounds_is_refused(tmp_path: Path) -> None:
    run = train(
        tmp_path, log_visits(tmp_path / "expert", "expert", 40, share=0.9), returns={"low": 0, "high": 0.5}
    )
    with pytest.raises(
        DataError, match=r"episode a-\d\) has the discounted return 1, outside of spec\.evaluation"
    ):
        look(run, [log_visits(tmp_path / "log", "a", 8)])


def test_another_policy_of_the_run_is_refused(tmp_path: Path) -> None:
    expert, log = log_visits(tmp_path / "expert", "expert", 40), log_visits(tmp_path / "log", "a", 4)
    look(train(tmp_path, expert), [log])
    run = train(tmp_path, expert, updates=80)
    with pytest.raises(OutputConflict, match="was opened for another policy"):
        look(run, [log])


def test_run_without_gate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"is not in the folder of a run with evaluation\.gate"):
        look(tmp_path, [str(tmp_path)])


def test_log_is_read_like_the_inputs(tmp_path: Path) -> None:
    """The names of the table's columns are known from the run only."""
    spaces = {name: space_to_json(space) for name, space in SPACES.items()}
    schema = {"rewards": "outcome", "obs": ["pulse"], "eps_id": "patient", "t": "visit", "actions": "dose"}

    def write(name: str, outcome: float) -> str:
        folder = tmp_path / name
        folder.mkdir()
        rows = [
            {
                "patient": f"{name}-{index}",
                "visit": 0,
                "pulse": 0.5,
                "dose": index % 2,
                "outcome": outcome * (index % 2),
            }
            | {"terminateds": True, "action_logp": np.log(0.5)}
            for index in range(40)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / "visits.parquet")
        return str(folder)

    source = {"path": write("trained", 1.0), "schema": {**schema, "terminateds": "terminateds"}}
    fields = {"input": [source], "observationSpace": spaces["observation_space"]}
    run = train(
        tmp_path / "training", "", fields={**fields, "actionSpace": spaces["action_space"]}, explore=True
    )
    result = look(run, [write("log", 1.0)])
    assert result.num_new == 40
