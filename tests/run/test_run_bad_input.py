"""What a user gets wrong is one sentence: where, what was found, what is allowed."""

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
from hindcast.formats.dataset_folder.commits import Commit, file_stem, write_commit
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
    """Carry out the training above, with replacements in its text."""

    def carried_out(data: Path | None = None, environment: str = WALK["id"], **replacements: str) -> None:
        source = f"path: {data}" if data else "recordingRef: {name: expert}"
        text = TRAINING.format(source=source, runs=tmp_path / "runs", environment=environment)
        for old, new in replacements.items():
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "train.yaml"
        file.write_text(text)
        execute(load_resources(file), MemoryReporter())

    return carried_out


def changed(walks: Path, folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """The recording once more, with other values in its columns."""
    dataset = open_dataset(str(walks))
    block = Block.concat([dataset.read(unit) for unit in dataset.units])
    columns = {name: column.copy() for name, column in block.columns.items()}
    change(columns)
    location = resolve(folder)
    block = block.with_columns(columns)
    spec = DataSpec.from_block(block, None, dataset.spec.action_space, None)
    with BlockWriter(location, spec, file_stem(0, "a"), max_rows_per_file=8) as writer:
        writer.write(block)
        files = writer.close()
    write_commit(location, Commit(range=0, files=files, episodes=40, timesteps=block.num_steps, first=0))
    write_manifest(location, Manifest(spec=spec.to_json(), files=files))
    return folder


def said(error: pytest.ExceptionInfo[Any]) -> str:
    """The message: one line, without a hint of a traceback."""
    text = str(error.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


class TestResources:
    def test_broken_yaml(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"{iterations: 1}": "{iterations: 1"})
        assert re.match(r".*train\.yaml:\d+: ", said(error))

    def test_an_unknown_field(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"algorithm": "algoritm"})
        messages = str(error.value).splitlines()
        assert any(
            re.search(r"train\.yaml:5: spec\.algoritm.*did you mean .?algorithm", line) for line in messages
        )

    def test_a_wrong_type(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"1.0e-3": "fast"})
        assert re.match(r".*train\.yaml:6: spec\.config\.lr.*'fast'", said(error))

    def test_an_unknown_algorithm(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, **{"algorithm: BC": "algorithm: CB"})
        assert re.match(r".*train\.yaml:5: spec\.algorithm.*'CB'.*BC", said(error))

    def test_an_environment_that_does_not_exist(self, run: Callable[..., None], walks: Path) -> None:
        with pytest.raises(SpecError) as error:
            run(walks, environment="CartPoel-v1")
        assert re.search(
            r"spec\.environment\.id.*there is no Gymnasium environment 'CartPoel-v1'.*'CartPole-v1'",
            said(error),
        )

    def test_a_recording_that_is_not_there(self, run: Callable[..., None]) -> None:
        with pytest.raises(SpecError) as error:
            run()
        assert re.search(
            r"train\.yaml:9: spec\.input\[0\]\.recordingRef.*no OfflineRecording named 'expert'", said(error)
        )

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError) as error:
            load_resources(tmp_path / "nothing.yaml")
        assert "nothing.yaml" in said(error)


class TestData:
    def test_that_are_not_there(self, run: Callable[..., None], tmp_path: Path) -> None:
        with pytest.raises(DataError) as error:
            run(tmp_path / "nowhere")
        assert f"{tmp_path / 'nowhere'} does not exist" in said(error)

    def test_of_no_episodes(self, run: Callable[..., None], tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError) as error:
            run(tmp_path / "empty")
        assert f"{tmp_path / 'empty'} holds no" in said(error)

    def test_of_a_recording_that_has_not_begun(self, run: Callable[..., None], tmp_path: Path) -> None:
        (tmp_path / "begun/_hindcast").mkdir(parents=True)
        with pytest.raises(DataError) as error:
            run(tmp_path / "begun")
        assert "no episodes yet" in said(error)

    def test_observations_of_another_shape(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        def narrower(columns: dict[str, np.ndarray]) -> None:
            columns["obs"] = columns["obs"][:, :3]

        folder = changed(walks, tmp_path / "data", narrower)
        with pytest.raises(DataError) as error:
            run(folder)
        message = said(error)
        assert f"{folder}/000000-a-000.parquet, row 0" in message
        assert re.search(r"'obs' is float32 \[3\], but the space has .*\[4\]", message)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_nan_and_infinity_in_observations(
        self, run: Callable[..., None], walks: Path, tmp_path: Path, value: float
    ) -> None:
        lengths = np.concatenate([unit.lengths for unit in open_dataset(str(walks)).units])
        row = int(lengths[:10].sum()) + 10 + 2  # observation 2 of episode 10, in the second file

        def broken(columns: dict[str, np.ndarray]) -> None:
            columns["obs"][row, 1] = value

        folder = changed(walks, tmp_path / "data", broken)
        with pytest.raises(DataError) as error:
            run(folder)
        message = said(error)
        assert re.search(rf"{folder}/000000-a-001\.parquet, row 2 \(episode .*\), t = 2: 'obs' has", message)
        assert str(value) in message
        assert "expected a finite number" in message

    def test_actions_outside_the_space(self, run: Callable[..., None], walks: Path, tmp_path: Path) -> None:
        def beyond(columns: dict[str, np.ndarray]) -> None:
            columns["actions"][0] = 7

        folder = changed(walks, tmp_path / "data", beyond)
        with pytest.raises(DataError) as error:
            run(folder)
        message = said(error)
        assert re.search(
            rf"{folder}/000000-a-000\.parquet, row 0 .*t = 0: 'actions' has 7, expected", message
        )
        assert "[0, 2]" in message

    @pytest.mark.parametrize(
        ("how", "recorded"),
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
    def test_a_damaged_file(
        self, run: Callable[..., None], walks: Path, tmp_path: Path, how: str, recorded: bool
    ) -> None:
        folder = changed(walks, tmp_path / "data", lambda columns: None)
        file = folder / "000000-a-002.parquet"
        content = file.read_bytes()
        middle = len(content) // 2
        damaged = {
            "truncated": content[:middle],
            "emptied": b"",
            "scrambled": content[: middle - 200] + bytes(400) + content[middle + 200 :],
        }
        if not recorded:
            for path in (folder / "_hindcast").rglob("*"):
                if path.is_file():
                    path.unlink()
            (folder / "_hindcast/commits").rmdir()
            (folder / "_hindcast").rmdir()
        if how == "removed":
            file.unlink()
        else:
            file.write_bytes(damaged[how])
        with pytest.raises(DataError) as error:
            run(folder)
        assert str(file) in said(error)

    def test_of_other_action_values_than_numbers(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        def floats(columns: dict[str, np.ndarray]) -> None:
            columns["actions"] = columns["actions"].astype(np.float32)

        folder = changed(walks, tmp_path / "data", floats)
        with pytest.raises(DataError) as error:
            run(folder)
        assert re.search(r"'actions' is float32", said(error))

    def test_without_actions(self, run: Callable[..., None], walks: Path, tmp_path: Path) -> None:
        folder = changed(walks, tmp_path / "data", lambda columns: columns.pop("actions"))
        with pytest.raises(DataError) as error:
            run(folder)
        assert "'actions'" in said(error)

    def test_of_several_recordings_that_do_not_agree(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        record(recording(tmp_path / "other", environment={"id": "toy_environments:Continuous"}))
        with pytest.raises(DataError) as error:
            run(walks, **{"  stop:": f"    - path: {tmp_path / 'other'}\n  stop:"})
        assert "cannot be one dataset" in said(error)

    def test_nothing_is_left_that_keeps_a_mended_run_away(
        self, run: Callable[..., None], walks: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(DataError):
            run(tmp_path / "nowhere")
        run(walks)
