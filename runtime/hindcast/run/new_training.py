"""Write the resource of a first training on some data: values that follow from the data, guesses, and their reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import gymnasium as gym

from hindcast.api.base import API_VERSION
from hindcast.api.input import PrepareSpec
from hindcast.api.metadata import make_resource_name
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.inspection.column_roles import TableProfile, read_profile
from hindcast.datasets.inspection.data_verdict import judge_data
from hindcast.datasets.inspection.guessing import guess_spaces
from hindcast.datasets.prepare.opening import OpenedData, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.reading_text import as_yaml, prepare_document, to_flow
from hindcast.datasets.validate import TEXT_ADVICE
from hindcast.episodes.columns import Columns, leaves_of
from hindcast.episodes.spaces import flatten_space, space_to_json
from hindcast.errors import DataError
from hindcast.evaluate.offline import MIN_EFFECTIVE_EPISODES
from hindcast.formatting import as_percentage, integer, plural
from hindcast.models.preprocessing import is_float_box

_MIN_HELD_OUT_EPISODES: Final = 10
_INDICATOR_SHARE: Final = 0.05
"""Share of missing values above which the policy also sees indicators of them."""
_NO_FINAL_OBS: Final = "'new_obs' is missing"
_GAPS: Final = "is missing"
"""Parts of errors that `_open` can remedy. The first one contains the second, so it is compared first."""


@dataclass(frozen=True)
class NewTraining:
    """A resource for a first training.

    Attributes:
        text: the resource as commented YAML.
        name: its name.
        notes: what a user should check.
    """

    text: str
    name: str
    notes: tuple[str, ...]


def make_training(reading: Reading, *, updates: int | None = None, hooks: Hooks = NO_HOOKS) -> NewTraining:
    """Make the resource of a first training on the data of a reading.

    Args:
        reading: what to read; everything in it that is not a default is kept.
        updates: number of updates; None takes 20 epochs, at least 500 and at most 10,000.
        hooks: notified of progress in preparing.

    Raises:
        DataError: the data cannot be read, or no column looks like the actions or the rewards.
    """
    profile = read_profile(reading)
    if profile is not None:
        profile.require_roles()
        reading = replace(reading, options=replace(reading.options, schema=profile.schema))
        if not profile.has_next_obs and not reading.options.ignore_final_observation:
            reading = replace(reading, prepare=reading.prepare.model_copy(update={"cut_off_steps": "Drop"}))
    data, reading = _open(reading, hooks)
    dataset = data.dataset
    guesses = (
        guess_spaces(dataset) if None in (dataset.spec.observation_space, dataset.spec.action_space) else ()
    )
    spaces = [
        recorded or (guesses[index] if guesses else None)
        for index, recorded in enumerate((dataset.spec.observation_space, dataset.spec.action_space))
    ]
    for column, space in zip((Columns.OBS, Columns.ACTIONS), spaces, strict=True):
        if space is None:
            leaves = [dataset.spec.leaves[name] for name in leaves_of(column, dataset.spec.leaves)]
            has_text = any(leaf.kind == "text" for leaf in leaves)
            kind, advice = ("text", TEXT_ADVICE) if has_text else ("complex numbers", "write real numbers")
            raise DataError(
                f"{reading.name}: the space of {column!r} cannot be guessed, because it holds {kind}: {advice}"
            )
    observation, action = spaces
    name = _resource_name(reading)
    lines = [
        f"# Written by `hindcast init {' '.join(map(str, reading.paths))}`; every value may be changed.",
        f"apiVersion: {API_VERSION}",
        "kind: OfflineTraining",
        f"metadata: {{name: {name}}}",
        "spec:",
        *_algorithm_lines(dataset, action),
        *_input_lines(reading, data, profile),
        *_space_lines(dataset, observation, action),
        *_model_lines(observation),
        *_evaluation_lines(dataset),
        *_stop_lines(dataset, updates),
    ]
    return NewTraining("\n".join(lines) + "\n", name, _make_notes(reading, data, profile))


def _open(reading: Reading, hooks: Hooks) -> tuple[OpenedData, Reading]:
    """Open the data; if timesteps or final observations are missing, with the rule that keeps most of the data.

    Returns:
        The data, and the reading with the rules that were necessary.
    """
    remedies = [
        (_NO_FINAL_OBS, {"cut_off_steps": "Drop"}),
        ("'new_obs' is null", {"cut_off_steps": "Drop"}),
        (_GAPS, {"gaps": "Join"}),
    ]
    while True:
        try:
            return open_reading(reading, hooks=hooks), reading
        except DataError as error:
            index = next((i for i, (text, _) in enumerate(remedies) if text in str(error)), None)
            if index is None:
                raise
            _, update = remedies.pop(index)
            reading = replace(reading, prepare=reading.prepare.model_copy(update=update))


def _algorithm_lines(dataset: Dataset, action: gym.Space) -> list[str]:
    has_rewards = Columns.REWARDS in dataset.spec.leaves
    if not has_rewards:
        return [
            "  # The data have no rewards, so the policy can only imitate what was recorded.",
            "  algorithm: BC",
        ]
    verdict = judge_data(dataset)
    if verdict.answer != "improve":
        return [
            f"  # The policy imitates what was recorded: {verdict.reasons[0]}.",
            "  # IQL, MARWIL, CQL, DiscreteCQL and TD3BC try to improve on it; see docs/algorithms.md.",
            "  algorithm: BC",
        ]
    reason = "IQL improves on the recorded policy, and never evaluates actions that were not recorded."
    kind = f"one of {action.n} actions" if isinstance(action, gym.spaces.Discrete) else "these actions"
    return [
        f"  # For {kind}, without a simulator.",
        f"  # {reason}",
        f"  # The data allow it: {verdict.reasons[0]}.",
        "  # Others: BC (imitates), MARWIL, CQL or DiscreteCQL, TD3BC; see docs/algorithms.md.",
        "  algorithm: IQL",
    ]


def _input_lines(reading: Reading, data: OpenedData, profile: TableProfile | None) -> list[str]:
    lines = ["  input:"]
    for entry in as_yaml(reading):
        lines += [f"    - {entry[0]}", *(f"      {line}" for line in entry[1:])]
        if profile is not None:
            lines += [
                f"      # The column {name} is left out: {reason}."
                for name, reason in profile.left_out.items()
            ]
        lines += _prepare_lines(reading.prepare, data)
    return lines


def _prepare_lines(prepare: PrepareSpec, data: OpenedData) -> list[str]:
    lines: list[str] = []
    comments = {
        "cutOffSteps": "There is no next observation, so the last step of an episode that was cut off is left out.",
        "gaps": "The column t does not count timesteps: rows in its order follow each other.",
    }
    for name, value in prepare_document(prepare).items():
        lines += [f"        # {comments[name]}"] if name in comments else []
        lines.append(f"        {name}: {to_flow(value)}")
    if data.missing:
        num_steps = data.dataset.num_steps
        lines += [
            "        # What replaces a missing value: CarryForward (the episode's last one), Median, Mean or a number.",
            "        missing:",
            *(
                f"          {to_flow(name)}: CarryForward  # missing in {_share(item.count, num_steps)} of the rows"
                for name, item in data.missing.items()
            ),
        ]
        if max(item.count for item in data.missing.values()) > _INDICATOR_SHARE * num_steps:
            lines += [
                "        # The policy also sees which values were missing.",
                "        missingIndicators: true",
            ]
    return ["      prepare:", *lines] if lines else []


def _share(count: int, total: int) -> str:
    return as_percentage(count / max(1, total))


def _space_lines(dataset: Dataset, observation: gym.Space, action: gym.Space) -> list[str]:
    lines: list[str] = []
    for field, recorded, space in (
        ("observationSpace", dataset.spec.observation_space, observation),
        ("actionSpace", dataset.spec.action_space, action),
    ):
        if recorded is None:
            lines += ["  # Guessed from the data.", f"  {field}: {to_flow(space_to_json(space))}"]
    return lines


def _model_lines(observation: gym.Space) -> list[str]:
    leaves = flatten_space(observation, Columns.OBS).values()
    has_vectors = any(map(is_float_box, leaves))
    if not has_vectors:
        return []
    return [
        "  model:",
        "    # Observations have different units: each is normalised by its mean and deviation.",
        "    observationFilter: MeanStd",
    ]


def _evaluation_lines(dataset: Dataset) -> list[str]:
    if dataset.num_episodes < _MIN_HELD_OUT_EPISODES:
        return [
            f"  # Too few episodes ({dataset.num_episodes}) to hold some out for an evaluation (evaluation.offline)."
        ]
    lines = [
        "  evaluation:",
        "    offline:",
        "      # A fifth of the episodes is not trained on; it shows how good the policy is.",
        "      heldOut: 0.2",
    ]
    if Columns.REWARDS in dataset.spec.leaves:
        can_weigh = dataset.num_episodes * 0.2 > MIN_EFFECTIVE_EPISODES
        wdr = "wdr weighs episodes and corrects by a model of its values"
        dm = "dm asks a model of its values; more episodes would allow wdr"
        lines += [
            f"      # Estimates of the policy's return: {wdr if can_weigh else dm}.",
            f"      estimates: [{'wdr' if can_weigh else 'dm'}]",
            "      explore: true",
            "      modelUpdates: 1000",
        ]
    return lines


def _stop_lines(dataset: Dataset, updates: int | None) -> list[str]:
    batch_size = 256
    if updates is None:
        updates = min(10_000, max(500, 20 * dataset.num_steps // batch_size))
    return [
        f"  # {integer(dataset.num_steps)} timesteps in {plural(dataset.num_episodes, 'episode')}.",
        f"  stop: {{updates: {updates}}}",
        "  checkpoint: {path: runs}",
    ]


def _make_notes(reading: Reading, data: OpenedData, profile: TableProfile | None) -> tuple[str, ...]:
    notes = [f"{reading.name}: {note}" for note in data.warnings]
    if profile is not None and profile.schema:
        columns = ", ".join(
            f"{role} is {name if isinstance(name, str) else f'{len(name)} columns'}"
            for role, name in profile.schema.items()
        )
        notes.append(f"check the roles of the columns: {columns}")
    return tuple(notes)


def _resource_name(reading: Reading) -> str:
    """Return a valid name of a resource, after the data."""
    return make_resource_name(Path(str(reading.paths[0]).rstrip("/")).name.split(".")[0])
