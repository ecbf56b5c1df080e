"""Errors of users are one sentence: location, found value, allowed values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hindcast.api import load_resources
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError, SpecError, UserError
from hindcast.formats.dataset_folder.commits import Commit, make_file_stem, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.spec import DataSpec
from hindcast.run.execute import execute
from hindcast.storage.location import resolve
from support import WALK, MemoryReporter, record, recording

TRAINING = """\
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {{name: clone}}
spec:
  algorithm: BC
  config: {{lr: 1.0e-3, trainBatchSizePerLearner: 32}}
  environment: {{id: {environment}}}
  input:
    - {source}
  stop: {{iterations: 1}}
  checkpoint: {{path: {runs}}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """A function that executes the training above, with replacements in its text."""

    def execute_training(
        data: Path | None = None, environment: str = WALK["id"], **replacements: str
    ) -> None:
        source = f"path: {data}" if data else "recordingRef: {name: expert}"
        text = TRAINING.format(source=source, runs=tmp_path / "runs", environment=environment)
        for old, new in replacements.items():
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "train.yaml"
        file.write_text(text)
        execute(load_resources(file), MemoryReporter())

    return execute_training


def write_changed_copy(walks: Path, folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """Write a copy of the recording with changed columns."""
    dataset = open_dataset(str(walks))
    block = Block.concat([dataset.read(unit) for unit in dataset.units])
    columns = {name: column.copy() for name, column in block.columns.items()}
    change(columns)
    location = resolve(folder)
    block = block.with_columns(columns)
    spec = DataSpec.from_block(block, None, dataset.spec.action_space, None)
    with BlockWriter(location, spec, make_file_stem(0, "a"), max_rows_per_file=8) as writer:
        writer.write(block)
        files = writer.close()
    write_commit(location, Commit(range=0, files=files, episodes=40, timesteps=block.num_steps, first=0))
    write_manifest(location, Manifest(spec=spec.to_json(), files=files))
    return folder


def message_of(error: pytest.ExceptionInfo[Any]) -> str:
    """Return the message, which must be one line without a traceback."""
    text = str(error.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


class TestResources:
    def test_invalid_yaml_names_line(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"{iterations: 1}": "{iterations: 1"})
        assert re.match(r".*train\.yaml:\d+: ", message_of(error))

    def test_unknown_field_suggests_name(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"algorithm": "algoritm"})
        messages = str(error.value).splitlines()
        assert any(
            re.search(r"train\.yaml:5: spec\.algoritm.*did you mean .?algorithm", line) for line in messages
        )

    def test_wrong_type_names_field_and_value(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"1.0e-3": "fast"})
        assert re.match(r".*train\.yaml:6: spec\.config\.lr.*'fast'", message_of(error))

    def test_unknown_algorithm_lists_algorithms(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"algorithm: BC": "algorithm: CB"})
        assert re.match(r".*train\.yaml:5: spec\.algorithm.*'CB'.*BC", message_of(error))

    def test_unknown_environment_suggests_id(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, environment="CartPoel-v1")
        assert re.search(
            r"spec\.environment\.id.*there is no Gymnasium environment 'CartPoel-v1'.*'CartPole-v1'",
            message_of(error),
        )

    def test_unknown_recording_names_field(self, run: Callable[..., None]) -> None:
        with pytest.raises(SpecError) as error:
            run()
        assert re.search(
            r"train\.yaml:9: spec\.input\[0\]\.recordingRef.*no OfflineRecording named 'expert'",
            message_of(error),
        )

    def test_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError) as error:
            load_resources(tmp_path / "nothing.yaml")
        assert "nothing.yaml" in message_of(error)


class TestData:
    def test_missing_folder_is_named(self, run: Callable[..., None], tmp_path: Path) -> None:
        with pytest.raises(DataError) as error:
            run(tmp_path / "nowhere")
        assert f"{tmp_path / 'nowhere'} does not exist" in message_of(error)

    def test_empty_folder_is_named(self, run: Callable[..., None], tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError) as error:
            run(tmp_path / "empty")
        assert f"{tmp_path / 'empty'} holds no" in message_of(error)

    def test_unstarted_recording_has_no_episodes(self, run: Callable[..., None], tmp_path: Path) -> None:
        (tmp_path / "begun/_hindcast").mkdir(parents=True)
        with pytest.raises(DataError) as error:
            run(tmp_path / "begun")
        assert "no episodes yet" in message_of(error)

    def test_observations_of_other_shape_name_file_and_row(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        def narrow(columns: dict[str, np.ndarray]) -> None:
            columns["obs"] = columns["obs"][:, :3]

        folder = write_changed_copy(walks, tmp_path / "data", narrow)
        with pytest.raises(DataError) as error:
            run(folder)
        message = message_of(error)
        assert f"{folder}/000000-a-000.parquet, row 0" in message
        assert re.search(r"'obs' is float32 \[3\], but the space has .*\[4\]", message)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_non_finite_observation_names_file_row_and_step(
        self, run: Callable[..., None], walks: Path, tmp_path: Path, value: float
    ) -> None:
        lengths = np.concatenate([unit.lengths for unit in open_dataset(str(walks)).units])
        row = int(lengths[:10].sum()) + 10 + 2  # observation 2 of episode 10, in the second file

        def break_value(columns: dict[str, np.ndarray]) -> None:
            columns["obs"][row, 1] = value

        folder = write_changed_copy(walks, tmp_path / "data", break_value)
        with pytest.raises(DataError) as error:
            run(folder)
        message = message_of(error)
        assert re.search(rf"{folder}/000000-a-001\.parquet, row 2 \(episode .*, t 2\): 'obs' has", message)
        assert str(value) in message
        assert "expected a finite number" in message

    def test_action_outside_space_names_file_and_row(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        def set_invalid_action(columns: dict[str, np.ndarray]) -> None:
            columns["actions"][0] = 7

        folder = write_changed_copy(walks, tmp_path / "data", set_invalid_action)
        with pytest.raises(DataError) as error:
            run(folder)
        message = message_of(error)
        assert re.search(
            rf"{folder}/000000-a-000\.parquet, row 0 .*t 0\): 'actions' has 7, expected", message
        )
        assert "[0, 2]" in message

    @pytest.mark.parametrize(
        ("damage", "has_manifest"),
        [
            ("truncated", True),
            ("emptied", True),
            ("scrambled", True),
            ("removed", True),
            ("truncated", False),
            ("emptied", False),
            ("scrambled", False),
        ],
    )
    def test_damaged_file_is_named(
        self, run: Callable[..., None], walks: Path, tmp_path: Path, damage: str, has_manifest: bool
    ) -> None:
        folder = write_changed_copy(walks, tmp_path / "data", lambda columns: None)
        file = folder / "000000-a-002.parquet"
        content = file.read_bytes()
        middle = len(content) // 2
        damaged_content = {
            "truncated": content[:middle],
            "emptied": b"",
            "scrambled": content[: middle - 200] + bytes(400) + content[middle + 200 :],
        }
        if not has_manifest:
            for path in (folder / "_hindcast").rglob("*"):
                if path.is_file():
                    path.unlink()
            (folder / "_hindcast/commits").rmdir()
            (folder / "_hindcast").rmdir()
        if damage == "removed":
            file.unlink()
        else:
            file.write_bytes(damaged_content[damage])
        with pytest.raises(DataError) as error:
            run(folder)
        assert str(file) in message_of(error)

    def test_fractional_actions_in_discrete_space_are_refused(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        def add_half(columns: dict[str, np.ndarray]) -> None:
            columns["actions"] = columns["actions"].astype(np.float32) + 0.5

        folder = write_changed_copy(walks, tmp_path / "data", add_half)
        with pytest.raises(DataError) as error:
            run(folder)
        assert re.search(r"'actions' has \d\.5, expected an integer", message_of(error))

    def test_missing_actions_are_named(self, run: Callable[..., None], walks: Path, tmp_path: Path) -> None:
        folder = write_changed_copy(walks, tmp_path / "data", lambda columns: columns.pop("actions"))
        with pytest.raises(DataError) as error:
            run(folder)
        assert "'actions'" in message_of(error)

    def test_incompatible_recordings_are_refused(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        record(recording(tmp_path / "other", environment={"id": "toy_environments:Continuous"}))
        with pytest.raises(DataError) as error:
            run(walks, **{"  stop:": f"    - path: {tmp_path / 'other'}\n  stop:"})
        assert "cannot be one dataset" in message_of(error)

    def test_corrected_run_succeeds_after_failure(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(DataError):
            run(tmp_path / "nowhere")
        run(walks)
