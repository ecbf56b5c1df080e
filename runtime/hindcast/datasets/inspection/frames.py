"""Frames: a few images of an episode, small enough for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_FRAMES: Final = 8
_MAX_SIDE: Final = 128
"""Pixels of a frame's longer side; larger images are thinned."""
_MIN_SIDE: Final = 4


@dataclass(frozen=True, eq=False)
class Frames:
    """Images of an episode, in order.

    Attributes:
        episode: id of the episode.
        timesteps: `[n]` timestep of each image.
        images: uint8 images, each `[height, width]` or `[height, width, 3]`, of at most 128 pixels a side.
        num_observations: number of images from which these were chosen.
    """

    episode: str
    timesteps: Sequence[int]
    images: Sequence[NDArray[np.uint8]]
    num_observations: int


def is_image(shape: Sequence[int]) -> bool:
    """Return True if values of this shape are images, `[height, width, channels]`."""
    return len(shape) == 3 and min(shape[:2]) >= _MIN_SIDE


def choose_frames(episode: str, observations: NDArray[Any], first_timestep: int = 0) -> Frames:
    """Choose images spread evenly over an episode, its first and its last one among them.

    Args:
        episode: id of the episode.
        observations: `[T+1, height, width, channels]`.
        first_timestep: timestep of the first image.
    """
    count = min(MAX_FRAMES, len(observations))
    indices = np.unique(np.linspace(0, len(observations) - 1, count).round().astype(np.int64))
    timesteps = (first_timestep + indices).tolist()
    return Frames(episode, timesteps, to_pictures([observations[i] for i in indices]), len(observations))


def to_pictures(images: Iterable[NDArray[Any]]) -> list[NDArray[np.uint8]]:
    """Convert `[height, width, channels]` images of any dtype to grey or RGB, all with the same scale.

    Images with neither one nor three channels are stacks of frames: their last channel is shown.
    """
    pictures = []
    for image in images:
        stride = -(-max(image.shape[:2]) // _MAX_SIDE)
        channels = slice(None) if image.shape[2] == 3 else -1
        pictures.append(image[::stride, ::stride, channels])
    if all(picture.dtype == np.uint8 for picture in pictures):
        return pictures
    finite_values = np.concatenate([picture[np.isfinite(picture)].ravel() for picture in pictures])
    low, high = (finite_values.min(), finite_values.max()) if len(finite_values) else (0.0, 1.0)
    scale = 255.0 / max(float(high) - float(low), 1e-12)
    return [
        np.nan_to_num((picture.astype(np.float64) - low) * scale, posinf=255.0, neginf=0.0)
        .clip(0, 255)
        .astype(np.uint8)
        for picture in pictures
    ]
