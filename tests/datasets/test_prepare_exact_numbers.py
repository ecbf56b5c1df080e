"""Whole numbers are read exactly whatever their type, size and role, or refused with their file and row."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tool_tables import open_tool

from hindcast.api.input import FilterTerm
from hindcast.datasets.space_fitting import fit_to_spaces
from hindcast.errors import DataError
from hindcast.formats.columns.arrays import as_plain_table, decode_leaves
from hindcast.formats.columns.decimals import decimals_to_numbers
from hindcast.formats.layout import CellError
from hindcast.formats.lossless import find_rounded_row, to_floats
from hindcast.formats.tables.filters import OPERATORS, apply_filter
from layers import examples

ARROW_TYPES = {
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "float32": pa.float32(),
    "decimal": pa.decimal128(38, 0),
    "decimal with fraction": pa.decimal128(38, 3),
    "long decimal": pa.decimal256(76, 0),
    "categories of decimals": pa.dictionary(pa.int32(), pa.decimal128(38, 0)),
    "digits": pa.string(),
    "categories": pa.dictionary(pa.int32(), pa.string()),
}
TEXT_TYPES = ("digits", "categories", "text.jsonl")
FORMS = [*ARROW_TYPES, "csv", "fraction.csv", "jsonl", "fraction.jsonl", "text.jsonl"]
ROLES = ("episode", "agent_id", "step", "action", "reward", "obs", "next_obs", "vector")
ID_ROLES = ("episode", "agent_id")
LIMITS = [
    sign * limit for sign in (1, -1) for limit in (0, 2**24, 2**31, 2**53, 2**63, 2**64, 10**20, 10**30)
]
ALWAYS_EXACT = 2**24
NUM_ROWS = 6


def make_cells(form: str, numbers: list[int]) -> list[Any]:
    """Return the numbers as values of the form's type."""
    if form.startswith("float"):
        return [float(ARROW_TYPES[form].to_pandas_dtype()(number)) for number in numbers]
    if form in TEXT_TYPES:
        return list(map(str, numbers))
    return [Decimal(number) for number in numbers] if "decimal" in form else numbers


def write_steps(folder: Path, form: str, columns: dict[str, Any], role: str) -> Path:
    is_text_file = "." in form or form in ("csv", "jsonl")
    if is_text_file:
        path = folder / f"steps.{form.rsplit('.', maxsplit=1)[-1]}"
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        lines = (
            [",".join(columns), *(",".join(map(str, row.values())) for row in rows)]
            if path.suffix == ".csv"
            else map(json.dumps, rows)
        )
        path.write_text("\n".join(lines))
        return path
    typed_name = "obs_0" if role == "vector" else role
    value_type = ARROW_TYPES[form]
    arrays = {name: pa.array(column) if name != typed_name else None for name, column in columns.items()}
    if pa.types.is_dictionary(value_type):
        arrays[typed_name] = pa.array(columns[typed_name], value_type.value_type).dictionary_encode()
    else:
        arrays[typed_name] = pa.array(columns[typed_name], value_type)
    path = folder / "steps.parquet"
    pq.write_table(pa.table(arrays), path)
    return path


def make_columns(role: str, cells: list[Any]) -> dict[str, Any]:
    """Return a table of six steps, in reverse order, in which one column has the cells."""
    row = list(range(NUM_ROWS))
    columns: dict[str, Any] = {
        "episode": ["e"] * NUM_ROWS,
        "agent_id": ["a"] * NUM_ROWS,
        "step": row,
        "obs": [float(i) for i in row],
        "action": row,
        "reward": [float(i) for i in row],
        "done": [False] * NUM_ROWS,
    }
    if role == "next_obs":
        columns["next_obs"] = columns["obs"]
    if role == "vector":
        columns |= {"obs_0": cells, "obs_1": columns.pop("obs")}
    else:
        columns[role] = cells
    if role in ID_ROLES:
        columns["step"] = [0] * NUM_ROWS
    return {name: column[::-1] for name, column in columns.items()}


def read_numbers(path: Path, role: str, form: str) -> list[Any]:
    """Return what is read in the role, in the order of the steps."""
    dataset = open_tool(
        path,
        ignore_final_observation=True,
        prepare={"gaps": "Join"},
        schema={"obs": ["obs_0", "obs_1"]} if role == "vector" else {},
    )
    obs_space = gym.spaces.Box(-np.inf, np.inf, (), np.float64) if form in TEXT_TYPES else None
    block = kit.read_block(fit_to_spaces(dataset, obs_space, gym.spaces.Discrete(2**62)))
    if role in ID_ROLES:
        episode = np.argsort(block.columns["rewards"])
        texts = [block.eps_id[i].split("/")[ID_ROLES.index(role)] for i in episode]
        return list(map(int, texts))
    if role == "step":
        return np.argsort(np.argsort(block.columns["rewards"])).tolist()
    name = {"action": "actions", "reward": "rewards"}.get(role, "obs")
    values = block.columns[name]
    if role == "next_obs":
        return values[-1:].tolist()  # other next observations are those of the following rows
    if name == "obs":
        values = values[block.obs_row]
    return (values[:, 0] if role == "vector" else values).tolist()


@given(
    form=st.sampled_from(FORMS),
    role=st.sampled_from(ROLES),
    limits=st.sets(st.sampled_from(LIMITS), min_size=1, max_size=2),
    offsets=st.lists(st.integers(-3, 3), min_size=NUM_ROWS, max_size=NUM_ROWS, unique=True),
)
@example("decimal", "episode", {2**53}, [0, 1, 2, 3, -1, -2])
@example("uint64", "step", {2**63}, [0, 1, 2, 3, -1, -2])
@example("fraction.csv", "obs", {2**53}, [0, 1, 2, 3, -1, -2])
@example("digits", "obs", {2**53}, [0, 1, 2, 3, -1, -2])
@examples(400)
def test_whole_number_of_any_type_size_and_role_is_exact_or_refused(
    tmp_path_factory, form, role, limits, offsets
):
    pool = sorted(limits)
    numbers = sorted({pool[i % len(pool)] + offset for i, offset in enumerate(offsets)})
    numbers = [*range(NUM_ROWS - len(numbers)), *numbers] if len(numbers) < NUM_ROWS else numbers
    if form == "uint64":
        numbers = [min(abs(number), 2**64 - 1) for number in numbers]
    elif form == "int64":
        numbers = [max(min(number, 2**63 - 1), -(2**63)) for number in numbers]
    if role == "step" or role in ID_ROLES:
        numbers = sorted(set(numbers))
        assume(len(numbers) == NUM_ROWS)
    cells = make_cells(form, numbers)
    if form.startswith("fraction") and role not in (*ID_ROLES, "step", "action"):
        cells = [0.5, *cells[1:]]
    path = write_steps(tmp_path_factory.mktemp("data"), form, make_columns(role, cells), role)
    try:
        values = read_numbers(path, role, form)
    except DataError as error:
        # text as rewards or beside numbers is refused whatever it says
        is_text = form in TEXT_TYPES and role in ("reward", "next_obs", "vector")
        assert re.search(r"steps\.\w+" if is_text else r"steps\.\w+.*(row \d|t \d)", str(error)), error
        has_twins = role in ("step", *ID_ROLES) and len(set(cells)) < NUM_ROWS
        assert max(map(abs, numbers)) > ALWAYS_EXACT - 4 or is_text or has_twins, error
        return
    if role == "step":
        assert values == list(range(NUM_ROWS))
    else:
        expected = [cell if isinstance(cell, float) else int(cell) for cell in cells]
        expected = expected[-1:] if role == "next_obs" else expected
        assert list(map(Fraction, values)) == list(map(Fraction, expected))


@given(
    forms=st.lists(st.sampled_from(["int64", "uint64", "float64", "float32"]), min_size=2, max_size=3),
    numbers=st.lists(st.sampled_from([0, 1, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1]), min_size=6, max_size=6),
    partition_bytes=st.sampled_from([1, 1 << 20]),
)
@example(["int64", "float64"], [2**53 + 1] * 6, 1)
@example(["uint64", "int64"], [2**53 + 1] * 6, 1 << 20)
@examples(100)
def test_column_that_nobody_requires_is_exact_or_left_out(tmp_path_factory, forms, numbers, partition_bytes):
    """Regression: in a file with floats, integers of other files were rounded; int64 beside uint64 was refused."""
    folder = tmp_path_factory.mktemp("data")
    cells = [make_cells(form, numbers[2 * number : 2 * number + 2]) for number, form in enumerate(forms)]
    for number, form in enumerate(forms):
        columns = {"episode": [number] * 2, "obs": [0.0, 1.0], "action": [0, 1], "reward": [0.0, 1.0]}
        columns |= {"done": [False, True], "extra": pa.array(cells[number], ARROW_TYPES[form])}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", partition_bytes)
        dataset = open_tool(folder, ignore_final_observation=True)
    if "extra" in dataset.spec.leaves:
        values = kit.read_block(dataset).columns["extra"].tolist()
        assert list(map(Fraction, values)) == [Fraction(cell) for part in cells for cell in part]
    else:
        common_type = np.result_type(*(ARROW_TYPES[form].to_pandas_dtype() for form in forms))
        assert any(common_type.type(cell) != Fraction(cell) for part in cells for cell in part)
        assert any("'extra' was left out: it has whole numbers" in note for note in dataset.notes)


@given(
    integer_type=st.sampled_from([pa.int64(), pa.uint64(), pa.decimal128(38, 0)]),
    numbers=st.lists(st.sampled_from([0, 1, 5, 2**53, 2**53 + 1, 2**63 - 1]), min_size=1, max_size=4),
    op=st.sampled_from(sorted(OPERATORS)),
    value=st.sampled_from([0, 1, 5, 5.0, 0.5, -0.5, 2**53, 2.0**53, 2**53 + 1, -5, 2**63, 1e300]),
)
@example(pa.uint64(), [2**64 - 1, 5], ">", 5)
@example(pa.int64(), [2**53 + 1], "==", 2.0**53)
@examples(200)
def test_filter_compares_whole_numbers_exactly(integer_type, numbers, op, value):
    """Regression: Arrow refuses to compare large integers with numbers of another type, which ended in a traceback."""
    cells = list(map(Decimal, numbers)) if pa.types.is_decimal(integer_type) else numbers
    table = pa.table({"n": pa.array(cells, integer_type)})
    rows = [i for i, number in enumerate(numbers) if OPERATORS[op](number, value)]
    assert apply_filter(table, [FilterTerm(column="n", op=op, value=value)], 0)[1].tolist() == rows
    if op == "==":
        term = FilterTerm(column="n", op="in", value=[value, 1])
        rows = [i for i, number in enumerate(numbers) if number in (value, 1)]
        assert apply_filter(table, [term], 0)[1].tolist() == rows


@given(digits=st.integers(-(10**20), 10**20), scale=st.integers(1, 25))
@examples(100)
def test_decimal_fraction_is_the_nearest_float_or_stays(digits, scale):
    """Regression: Arrow's cast is wrong in the last bit for one decimal in eight."""
    decimal = Decimal(digits).scaleb(-scale)
    column = pa.chunked_array([pa.array([decimal], pa.decimal128(38, scale))])
    (number,) = decimals_to_numbers(column).to_pylist()
    assert number == float(decimal) if abs(decimal) < 2**53 else number == decimal


@given(
    numbers=st.lists(st.sampled_from([0, 1, 2**53, 2**63 + 1, 2**64]), min_size=1, max_size=6),
    num_chunks=st.integers(1, 3),
    form=st.sampled_from(["number", "list", "struct"]),
    is_id=st.booleans(),
)
@example([1, 1, 2**63 + 1], 3, "number", False)
@example([1], 1, "number", True)
@example([2**63 + 1, 1], 1, "struct", False)
@examples(100)
def test_decimals_are_decoded_or_the_first_rounded_one_is_named(numbers, num_chunks, form, is_id):
    """Regression: several chunks, ids that are observations too, and fields beside a rounded one had a traceback."""
    decimal, decimals = pa.decimal128(38, 0), list(map(Decimal, numbers))
    cells, cell_type = {
        "number": (decimals, decimal),
        "list": ([[cell, cell] for cell in decimals], pa.list_(decimal)),
        "struct": (
            [{"a": Decimal(1), "b": cell} for cell in decimals],
            pa.struct({"a": decimal, "b": decimal}),
        ),
    }[form]
    parts = np.array_split(np.arange(len(cells)), num_chunks)
    chunks = [pa.array([cells[row] for row in part], cell_type) for part in parts]
    table = as_plain_table(pa.table({"n": pa.chunked_array(chunks)}), ["n"] if is_id else [])
    is_rounded = 2**63 + 1 in numbers
    try:
        values = list(decode_leaves(table.column("n"), table.schema.field("n"), "n").values())[-1]
    except CellError as error:
        assert is_rounded
        assert error.row == numbers.index(2**63 + 1)
        return
    assert not is_rounded
    assert [int(value) for value in values.reshape(len(numbers), -1)[:, 0]] == numbers


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_largest_integer_of_a_type_is_rounded_by_floats(dtype):
    largest = np.array([np.iinfo(dtype).max], dtype)
    assert find_rounded_row(largest, np.dtype(np.float64)) == 0
    with pytest.raises(CellError, match=r"'rewards' is \d+, which float64"):
        to_floats(largest, "rewards")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("rewards", [1, 2**53 + 1], f"'rewards' is {2**53 + 1}, which float64"),
        ("rewards", [0.5, 2**53 + 1], f"'rewards' is {2**53 + 1}, which float64"),
        ("obs", [2**63 + 1, -1], f"'obs' is {2**63 + 1}, which float64"),
        ("eps_id", [2**64, 2**64 + 1], "'eps_id' holds values that are neither"),
    ],
)
def test_integer_that_a_batch_would_round_is_refused_with_its_line(tmp_path, column, values, message):
    """Regression: lists of integers and floats, or beyond 64 bits, became floats."""
    batch = {"type": "SampleBatch", "eps_id": [1, 2], "obs": [0, 1], "actions": [0, 1], "rewards": [0.0, 1.0]}
    batch |= {"terminateds": [True, True], column: values}
    path = tmp_path / "batches.json"
    path.write_text(json.dumps(batch))
    with pytest.raises(DataError, match=rf"batches\.json, line 1: {message}"):
        open_tool(path, ignore_final_observation=True)
