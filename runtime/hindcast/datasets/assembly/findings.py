"""What preparing found, counted, with the first place of each, and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from hindcast import formatting
from hindcast.formats.entries import Stored

Kind = Literal["gaps", "duplicates", "repeated", "unfinished", "late", "restarts", "unlike", "dropped"]
_ORDERS: Final = {
    "time": "by t",
    "stored": "as stored",
    "chain": "by chaining new_obs to obs",
}
_SAID: Final[dict[Kind, str]] = {
    "gaps": "timesteps are missing in {} places, where episodes were cut",
    "duplicates": "{} rows repeat others, and count once",
    "repeated": "{} stored episodes repeat others (the same id and the same content), and count once",
    "unfinished": "{} episodes end neither terminated nor truncated",
    "late": "{} episodes begin after timestep 0",
    "restarts": "{} times an episode continues after its end, and was cut there",
    "unlike": "in {} rows new_obs is not the next row's obs, which counts",
    "dropped": "{} rows of unfinished episodes were dropped",
}


class Finding(Stored):
    """Something that was found.

    Attributes:
        count: how often.
        path: the file in which it was first; None for episodes that the data store as such.
        row: of that file, likewise.
        eps_id: the episode.
        t: timestep, where the data say it.
    """

    count: int
    path: str | None = None
    row: int | None = None
    eps_id: str
    t: int | None = None

    def __str__(self) -> str:
        if self.path is None:
            return f"episode {self.eps_id}"
        when = "" if self.t is None else f", t {self.t}"
        return f"{self.path}: row {self.row} (episode {self.eps_id}{when})"


class Findings(Stored):
    """What was made of rows.

    Attributes:
        rows: read.
        episodes: made, pieces of one counted each.
        timesteps: in them.
        orders: how many episodes were put in order by what: "time", "stored", "chain"; stored episodes
            are not counted.
        found: what a user should know.
    """

    rows: int = 0
    episodes: int = 0
    timesteps: int = 0
    orders: dict[str, int] = {}
    found: dict[Kind, Finding] = {}

    @classmethod
    def merged(cls, parts: Sequence[Findings]) -> Findings:
        """Of all parts together; the first place is that of the first part."""
        orders: dict[str, int] = {}
        found: dict[Kind, Finding] = {}
        for part in parts:
            for name, count in part.orders.items():
                orders[name] = orders.get(name, 0) + count
            for kind, finding in part.found.items():
                known = found.get(kind)
                total = finding.count + (known.count if known else 0)
                found[kind] = (known or finding).model_copy(update={"count": total})
        return cls(
            rows=sum(part.rows for part in parts),
            episodes=sum(part.episodes for part in parts),
            timesteps=sum(part.timesteps for part in parts),
            orders=orders,
            found=found,
        )

    def sentences(self) -> tuple[str, ...]:
        """What a user should know."""
        orders = ", ".join(
            f"{formatting.whole(self.orders[name])} {how}"
            for name, how in _ORDERS.items()
            if self.orders.get(name)
        )
        first = (
            f"prepared {formatting.plural(self.rows, 'row')} into {formatting.plural(self.episodes, 'episode')} of "
            f"{formatting.plural(self.timesteps, 'timestep')}"
            + (f"; rows were put in order: {orders}" if orders else "")
        )
        return (
            first,
            *(
                f"{sentence.format(formatting.whole(self.found[kind].count))}; the first: {self.found[kind]}"
                for kind, sentence in _SAID.items()
                if kind in self.found
            ),
        )
