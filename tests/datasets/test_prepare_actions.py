"""Recorded actions: normalised, or in the environment's units, by the data's format or `actionsNormalized`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Discrete
from prepare_kit import make_block, make_table, scramble_rows, write_files

from hindcast.datasets.inspection.action_units import describe_wrong_units, find_wrong_units
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec

NOTE = "actions are read in the environment's units; if they are in [-1, 1], set actionsNormalized: true"


@pytest.fixture
def block() -> Block:
    block, actions = make_block([3, 4]), np.linspace([-2, -2], 2, 7, dtype=np.float32)
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


TORQUE = Box(-2, 2, (1,), np.float32)


@pytest.mark.parametrize(
    ("is_normalized", "space", "reach", "expected"),
    [
        (
            True,
            TORQUE,
            2.0,
            r"'actions' is read as normalised .* bounds of the action space, \[-2, 2\]: .* false",
        ),
        (True, Box(-0.4, 0.4, (1,), np.float32), 0.4, r"fills the bounds of the action space, \[-0.4, 0.4\]"),
        (False, TORQUE, 1.0, r"fills \[-1, 1\] and not .* \[-2, 2\]: if it is normalised .* true"),
        (True, TORQUE, 1.0, None),
        (True, TORQUE, 2.5, None),  # as a Gaussian policy returns them before they are clipped
        (True, TORQUE, 1.7, None),
        (False, TORQUE, 2.0, None),
        (False, TORQUE, 0.9, None),
        (True, Box(-1, 1, (1,), np.float32), 1.0, None),
        (True, Box(-np.inf, np.inf, (1,), np.float32), 1.0, None),
        (True, Discrete(3), 2.0, None),
    ],
)
def test_actions_in_other_units_are_noted_by_their_values(is_normalized, space, reach, expected) -> None:
    actions = np.linspace(-reach, reach, 7, dtype=np.float32)[:, None]
    block = make_block([3, 4])
    spec = DataSpec.from_block(block.with_columns(block.columns | {"actions": actions}))
    spec = dataclasses.replace(spec, normalized_actions=is_normalized)
    message = describe_wrong_units("actions", actions.min(0), actions.max(0), space, spec)
    if expected is None:
        assert message is None
    else:
        assert re.search(expected, message)


def test_training_on_normalised_actions_in_the_environments_units_notes_them(
    rllib_table: pa.Table, tmp_path: Path
) -> None:
    dataset = open_data(write_files(tmp_path / "rllib", rllib_table))
    space = Box(-2, 2, (2,), np.float32)
    (message,) = find_wrong_units(dataset, space)
    assert "actionsNormalized: false" in message
    dataset.spec = dataclasses.replace(dataset.spec, action_space=space)
    assert [problem.kind for problem in summarise(dataset).problems].count("wrong-units") == 1
