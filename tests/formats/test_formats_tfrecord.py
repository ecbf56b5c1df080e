"""TFRecord files with messages that protobuf has serialised."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from episode_kit import read_block
from hindcast.api.input import FilterTerm
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.media import tfrecord
from hindcast.formats.media.record_file import compute_masked_crcs
from hindcast.formats.registry import FORMATS, detect_format
from hindcast.formats.rows import Rows
from hindcast.storage.location import resolve

LENGTHS = (3, 200, 150)
Proto = descriptor_pb2.FieldDescriptorProto


def _make_example_class() -> Any:
    """Make the class of `tf.train.Example` from its published schema."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="toy", syntax="proto3")
    for name, kind in (
        ("BytesList", Proto.TYPE_BYTES),
        ("FloatList", Proto.TYPE_FLOAT),
        ("Int64List", Proto.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(
            name="value", number=1, type=kind, label=Proto.LABEL_REPEATED
        )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), start=1
    ):
        field_type = {"type": Proto.TYPE_MESSAGE, "type_name": f".toy.{kind}"}
        feature.field.add(name=name, number=number, oneof_index=0, label=1, **field_type)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Proto.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=Proto.TYPE_MESSAGE, type_name=".toy.Feature", label=1)
    features.field.add(
        name="feature", number=1, type=Proto.TYPE_MESSAGE, type_name=".toy.Features.FeatureEntry", label=3
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=Proto.TYPE_MESSAGE, type_name=".toy.Features", label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("toy.Example"))


Example = _make_example_class()


def compute_masked_crc(data: bytes) -> int:
    """Compute the CRC-32C bit by bit, and mask it as TFRecord does."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def make_record(data: bytes) -> bytes:
    parts = struct.pack("<Q", len(data)), data
    return b"".join(part + struct.pack("<I", compute_masked_crc(part)) for part in parts)


def encode_example(values: dict[str, Any]) -> bytes:
    message = Example()
    for name, value in values.items():
        feature = message.features.feature[name]
        items = np.ravel(value).tolist() if not isinstance(value, bytes) else [value]
        kind = {bytes: feature.bytes_list, float: feature.float_list, int: feature.int64_list}[type(items[0])]
        kind.value.extend(items)
    return message.SerializeToString(deterministic=True)


def make_steps() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for i, length in enumerate(LENGTHS):
        obs = rng.normal(size=(length + 1, 4)).astype(np.float32)
        rows += [
            {
                "eps_id": f"episode {i}".encode(),
                "t": t,
                "obs": obs[t],
                "new_obs": obs[t + 1],
                "actions": int(rng.integers(-3, 400)),
                "rewards": float(t % 2),
                "terminateds": int(t == length - 1),
                "frame": rng.integers(0, 256, 12, dtype=np.uint8).tobytes(),
            }
            for t in range(length)
        ]
    return rows


def write_examples(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(make_record(encode_example(row)) for row in rows))
    return path


def read(path: Path, **options: Any) -> list[Rows]:
    """Read all rows, piece by piece; unless `options` say otherwise, the feature "frame" holds uint8."""
    read_options = ReadOptions(**{"options": {"dtypes": {"frame": "uint8"}}, **options})
    file_format = FORMATS["TFRecord"]
    pieces = file_format.list_pieces(resolve(path), read_options)
    return [rows for piece in pieces for rows in file_format.read(piece, read_options)]


def test_checksum_is_crc_32c() -> None:
    parts = [b"123456789", b"", b"a", b"Hindcast" * 9]
    data = np.frombuffer(b"".join(parts), np.uint8)
    lengths = np.array([len(part) for part in parts])
    checksums = compute_masked_crcs(data, np.cumsum(lengths) - lengths, lengths)
    assert checksums.tolist() == [compute_masked_crc(part) for part in parts]
    known_crc = 0xE3069283
    masked_crc = (((known_crc >> 15) | (known_crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert compute_masked_crc(b"123456789") == masked_crc


def test_features_are_read_as_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make_steps()
    path = write_examples(tmp_path / "a.tfrecord", expected)
    assert detect_format(resolve(path)) is FORMATS["TFRecord"]
    (rows,) = read(path, options={"dtypes": {"frame": "uint8"}, "shapes": {"frame": [3, 4]}})
    for name in ("obs", "new_obs", "actions", "rewards"):
        column = np.array([row[name] for row in expected])
        np.testing.assert_array_equal(rows.columns[name], column)
    assert rows.columns["obs"].dtype == np.float32
    assert rows.columns["actions"].dtype == np.int64
    assert rows.columns["frame"].tobytes() == b"".join(row["frame"] for row in expected)
    assert rows.columns["frame"].shape == (len(expected), 3, 4)
    assert rows.t is not None and rows.t.tolist() == [row["t"] for row in expected]
    assert rows.terminated.sum() == len(LENGTHS)
    assert rows.row.tolist() == list(range(len(expected)))
    monkeypatch.setattr(tfrecord, "PIECE_BYTES", 5000)
    parts = read(path)
    assert len(parts) > 5
    obs = np.concatenate([part.columns["obs"] for part in parts])
    np.testing.assert_array_equal(obs, rows.columns["obs"])
    assert np.concatenate([part.row for part in parts]).tolist() == rows.row.tolist()


def test_file_is_opened_as_episodes(tmp_path: Path) -> None:
    expected = [{name: value for name, value in row.items() if name != "frame"} for row in make_steps()]
    np.random.default_rng(1).shuffle(expected)  # type: ignore[arg-type]
    dataset = open_data(write_examples(tmp_path / "a.tfrecord", expected))
    block = read_block(dataset)
    assert sorted(block.length.tolist()) == sorted(LENGTHS)
    assert block.terminated.all()


def test_schema_and_filter_select_features(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.tfrecord", make_steps())
    terms = [FilterTerm(column="rewards", op="==", value=1.0)]
    (rows,) = read(path, schema={"vf_preds": "frame"}, filter=terms)
    assert set(rows.columns["rewards"]) == {1.0}
    assert rows.columns["vf_preds"].shape[1:] == (12,)


def _drop_obs(row: dict[str, Any]) -> None:
    del row["obs"]


def _shorten_obs(row: dict[str, Any]) -> None:
    row["obs"] = row["obs"][:3]


def _change_rewards_to_int(row: dict[str, Any]) -> None:
    row["rewards"] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop_obs, "its features differ from those of other records: obs"),
        (_shorten_obs, "'obs' holds"),
        (_change_rewards_to_int, "'rewards' holds"),
    ],
)
def test_records_that_differ_raise_with_index(tmp_path: Path, change: Any, message: str) -> None:
    rows = make_steps()
    change(rows[100])
    with pytest.raises(DataError, match=rf"a\.tfrecord, record \d+: .*{message}"):
        read(write_examples(tmp_path / "a.tfrecord", rows))


def test_bytes_without_dtype_raise(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'frame' holds bytes that are not text.*readOptions\.dtypes"):
        read(write_examples(tmp_path / "a.tfrecord", make_steps()), options={})


@pytest.mark.parametrize("cut", [1, 5, 100, 10_000])
def test_truncated_file_raises(tmp_path: Path, cut: int) -> None:
    path = write_examples(tmp_path / "a.tfrecord", make_steps())
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"a\.tfrecord"):
        read(path)


def test_flipped_bit_raises(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "a.tfrecord", make_steps()[:3]).read_bytes()
    rng = np.random.default_rng(0)
    for i in range(100):
        damaged_data = bytearray(data)
        damaged_data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"damaged{i}.tfrecord"
        path.write_bytes(damaged_data)
        with pytest.raises(DataError, match=path.name):
            read(path)


def test_other_protobuf_message_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    rng = np.random.default_rng(0)
    for _ in range(200):
        path.write_bytes(make_record(rng.integers(0, 256, 30, dtype=np.uint8).tobytes()))
        with pytest.raises(DataError, match=r"a\.tfrecord"):
            read(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="holds no rows"):
        read(path)


@pytest.mark.parametrize("lengths", [(3, 200, 150), (5, 5, 5)])
@pytest.mark.parametrize("name", ["mine-train.tfrecord-00000-of-00001", "mine.tfrecord"])
@pytest.mark.parametrize("schema", [{}, {"obs": "steps/observation", "actions": "steps/action"}])
def test_example_with_steps_is_an_episode(tmp_path, lengths, name, schema):
    """Write a dataset of RLDS as TFDS does; the last step of an Example is only an observation."""
    rng = np.random.default_rng(0)
    observations = [rng.normal(size=(length + 1, 3)).astype(np.float32) for length in lengths]
    rows = [
        {
            "steps/observation": obs,
            "steps/action": np.append(rng.integers(0, 400, len(obs) - 1), 0),
            "steps/reward": np.append(np.arange(len(obs) - 1, dtype=np.float32), np.float32(0)),
            "steps/is_first": (np.arange(len(obs)) == 0).astype(int),
            "steps/is_last": (np.arange(len(obs)) == len(obs) - 1).astype(int),
            "steps/is_terminal": (np.arange(len(obs)) == (len(obs) - 1 if i != 1 else -1)).astype(int),
            "episode_metadata/file_path": b"a.npz",
        }
        for i, obs in enumerate(observations)
    ]
    folder = tmp_path / "mine" / "1.0.0"
    folder.mkdir(parents=True)
    write_examples(folder / name, rows)
    (folder / "dataset_info.json").write_text('{"name": "mine", "splits": []}')
    (folder / "features.json").write_text('{"featuresDict": {}}')
    dataset = open_data(Reading((str(folder.parent),), options=ReadOptions(schema=schema)))
    block = read_block(dataset)
    assert block.length.tolist() == list(lengths)
    assert block.terminated.tolist() == [True, False, True]
    assert block.truncated.tolist() == [False, True, False]
    assert (block.columns["obs"] == np.concatenate(observations)).all()
    actions = np.concatenate([row["steps/action"][:-1] for row in rows])
    assert block.columns["actions"].tolist() == actions.tolist()
