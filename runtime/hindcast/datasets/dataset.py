"""A dataset as the pipeline sees it: units of about 16 MiB that are read whole, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from hindcast.api.input import FilterTerm
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec

Episodes = NDArray[Any] | Sequence[int] | Sequence[bool]


class Dataset(Protocol):
    """Recorded episodes.

    Attributes:
        spec: what they hold.
        units: all of them, in the dataset's order.
        digest: sha256 (hex) that changes when the data do.
        num_episodes: episodes in all; one in fragments counts once.
        num_steps: timesteps in all.
        nbytes: size in memory.
        nbytes_stored: size of the files.
        layouts: names of those that the files have.
        notes: what opening it found that a user should know, in sentences.
    """

    spec: DataSpec
    units: Sequence[Unit]
    digest: str
    num_episodes: int
    num_steps: int
    nbytes: int
    nbytes_stored: int
    layouts: tuple[str, ...]
    notes: tuple[str, ...]

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """The unit's episodes, whole: what was stored in fragments is put together.

        Args:
            unit: one of `units`.
            columns: column names (`obs` means all its leaves) or leaf names; all by default.

        Raises:
            DataError: a damaged file, or a column that the dataset does not have.
        """
        ...

    def unreadable(self, unit: Unit, columns: Iterable[str] | None = None) -> Iterator[tuple[str, DataError]]:
        """The files of a unit that cannot be read, and why."""
        ...

    def locate(self, unit: Unit, episode: int) -> tuple[str, int]:
        """File and row (in the file) of an episode of the block that `read` gives."""
        ...

    def select(self, episodes: Episodes) -> Dataset:
        """Some of the episodes, in the dataset's order.

        Args:
            episodes: `[num_episodes]` booleans, or indices in any order, each once.

        Raises:
            DataError: booleans of another number, indices out of range or twice.
        """
        ...

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """The dataset in two, such as for training and validation; every episode is in one of them.

        Which ones depends on the seed and the episodes' ids, not on layout, files or order.

        Args:
            fraction: share of the episodes in the second part, rounded to whole episodes.
            seed: another one, another split.

        Returns:
            The rest, and the share.

        Raises:
            SpecError: a fraction that is not between 0 and 1.
        """
        ...

    def filter(self, *terms: FilterTerm | str, top: float | None = None) -> Dataset:
        """The episodes for which all terms hold, such as `"return >= 100"` and `"length > 10"`.

        Args:
            terms: comparisons of `return` (sum of rewards), `length`, `terminated`, `truncated` or `eps_id`.
            top: of those, the share with the highest return, rounded up; of equals the first.

        Raises:
            SpecError: a term that cannot be read, another field, a share that is not between 0 and 1.
        """
        ...

    def sample(
        self,
        episodes: int | None = None,
        *,
        timesteps: int | None = None,
        fraction: float | None = None,
        seed: int = 0,
    ) -> Dataset:
        """Episodes drawn at random, each at most once; by the seed and their ids, as in `split`.

        Args:
            episodes: how many.
            timesteps: draw until so many timesteps are reached.
            fraction: share of the episodes, rounded to whole episodes.
            seed: another one, other episodes.

        Raises:
            SpecError: not exactly one of the three, or more than there are.
        """
        ...
