"""`SampleBatch`, timesteps in columns, and `SampleBatchBuilder`, which makes one from single timesteps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hindcast.episodes import batched
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError

_UNROLL_ID: Final = "unroll_id"


class SampleBatch(dict[str, Any]):
    """A mapping column -> values of T timesteps: arrays `[T, ...]`, nested arrays, or a list (`infos`).

    Its length (`len`) is T, not its number of columns.

    Args:
        args: see `dict`.
        columns: see `dict`.

    Raises:
        DataError: columns differ in length.
    """

    OBS = CUR_OBS = Columns.OBS
    NEXT_OBS = Columns.NEXT_OBS
    ACTIONS = Columns.ACTIONS
    REWARDS = Columns.REWARDS
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = Columns.PREV_REWARDS
    DONES = "dones"
    TERMINATEDS = Columns.TERMINATEDS
    TRUNCATEDS = Columns.TRUNCATEDS
    INFOS = Columns.INFOS
    EPS_ID = Columns.EPS_ID
    AGENT_INDEX = "agent_index"
    UNROLL_ID = _UNROLL_ID
    T = Columns.T
    ACTION_DIST_INPUTS = Columns.ACTION_DIST_INPUTS
    ACTION_PROB = "action_prob"
    ACTION_LOGP = Columns.ACTION_LOGP
    VF_PREDS = Columns.VF_PREDS

    def __init__(self, *args: Any, **columns: Any) -> None:
        super().__init__(*args, **columns)
        for name, value in self.items():
            self[name] = list(value) if name == Columns.INFOS else _to_column(value)
        lengths = {name: _length(value) for name, value in self.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns of a SampleBatch differ in length: {lengths}")

    @property
    def count(self) -> int:
        """T, the number of timesteps."""
        return _length(next(iter(self.values()))) if self.keys() else 0

    def __len__(self) -> int:
        return self.count

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each timestep: column -> value."""
        for t in range(self.count):
            yield {name: _slice(value, t) for name, value in self.items()}

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """Return the columns of the keys, in that order."""
        return [self[key] for key in keys]

    def slice(self, start: int, end: int) -> SampleBatch:
        """Return the timesteps from `start` to before `end`."""
        return SampleBatch({name: _slice(value, slice(start, end)) for name, value in self.items()})

    def split_by_episode(self) -> list[SampleBatch]:
        """Return a batch for each sequence of adjacent timesteps with the same `eps_id`.

        Raises:
            DataError: there is no column `eps_id`.
        """
        if Columns.EPS_ID not in self:
            raise DataError(f"this SampleBatch has no column {Columns.EPS_ID!r} to split by")
        ids = np.asarray(self[Columns.EPS_ID])
        ends = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), self.count]
        return [self.slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def concat(self, other: Mapping[str, Any]) -> SampleBatch:
        """Return the timesteps of this batch, followed by the timesteps of the other batch."""
        return self.concat_samples([self, other])

    @staticmethod
    def concat_samples(samples: Sequence[Mapping[str, Any]]) -> SampleBatch:
        """Concatenate batches with the same columns; without batches, return an empty batch.

        Raises:
            DataError: the batches have different columns.
        """
        names = samples[0].keys() if samples else ()
        for sample in samples:
            if sample.keys() != names:
                raise DataError(
                    f"batches have different columns: {sorted(names)} and {sorted(sample.keys())}"
                )
        return SampleBatch({name: _concatenate([sample[name] for sample in samples]) for name in names})


def concat_samples(samples: Sequence[Mapping[str, Any]]) -> SampleBatch:
    """Call `SampleBatch.concat_samples`, under RLlib's name of the function."""
    return SampleBatch.concat_samples(samples)


class SampleBatchBuilder:
    """A builder of a `SampleBatch` from single timesteps."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._unroll_id = 0

    def add_values(self, **values: Any) -> None:
        """Add a timestep: a value for each column."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def add_batch(self, batch: SampleBatch) -> None:
        """Add all timesteps of a batch."""
        for row in batch.rows():
            self.add_values(**row)

    def build_and_reset(self) -> SampleBatch:
        """Return the added timesteps as a batch, and begin the next batch.

        The column `unroll_id` is the number of the batch, from 0.

        Raises:
            DataError: timesteps have different columns, or the values of a column have different shapes.
        """
        values, self._values = self._values, {}
        num_steps = len(next(iter(values.values()), []))
        batch = SampleBatch({**values, _UNROLL_ID: np.full(num_steps, self._unroll_id)})
        self._unroll_id += 1
        return batch


def _to_column(values: Any) -> Any:
    """Convert the values of T timesteps to arrays `[T, ...]`; return arrays unchanged."""
    if batched.is_batch(values):
        return values
    values = list(values)
    if not values:
        return np.zeros(0)
    try:
        return batched.stack(values)
    except ValueError as error:
        raise DataError(f"a column of a SampleBatch: {error}") from error


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else batched.batch_length(value)


def _slice(value: Any, index: Any) -> Any:
    """Return the value of one timestep or, for a slice, of several."""
    return value[index] if isinstance(value, list) else batched.take(value, index)


def _concatenate(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    return batched.concatenate(values)
