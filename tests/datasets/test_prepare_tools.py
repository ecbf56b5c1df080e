"""Files as other tools write them are read as they were meant, or refused by name."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pandas as pd
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from tool_tables import (
    ACTIONS,
    DONE,
    EPISODE,
    LENGTHS,
    NEXT_OBS,
    OBS,
    REWARDS,
    STEP,
    assert_steps,
    encode_table,
    make_steps,
    open_tool,
    write,
)

from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.space_fitting import fit_to_spaces
from hindcast.datasets.validate import check_spec
from hindcast.datasets.writer import BlockWriter
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.json_documents import from_extended_json
from hindcast.formats.tables.json_lines import parse_json_cells
from hindcast.formats.tables.naming import ALIASES, plan_columns
from hindcast.storage.location import resolve
from layers import examples
from user_errors import raises_user_error

# Forms of a value

FORMS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "integer": lambda values: values.astype(np.int64),
    "uint8": lambda values: values.astype(np.uint8),
    "float": lambda values: values.astype(np.float64),
    "float32": lambda values: values.astype(np.float32),
    "bool": lambda values: values.astype(np.bool_),
    "digits": lambda values: [str(value) for value in values],
    "float digits": lambda values: [f"{value}.0" for value in values],
    "categories": lambda values: pa.array([str(value) for value in values]).dictionary_encode(),
    "view": lambda values: pa.array([str(value) for value in values], pa.string_view()),
    "decimal": lambda values: pa.array([Decimal(int(value)) for value in values], pa.decimal128(19, 0)),
    "list": lambda values: [[value] for value in values],
    "fixed list": lambda values: pa.array([[value] for value in values], pa.list_(pa.int64(), 1)),
    "nested list": lambda values: [[[float(value)]] for value in values],
}
TEXT_FORMS = {"digits", "float digits", "categories", "view"}
DISCRETE = gym.spaces.Discrete(2)
BOX = gym.spaces.Box(-10, 10, (1,), np.float32)


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["Discrete", "Box"])
@pytest.mark.parametrize("form", FORMS)
def test_action_in_any_form_fits_the_space(tmp_path, form, space):
    dataset = open_tool(write(tmp_path / "data", make_steps(action=FORMS[form](ACTIONS))))
    fitted = fit_to_spaces(dataset, None, space)
    check_spec(fitted.spec, None, space, "data")
    actions = kit.read_block(fitted).columns["actions"]
    assert actions.shape == (15, *space.shape)
    assert actions.ravel().tolist() == ACTIONS.tolist()
    assert fitted.spec.leaves["actions"].fits(actions)
    assert_steps(fitted)


@pytest.mark.parametrize("other", FORMS)
@pytest.mark.parametrize("form", ["integer", "float", "list", "nested list"])
def test_files_with_actions_in_two_forms_are_one_dataset_or_refused(tmp_path, form, other):
    for number, name in enumerate((form, other)):
        table = make_steps(action=FORMS[name](ACTIONS), episode=EPISODE + 3 * number)
        path = write(tmp_path / "data", table, f"{number}.parquet")
    if other in TEXT_FORMS:
        with pytest.raises(DataError, match=r"0\.parquet and .*1\.parquet.*'actions' is"):
            open_tool(path)
        return
    actions = kit.read_block(fit_to_spaces(open_tool(path), None, DISCRETE)).columns["actions"]
    assert actions.tolist() == [*ACTIONS, *ACTIONS]


SEAMS = {
    "action": ACTIONS,
    "reward": np.arange(15) % 7,
    "obs": np.arange(15) + EPISODE,
    "next_obs": np.arange(15) + EPISODE + 1,
    "episode": EPISODE,
    "step": STEP,
    "done": DONE.astype(int),
}


def write_part(folder: Path, table: pa.Table, number: int, suffix: str) -> None:
    """Write a file of a dataset; types that the format does not have are written as Parquet."""
    try:
        data = encode_table(table, suffix)
    except (TypeError, pa.ArrowException):
        data, suffix = encode_table(table, "parquet"), "parquet"
    (folder / f"{number:02}.{suffix}").write_bytes(data)


@given(
    column=st.sampled_from(sorted(SEAMS)),
    forms=st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=3),
    cuts=st.tuples(st.integers(0, 15), st.integers(0, 15)),
    suffixes=st.lists(
        st.sampled_from(["parquet", "csv", "tsv", "jsonl", "json.gz", "arrow"]), min_size=1, max_size=2
    ),
)
@examples(100)
def test_value_in_several_forms_is_the_same_value_or_is_refused_by_file(
    tmp_path_factory, column, forms, cuts, suffixes
):
    """Each form is in a file of its own, so that forms meet between files, formats, columns, episodes and the space."""
    values = {name: SEAMS[name].astype(float) for name in ("obs", "next_obs", "reward")} | {
        column: SEAMS[column]
    }
    folder = tmp_path_factory.mktemp("data")
    bounds = [0, *sorted(cuts)]
    forms = [form for form in forms if form != "bool" or column in ("action", "done")] or ["integer"]
    for form, (start, stop) in zip(forms, pairwise([*bounds[: len(forms)], 15]), strict=True):
        table = make_steps(**{**values, column: FORMS[form](values[column])})
        write_part(folder, table.slice(start, stop - start), start, suffixes[start % len(suffixes)])
    try:
        dataset = fit_to_spaces(open_tool(folder), None, DISCRETE)
        block = kit.read_block(dataset)
    except DataError as error:
        assert re.search(rf"\d\d\.[a-z]+|{column}", str(error)), error
        assert set(forms) & TEXT_FORMS or set(forms) & {"list", "fixed list", "nested list"}, error
        return
    if column != "episode" or "float digits" not in forms:  # as an id, the text "1.0" is not 1
        assert block.length.tolist() == LENGTHS
        assert block.terminated.all()
    assert block.columns["actions"].ravel().tolist() == ACTIONS.tolist()
    assert block.columns["rewards"].ravel().astype(float).tolist() == SEAMS["reward"].tolist()
    assert block.columns["obs"][block.obs_row].ravel().astype(float).tolist() == SEAMS["obs"].tolist()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0.5, *ACTIONS[1:].astype(float)], r"t 0\): 'actions' has 0.5, expected an integer in \[0, 1\]"),
        (["left", *map(str, ACTIONS[1:])], r"'actions' has left, expected .*replace each text by an integer"),
    ],
)
def test_action_that_would_lose_something_is_refused(tmp_path, actions, message):
    dataset = open_tool(write(tmp_path / "data", make_steps(action=actions)))
    with pytest.raises(DataError, match=message):
        kit.read_block(fit_to_spaces(dataset, None, DISCRETE))


@pytest.mark.parametrize("role", ["action", "obs"])
def test_fraction_in_a_discrete_space_is_refused_with_remedies_that_work(tmp_path, role):
    values = np.append(0.5, ACTIONS[1:])
    observations = {"obs": values, "next_obs": values} if role == "obs" else {"action": values}
    path, name = (
        write(tmp_path / "data", make_steps(**observations)),
        "actions" if role == "action" else "obs",
    )

    def read(space: gym.Space, **columns: NDArray[Any]) -> NDArray[Any]:
        data = open_tool(path if not columns else write(tmp_path / "corrected", make_steps(**columns)))
        spaces = (None, space) if role == "action" else (space, None)
        return kit.read_block(fit_to_spaces(data, *spaces)).columns[name]

    field = "actionSpace" if role == "action" else "observationSpace"
    with pytest.raises(DataError, match=rf"has 0\.5, .*; correct the value, or .* a Box \(spec\.{field}\)"):
        read(DISCRETE)
    assert read(gym.spaces.Box(0, 1, ()))[0] == 0.5
    assert read(DISCRETE, **{column: np.floor(values) for column in observations}).dtype == np.int64


def test_infinite_action_is_no_reason_for_a_box(tmp_path):
    dataset = open_tool(write(tmp_path / "data", make_steps(action=np.append(np.inf, ACTIONS[1:]))))
    with pytest.raises(DataError, match=r"'actions' has inf, expected an integer in \[0, 1\] of shape \[\]$"):
        kit.read_block(fit_to_spaces(dataset, None, DISCRETE))


def test_one_hot_action_is_refused_with_a_remedy(tmp_path):
    dataset = open_tool(write(tmp_path / "data", make_steps(action=list(np.eye(2, dtype=int)[ACTIONS]))))
    with pytest.raises(DataError, match="one-hot, store the index"):
        check_spec(fit_to_spaces(dataset, None, DISCRETE).spec, None, DISCRETE, "data")


NEXT_FORMS: dict[str, Any] = {
    "float32": list(NEXT_OBS.astype(np.float32)),
    "decimal": [[Decimal(f"{value:.6f}") for value in row] for row in NEXT_OBS],
    "axis of one": NEXT_OBS[:, :, None].tolist(),
}


@pytest.mark.parametrize("form", NEXT_FORMS)
def test_next_observation_in_another_form_is_read(tmp_path, form):
    dataset = open_tool(write(tmp_path / "data", make_steps(next_obs=NEXT_FORMS[form])))
    block = kit.read_block(dataset)
    final_obs = block.columns["obs"][block.obs_start + block.length]
    assert final_obs == pytest.approx(NEXT_OBS[DONE], abs=1e-5)


def test_next_observations_of_pandas_shift_are_read(tmp_path):
    """`groupby().shift(-1)` makes floats with a null at the end of each episode."""
    whole = np.arange(15)
    shifted = [None if done else float(value + 1) for value, done in zip(whole, DONE, strict=True)]
    table = make_steps(obs=None, next_obs=None, obs_0=whole, next_obs_0=shifted)
    block = kit.read_block(open_tool(write(tmp_path / "data", table), ignore_final_observation=True))
    assert block.columns["obs"][block.obs_row].ravel().tolist() == whole.tolist()


# Types of Arrow

TIMES: dict[str, Any] = {
    "duration": pa.array(STEP * 1_000_000, pa.duration("us")),
    "time of day": pa.array(STEP * 1_000_000, pa.time64("us")),
    "time in seconds": pa.array(STEP.astype(np.int32), pa.time32("s")),
}


@pytest.mark.parametrize("kind", TIMES)
def test_durations_and_times_order_timesteps(tmp_path, kind):
    table = make_steps(step=TIMES[kind])
    assert_steps(open_tool(write(tmp_path / "data", table.take(np.lexsort((-STEP, EPISODE))))))


def test_views_bytes_of_booleans_and_decimals_are_read(tmp_path):
    table = make_steps(
        episode=pa.array([f"e{i}" for i in EPISODE], pa.string_view()),
        reward=pa.array([Decimal(f"{value:.9f}") for value in REWARDS]),
        done=pa.ExtensionArray.from_storage(pa.bool8(), pa.array(DONE.astype(np.int8))),
    )
    assert_steps(open_tool(write(tmp_path / "data", table)))


EXTRA_COLUMNS: dict[str, Any] = {
    "bytes": [b"\x00\xff"] * 15,
    "times": pa.array(STEP, pa.timestamp("us")),
    "maps": pa.array([{"a": 1.0}] * 15, pa.map_(pa.string(), pa.float64())),
    "ragged": [[1] * int(step) for step in STEP],
    "null": [None, *range(14)],
}


@pytest.mark.parametrize("kind", EXTRA_COLUMNS)
def test_column_that_nobody_needs_is_left_out_with_a_note(tmp_path, kind):
    path = write(tmp_path / "data", make_steps(price=EXTRA_COLUMNS[kind]))
    dataset = open_tool(path)
    assert "price" not in assert_steps(dataset).columns
    assert any("the column 'price' was left out" in note for note in dataset.notes)
    with pytest.raises(DataError, match="price"):
        open_tool(path, columns=["obs", "actions", "rewards", "price"])
    with pytest.raises(DataError, match="action_logp"):
        open_tool(path, schema={"action_logp": "price"})


@pytest.mark.parametrize("partition_bytes", [1, 1 << 20])
def test_column_that_only_some_files_have_is_left_out_with_a_note(tmp_path, monkeypatch, partition_bytes):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", partition_bytes)
    write(tmp_path / "data", make_steps().slice(0, 9), "1.parquet")
    path = write(tmp_path / "data", make_steps(price=np.arange(15)).slice(9), "2.parquet")
    dataset = open_tool(path)
    assert "price" not in assert_steps(dataset).columns
    assert any("'price' was left out: not all files have it" in note for note in dataset.notes)


def test_empty_part_and_vectors_of_spark_are_read(tmp_path):
    lists = [("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
    vector = pa.struct([("type", pa.int8()), ("size", pa.int32()), *lists])

    def encode(rows: NDArray[Any]) -> pa.Array:
        dense = {"type": 1, "size": None, "indices": None}
        sparse = {"type": 0, "size": 3, "indices": [0, 1, 2]}
        cells = [{**(sparse if i % 2 else dense), "values": row.tolist()} for i, row in enumerate(rows)]
        return pa.array(cells, vector)

    table = make_steps(obs=encode(OBS), next_obs=encode(NEXT_OBS))
    write(tmp_path / "steps", table.slice(0, 8), "part-00000-c000.snappy.parquet")
    write(tmp_path / "steps", table.slice(8), "part-00001-c000.snappy.parquet")
    path = write(tmp_path / "steps", table.slice(0, 0), "part-00002-c000.snappy.parquet")
    (tmp_path / "steps" / "_SUCCESS").touch()
    dataset = open_tool(path)
    assert_steps(dataset)
    assert any("1 file without rows was left out: part-00002" in note for note in dataset.notes)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "json", "parquet"])
def test_file_without_rows_alone_is_refused(tmp_path, suffix):
    path = tmp_path / f"steps.{suffix}"
    if suffix == "parquet":
        pq.write_table(make_steps().slice(0, 0), path)
    else:
        text = {"jsonl": "", "json": "[]"}.get(suffix, ",".join(make_steps().column_names) + "\n").encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    with pytest.raises(DataError, match=r"holds no rows|is empty"):
        open_tool(path, columns=["obs", "actions", "rewards"])


# Text


@pytest.mark.parametrize("kind", ["numpy", "savetxt", "savetxt of a report", "report", "excel", "excel sep"])
def test_csv_as_tools_write_it_is_read(tmp_path, kind):
    columns = {"obs": [str(row) for row in OBS]} if kind == "numpy" else {"obs": None}
    columns["next_obs"] = None
    if kind != "numpy":
        columns |= {f"obs_{i}": OBS[:, i] for i in range(3)}
    frame = make_steps(**columns, done=DONE.astype(int)).to_pandas()
    path, options = tmp_path / "steps.csv", {}
    if kind.startswith("savetxt"):
        header = ",".join(frame.columns)
        header = header if kind == "savetxt" else f"seed 1, 15 rows\n{header}"
        np.savetxt(path, frame.to_numpy(), delimiter=",", header=header)
    elif kind == "report":
        path.write_text(f"# Export, in 2 parts\n\n#\n{frame.to_csv(index=False)}")
    elif kind == "excel sep":
        path.write_text(f"\ufeffsep=;\r\n{frame.to_csv(index=False, sep=';')}")
    elif kind == "excel":
        options = {"delimiter": ";", "decimal_point": ","}
        frame.to_csv(path, index=False, sep=";", decimal=",", encoding="utf-8-sig")
    else:
        frame.to_csv(path, index=False)
    dataset = open_tool(path, ignore_final_observation=True, options=options)
    assert assert_steps(dataset, None).columns.keys() == {"obs", "actions", "rewards"}


def test_row_below_comments_is_counted_from_the_first_row(tmp_path):
    text = make_steps(obs=REWARDS, next_obs=None).to_pandas().to_csv(index=False)
    path = tmp_path / "steps.csv"
    path.write_text(f"# seed 1\n# two\n{text}".replace("True", "perhaps", 1))
    with raises_user_error(DataError, "'done' is 'perhaps'", path="steps.csv", row=4):
        open_tool(path, ignore_final_observation=True)


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (
            lambda text: text.replace(",b", ",\xe9").encode("latin-1"),
            r"'note': the text is not UTF-8: .*CSV UTF-8",
        ),
        (lambda text: text.replace("\n", "\r").encode(), r"carriage returns alone: save it with line feeds"),
    ],
)
def test_csv_in_another_encoding_is_refused_with_a_remedy(tmp_path, encode, message):
    path = tmp_path / "steps.csv"
    table = make_steps(obs=REWARDS, next_obs=None, note=["b"] * 15)
    path.write_bytes(encode(table.to_pandas().rename(columns={"obs": "o"}).to_csv(index=False)))
    with pytest.raises(DataError, match=message):
        open_tool(path, ignore_final_observation=True, schema={"obs": "o"})


def format_number(value: float, point: str, separator: str) -> str:
    text = f"{value:,}".replace(",", "!").replace(".", point)
    return text.replace("!", separator)


@pytest.mark.parametrize(
    ("point", "separator"), [(".", ","), (".", "'"), (".", "_"), (",", "."), (",", " "), (",", "\u202f")]
)
def test_csv_with_separated_thousands_is_read_with_the_option(tmp_path, point, separator):
    rewards = REWARDS.round(3) * -1e6 + 0.5
    rows = [
        [format_number(float(value), point, separator) for value in (*OBS[row].round(2) * 1e5, rewards[row])]
        for row in range(15)
    ]
    names = ["episode", "step", "action", "done", "obs_0", "obs_1", "obs_2", "reward"]
    head = zip(EPISODE + 1000, STEP, ACTIONS, DONE, strict=True)
    lines = [";".join(map(str, [*first, *rest])) for first, rest in zip(head, rows, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join([";".join(names), *lines]))
    options = {"delimiter": ";", "decimal_point": point, "thousands": separator}
    block = kit.read_block(open_tool(tmp_path / "a.csv", ignore_final_observation=True, options=options))
    assert block.eps_id.tolist() == ["1000", "1001", "1002"]
    assert block.columns["obs"][block.obs_row] == pytest.approx(OBS.round(2) * 1e5)
    assert block.columns["rewards"] == pytest.approx(rewards)


POINT_ADVICE = r"; if the comma is the decimal point, set readOptions\.decimal_point to ','"
THOUSANDS_ADVICE = (
    r"; if the comma or another character separates thousands, set readOptions\.thousands to it \(CSV only\)"
)


@pytest.mark.parametrize("column", ["obs_0", "reward"])
@pytest.mark.parametrize(
    ("text", "options", "advice"),
    [
        ("1,5", {}, POINT_ADVICE + THOUSANDS_ADVICE),
        ("1,234.5", {}, POINT_ADVICE + THOUSANDS_ADVICE),
        ("-1.234,5", {"decimalPoint": ","}, THOUSANDS_ADVICE),
        ("1 234,5", {"thousands": " "}, POINT_ADVICE),
        ("1,23,4", {"decimal_point": ".", "thousands": ","}, ""),
        ("1'234", {}, THOUSANDS_ADVICE),
    ],
)
def test_number_with_separators_is_refused_with_the_option(tmp_path, column, text, options, advice):
    cells = {"obs_0": "1", "obs_1": "2", "action": "0", "reward": "1", column: text}
    (tmp_path / "a.csv").write_text(f"{';'.join(cells)}\n{';'.join(cells.values())}\n")
    with pytest.raises(DataError, match=rf"row 0: [^;]*{advice}(?!; if)") as error:
        open_tool(tmp_path / "a.csv", options={"delimiter": ";", **options}, ignore_final_observation=True)
    assert str(error.value).count("; if") == advice.count("; if")


@pytest.mark.parametrize("thousands", [None, ","])
def test_csv_with_thousands_has_the_same_numbers_as_without(tmp_path, thousands):
    texts = [".5", "-.5e1", "nan", "NaN", "-inf", "+Infinity", "1e3", "+1", "5."]
    lines = [f"{text},1,{text},0" for text in texts]
    (tmp_path / "a.csv").write_text("\n".join(["obs_0,obs_1,price,action", *lines]))
    options = {} if thousands is None else {"thousands": thousands}
    dataset = open_tool(
        tmp_path / "a.csv", options=options, schema={"rewards": "price"}, ignore_final_observation=True
    )
    expected = [0.5, -5, np.nan, np.nan, -np.inf, np.inf, 1000, 1, 5]
    columns = kit.read_block(dataset).columns
    assert columns["obs"][:9, 0] == pytest.approx(expected, nan_ok=True)
    assert columns["rewards"] == pytest.approx(expected, nan_ok=True)


def test_number_that_is_not_separated_by_thousands_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text('obs_0,obs_1,action,reward\n1,2,0,1\n2,3,1,"1,00"\n')
    with pytest.raises(DataError, match="row 1: 'reward' is '1,00': expected a number"):
        open_tool(tmp_path / "a.csv", options={"thousands": ","}, ignore_final_observation=True)


def test_csv_without_a_header_is_refused_with_the_option(tmp_path):
    (tmp_path / "a.csv").write_text("0.5,2,0,1\n0.25,3,1,2\n")
    with pytest.raises(DataError, match=r"first line holds numbers: .*readOptions\.column_names"):
        open_tool(tmp_path / "a.csv", ignore_final_observation=True)
    names = ["obs_0", "obs_1", "action", "reward"]
    dataset = open_tool(tmp_path / "a.csv", ignore_final_observation=True, options={"column_names": names})
    assert dataset.num_steps == 2


PRINTED: dict[str, Callable[[NDArray[Any]], str]] = {
    "NumPy": str,
    "NumPy with an axis": lambda row: str(row[:, None]),
    "repr": repr,
    "repr of float32": lambda row: repr(row.astype(np.float32)),
    "list": lambda row: str(row.tolist()),
    "tuple": lambda row: str(tuple(row.tolist())),
    "tuple of scalars": lambda row: str(tuple(row)),
    "tensor": lambda row: f"tensor({row.tolist()}, dtype=torch.float64)",
    "JSON": lambda row: json.dumps(row.tolist()),
}


@pytest.mark.parametrize("kind", PRINTED)
@pytest.mark.parametrize("values", ["floats", "integers", "missing", "infinite"])
def test_printed_array_in_any_form_is_read(tmp_path, kind, values):
    obs = (OBS * 1000).round() if values == "integers" else OBS.round(4)
    if values in ("missing", "infinite"):
        obs[3, 1] = np.nan if values == "missing" else -np.inf
    cells = parse_json_cells(pa.chunked_array([[PRINTED[kind](row) for row in obs]]), "obs")
    assert cells is not None
    assert np.array(cells.to_pylist(), np.float64).squeeze() == pytest.approx(obs, nan_ok=True)


@pytest.mark.parametrize(
    "text", ["(0.0, 5.0]", "(500)", "( 500. )", "((1), (2))", "(555-1234)", "(1.2.3)", "(1,,2)", "(1+2j)"]
)
def test_text_in_parentheses_that_is_no_array_stays_text(text):
    assert parse_json_cells(pa.chunked_array([[text, text]]), "obs") is None


@pytest.mark.parametrize(
    "text",
    [
        "[left right]",
        "[left ... right]",
        "{'a': 1}",
        "[1,,2]",
        "[1, ,2]",
        "[,1]",
        "[ ,1]",
        "[1.2.3]",
        "[555-1234]",
        "[1 2",
        "[1[2]]",
        "[0.0, 5.0)",
        "[(1), (2)]",
    ],
)
def test_printed_text_that_is_no_array_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(f'obs,action,reward\n"{text}",0,1\n')
    with pytest.raises(DataError, match="'obs' begins like JSON but cannot be read"):
        open_tool(tmp_path / "a.csv", ignore_final_observation=True)


@pytest.mark.parametrize("bad_row", [0, 2])
@pytest.mark.parametrize("to_text", [str, np.array_repr, lambda array: str(array).replace("\n", "")])
@pytest.mark.parametrize("shape", [(9,), (9, 2)])
def test_array_that_was_shortened_when_printed_is_refused_with_its_row(tmp_path, bad_row, to_text, shape):
    array = np.arange(np.prod(shape)).reshape(shape) / 4
    with np.printoptions(threshold=5):
        short_text = to_text(array).replace("array(", "").split(", shape")[0].rstrip(")")
    assert "..." in short_text
    texts = [str(array.tolist()) if to_text is np.array_repr else str(array)] * 5
    texts[bad_row] = texts[4] = short_text
    lines = [f'"{text}",0,1\n' for text in texts]
    (tmp_path / "a.csv").write_text("".join(["obs,action,reward\n", *lines]))
    with pytest.raises(
        DataError, match=rf"row {bad_row}: 'obs' was shortened .*write it as a list, or print"
    ):
        open_tool(tmp_path / "a.csv", ignore_final_observation=True)


def test_first_cell_that_is_no_printed_array_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("obs,action,reward\n" + "[0.5 1],0,1\n" * 3 + "[0.5 x],0,1\n")
    with pytest.raises(DataError, match="row 3: 'obs' begins like JSON but cannot be read"):
        open_tool(tmp_path / "a.csv", ignore_final_observation=True)


# Whole episodes in rows


def make_episodes() -> list[dict[str, Any]]:
    starts = np.cumsum(LENGTHS) - LENGTHS
    return [
        {
            "id": f"e{i}",
            "observations": [*OBS[rows].tolist(), NEXT_OBS[rows][-1].tolist()],
            "actions": ACTIONS[rows].tolist(),
            "rewards": REWARDS[rows].tolist(),
        }
        for i, rows in enumerate(slice(start, start + n) for start, n in zip(starts, LENGTHS, strict=True))
    ]


@pytest.mark.parametrize("flag", ["list", "scalar"])
@pytest.mark.parametrize("container", ["lines", "list", "document", "parquet"])
@pytest.mark.parametrize("has_final_obs", [True, False])
def test_episodes_with_a_last_observation_are_read_whole(tmp_path, container, flag, has_final_obs):
    episodes = make_episodes()
    for episode in episodes:
        num_steps = len(episode["actions"])
        episode["terminated"] = True if flag == "scalar" else [False] * (num_steps - 1) + [True]
        if not has_final_obs:
            episode["observations"].pop()
    path = tmp_path / "episodes.json"
    if container == "lines":
        path.write_text("\n".join(map(json.dumps, episodes)))
    elif container == "parquet":
        path = tmp_path / "episodes.parquet"
        pq.write_table(pa.Table.from_pylist(episodes), path)
    else:
        path.write_text(json.dumps(episodes if container == "list" else {"episodes": episodes}))
    dataset = open_tool(path, ignore_final_observation=not has_final_obs)
    block = assert_steps(dataset, NEXT_OBS[DONE] if has_final_obs else OBS[DONE])
    assert block.terminated.all()


def test_json_of_one_episode_is_read(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(make_episodes()[0]))
    block = kit.read_block(open_tool(tmp_path / "one.json"))
    assert block.length.tolist() == LENGTHS[:1]


@pytest.mark.parametrize("leaf", ["obs", "rewards"])
@pytest.mark.parametrize("num_files", [1, 2])
def test_episodes_of_rllib_with_mixed_dtypes_are_widened(tmp_path, leaf, num_files):
    """Write episodes of two dtypes, as environments do whose reset and step differ in it."""
    cells = []
    for prefix, dtype in (("a", np.float32), ("b", np.float64)):
        block = kit.make_block(LENGTHS, seed=len(prefix))
        columns = {**block.columns, leaf: block.columns[leaf].astype(dtype)}
        block = replace(block, columns=columns, eps_id=prefix + block.eps_id)
        folder = tmp_path / prefix
        spec, layout = DataSpec.from_block(block), "episodes/messagepack"
        with BlockWriter(resolve(folder), spec, "all", layout=layout) as writer:
            writer.write(block)
        cells += [pq.read_table(file).column("item").combine_chunks() for file in folder.glob("*.parquet")]
    items = cells if num_files == 2 else [pa.concat_arrays(cells)]
    for number, item in enumerate(items):
        path = write(tmp_path / "mixed", pa.table({"item": item}), f"{number}.parquet")
    dataset = open_tool(path)
    assert dataset.spec.leaves[leaf].dtype == np.float64
    assert kit.read_block(dataset).columns[leaf].dtype == np.float64
    assert dataset.num_steps == 30
    assert not [p for p in inspect_data(Reading((path,))).problems if p.severity == "error"]


# Folders of tools


def encode_image(seed: int, image_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8))
    image.save(buffer, image_format)
    return buffer.getvalue()


@pytest.mark.parametrize("image_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("cell_type", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_images_in_a_column_of_bytes_are_read(tmp_path, cell_type, image_format):
    cells = [encode_image(seed, image_format) for seed in range(15)]
    table = make_steps(obs=pa.array(cells, cell_type), next_obs=None)
    block = kit.read_block(open_tool(write(tmp_path / "data", table), ignore_final_observation=True))
    for row, cell in zip(block.obs_row, cells, strict=True):
        with Image.open(io.BytesIO(cell)) as image:
            np.testing.assert_array_equal(block.columns["obs"][row], np.asarray(image))


def test_bytes_that_are_no_images_are_refused(tmp_path):
    cells = [encode_image(0)] * 14
    with pytest.raises(DataError, match="'obs' is not an image"):
        open_tool(write(tmp_path / "a", make_steps(obs=[*cells, b"GIF89a"], next_obs=None)))
    with pytest.raises(DataError, match=r"'obs' is a column of binary: allowed are .* images \(PNG, JPEG\)"):
        open_tool(write(tmp_path / "b", make_steps(obs=[b"\x00\xff", *cells], next_obs=None)))


def test_image_beyond_the_limit_of_pillow_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    images = [{"bytes": encode_image(i), "path": f"{i}.png"} for i in range(15)]
    path = write(tmp_path / "data", make_steps(obs=images, next_obs=None))
    with pytest.raises(DataError, match=r"steps\.parquet.*is too large an image"):
        open_tool(path, ignore_final_observation=True)


def test_lerobot_dataset_is_read_by_its_folder(tmp_path):
    images = [{"bytes": encode_image(i), "path": f"{i}.png"} for i in range(15)]
    table = pa.table(
        {
            "observation.state": list(OBS),
            "action": list(np.eye(2)[ACTIONS]),
            "observation.images.top": images,
            "frame_index": STEP,
            "episode_index": EPISODE,
            "next.reward": REWARDS,
            "next.done": DONE,
        }
    )
    write(tmp_path / "set" / "data" / "chunk-000", table, "file-000.parquet")
    write(tmp_path / "set" / "meta" / "episodes", pa.table({"episode_index": [0], "length": [5]}))
    (tmp_path / "set" / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v3.0"}))
    block = assert_steps(open_tool(tmp_path / "set", ignore_final_observation=True), OBS[DONE])
    assert block.columns["observation.images.top"].shape == (15, 4, 5, 3)
    with Image.open(io.BytesIO(images[3]["bytes"])) as image:
        assert (block.columns["observation.images.top"][3] == np.asarray(image)).all()


@pytest.mark.parametrize("is_stream", [True, False])
def test_dataset_of_save_to_disk_is_read(tmp_path, is_stream):
    folder = tmp_path / "saved"
    folder.mkdir()
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    for number, rows in enumerate((slice(0, 9), slice(9, 15))):
        part = make_steps().slice(rows.start, rows.stop - rows.start)
        with new(str(folder / f"data-0000{number}-of-00002.arrow"), part.schema) as writer:
            writer.write_table(part, max_chunksize=4)
    (folder / "state.json").write_text(json.dumps({"_data_files": [], "_fingerprint": "0"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    assert_steps(open_tool(folder))


def test_dataset_of_save_to_disk_with_selected_rows_is_refused(tmp_path):
    with pa.ipc.new_stream(str(tmp_path / "data-00000-of-00001.arrow"), make_steps().schema) as writer:
        writer.write_table(make_steps())
    (tmp_path / "state.json").write_text(
        json.dumps({"_data_files": [], "_indices_data_files": [{"filename": "indices.arrow"}]})
    )
    with pytest.raises(DataError, match=r"rows that indices\.arrow selects.*flatten_indices"):
        open_tool(tmp_path)


@pytest.mark.parametrize("lists_files", [True, False])
def test_cached_results_in_dataset_of_save_to_disk_are_not_read(tmp_path, lists_files):
    folder, table = tmp_path / "saved", make_steps()
    folder.mkdir()
    for name in ("data-00000-of-00001.arrow", "cache-1234.arrow"):
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    files = [{"filename": "data-00000-of-00001.arrow"}] if lists_files else []
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    assert_steps(open_tool(folder))


def write_robomimic(file: h5py.File, has_next_obs: bool) -> None:
    for i in range(3):
        rows, group = i == EPISODE, file.create_group(f"data/demo_{i}")
        group["obs/pose"] = OBS[rows]
        if has_next_obs:
            group["next_obs/pose"] = NEXT_OBS[rows]
        group["actions"], group["rewards"] = np.eye(2)[ACTIONS[rows]], REWARDS[rows]
        group["dones"], group["states"] = DONE[rows].astype(int), np.zeros((rows.sum(), 4))


@pytest.mark.parametrize("has_next_obs", [True, False])
def test_hdf5_of_robomimic_is_read(tmp_path, has_next_obs):
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        write_robomimic(file, has_next_obs)
    block = kit.read_block(open_tool(tmp_path / "demo.hdf5", ignore_final_observation=not has_next_obs))
    assert block.length.tolist() == LENGTHS
    assert block.columns["obs/pose"][block.obs_row] == pytest.approx(OBS)
    assert block.columns["actions"].tolist() == np.eye(2)[ACTIONS].tolist()
    assert block.terminated.all()


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (1, 1, 1)])
def test_tuples_of_observations_of_d3rlpy_2_are_read(tmp_path, sizes):
    items = np.split(OBS, np.cumsum(sizes)[:-1], axis=1)
    with h5py.File(tmp_path / "buffer.h5", "w") as file:
        file["columns"], file["num_episodes"], file["version"] = [b"observations", b"actions"], 3, "2.1"
        for i in range(3):
            rows = i == EPISODE
            for number, item in enumerate(items):
                file[f"observations_{i}_{number}"] = item[rows]
            file[f"actions_{i}"], file[f"terminated_{i}"] = ACTIONS[rows][:, None], True
            file[f"rewards_{i}"] = REWARDS[rows][:, None]
    block = kit.read_block(open_tool(tmp_path / "buffer.h5", ignore_final_observation=True))
    assert block.length.tolist() == LENGTHS
    for number, item in enumerate(items):
        np.testing.assert_array_equal(block.columns[f"obs/{number}"][block.obs_row], item)
    assert f"obs/{len(items)}" not in block.columns
    (tmp_path / "incomplete.h5").write_bytes((tmp_path / "buffer.h5").read_bytes())
    with h5py.File(tmp_path / "incomplete.h5", "a") as file:
        for number in range(len(items)):
            del file[f"observations_2_{number}"]
    with pytest.raises(DataError, match=r"has no /?observations_2"):
        open_tool(tmp_path / "incomplete.h5", ignore_final_observation=True)


def test_buffer_of_d3rlpy_2_is_read(tmp_path):
    with h5py.File(tmp_path / "buffer.h5", "w") as file:
        file["columns"], file["num_episodes"], file["version"] = [b"observations", b"actions"], 3, "2.1"
        for i in range(3):
            rows = i == EPISODE
            file[f"observations_{i}"], file[f"actions_{i}"] = OBS[rows], ACTIONS[rows][:, None]
            file[f"rewards_{i}"], file[f"terminated_{i}"] = REWARDS[rows][:, None], i != 1
    dataset = open_tool(tmp_path / "buffer.h5", ignore_final_observation=True)
    block = assert_steps(dataset, OBS[DONE])
    assert block.terminated.tolist() == [True, False, True]
    assert block.truncated.tolist() == [False, True, False]


@pytest.mark.parametrize("head", [b"\x00\x00\x00\x20ftypisom", b"\x1aE\xdf\xa3"])
def test_video_is_named_in_the_error(tmp_path, head):
    (tmp_path / "episode_0.mp4").write_bytes(head + bytes(100))
    with pytest.raises(DataError, match=r"episode_0\.mp4 is a video: write its frames"):
        open_tool(tmp_path / "episode_0.mp4")


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53) - 1])
@pytest.mark.parametrize("seam", ["files", "partitions", "columns", "next_obs"])
@pytest.mark.parametrize("is_integer_first", [True, False])
def test_integer_that_floats_beside_it_would_round_is_refused_with_its_row(
    tmp_path, monkeypatch, seam, number, is_integer_first
):
    """Regression: it was rounded silently."""
    numbers = np.arange(15)
    numbers[[2, 12]] = number
    first, last = (numbers, numbers + 0.0) if is_integer_first else (numbers + 0.0, numbers)
    if seam == "columns":
        path = write(tmp_path, make_steps(obs_0=first, obs_1=last).drop(["obs", "next_obs"]), "steps.parquet")
        options = {
            "schema": {"obs": ["obs_0", "obs_1"]},
            "columns": ["obs", "actions"],
            "ignore_final_observation": True,
        }
    elif seam == "next_obs":
        path = write(tmp_path, make_steps(obs=first, next_obs=last), "steps.parquet")
        options = {}
    else:
        monkeypatch.setattr(
            "hindcast.datasets.prepare.job.PARTITION_BYTES", 1 if seam == "partitions" else 1 << 20
        )
        write(tmp_path / "data", make_steps(reward=first).slice(0, 9), "1.parquet")
        path = write(tmp_path / "data", make_steps(reward=last).slice(9), "2.parquet")
        options = {"columns": ["obs", "actions", "rewards"]}
    if number == 2**53:
        open_tool(path, **options)
    else:
        with pytest.raises(
            DataError, match=rf"({'step' if seam == 'partitions' else 'row'} \d+).* is {number}, which"
        ):
            open_tool(path, **options)


@pytest.mark.parametrize("name", ["a,b.parquet", "2024,05/steps.parquet", "a, b/c,d.csv"])
def test_path_with_a_comma_is_one_path(tmp_path, name):
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    if path.suffix == ".csv":
        path.write_text(
            "eps_id,t,obs_0,action,reward,done\n" + "".join(f"a,{i},{i},0,1,{i == 4}\n" for i in range(5))
        )
    else:
        write(path.parent, make_steps(), path.name)
    for named in (path, path.parent):
        dataset = open_tool(named, ignore_final_observation=True)
        assert dataset.num_episodes == (1 if path.suffix == ".csv" else len(LENGTHS))


# Names in `schema`


@pytest.mark.parametrize(
    ("name", "column"),
    [
        (alias, column)
        for column, aliases in ALIASES.items()
        for alias in aliases
        if alias not in ("done", "dones")
    ],
)
def test_other_name_of_a_column_in_the_schema_is_refused_with_a_remedy_that_works(name, column):
    """Regression: it became an additional column, so that flags of `terminal` did not end episodes."""
    names = ["obs", "actions", "rewards", "flag"]
    with raises_user_error(DataError, f"`schema` has '{name}', .* write '{column}' in its place"):
        plan_columns(names, ReadOptions(schema={name: "flag"}))
    assert plan_columns(names, ReadOptions(schema={column: "flag"})).sources[column].columns == ("flag",)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("action_prob", "action_logp"),
        ("rewardss", "rewards"),
        ("terminatedes", "terminateds"),
        ("heart_rate", None),
    ],
)
def test_unknown_name_in_the_schema_is_noted_with_the_nearest_one(tmp_path, name, suggestion):
    folder = write(tmp_path / "data", make_steps(other=np.full(15, 0.5)))
    dataset = open_tool(folder, schema={name: "other"})
    notes = [note for note in dataset.notes if "`schema`" in note]
    assert len(notes) == (suggestion is not None)
    assert all(repr(name) in note and f"did you mean '{suggestion}'" in note for note in notes)
    assert kit.read_block(dataset).columns[name].ravel().tolist() == [0.5] * 15


def test_flags_of_rlds_in_the_schema_are_not_noted():
    schema = {"is_last": "last", "is_terminal": "end"}
    plan = plan_columns(["obs", "actions", "rewards", *schema.values()], ReadOptions(schema=schema))
    assert plan.last_column == "last"
    assert plan.schema_notes == ()


# JSON documents of pandas, and MongoDB's values


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("orient", ["records", "split", "table", "index", "columns"])
def test_data_frame_in_any_orient_of_pandas_is_read(tmp_path, orient, indent, suffix):
    frame = pd.DataFrame(make_steps().to_pylist())
    frame.to_json(tmp_path / f"steps.{suffix}", orient=orient, indent=indent, double_precision=15)
    dataset = open_tool(tmp_path)
    assert_steps(dataset)
    assert not any("index" in note for note in dataset.notes)


def test_data_frame_with_two_columns_of_one_name_is_refused(tmp_path):
    """Regression: the second column silently replaced the first one."""
    table = make_steps()
    document = {
        "columns": [*table.column_names, "reward"],
        "data": [[*row.values(), 0.5] for row in table.to_pylist()],
    }
    (tmp_path / "steps.json").write_text(json.dumps(document))
    with raises_user_error(DataError, "has two columns 'reward': rename one"):
        open_tool(tmp_path)


def test_rows_without_names_of_columns_are_refused_with_a_remedy_that_works(tmp_path, monkeypatch):
    table = make_steps()
    pd.DataFrame(table.to_pylist()).to_json(tmp_path / "old.json", orient="values", double_precision=15)
    with raises_user_error(DataError, "holds rows without the names") as error_info:
        open_tool(tmp_path)
    code = re.search(r"pd\.DataFrame\(.*\)", str(error_info.value))[0]
    monkeypatch.chdir(tmp_path)
    exec(
        code.replace("['obs', 'actions', …]", repr(table.column_names)),
        {"pd": pd, "json": json, "Path": Path},
    )
    assert_steps(open_tool(tmp_path / "steps.json"))


def to_extended(value, *, is_canonical: bool) -> Any:
    """Return a value as mongoexport writes it, with plain numbers unless it is canonical."""
    if isinstance(value, list):
        return [to_extended(item, is_canonical=is_canonical) for item in value]
    if isinstance(value, bool) or not is_canonical:
        return value
    if isinstance(value, int):
        return {"$numberLong": str(value)} if value % 2 else {"$numberInt": str(value)}
    return {"$numberDouble": repr(value)}


@pytest.mark.parametrize("is_array", [True, False], ids=["array", "lines"])
@pytest.mark.parametrize("is_canonical", [True, False], ids=["canonical", "relaxed"])
def test_extended_json_of_mongodb_is_read(tmp_path, is_canonical, is_array):
    rows = []
    for number, row in enumerate(make_steps().to_pylist()):
        time = (
            {"$numberLong": str(1_700_000_000_000 + 60_000 * number)}
            if is_canonical
            else "2026-01-01T00:00:00Z"
        )
        cells = {name: to_extended(cell, is_canonical=is_canonical) for name, cell in row.items()}
        rows.append({"_id": {"$oid": f"{number:024x}"}, "when": {"$date": time}, **cells})
    text = json.dumps(rows) if is_array else "\n".join(map(json.dumps, rows))
    (tmp_path / "steps.json").write_text(text)
    assert_steps(open_tool(tmp_path))


@given(st.integers(-(10**14), 10**14), st.floats(allow_nan=False))
@examples(30)
def test_extended_values_keep_numbers_and_times(milliseconds, number):
    time = from_extended_json({"$date": {"$numberLong": str(milliseconds)}})
    assert np.datetime64(time.removesuffix("Z"), "ms") == np.datetime64(milliseconds, "ms")
    assert from_extended_json([{"$numberDouble": repr(number)}, {"$numberLong": str(milliseconds)}]) == [
        number,
        milliseconds,
    ]
    for value in (number, 2**53 + 1 + milliseconds):
        assert from_extended_json({"$numberDecimal": repr(value)}) == value
