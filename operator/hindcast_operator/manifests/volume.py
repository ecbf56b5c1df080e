"""How much data a training holds at a time, from what is known of its inputs; the operator opens no storage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hindcast.api import parse_bytes
from hindcast.api.attempt import Input
from hindcast.api.input import InputSource
from hindcast.api.training import OfflineTrainingSpec
from hindcast_operator.manifests.quantities import MI, as_bytes, round_up

DECODED: Final = 2
"""Bytes in memory for a byte on storage: columns lie there compressed (LZ4)."""
UNIT: Final = 32 * MI
"""Most bytes of a unit on storage: the piece that a data worker reads at a time."""


@dataclass(frozen=True)
class DataVolume:
    """Bytes in memory, and how they were found.

    Attributes:
        total: all data; None where it is not known.
        window: what is shuffled together.
        unit: what a data worker reads at a time.
        reason: where the figures come from.
    """

    total: int | None
    window: int
    unit: int
    reason: str


def data_volume(spec: OfflineTrainingSpec, inputs: Mapping[str, Input]) -> DataVolume:
    """Of a training's sources: one dataset, or, with weights, one window for each source."""
    stored = [source for source in spec.input if source.sampler is None]
    known = [_known(source, inputs) for source in stored]
    limit = parse_bytes(spec.pipeline.window_bytes)
    if None in known:
        windows = len(stored) if spec.input[0].weight is not None else 1
        reason = f"the data's size is not known; a full window of {as_bytes(limit)} is assumed"
        return DataVolume(None, DECODED * limit * windows, DECODED * UNIT, reason)
    found = [entry for entry in known if entry is not None]
    if spec.input[0].weight is None:
        found = [_together(found)]
    total = sum(entry.bytes or 0 for entry in found)
    window = sum(_window(entry, limit, spec.pipeline.window_steps) for entry in found)
    reason = f"{as_bytes(round_up(total, MI))} of data on storage, a window {as_bytes(round_up(window, MI))}"
    return DataVolume(DECODED * total, DECODED * window, DECODED * min(UNIT, total), reason)


def _known(source: InputSource, inputs: Mapping[str, Input]) -> Input | None:
    if source.recording_ref is None:
        return None
    found = inputs.get(f"OfflineRecording/{source.recording_ref.name}")
    return found if found is not None and found.bytes is not None else None


def _together(sources: list[Input]) -> Input:
    steps = [source.timesteps for source in sources]
    return Input(
        path="all",
        bytes=sum(source.bytes or 0 for source in sources),
        timesteps=None if None in steps else sum(step or 0 for step in steps),
    )


def _window(source: Input, limit: int, steps: int) -> int:
    """Bytes on storage of a window: a unit at least, which is never divided."""
    total = source.bytes or 0
    of_steps = total if not source.timesteps else -(-total * steps // source.timesteps)
    return min(total, max(UNIT, min(limit, of_steps)))
