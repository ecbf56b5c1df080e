"""Write one table of steps with the tools that people use: `foreign_writers.py FOLDER`.

Each function of `WRITERS` writes its own folder. Only the environment of the interoperability tests has these tools, so
functions import them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (5, 4, 6)
NUM_STEPS = sum(LENGTHS)
EPISODE = np.repeat(np.arange(3), LENGTHS)
STEP = np.concatenate([np.arange(length) for length in LENGTHS])
OBS = np.random.default_rng(0).normal(size=(NUM_STEPS, 3)).round(3)
ACTION = np.arange(NUM_STEPS) % 3
REWARD = (np.arange(NUM_STEPS) * 0.25) - 1
DONE = np.array(LENGTHS)[EPISODE] == STEP + 1
WRITERS: dict[str, Callable[[Path], Any]] = {}


def writer(write: Callable[[Path], Any]) -> Callable[[Path], Any]:
    WRITERS[write.__name__.removeprefix("write_")] = write
    return write


def make_columns(**others: Any) -> dict[str, Any]:
    """Make the columns as lists; `others` replace some, and None removes one."""
    columns = {
        "episode": EPISODE,
        "step": STEP,
        "obs": OBS,
        "action": ACTION,
        "reward": REWARD,
        "done": DONE,
        **others,
    }
    return {
        name: values.tolist() if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
        if values is not None
    }


FLAT = {"obs": None, **{f"obs_{i}": OBS[:, i] for i in range(3)}}


def make_frame(**others: Any) -> Any:
    import pandas

    return pandas.DataFrame(make_columns(**others))


@writer
def write_pandas_parquet(folder: Path) -> None:
    make_frame().sample(frac=1, random_state=0).to_parquet(folder / "steps.parquet")


@writer
def write_pandas_index(folder: Path) -> None:
    make_frame(**FLAT).set_index(["episode", "step"]).to_parquet(folder / "steps.parquet")


@writer
def write_pandas_nullable(folder: Path) -> None:
    frame = make_frame(**FLAT).convert_dtypes()
    frame["episode"] = frame["episode"].map("patient {}".format).astype("category")
    frame.to_parquet(folder / "steps.parquet")


@writer
def write_pandas_feather(folder: Path) -> None:
    make_frame().to_feather(folder / "steps.feather")


@writer
def write_pandas_csv(folder: Path) -> None:
    make_frame().assign(obs=[str(row) for row in OBS]).to_csv(folder / "steps.csv")


@writer
def write_pandas_json(folder: Path) -> None:
    make_frame().to_json(folder / "steps.jsonl.gz", orient="records", lines=True)


@writer
def write_pandas_partitions(folder: Path) -> None:
    make_frame().to_parquet(folder, partition_cols=["episode"])


@writer
def write_polars_parquet(folder: Path) -> None:
    import polars

    frame = polars.DataFrame(make_columns()).with_columns(
        polars.col("obs").list.to_array(3),
        polars.col("episode").cast(polars.String).cast(polars.Categorical),
        polars.duration(seconds=polars.col("step")).alias("step"),
        polars.col("reward").cast(polars.Decimal(10, 3)),
        polars.col("action").cast(polars.UInt8),
    )
    frame.sample(fraction=1, shuffle=True, seed=0).write_parquet(folder / "steps.parquet")


@writer
def write_polars_ipc(folder: Path) -> None:
    import polars

    frame = polars.DataFrame(make_columns()).with_columns(polars.format("e{}", "episode").alias("episode"))
    frame.write_ipc(folder / "steps.arrow")


@writer
def write_polars_ndjson(folder: Path) -> None:
    import polars

    polars.DataFrame(make_columns()).write_ndjson(folder / "steps.ndjson")


@writer
def write_polars_csv(folder: Path) -> None:
    import polars

    polars.DataFrame(make_columns(**FLAT)).write_csv(folder / "steps.csv", include_bom=True)


@writer
def write_duckdb_parquet(folder: Path) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.register("steps", make_frame())
    connection.execute(
        "COPY (SELECT episode::UBIGINT AS episode, step::TINYINT AS step, obs::FLOAT[3] AS obs, "
        "action::UTINYINT AS action, reward::DECIMAL(9, 3) AS reward, done FROM steps) "
        f"TO '{folder}/steps.parquet'"
    )


@writer
def write_duckdb_partitions(folder: Path) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.register("steps", make_frame())
    connection.execute(f"COPY steps TO '{folder}/steps' (FORMAT parquet, PARTITION_BY (episode))")


@writer
def write_duckdb_csv(folder: Path) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.register("steps", make_frame())
    connection.execute(f"COPY steps TO '{folder}/steps.csv' (DELIMITER '|')")


@writer
def write_duckdb_json(folder: Path) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.register("steps", make_frame())
    connection.execute(f"COPY steps TO '{folder}/steps.json' (ARRAY true)")


def make_dataset() -> Any:
    import datasets

    features = datasets.Features(
        {
            "episode": datasets.Value("int64"),
            "step": datasets.Value("int32"),
            "obs": datasets.Array2D((1, 3), "float64"),
            "action": datasets.ClassLabel(names=["left", "stay", "right"]),
            "reward": datasets.Value("float64"),
            "done": datasets.Value("bool"),
        }
    )
    columns = make_columns(obs=OBS[:, None])
    return datasets.Dataset.from_dict(columns, features)


@writer
def write_datasets_parquet(folder: Path) -> None:
    make_dataset().to_parquet(folder / "train-00000-of-00001.parquet")


@writer
def write_datasets_disk(folder: Path) -> None:
    data = make_dataset()
    data.save_to_disk(folder / "saved", num_shards=2)
    data.map(lambda row: row, cache_file_name=str(folder / "saved" / "cache-1.arrow"))


@writer
def write_datasets_splits(folder: Path) -> None:
    import datasets

    splits = {"test": make_dataset().select(range(9)), "train": make_dataset().select(range(9, NUM_STEPS))}
    datasets.DatasetDict(splits).save_to_disk(folder / "saved")


@writer
def write_datasets_json(folder: Path) -> None:
    import datasets

    # Its JSON of Array2D has one row alone, so this is of lists.
    datasets.Dataset.from_dict(make_columns()).to_json(folder / "steps.jsonl")


@writer
def write_delta(folder: Path) -> None:
    import deltalake
    import pyarrow as pa

    table = pa.table(make_columns(reward=[Decimal(str(value)) for value in REWARD]))
    old = table.set_column(0, "episode", pa.array(EPISODE + 10))
    deltalake.write_deltalake(folder / "steps", old, partition_by=["episode"])
    for first in range(0, NUM_STEPS, 4):
        deltalake.write_deltalake(folder / "steps", table.slice(first, 4), mode="append")
    delta_table = deltalake.DeltaTable(folder / "steps")
    delta_table.delete("episode >= 10")
    delta_table.optimize.compact()
    delta_table.create_checkpoint()


if __name__ == "__main__":
    for name, write in WRITERS.items():
        (Path(sys.argv[1]) / name).mkdir()
        write(Path(sys.argv[1]) / name)
    print(len(WRITERS))
