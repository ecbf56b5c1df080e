"""Tables of users in JSON and CSV."""

from __future__ import annotations

import gc
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_reading import find_format, read_table

from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.tables import json_table
from hindcast.formats.tables.json_lines import garbage_collector_pause
from hindcast.storage.location import resolve
from user_errors import raises_user_error

ROW = {"obs": [0.5, 1.5], "action": 1, "reward": 1, "done": False}


def to_json_lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    "name", ["a.json", "a.jsonl", "a.ndjson", "a.json.gz", "array.json", "array.json.gz"]
)
def test_json_lines_and_array_are_read(tmp_path: Path, name: str) -> None:
    rows = [{**ROW, "reward": i, "eps_id": 3} for i in range(5)]
    text = json.dumps(rows, indent=1) if name.startswith("array") else to_json_lines(rows)
    rows_read = read_table(write(tmp_path / name, "\ufeff" + text))
    assert rows_read.columns["obs"].tolist() == [[0.5, 1.5]] * 5
    assert rows_read.columns["rewards"].dtype == np.float64
    assert rows_read.columns["actions"].dtype == np.int64
    assert rows_read.eps_id.tolist() == ["3"] * 5
    assert rows_read.row.tolist() == list(range(5))


@pytest.mark.parametrize("num_characters", [10, 10_000])
def test_lines_are_told_from_one_document_by_the_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_characters: int
) -> None:
    """Regression: a file whose first line was longer than 4 KiB was read and parsed as a whole, only to tell this."""
    monkeypatch.setattr(json_table, "choose_parser", None)
    row = {"steps": [{"note": "x" * num_characters}]}
    path = write(tmp_path / "a.jsonl", "\ufeff" + to_json_lines([row, row]))
    assert not json_table.Json().is_unsplittable(resolve(path))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**25])
@pytest.mark.parametrize("name", ["a.json", "array.json", "a.csv"])
def test_integer_beyond_int64_raises(tmp_path: Path, name: str, number: int) -> None:
    """A float would round such an integer; different ids could then become equal."""
    rows = [{"obs": 0.5, "action": number if i == 3 else i, "reward": 1, "done": False} for i in range(5)]
    if name == "a.csv":
        text = "\n".join(",".join(str(row[column]) for column in rows[0]) for row in rows)
        text = f"{','.join(rows[0])}\n{text}\n"
    else:
        text = to_json_lines(rows) if name == "a.json" else json.dumps(rows)
    path = write(tmp_path / name, text)
    message = rf"{name}, row 3: 'action' is {number}, a whole number that does not fit into int64"
    with pytest.raises(DataError, match=message):
        read_table(path)
    floats = read_table(path, options={"column_types": {"action": "float64"}}).columns["actions"]
    assert floats.tolist() == [0.0, 1.0, 2.0, float(number), 4.0]


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_integer_of_any_length_is_refused_with_its_row(tmp_path: Path, name: str) -> None:
    """Regression: Python converts at most 4300 digits, so a longer integer in a CSV file ended in a traceback."""
    digits = "9" * 5000
    text = f"obs,action,reward\n0.5,0,1\n{digits},0,1\n"
    if name == "a.json":
        text = f'{{"obs": 0.5, "action": 0, "reward": 1}}\n{{"obs": {digits}, "action": 0, "reward": 1}}\n'
    with pytest.raises(
        DataError, match=r"row 1: (.obs. is 9{60}… \(5000 characters\)|it is not JSON: Exceeds)"
    ):
        read_table(write(tmp_path / name, text))


def test_list_of_several_types_is_not_said_to_differ_from_earlier_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", to_json_lines([{"obs": [[1, 2], 3], "action": 0, "reward": 1}] * 2))
    with pytest.raises(DataError, match=r"row 0: 'obs' is \[\[1, 2\], 3\]: its elements have several types;"):
        read_table(path)


@pytest.mark.parametrize("other_text", ["0", "0.5", "nan"])
@pytest.mark.parametrize("number", ["9223372036854775808", '"9,223,372,036,854,775,808"'])
def test_integer_beyond_int64_with_thousands_raises(tmp_path: Path, number: str, other_text: str) -> None:
    path = write(tmp_path / "a.csv", f"obs,action,reward\n0,{other_text},1\n0,{number},1\n")
    with pytest.raises(
        DataError, match=rf"row 1: 'action' is {number.strip(chr(34))}, a whole number that does"
    ):
        read_table(path, options={"thousands": ","})
    options = {"thousands": ",", "column_types": {"action": "float64"}}
    assert read_table(path, options=options).columns["actions"][1] == 2.0**63


@pytest.mark.parametrize("text", ["2020-01-01", "12:30:00", "2020-01-01 12:30:00"])
def test_dates_in_csv_stay_text(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.csv", f'obs,action,reward,day\n"1,000",0,1,{text}\n')
    rows_read = read_table(path, options={"thousands": ","})
    assert rows_read.columns["day"].tolist() == [text]
    assert rows_read.columns["obs"].tolist() == [1000]


@pytest.mark.parametrize("chunk_bytes", [100, 16 << 20])
@pytest.mark.parametrize("column_types", [{}, {"terminateds": "bool"}])
def test_flags_beside_thousands_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, column_types: dict[str, str]
) -> None:
    monkeypatch.setattr("hindcast.formats.tables.text_files.CHUNK_BYTES", chunk_bytes)
    text = (
        "obs,action,reward,terminateds,day\n"
        + '"1,000",0,1,false,2020-01-01\n"2,000",1,1,true,2020-01-02\n' * 9
    )
    rows_read = read_table(
        write(tmp_path / "a.csv", text), options={"thousands": ",", "column_types": column_types}
    )
    assert rows_read.columns["obs"].tolist() == [1000, 2000] * 9
    assert rows_read.terminated.tolist() == [False, True] * 9


@pytest.mark.parametrize("text", ["1.5", "nan", "9,223,372,036,854,775,808", "one"])
def test_number_of_another_type_in_a_later_piece_raises_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("hindcast.formats.tables.text_files.CHUNK_BYTES", 100)
    lines = '"1,000",0,1\n' * 20 + f'"{text}",0,1\n'
    with pytest.raises(DataError, match=rf"row 20: 'obs' is '{text}': expected int64; .*column_types"):
        read_table(write(tmp_path / "a.csv", f"obs,action,reward\n{lines}"), options={"thousands": ","})


def test_integer_beyond_int64_after_first_piece_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindcast.formats.tables.text_files.CHUNK_BYTES", 100)
    text = "obs,action,reward\n" + "0.5,1.5,0\n" * 50 + f"0.5,{2**64},0\n"
    with pytest.raises(DataError, match=rf"row 50: 'action' is {2**64}, a whole number"):
        read_table(write(tmp_path / "a.csv", text))


@pytest.mark.parametrize("separators", [{}, {"thousands": "_"}, {"decimal_point": ",", "delimiter": ";"}])
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_whole_floats_are_read_as_declared_integers(
    tmp_path: Path, separators: dict[str, str], dtype: str
) -> None:
    def write_cells(*cells: str) -> Path:
        lines = [f"0,{cell},{cell}" for cell in cells]
        if "delimiter" in separators:
            lines = [line.replace(",", ";").replace(".", ",") for line in lines]
        header = separators.get("delimiter", ",").join(("obs", "action", "reward"))
        return write(tmp_path / "a.csv", "\n".join([header, *lines, ""]))

    options: dict[str, Any] = {"column_types": {"action": dtype}, **separators}
    numbers = np.random.default_rng(0).integers(0, 200, 20)
    texts = [form % number for number in numbers for form in ("%.18e", "%d", "%.1f", "%d.", " %d.00 ")]
    actions = read_table(write_cells(*texts), options=options).columns["actions"]
    assert (actions.dtype, actions.tolist()) == (dtype, np.repeat(numbers, 5).tolist())
    for text in ("1.5", "1e-1", "nan", "-inf", "9007199254740993.0"):
        with raises_user_error(
            DataError, rf"'action' is '.*': expected {dtype}(?!.*set its type)", path="a.csv", row=2
        ):
            read_table(write_cells("1.0", "2", text, "2.5"), options=options)


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
@pytest.mark.parametrize("num_rows", [1, 100])
def test_text_in_column_of_declared_type_raises_without_advice_to_declare_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, num_rows: int
) -> None:
    monkeypatch.setattr("hindcast.formats.tables.text_files.CHUNK_BYTES", 1000)
    if name == "a.csv":
        text = "obs,action,reward\n" + "0,1,0\n" * num_rows * 4 + "0,x,0\n"
    else:
        text = '{"obs":0,"action":1,"reward":0}\n' * num_rows * 4 + '{"obs":0,"action":1.5,"reward":0}\n'
    with raises_user_error(
        DataError, "which `column_types` sets(?!.*set its type)", path=name, row=4 * num_rows
    ):
        read_table(write(tmp_path / name, text), options={"column_types": {"action": "int64"}})


def test_text_of_other_encoding_raises_with_row_or_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("obs,action,reward,episode\n1,2,3,a\n1,2,3,ä\n".encode("latin-1"))
    with raises_user_error(DataError, "'episode'.*UTF-8", path="a.csv", row=1):
        read_table(path)
    path.write_bytes("obs,action,reward,größe\n1,2,3,4\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a.csv is not UTF-8 text: its header is"):
        read_table(path)
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes("\ufeffobs,action,reward\n1,2,3\n".encode(encoding))
        with pytest.raises(DataError, match=r"a\.csv is UTF-16 text: save it as UTF-8"):
            read_table(path)


@pytest.mark.parametrize("cell", [{"x": [1, 2**63]}, [[0.5], [2**64]]])
def test_integer_beyond_int64_in_nested_value_raises(tmp_path: Path, cell: Any) -> None:
    valid_cell = {"x": [1, 2]} if isinstance(cell, dict) else [[0.5], [1]]
    rows = [{**ROW, "obs": valid_cell}, {**ROW, "obs": cell}]
    with raises_user_error(DataError, r"'obs' is \d{19,}, a whole number", path="a.json", row=1):
        read_table(write(tmp_path / "a.json", to_json_lines(rows)))


def test_integer_beyond_int64_in_csv_json_cell_raises(tmp_path: Path) -> None:
    text = 'obs,action,reward,done\n"[0, 1]",0,1,false\n"[0, 9223372036854775808]",0,1,true\n'
    message = "'obs' begins like JSON.* is 9223372036854775808, a whole"
    with raises_user_error(DataError, message, path="a.csv", row=1):
        read_table(write(tmp_path / "a.csv", text))


@pytest.mark.parametrize("numbers", [[2**63 - 1, -(2**63)], [1e19, -1e300]])
def test_large_exact_numbers_are_kept(tmp_path: Path, numbers: list[Any]) -> None:
    rows = [{**ROW, "action": number} for number in numbers]
    assert read_table(write(tmp_path / "a.json", to_json_lines(rows))).columns["actions"].tolist() == numbers
    assert read_table(write(tmp_path / "b.json", json.dumps(rows))).columns["actions"].tolist() == numbers


def test_old_gym_log_is_read(tmp_path: Path) -> None:
    infos: list[Any] = [{}, {"TimeLimit.truncated": True, "x": 1}, {"x": "one"}, None]
    rows = [{**ROW, "done": i in (1, 2), "info": info} for i, info in enumerate(infos)]
    rows_read = read_table(write(tmp_path / "log.jsonl", to_json_lines(rows)))
    assert rows_read.terminated.tolist() == [False, False, True, False]
    assert rows_read.truncated.tolist() == [False, True, False, False]
    assert [json.loads(text or "{}") for text in rows_read.columns["infos"]] == [info or {} for info in infos]


def test_nan_and_infinities_are_read(tmp_path: Path) -> None:
    text = '{"obs":[NaN,1],"action":0,"reward":-Infinity}\n{"obs":["NaN","-Infinity"],"action":0,"reward":"Infinity"}\n'
    rows_read = read_table(write(tmp_path / "a.json", text))
    np.testing.assert_array_equal(rows_read.columns["obs"], [[np.nan, 1], [np.nan, -np.inf]])
    np.testing.assert_array_equal(rows_read.columns["rewards"], [-np.inf, np.inf])


def test_objects_are_composite_and_dates_stay_text(tmp_path: Path) -> None:
    rows = [{**ROW, "obs": {"a": [1, 2], "0": {"b": 0.5}}, "day": "2020-01-01"}]
    rows_read = read_table(write(tmp_path / "a.json", to_json_lines(rows)))
    assert rows_read.columns["obs/a"].tolist() == [[1, 2]]
    assert rows_read.columns["obs/0/b"].tolist() == [0.5]
    assert rows_read.columns["day"].tolist() == ["2020-01-01"]


CSV_TEXT = '''episode,step,obs_0,obs_1,action,reward,done,note
007,0,0.5,1,0,1,0,"a, ""b"""
007,1,nan,-inf,1,2,1,"two
lines"

008,0,1e3,3,1,3,true,
'''


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_csv_with_quotes_and_line_ends_in_text_is_read(tmp_path: Path, name: str, line_end: str) -> None:
    text = CSV_TEXT.replace("true", "1").replace("\n", line_end)
    if ".tsv" in name:
        text = text.replace(",", "\t")
    rows_read = read_table(write(tmp_path / name, text))
    np.testing.assert_array_equal(rows_read.columns["obs"], [[0.5, 1], [np.nan, -np.inf], [1000, 3]])
    assert rows_read.eps_id.tolist() == ["007", "007", "008"]
    assert rows_read.t.tolist() == [0, 1, 0]
    assert rows_read.row.tolist() == [0, 1, 2]
    assert rows_read.terminated.tolist() == [False, True, True]
    delimiter = "\t" if ".tsv" in name else ","
    assert rows_read.columns["note"].tolist() == [f'a{delimiter} "b"', f"two{line_end}lines", ""]


def test_csv_options_are_applied(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "0.5;1;-\n1.5;-;2\n")
    options = {
        "delimiter": ";",
        "columnNames": ["obs", "action", "reward"],
        "null_values": ["-"],
        "quoteChar": False,
        "columnTypes": {"obs": "float32"},
    }
    with pytest.raises(DataError, match=r"row 1: 'actions' is null"):
        read_table(path, options=options)
    write(path, "0.5;1;1\n1.5;0;2\n")
    rows_read = read_table(path, options=options)
    assert rows_read.columns["obs"].dtype == np.float32
    assert rows_read.columns["actions"].tolist() == [1, 0]


def test_csv_with_json_cells_and_filter_is_read(tmp_path: Path) -> None:
    text = "obs,action,reward,info\n" + "".join(
        f'"[{i}, {i}.5]",0,{i},"{{""TimeLimit.truncated"": true}}"\n' for i in range(9)
    )
    rows_read = read_table(write(tmp_path / "a.csv", text), filter=[("reward", "in", [2, 7])])
    assert rows_read.columns["obs"].tolist() == [[2, 2.5], [7, 7.5]]
    assert rows_read.row.tolist() == [2, 7]
    assert json.loads(rows_read.columns["infos"][0]) == {"TimeLimit.truncated": True}


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.json.gz", "a.csv.gz"])
def test_large_file_is_split_where_rows_end(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindcast.formats.tables.text_files.CHUNK_BYTES", 200)
    rng = np.random.default_rng(0)
    notes = ["plain", 'quo"ted', "two\nlines", "", "comma, and\r\nmore"]
    rows = [
        {"obs": rng.random(2).tolist(), "action": i, "reward": 0, "note": notes[int(rng.integers(5))]}
        for i in range(200)
    ]
    if ".json" in name:
        text = "".join(json.dumps(row) + ("\n\n" if i % 7 == 0 else "\r\n") for i, row in enumerate(rows))
    else:
        text = "obs[0],obs[1],action,reward,note\n" + "".join(
            f'{row["obs"][0]},{row["obs"][1]},{row["action"]},0,"{row["note"].replace(chr(34), chr(34) * 2)}"\n'
            + "\n" * (i % 7 == 0)
            for i, row in enumerate(rows)
        )
    path = write(tmp_path / name, text)
    pieces = find_format(path).list_pieces(resolve(path), ReadOptions())
    assert (len(pieces) > 5) == (not name.endswith(".gz"))
    rows_read = read_table(path)
    assert rows_read.row.tolist() == rows_read.columns["actions"].tolist() == list(range(200))
    assert rows_read.columns["obs"].tolist() == [row["obs"] for row in rows]
    assert rows_read.columns["note"].tolist() == [row["note"] for row in rows]


def test_first_piece_determines_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hindcast.formats.tables.text_files.CHUNK_BYTES", 1000)
    csv_text = "obs,action,reward\n" + "1,0,0\n" * 300 + "1.5,0,0.5\n"
    path = write(tmp_path / "a.csv", csv_text)
    message = "'obs': it cannot be converted to int64.*column_types"
    with raises_user_error(DataError, message, path="a.csv", row=300):
        read_table(path)
    assert read_table(path, options={"columnTypes": {"obs": "float64"}}).columns["obs"][-1] == 1.5
    json_text = '{"obs":[1],"action":0,"reward":0}\n' * 100 + '{"obs":[1.5],"action":0,"reward":0.5}\n'
    path = write(tmp_path / "a.json", json_text)
    with raises_user_error(DataError, r"'obs' is \[1\.5\].*column_types", path="a.json", row=100):
        read_table(path)
    assert read_table(path, options={"columnTypes": {"obs": "float64"}}).columns["obs"][-1] == [1.5]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "holds no rows"),
        ("a.csv", "obs,action,reward\n", "holds no rows"),
        ("a.csv", "obs,action,reward\n1,2\n", "row 0: Expected 3 columns, got 2"),
        ("a.csv", "obs,action,reward\n1,2,3\n1,2,x\n", "row 1: 'reward': it cannot be converted to double"),
        ("a.csv", "obs,action,reward\n1,2,3\n1,,3\n", "row 1: 'actions' is null"),
        ("a.csv", 'obs,action,reward\n1,2,"3\n', "has an unmatched quote"),
        ("a.csv", 'obs,action,reward,n\n1,2,3,5"\n1,2,3,6"\n', "found 2 records in 1 line from row 0 on"),
        ("a.csv", "obs,a\rction,reward\n1,2,3\n", "no column 'actions'"),
        ("a.csv", "obs;action;reward\n1;2;3\n", "no column 'obs'"),
        ("a.csv", 'obs,action,reward\n"[1,2",2,3\n', "row 0: 'obs' begins like JSON"),
        ("a.json", "\n\n", "holds no rows"),
        ("a.json", "[]", "holds no rows"),
        ("a.json", "[1, 2]", "row 0: it is '1': expected an object"),
        ("a.json", '[{"obs": 1}', "is not JSON"),
        ("a.json", to_json_lines([ROW]) + '{"obs": [1', "row 1: it is not JSON"),
        (
            "a.json",
            to_json_lines([ROW, {**ROW, "obs": [1.0]}]),
            "row 1: 'obs' has 1 number, but the row before",
        ),
        ("a.json", to_json_lines([ROW, {**ROW, "obs": None}]), "row 1: 'obs' is null"),
        ("a.json", to_json_lines([ROW, {**ROW, "action": "left"}]), "row 1: 'action' is \"left\""),
        ("a.json", json.dumps(ROW) * 2, "row 0: it is not JSON"),
        ("a.json", json.dumps(ROW, indent=1), "row 0: it is not JSON: .*; write one object per line, or all"),
        ("a.json", '{"obs": ' + "[" * 100_000, "row 0: it is not JSON"),
        ("a.json", '{"obs":1,"obs":2,"action":0,"reward":0}\n', "row 0: .*'obs'.* twice"),
        ("a.json", '{"obs" : 1, "obs" : 2, "action" : 0, "reward" : 0}\n', "row 0: .*'obs'.* twice"),
        (
            "a.json",
            f'{{"obs":{"[" * 65}1{"]" * 65},"action":0,"reward":0}}\n',
            "'obs' are nested more than 64 deep",
        ),
    ],
)
def test_invalid_text_raises(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path)
    assert name in str(caught.value)


def test_many_vectors_in_an_object_are_not_deeply_nested(tmp_path: Path) -> None:
    row = {**ROW, "obs": {f"sensor{i}": [1.0, 2.0] for i in range(100)}}
    assert len(read_table(write(tmp_path / "a.json", to_json_lines([row]))).columns) == 102


def test_unknown_option_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", CSV_TEXT)
    with pytest.raises(DataError, match="has 'delimter', which CSV does not have; did you mean 'delimiter'"):
        read_table(path, options={"delimter": ";"})
    with pytest.raises(
        DataError, match="has 'trueValues', which CSV does not have; write flags as true and false"
    ):
        read_table(path, options={"trueValues": ";"})
    with pytest.raises(DataError, match="has 'delimiter', which JSON does not have"):
        read_table(write(tmp_path / "a.json", to_json_lines([ROW])), options={"delimiter": ";"})


def test_collector_runs_again_after_parsing_in_threads_and_after_an_error(tmp_path: Path) -> None:
    def pause_twice(_: int) -> bool:
        with garbage_collector_pause, garbage_collector_pause:
            return gc.isenabled()

    assert gc.isenabled()
    with ThreadPoolExecutor(4) as threads:
        assert not any(threads.map(pause_twice, range(100)))
    with pytest.raises(DataError):
        read_table(write(tmp_path / "a.jsonl", "{"))
    assert gc.isenabled()
    gc.disable()
    try:
        pause_twice(0)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_search_for_values_takes_no_exponential_time_after_empty_objects() -> None:
    """Regression: it tried both ways to assign each line end, 2^n of them."""
    assert json_table._NO_VALUES.fullmatch(b"[{},\n { }\n]\n")
    assert json_table._NO_VALUES.fullmatch(b"{}\n" * 1000)
    assert not json_table._NO_VALUES.fullmatch(b"{}\n" * 1000 + b'{"obs": 1}')
