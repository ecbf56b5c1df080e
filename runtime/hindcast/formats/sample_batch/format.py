"""The format "SampleBatch": JSON lines of RLlib's old API, of one agent or several, packed or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats.format import Format, Piece, ReadOptions
from hindcast.formats.layout import CellError
from hindcast.formats.rows import Rows
from hindcast.formats.sample_batch.batches import TYPES, batches_of
from hindcast.formats.sample_batch.rows import Plans, names_of, rows_of
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.naming import Plan, plan_of
from hindcast.formats.tables.read_options import check_options
from hindcast.formats.tables.text_files import blocks_of, head_of
from hindcast.formats.tables.written import written_spec
from hindcast.storage.location import Location

_HEAD: Final = 64 << 10
_FIRST: Final = 4 << 20
_TYPE: Final = re.compile(rb'"type"\s*:\s*"(?:' + "|".join(TYPES).encode() + rb')"')


class SampleBatch(Format):
    """A file is one piece, since only its lines say how many timesteps they hold."""

    name = "SampleBatch"

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the type of the first line."""
        if not location.name.removesuffix(".gz").endswith((".json", ".jsonl", ".ndjson")):
            return False
        return _TYPE.search(head_of(location, _HEAD).split(b"\n", 1)[0]) is not None

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.pieces`."""
        check_options(self.name, options.options, ())
        size = location.info().size
        if not size:
            raise DataError(f"{location} is empty (0 bytes): delete it, or leave it out of the paths")
        return [Piece(location, 0, size, dict(written_spec(location, self.name).leaves))]

    def describe(self, location: Location, options: ReadOptions) -> DataSpec:  # noqa: ARG002
        """See `Format.describe`: what the manifest in its folder says."""
        spec = written_spec(location, self.name)
        return replace(spec, leaves={})

    def notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:
        """See `Format.notes`: by the first line, where it is short; a line without flags ends no episode."""
        line, end, _ = head_of(location, _FIRST).partition(b"\n")
        if not end:
            return ()
        try:
            plans = [plan_of(names_of(batch), options) for batch in batches_of(line)]
        except (CellError, DataError) as error:
            raise DataError(f"{location}, line 1: {error}") from error
        return tuple(dict.fromkeys(note for plan in plans for note in (*plan.notes, *_of_flags(plan))))

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`: `row` counts timesteps, over all lines."""
        location, spec, plans = piece.location, DataSpec(piece.part), Plans(options)
        line, row = 0, 0
        for _, text in blocks_of(location):
            parts: list[Rows] = []
            for content in text.split(b"\n"):
                if content.strip():
                    for rows, count in _batches(location, content, line, spec, plans):
                        parts.append(replace(rows, row=rows.row + row))
                        row += count
                line += 1
            line -= 1  # a block ends with a line end
            for _, same in groupby((rows for rows in parts if len(rows)), key=_kind):
                yield Rows.concat(list(same))
        if not row:
            raise DataError(f"{location} holds no timesteps: delete it, or leave it out of the paths")


def _of_flags(plan: Plan) -> tuple[str, ...]:
    if {Columns.TERMINATEDS, Columns.TRUNCATEDS} & plan.sources.keys():
        return ()
    return ("no flag says that an episode ended: they count as unfinished, but as terminated in RLlib",)


def _batches(
    location: Location, content: bytes, line: int, spec: DataSpec, plans: Plans
) -> list[tuple[Rows, int]]:
    try:
        return [rows_of(batch, plans, spec, str(location), line) for batch in batches_of(content)]
    except (CellError, DataError) as error:
        raise DataError(f"{location}, line {line + 1}: {error}") from error


def _kind(part: Rows) -> Any:
    """What parts must share to be joined."""
    return (
        part.t is None,
        tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in part.columns.items())),
    )
