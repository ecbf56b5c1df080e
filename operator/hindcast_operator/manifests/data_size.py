"""How much data a training keeps in memory, from what is known of its inputs; the operator opens no storage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from hindcast.api import parse_bytes
from hindcast.api.attempt import ResolvedInput
from hindcast.api.input import InputSource
from hindcast.api.training import OfflineTrainingSpec
from hindcast_operator.manifests.quantities import MI, format_bytes, round_up

DECODED: Final = 2
"""Bytes in memory for a byte on storage, where the recording does not say: columns are stored compressed (LZ4)."""
UNIT: Final = 64 * MI
"""Most bytes of a unit: the piece that a data worker reads at a time. Only an episode that is longer makes more."""


@dataclass(frozen=True)
class DataSize:
    """Bytes in memory, and how they were found.

    Attributes:
        total: all data; None where it is not known.
        window: what is shuffled together.
        unit: what a data worker reads at a time.
        reason: where the numbers come from.
    """

    total_bytes: int | None
    window_bytes: int
    unit_bytes: int
    reason: str


def data_size(spec: OfflineTrainingSpec, inputs: Mapping[str, ResolvedInput]) -> DataSize:
    """Of a training's recorded sources: one dataset, or, with weights, one window for each source."""
    known = [_known(source, inputs) for source in spec.recorded]
    limit = parse_bytes(spec.pipeline.window_bytes)
    if not known:
        return DataSize(0, 0, 0, "there are no recorded data")
    weighted = spec.recorded[0].weight is not None
    if None in known:
        windows = len(known) if weighted else 1
        reason = f"the data size is not known; a full window of {format_bytes(limit)} is assumed"
        return DataSize(None, limit * windows, UNIT, reason)
    found = [entry for entry in known if entry is not None]
    if not weighted:
        found = [_together(found)]
    total = sum(entry.bytes for entry in found)
    window = sum(_window(entry, limit, spec.pipeline.window_steps) for entry in found)
    reason = f"{format_bytes(round_up(total, MI))} of data in memory, a window {format_bytes(round_up(window, MI))}"
    return DataSize(total, window, min(UNIT, total), reason)


class _SourceSize(NamedTuple):
    """Of a source, in memory; timesteps are None where they are not known."""

    bytes: int
    timesteps: int | None


def _known(source: InputSource, inputs: Mapping[str, ResolvedInput]) -> _SourceSize | None:
    if source.recording_ref is None:
        return None
    found = inputs.get(f"OfflineRecording/{source.recording_ref.name}")
    if found is None or found.bytes is None:
        return None
    return _SourceSize(found.memory_bytes or DECODED * found.bytes, found.timesteps)


def _together(sources: list[_SourceSize]) -> _SourceSize:
    steps = [source.timesteps for source in sources]
    return _SourceSize(
        sum(source.bytes for source in sources),
        None if None in steps else sum(step or 0 for step in steps),
    )


def _window(source: _SourceSize, limit: int, steps: int) -> int:
    """Bytes of a window: a unit at least, which is never divided."""
    of_steps = source.bytes if not source.timesteps else -(-source.bytes * steps // source.timesteps)
    return min(source.bytes, max(UNIT, min(limit, of_steps)))
