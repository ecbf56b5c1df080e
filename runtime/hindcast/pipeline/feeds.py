"""`Feed`, the interface of sources of endless batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from torch import Tensor

from hindcast.errors import DataError, UserCodeError
from hindcast.pipeline.window import Batch

State = dict[str, Any]
GatherValues = Callable[[Any], list[Any]]
"""Returns the values of all learners, which call it together, in order of rank."""


class Feed(Protocol):
    """A source of this learner's shard of endless batches, with a position that can be saved and restored.

    Attributes:
        batch_size: items in the batch of all learners together.
        epoch_size: number of items in an epoch; 0 without recorded data.
        epoch_timesteps: number of timesteps of the recorded data; 0 without recorded data.
    """

    batch_size: int
    epoch_size: int
    epoch_timesteps: int

    @property
    def cursor(self) -> int:
        """Number of items delivered to all learners since the start of epoch 0."""

    def next(self) -> Batch:
        """Return this learner's shard of the next batch."""
        return self.take(self.batch_size)

    def take(self, count: int) -> Batch:
        """Advance by `count` items of all learners together, and return this learner's shard of them."""

    def prefetch(self) -> None:
        """Start to read what the next batch needs, if it is read in the background."""
        return

    def state(self) -> State:
        """Return the position, as a JSON value."""

    def tensors(self) -> Batch:
        """Return copies of the tensors of the position, on the CPU: targets of the current windows, or priorities."""

    def synchronise(self, gather: GatherValues) -> None:
        """Collect what `state` and `tensors` need of all learners, which call this together after their last batch."""

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Go to a saved position.

        Args:
            state: the result of the method `state`.
            tensors: the result of the method `tensors`. Without it, targets are computed again.

        Raises:
            DataError: the position belongs to other data or to another order.
        """

    def prioritise(self, priorities: Tensor) -> None:
        """Set the priorities of all items of the last `take`, `[count]`, not only of this learner's; signs are ignored.

        Raises:
            UserCodeError: the items are not drawn by priority, or there is not exactly one priority per item.
        """

    def metrics(self) -> dict[str, float]:
        """Return metrics since the start of epoch 0.

        `epoch` (with its fraction), `timesteps_seen` (distinct), `coverage` (their fraction of the dataset), and
        `data_wait_seconds`, the time that this process has waited for data. With targets also `targets_age`: the
        updates since the oldest current ones were computed.
        """

    def close(self) -> None:
        """Release the data and stop the threads. The feed can resume from its cursor afterwards."""


def check_same_position(saved: State, current: State, location: str, order_subject: str) -> None:
    """Check that a saved position belongs to the same data and the same order.

    Args:
        saved: the saved position.
        current: any position of this feed.
        location: location of the data as the user wrote it, for the message.
        order_subject: what the order depends on, a singular subject for the message.

    Raises:
        DataError: the data or the order changed.
    """
    subjects = {
        "data": f"the data in {location}, or how Hindcast prepares them, have",
        "order": f"{order_subject} has",
    }
    for key, subject in subjects.items():
        if saved[key] != current[key]:
            raise DataError(
                f"The position in the data cannot be resumed: {subject} changed since the checkpoint was "
                "written. Undo the change, or start a new run with a higher spec.revision.",
                mentions=("spec.revision",),
            )


def refuse_priorities() -> NoReturn:
    """Raise the error of `Feed.prioritise` for items that are not drawn by priority."""
    raise UserCodeError(
        "The algorithm's losses return priorities, but it does not draw by priority: set "
        "sampling='prioritized' in its needs."
    )
