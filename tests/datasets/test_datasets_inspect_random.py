"""Valid data of any space, layout and lengths have no errors, and their spaces can be guessed."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hindcast.datasets.inspection.inspecting import inspect_paths
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes import nested
from hindcast.episodes.spaces import flatten_space, space_from_json, space_struct
from hindcast.storage.location import resolve
from layers import examples
from random_data import recordings

LAYOUTS = ("episodes/arrow", "episodes/messagepack")


def write_and_inspect(block, spec, layout):
    with tempfile.TemporaryDirectory() as folder:
        with BlockWriter(resolve(folder), spec, "s", layout=layout) as writer:
            writer.write(block)
        return inspect_paths([folder], sample_limit=None)


@examples(40)
@given(recordings(), st.sampled_from(LAYOUTS))
def test_valid_data_of_any_space_have_no_errors(recording, layout):
    block, spec = recording
    summary = write_and_inspect(block, spec, layout)
    assert [problem for problem in summary.problems if problem.severity == "error"] == []
    assert [problem for problem in summary.problems if problem.kind == "outside-space"] == []
    assert (summary.episodes, summary.sampled_timesteps) == (block.num_episodes, block.num_steps)
    assert summary.terminated == block.terminated.mean()
    json.dumps(summary.to_json(), allow_nan=False)


@examples(40)
@given(recordings(with_outputs=False))
def test_guessed_space_contains_its_data(recording):
    block, spec = recording
    spec_without_spaces = replace(spec, observation_space=None, action_space=None)
    summary = write_and_inspect(block, spec_without_spaces, "episodes/arrow")
    for column, space_json in (("obs", summary.observation_space), ("actions", summary.action_space)):
        names = [name for name in block.columns if name.split("/")[0] == column]
        if any(block.columns[name].dtype == object for name in names):
            assert space_json is None
            continue
        space = space_from_json(space_json)
        leaf_spaces = flatten_space(space, column)
        assert set(leaf_spaces) == set(names)
        columns = {name: as_guessed(block.columns[name], leaf_spaces[name]) for name in names}
        for row in range(len(columns[names[0]])):
            leaves = {name: columns[name][row] for name in names}
            sample = nested.unflatten(leaves, column, space_struct(space))
            assert space.contains(_convert_booleans(sample)), (space, sample)


def as_guessed(column, space):
    """Return integers as floats if the guess is a Box of floats; none may change."""
    if column.dtype.kind not in "iu" or space.dtype.kind != "f":
        return column
    converted = column.astype(space.dtype)
    assert [int(value) for value in converted.ravel()] == column.ravel().tolist()
    return converted


def _convert_booleans(value):
    """Convert booleans to integers, as samples of Gymnasium's spaces have them."""
    if isinstance(value, dict):
        return {key: _convert_booleans(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_convert_booleans(item) for item in value)
    array = np.asarray(value)
    return array.astype(np.int8) if array.dtype == bool else array
