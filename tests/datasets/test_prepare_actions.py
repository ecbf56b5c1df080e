"""Recorded actions: normalised, or in the environment's units, by the data's format or `actionsNormalized`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from prepare_kit import make_block, make_table, scramble_rows, write_files

from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import DataError

NOTE = "actions are read in the environment's units; if they are in [-1, 1], set actionsNormalized: true"


@pytest.fixture
def block() -> Block:
    block, actions = make_block([3, 4]), np.linspace(-2, 2, 14, dtype=np.float32).reshape(7, 2)
    return block.with_columns(block.columns | {"actions": actions})


@pytest.fixture
def rllib_table(block: Block, tmp_path: Path) -> pa.Table:
    """Make rows with the column names of RLlib's recorder."""
    return make_table(block, tmp_path / "columns")


def test_actions_of_plain_table_are_in_environment_units(rllib_table: pa.Table, tmp_path: Path) -> None:
    names = ["next_obs" if name == "new_obs" else name for name in rllib_table.column_names]
    path = write_files(tmp_path / "table", rllib_table.rename_columns(names))
    dataset = open_data(path)
    assert not dataset.spec.normalized_actions
    assert NOTE in dataset.notes


@pytest.mark.parametrize("reorder", [lambda table: table, scramble_rows], ids=["in order", "scramble_rows"])
def test_actions_of_rllib_recording_are_normalised(reorder, rllib_table: pa.Table, tmp_path: Path) -> None:
    dataset = open_data(write_files(tmp_path / "rllib", reorder(rllib_table)))
    assert dataset.spec.normalized_actions
    assert NOTE not in dataset.notes


def test_actions_normalized_option_takes_precedence(rllib_table: pa.Table, tmp_path: Path) -> None:
    path = write_files(tmp_path / "rllib", rllib_table)
    dataset = open_data(Reading((path,), actions_normalized=False))
    assert not dataset.spec.normalized_actions
    assert open_data(Reading((path,), actions_normalized=True)).spec.normalized_actions


def test_mixed_action_units_raise_unless_discrete(rllib_table: pa.Table, tmp_path: Path) -> None:
    path = write_files(tmp_path / "rllib", rllib_table)
    readings = [Reading((path,)), Reading((path,), actions_normalized=False)]
    with pytest.raises(
        DataError, match="actions are normalised in one and in the environment's units in the"
    ):
        open_data(readings)
    first, second = (dataclasses.replace(open_data(reading).spec, leaves={}) for reading in readings)
    assert first.difference(second) is None
