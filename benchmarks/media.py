"""Speed of reading foreign datasets: Minari against Minari, D4RL against a loop, TFRecord against `tfrecord`.

    python benchmarks/media.py

500-step episodes of a hopper's columns (11 observations, 3 actions) from the page cache, one thread, CPU time, into
arrays. Hindcast returns blocks of episodes and checks lengths, flags and the leaves' shapes, and in TFRecord each
checksum. It reads Minari's files by Minari, so the ratio is the cost of its checks (links, nulls, rows). Minari returns
one object per episode, the loop over D4RL's file a dict of arrays per episode, and `tfrecord` (left out if it is not
installed) a dict per timestep, without its checksum.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pyarrow as pa
from measuring import report, take_turns

from hindcast.episodes.block import Block
from hindcast.formats.format import ReadOptions
from hindcast.formats.media.record_file import compute_masked_crcs
from hindcast.formats.registry import FORMATS
from hindcast.storage.location import resolve

STEPS, OBSERVATIONS, ACTIONS = 500, 11, 3


def make_minari(folder: Path, data_format: str, episodes: int) -> None:
    """Write a dataset with Minari, named `bench/<data_format>-v0`."""
    import minari
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    flags = [False] * (STEPS - 1)
    buffers = [
        EpisodeBuffer(
            observations=list(rng.normal(size=(STEPS + 1, OBSERVATIONS)).astype(np.float32)),
            actions=list(rng.uniform(-1, 1, (STEPS, ACTIONS)).astype(np.float32)),
            rewards=rng.normal(size=STEPS).tolist(),
            terminations=[*flags, True],
            truncations=[*flags, False],
        )
        for _ in range(episodes)
    ]
    minari.create_dataset_from_buffers(
        f"bench/{data_format}-v0",
        buffer=buffers,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32),
        action_space=gym.spaces.Box(-1, 1, (ACTIONS,), np.float32),
        data_format=data_format,
    )
    assert folder.exists()


def read_minari(data_format: str) -> int:
    """Read the dataset with Minari; return the number of steps."""
    import minari

    dataset = minari.load_dataset(f"bench/{data_format}-v0")
    return sum(len(episode.rewards) for episode in dataset.iterate_episodes())


def make_d4rl(path: Path, episodes: int) -> None:
    """Write a file in D4RL's layout."""
    rng, rows = np.random.default_rng(0), episodes * STEPS
    observations = rng.normal(size=(rows + 1, OBSERVATIONS)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = observations[:-1], observations[1:]
        file["actions"] = rng.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32)
        file["rewards"] = rng.normal(size=rows).astype(np.float32)
        file["terminals"] = np.arange(rows) % STEPS == STEPS - 1
        file["timeouts"] = np.zeros(rows, dtype=np.bool_)


def read_d4rl(path: Path) -> int:
    """Read such a file by the usual loop over its rows; return the number of steps."""
    with h5py.File(path) as file:
        columns = {name: file[name][()] for name in file}
    steps = 0
    episode: dict[str, list[Any]] = defaultdict(list)
    for row in range(len(columns["rewards"])):
        for name, column in columns.items():
            episode[name].append(column[row])
        if columns["terminals"][row] or columns["timeouts"][row]:
            steps += len({name: np.array(values) for name, values in episode.items()}["rewards"])
            episode = defaultdict(list)
    return steps


def make_tfrecord(path: Path, episodes: int) -> None:
    """Write one `tf.train.Example` per timestep, encoded without TensorFlow."""
    rng = np.random.default_rng(0)
    records = [_encode_example(row, rng) for row in range(episodes * STEPS)]
    headers = [len(record).to_bytes(8, "little") for record in records]
    checksum_pairs = zip(_compute_checksums(headers), _compute_checksums(records), strict=True)
    with path.open("wb") as file:
        for header, record, (header_checksum, record_checksum) in zip(
            headers, records, checksum_pairs, strict=True
        ):
            file.write(header + header_checksum + record + record_checksum)


def _encode_example(row: int, rng: np.random.Generator) -> bytes:
    values = rng.normal(size=2 * OBSERVATIONS + ACTIONS + 1).astype("<f4")
    values_by_leaf = np.split(values, [OBSERVATIONS, 2 * OBSERVATIONS, -1])
    names = ("obs", "new_obs", "actions", "rewards")
    entries = [
        _encode_entry(name, 2, leaf_values.tobytes())
        for name, leaf_values in zip(names, values_by_leaf, strict=True)
    ]
    entries.append(_encode_entry("terminateds", 3, bytes([row % STEPS == STEPS - 1])))
    entries.append(_encode_entry("t", 3, _encode_varint(row % STEPS)))
    entries.append(_encode_entry("eps_id", 1, f"e{row // STEPS}".encode()))
    return _encode_field(1, b"".join(entries))


def _compute_checksums(chunks: list[bytes]) -> list[bytes]:
    lengths = np.array([len(chunk) for chunk in chunks])
    data = np.frombuffer(b"".join(chunks), dtype=np.uint8)
    return [
        checksum.tobytes() for checksum in compute_masked_crcs(data, np.cumsum(lengths) - lengths, lengths)
    ]


def _encode_entry(name: str, value_field: int, values: bytes) -> bytes:
    return _encode_field(
        1,
        _encode_field(1, name.encode())
        + _encode_field(2, _encode_field(value_field, _encode_field(1, values))),
    )


def _encode_field(field_number: int, data: bytes) -> bytes:
    return bytes([field_number << 3 | 2]) + _encode_varint(len(data)) + data


def _encode_varint(value: int) -> bytes:
    low_bits, remaining = value & 127, value >> 7
    return bytes([low_bits | 128]) + _encode_varint(remaining) if remaining else bytes([low_bits])


def read_tfrecord(path: Path) -> int:
    """Read the file with the package `tfrecord`; return the number of steps."""
    from tfrecord.reader import tfrecord_loader

    records: Iterator[Any] = tfrecord_loader(str(path), None)
    return sum(1 for _ in records)


def read_ours(name: str, path: Path) -> int:
    """Read all pieces of a file with Hindcast; return the number of steps."""
    data_format, options = FORMATS[name], ReadOptions()
    return sum(
        part.num_steps if isinstance(part, Block) else len(part)
        for piece in data_format.list_pieces(resolve(path), options)
        for part in data_format.read(piece, options)
    )


def make_timed(read: Callable[[], int], steps: int) -> Callable[[], float]:
    """Return a function that calls `read`, and returns timesteps per second of CPU time."""

    def run() -> float:
        start_time = time.process_time()
        assert read() == steps
        return steps / (time.process_time() - start_time)

    return run


def has_tfrecord() -> bool:
    """Return True if the package `tfrecord` is installed."""
    try:
        import tfrecord.reader  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    episodes = arguments.episodes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["MINARI_DATASETS_PATH"] = name
        for data_format in ("hdf5", "arrow"):
            make_minari(folder, data_format, episodes)
        make_d4rl(folder / "hopper.hdf5", episodes)
        make_tfrecord(folder / "hopper.tfrecord", episodes)
        main_file = folder / "bench" / "hdf5-v0" / "data" / "main_data.hdf5"
        metadata = folder / "bench" / "arrow-v0" / "data" / "metadata.json"
        d4rl, records = folder / "hopper.hdf5", folder / "hopper.tfrecord"
        for title, ours, rivals, target in (
            ("Minari HDF5", ("Minari", main_file), {"Minari": partial(read_minari, "hdf5")}, 0.3),
            ("Minari Arrow", ("Minari", metadata), {"Minari": partial(read_minari, "arrow")}, 0.3),
            ("D4RL", ("D4RL", d4rl), {"loop": partial(read_d4rl, d4rl)}, 10),
            (
                "TFRecord",
                ("TFRecord", records),
                {"tfrecord": partial(read_tfrecord, records)} if has_tfrecord() else {},
                2,
            ),
        ):
            readers = {"ours": partial(read_ours, *ours), **rivals}
            results = take_turns(
                {reader: make_timed(read, episodes * STEPS) for reader, read in readers.items()},
                arguments.rounds,
            )
            report(f"reading {title}", "timesteps/s", results, "ours", dict.fromkeys(rivals, target))


if __name__ == "__main__":
    main()
