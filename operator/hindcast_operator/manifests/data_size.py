"""The size of a training's data in memory, computed from its resolved inputs, because the operator reads no storage."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from hindcast.api import parse_bytes
from hindcast.api.attempt import ResolvedInput
from hindcast.api.input import InputSource
from hindcast.api.pipeline import index_bytes
from hindcast.api.training import OfflineTrainingSpec
from hindcast_operator.manifests.quantities import MI, format_bytes, round_up

DECODED_RATIO: Final = 2
"""Bytes in memory per byte on storage, if the recording does not state its size in memory. Columns are compressed with
LZ4."""
MAX_UNIT_BYTES: Final = 64 * MI
"""Maximum size of a unit, which a data worker reads at once. Only a unit that is one large episode exceeds it."""
_TYPICAL_UNIT_BYTES: Final = 16 * MI
_MIN_WINDOW_BYTES: Final = 16 * _TYPICAL_UNIT_BYTES
"""A unit in each of 16 lanes, the fewest that data of many units have."""


@dataclass(frozen=True)
class DataSize:
    """Sizes in memory, with the reason.

    Attributes:
        total_bytes: size of all data; None if unknown.
        window_bytes: size of the windows of all lanes together; weighted sources share it.
        unit_bytes: size of a unit, which a data worker reads at once.
        index_bytes: size of the index of files and episodes, which each learner holds.
        reason: where the numbers come from, for people.
    """

    total_bytes: int | None
    window_bytes: int
    unit_bytes: int
    index_bytes: int
    reason: str


def compute_data_size(spec: OfflineTrainingSpec, inputs: Mapping[str, ResolvedInput]) -> DataSize:
    """Return the size of a training's recorded sources."""
    sizes = [_source_size(source, inputs) for source in spec.recorded_inputs]
    max_window_bytes = parse_bytes(spec.pipeline.window_bytes)
    if not sizes:
        return DataSize(0, 0, 0, 0, "there are no recorded data")
    if None in sizes:
        reason = f"the data size is not known; a full window of {format_bytes(max_window_bytes)} is assumed"
        return DataSize(None, max_window_bytes, MAX_UNIT_BYTES, 0, reason)
    data = _combine([entry for entry in sizes if entry is not None])
    total_bytes, window_bytes = data.bytes, _window_bytes(data, max_window_bytes, spec.pipeline.window_steps)
    total_size, window_size = (
        format_bytes(round_up(total_bytes, MI)),
        format_bytes(round_up(window_bytes, MI)),
    )
    reason = f"{total_size} of data in memory, a window {window_size}"
    index_size = index_bytes(math.ceil(total_bytes / _TYPICAL_UNIT_BYTES), data.episodes)
    return DataSize(total_bytes, window_bytes, min(MAX_UNIT_BYTES, total_bytes), index_size, reason)


class _SourceSize(NamedTuple):
    """The size of a source in memory; `timesteps` is None if unknown."""

    bytes: int
    timesteps: int | None
    episodes: int


def _source_size(source: InputSource, inputs: Mapping[str, ResolvedInput]) -> _SourceSize | None:
    if source.recording_ref is None:
        return None
    recording = inputs.get(f"OfflineRecording/{source.recording_ref.name}")
    if recording is None or recording.bytes is None:
        return None
    nbytes = recording.memory_bytes or DECODED_RATIO * recording.bytes
    return _SourceSize(nbytes, recording.timesteps, recording.episodes or 0)


def _combine(sources: list[_SourceSize]) -> _SourceSize:
    timesteps = [source.timesteps for source in sources if source.timesteps is not None]
    return _SourceSize(
        sum(source.bytes for source in sources),
        sum(timesteps) if len(timesteps) == len(sources) else None,
        sum(source.episodes for source in sources),
    )


def _window_bytes(source: _SourceSize, max_bytes: int, max_steps: int) -> int:
    """Return the size of a window in bytes: at least a unit in each lane, because only windowBytes divides units."""
    bytes_of_steps = (
        source.bytes if not source.timesteps else -(-source.bytes * max_steps // source.timesteps)
    )
    return min(source.bytes, max_bytes, max(_MIN_WINDOW_BYTES, bytes_of_steps))
