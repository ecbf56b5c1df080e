"""Values as Minari stores them: images as JPEG, infos as a tree of arrays."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import EMPTY_INFO
from hindcast.episodes.convert import info_to_json
from hindcast.errors import DataError

_TUPLE: Final = "_index_"


def part_name(name: str) -> str:
    """Minari's name of a part of a composite value as Hindcast's: parts of tuples are `_index_0`, …"""
    number = name.removeprefix(_TUPLE)
    return number if name.startswith(_TUPLE) and number.isdigit() else name


def decode_images(
    images: Sequence[Any] | NDArray[Any], shape: tuple[int, ...], where: str
) -> NDArray[np.uint8]:
    """`[len(images), *shape]` of JPEG images, each as bytes or as an array of bytes.

    Raises:
        DataError: one that is no JPEG, or of another size.
    """
    from PIL import Image

    out = np.empty((len(images), *shape), dtype=np.uint8)
    for number, data in enumerate(images):
        try:
            image = Image.open(io.BytesIO(bytes(data)), formats=["JPEG"])
            if (image.height, image.width) != shape[:2]:
                raise ValueError(f"it is {image.height} by {image.width} pixels, expected {list(shape)}")
            out[number] = np.asarray(image)
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{where}: image {number} cannot be read: {error}") from error
    return out


def infos_to_json(tree: Mapping[str, Any], observations: int, where: str) -> NDArray[np.object_]:
    """`[observations]` JSON text of the infos.

    Args:
        tree: nested dicts of arrays `[rows, *shape]`; rows is either the number of observations, or one less:
            then the info that came with `reset` was not kept.
        observations: T + 1.
        where: file and path, for sentences.

    Raises:
        DataError: arrays of other lengths.
    """
    lengths = {len(leaf) for leaf in _leaves(tree)}
    if len(lengths) > 1 or lengths.pop() not in (observations, observations - 1):
        found = sorted({len(leaf) for leaf in _leaves(tree)})
        raise DataError(
            f"{where}: infos have {found} entries, where {observations} observations ask for as many, "
            "or for one less"
        )
    texts = [info_to_json(info) for info in _per_step(tree)]
    missing = observations - len(texts)
    return np.array([EMPTY_INFO] * missing + texts, dtype=object)


def _per_step(node: Any) -> list[Any]:
    """The values of each step, of a tree whose arrays hold all steps."""
    if not isinstance(node, Mapping):
        return list(node.tolist())
    keys = sorted(node, key=lambda key: (len(key), key)) if _is_tuple(node) else list(node)
    rows = zip(*(_per_step(node[key]) for key in keys), strict=True)
    if _is_tuple(node):
        return [list(row) for row in rows]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _is_tuple(node: Mapping[str, Any]) -> bool:
    return all(part_name(key) != key for key in node)


def _leaves(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return [leaf for part in node.values() for leaf in _leaves(part)]
    return [node]
