"""Inspecting finds every kind of problem, with its file and row if it concerns one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from episode_kit import replace_columns
from hindcast.datasets.inspection.inspecting import inspect_paths
from hindcast.datasets.inspection.summary import ProblemKind, Summary
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.manifest import Manifest, read_manifest, write_manifest
from hindcast.formats.layout import RowError
from hindcast.formats.layouts import LAYOUTS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

OBSERVATION_SPACE = spaces.Box(-10, 10, (4,), np.float32)
WRITTEN_LAYOUTS = ("episodes/arrow", "episodes/messagepack")


def write(
    folder,
    block: Block,
    actions=None,
    *,
    obs=OBSERVATION_SPACE,
    stem: str = "s",
    layout: str = "episodes/arrow",
):
    """Write a block to `<stem>-000.parquet`; `obs` and `actions` are the spaces."""
    spec = DataSpec.from_block(block, obs, actions, "Test-v0")
    with BlockWriter(resolve(folder), spec, stem, layout=layout) as writer:
        writer.write(block)


def find_problems(folder, kind: str, **options):
    """Return the problems of a kind in a folder."""
    summary = inspect_paths([str(folder)], **options)
    json.dumps(summary.to_json(), allow_nan=False)
    return [problem for problem in summary.problems if problem.kind == kind]


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_values_that_are_not_finite_are_errors(kit, tmp_path, layout):
    block = kit.block([3, 5, 2])
    block.columns["obs"][6, 1] = np.nan
    block.columns["obs"][7, 0] = np.inf
    write(tmp_path, block, layout=layout)
    (problem,) = find_problems(tmp_path, "not-finite")
    assert problem.severity == "error"
    assert "(episode e1, t 3): 'obs' has inf, expected a finite number" in problem.message
    assert (problem.path or "").endswith("s-000.parquet")
    assert problem.row == 1
    (missing,) = find_problems(tmp_path, "missing-values")
    assert missing.severity == "warning"
    assert "values of 'obs' are missing (share of the timesteps): obs[1] in 10 %" in missing.message


@pytest.mark.parametrize(
    ("value", "space", "severity"),
    [
        ({"actions": 3}, spaces.Discrete(3), "error"),
        ({"actions": 3}, spaces.Box(0, 2, (), np.int64), "info"),
        ({"obs": 11}, spaces.Discrete(3), "warning"),
    ],
)
def test_values_outside_the_space_are_problems(kit, tmp_path, value, space, severity):
    ((name, invalid_value),) = value.items()
    block = kit.block([3, 5, 2])
    block.columns[name][9] = invalid_value
    write(tmp_path, block, space)
    (problem,) = find_problems(tmp_path, "outside-space")
    assert problem.severity == severity
    assert f": {name!r} has {invalid_value}" in problem.message
    assert problem.row in (1, 2)


def test_space_that_does_not_fit_the_data_is_an_error(kit, tmp_path):
    write(tmp_path, kit.block(), spaces.Box(-1, 1, (2,)))
    (problem,) = find_problems(tmp_path, "other-space")
    assert problem.severity == "error"
    assert "'actions' is int64 [], but the space has Box(-1.0, 1.0, (2,), float32)" in problem.message


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_drifting_files_are_listed_and_the_rest_inspected(kit, tmp_path, layout):
    block = kit.block([30, 3])
    for i in range(3):
        write(tmp_path, kit.block([30, 3], first=10 * i), stem=f"good{i}", layout=layout)
    wide_rewards = replace_columns(block, rewards=np.zeros((33, 2), np.float32))
    write(tmp_path, wide_rewards, stem="a", layout=layout)
    write(tmp_path, replace_columns(block, vf_preds=np.zeros(33)), stem="b", layout=layout)
    wide_block = replace_columns(block, obs=np.zeros((35, 5), np.float32))
    write(tmp_path, wide_block, obs=None, stem="c", layout=layout)
    # The good files do not name an action space, so this file agrees with them.
    write(tmp_path, block, spaces.Discrete(2), stem="d", layout=layout)
    problems = find_problems(tmp_path, "drift")
    messages = " ".join(problem.message for problem in problems)
    assert len(problems) == 3
    assert all(problem.severity == "error" for problem in problems)
    assert "'rewards' is float32 [] in one and float32 [2] in the other" in messages
    assert "'obs' is float32 [4] in one and float32 [5] in the other" in messages
    assert "'vf_preds'" in messages
    assert "its 33 timesteps are not counted" in messages
    summary = inspect_paths([str(tmp_path)])
    assert (summary.episodes, summary.files) == (8, 4)


def test_files_with_drifting_spaces_are_listed(kit, tmp_path):
    for i, n in enumerate((3, 3, 4)):
        write(tmp_path, kit.block(first=3 * i), spaces.Discrete(n), stem=f"f{i}")
    (problem,) = find_problems(tmp_path, "drift")
    assert "the action space is Discrete(3) in one and Discrete(4) in the other" in problem.message
    assert (problem.path or "").endswith("f2-000.parquet")


def test_files_with_different_layouts_are_listed(kit, tmp_path):
    write(tmp_path, kit.block(), stem="a")
    write(tmp_path, kit.block(first=3), stem="b", layout="episodes/messagepack")
    (problem,) = find_problems(tmp_path, "mixed-layouts")
    assert problem.severity == "error"
    assert "a-000.parquet is episodes/arrow and b-000.parquet is episodes/messagepack" in problem.message


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_unreadable_files_are_all_listed(kit, tmp_path, layout):
    for i in range(6):
        write(tmp_path, kit.block(first=3 * i), stem=f"f{i}", layout=layout)
    paths = sorted(tmp_path.iterdir())
    paths[0].write_bytes(b"")
    paths[1].write_bytes(paths[1].read_bytes()[:-9])
    paths[2].write_bytes(b"\x89HDF" + bytes(500))
    damaged_content = bytearray(paths[3].read_bytes())
    column = pq.ParquetFile(paths[3]).metadata.row_group(0).column(0)
    damaged_content[column.data_page_offset + column.total_compressed_size - 1] ^= 16
    paths[3].write_bytes(damaged_content)
    problems = find_problems(tmp_path, "unreadable")
    assert [problem.path for problem in problems] == [str(path) for path in paths[:4]]
    assert all(str(path) in problem.message for path, problem in zip(paths[:4], problems, strict=True))
    assert inspect_paths([str(tmp_path)]).sampled_episodes < 18


def test_dataset_without_readable_files_has_only_problems(kit, tmp_path):
    write(tmp_path, kit.block())
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    summary = inspect_paths([str(tmp_path)])
    assert (summary.episodes, summary.lengths, summary.coverage) == (0, None, None)
    assert [problem.kind for problem in summary.problems] == ["unreadable"]


def test_missing_path_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        inspect_paths([str(tmp_path / "nowhere")])


def test_missing_changed_and_unlisted_files_are_problems(kit, tmp_path):
    kit.record(tmp_path, kit.block(), kit.block(first=3), kit.block(first=6), kit.block(first=9))
    first, second, third, _ = sorted(tmp_path.glob("*.parquet"))
    first.unlink()
    second.write_bytes(second.read_bytes() + b"x")
    (tmp_path / "copy.parquet").write_bytes(third.read_bytes())
    damaged_content = bytearray(third.read_bytes())
    damaged_content[10] ^= 1
    third.write_bytes(damaged_content)
    (missing,) = find_problems(tmp_path, "missing")
    assert missing.path == str(first)
    assert missing.severity == "error"
    assert [problem.path for problem in find_problems(tmp_path, "changed")] == [str(second)]
    changed_after_verification = find_problems(tmp_path, "changed", sample_limit=None)
    assert [problem.path for problem in changed_after_verification] == [str(second), str(third)]
    (problem,) = find_problems(tmp_path, "unlisted")
    assert (problem.severity, problem.path) == ("warning", str(tmp_path / "copy.parquet"))


def test_recording_with_only_commits_is_inspected(kit, tmp_path):
    kit.record(tmp_path, kit.block(), kit.block(first=3), manifest=False)
    first_file = min(tmp_path.glob("*.parquet"))
    first_file.write_bytes(bytes(first_file.stat().st_size))
    summary = inspect_paths([str(tmp_path)])
    assert [problem.path for problem in summary.problems if problem.severity == "error"] == [str(first_file)]
    assert summary.episodes == 3


def test_episode_lengths_that_differ_from_the_manifest_are_errors(kit, tmp_path):
    kit.record(tmp_path, kit.block([3, 5]), kit.block([4], first=2))
    manifest = read_manifest(resolve(tmp_path))
    assert manifest is not None
    group = manifest.files[0].row_groups[0].model_copy(update={"lengths": (4, 4)})
    files = (manifest.files[0].model_copy(update={"row_groups": (group,)}), manifest.files[1])
    write_manifest(resolve(tmp_path), manifest.model_copy(update={"files": files}))
    (problem,) = find_problems(tmp_path, "other-lengths")
    assert problem.severity == "error"
    assert "000000-a1-000.parquet holds 8 timesteps in 2 rows, but its recording lists" in problem.message


def test_file_that_differs_from_its_manifest_is_drift(kit, tmp_path):
    kit.record(tmp_path, kit.block())
    manifest = read_manifest(resolve(tmp_path))
    assert manifest is not None
    spec = json.loads(json.dumps(manifest.spec).replace("int64", "int32"))
    write_manifest(resolve(tmp_path), Manifest(spec=spec, files=manifest.files))
    (problem,) = find_problems(tmp_path, "drift")
    assert "'actions' is int32 [] in one and int64 [] in the other" in problem.message


def test_wrong_number_of_observations_is_an_error(kit, tmp_path):
    write(tmp_path, kit.block([3, 5]))
    (path,) = tmp_path.iterdir()
    table = pq.read_table(path)
    field, index = table.schema.field("obs"), table.schema.get_field_index("obs")
    cells = [table["obs"][0].as_py(), table["obs"][1].as_py()[:-16]]
    pq.write_table(table.set_column(index, field, pa.array(cells, pa.large_binary())), path)
    (problem,) = find_problems(tmp_path, "unreadable")
    assert "'obs' has 80 bytes: expected 96 (6 x float32 [4])" in problem.message
    assert problem.row == 1


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_invalid_episode_ends_are_problems(kit, tmp_path, layout):
    block = replace_columns(kit.block([3, 0, 2, 4]), rewards=np.zeros(9, np.float32))
    block.eps_id[2] = "e0"
    block.terminated[:] = [True, True, True, False]
    block.truncated[:] = [True, False, False, False]
    block.t_started[3] = 7
    write(tmp_path, block, layout=layout)
    summary = inspect_paths([str(tmp_path)])
    problems_by_kind = {problem.kind: problem for problem in summary.problems}
    for kind in ("repeated-id", "empty-episode", "ended-twice"):
        assert problems_by_kind[kind].severity == "warning"
    assert "1 episode id occurs more than once" in problems_by_kind["repeated-id"].message
    assert "(first: e0, again in " in problems_by_kind["repeated-id"].message
    assert problems_by_kind["repeated-id"].row == 2
    assert "1 of 4 episodes has no timesteps (first: e1" in problems_by_kind["empty-episode"].message
    assert "1 of 4 episodes has both a terminal state and a cut" in problems_by_kind["ended-twice"].message
    no_beginning = "1 of 4 episodes has no beginning, but a first timestep after t = 0 (first: e3"
    assert no_beginning in problems_by_kind["no-beginning"].message
    assert problems_by_kind["unfinished"].severity == "info"
    assert problems_by_kind["unfinished"].row == 3
    assert problems_by_kind["zero-rewards"].message.startswith("all 9 inspected rewards are 0")


def test_ids_are_compared_across_files(kit, tmp_path):
    for i in range(30):
        write(tmp_path, kit.block([2], first=i % 29), stem=f"f{i:02}")
    (problem,) = find_problems(tmp_path, "repeated-id", sample_limit=1)
    assert (problem.path or "").endswith("f29-000.parquet")


def test_constant_columns_are_problems(kit, tmp_path):
    block = kit.block([20, 20])
    block.columns["obs"][:, 2] = 0.5
    block.columns["actions"][:] = 1
    write(tmp_path, block)
    assert {(problem.severity, problem.message) for problem in find_problems(tmp_path, "constant")} == {
        ("info", "'obs' never changes in 1 of 4 dimensions (2)"),
        ("warning", "'actions' never changes: it is 1 in all 40 inspected rows"),
    }


def test_missing_log_probabilities_are_noted(kit, tmp_path):
    write(tmp_path, kit.block())
    (problem,) = find_problems(tmp_path, "no-logp")
    assert problem.severity == "info"
    write(tmp_path / "with", replace_columns(kit.block(), action_logp=np.zeros(10, np.float32)))
    assert not find_problems(tmp_path / "with", "no-logp")


def test_files_without_rows_and_notes_are_listed(kit, tmp_path):
    write(tmp_path, kit.block())
    (path,) = tmp_path.iterdir()
    pq.write_table(pq.read_schema(path).empty_table(), tmp_path / "empty.parquet")
    (problem,) = find_problems(tmp_path, "empty-file")
    assert (problem.severity, problem.path) == ("info", str(tmp_path / "empty.parquet"))
    (tmp_path / "README.md").write_text("what this is")
    (note,) = find_problems(tmp_path, "note")
    assert note.message == "1 file that is not data was left out: README.md"


def test_problems_are_sorted_by_severity(kit, tmp_path):
    block = replace_columns(kit.block([3]), rewards=np.full(3, np.nan, np.float32))
    block.eps_id[:] = "x"
    write(tmp_path, block, stem="a")
    write(tmp_path, block, stem="b")
    severities = [problem.severity for problem in inspect_paths([str(tmp_path)]).problems]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert set(severities) == {"error", "warning", "info"}


def test_valid_data_have_no_problems(kit, tmp_path):
    block = replace_columns(kit.block([30, 5]), action_logp=np.random.default_rng(0).normal(size=35))
    for layout in WRITTEN_LAYOUTS:
        write(tmp_path / layout, block, spaces.Discrete(3), layout=layout)
        summary: Summary = inspect_paths([str(tmp_path / layout)], sample_limit=None)
        assert summary.problems == (), layout


def test_documentation_lists_every_kind_of_problem():
    page = (Path(__file__).parents[2] / "docs" / "data" / "inspect.md").read_text()
    for kind in get_args(ProblemKind):
        assert f"| `{kind}` |" in page, kind


def test_every_written_layout_is_tested():
    assert set(WRITTEN_LAYOUTS) <= set(LAYOUTS)


def test_stores_without_folders_are_inspected(kit, memory_path):
    kit.record(memory_path, kit.block([30, 5]), kit.block([9], first=2))
    resolve(memory_path).child("left.parquet").write_bytes(b"PAR1")
    summary = inspect_paths([memory_path], sample_limit=None)
    assert (summary.episodes, summary.files) == (3, 2)
    assert [problem.kind for problem in summary.problems if problem.severity != "info"] == ["unlisted"]


def test_unreadable_cell_names_its_row(kit, tmp_path):
    kit.write(tmp_path, kit.block([4, 6, 2]), layout="episodes/messagepack")
    (path,) = tmp_path.glob("*.parquet")
    cells = pq.read_table(path)["item"].to_pylist()
    cells[1] = b"no episode"
    pq.write_table(pa.table({"item": cells}), path)
    (error,) = [problem for problem in inspect_paths([path]).problems if problem.severity == "error"]
    assert (error.kind, error.row) == ("unreadable", 1)


def test_row_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(RowError("wrong", "goes-on", path="a file", row=3)))
    assert (str(error), error.kind) == ("a file, row 3: wrong", "goes-on")
