"""Nested values of composite spaces: dicts and tuples with arrays, numbers or text as leaves.

A list is not a composite but a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hindcast.episodes.columns import SEPARATOR

Nested = Any


def is_composite(value: Nested) -> bool:
    """Return whether a value is a dict or a tuple, and not a leaf."""
    return isinstance(value, Mapping | tuple)


def map_leaves(function: Callable[..., Any], value: Nested, *others: Nested) -> Nested:
    """Apply `function(leaf, *leaves of the others)` to each leaf; the result has the same structure.

    Raises:
        ValueError: the others have another structure.
    """
    if isinstance(value, Mapping):
        for other in others:
            if not isinstance(other, Mapping) or other.keys() != value.keys():
                raise ValueError(f"values differ in structure: {outline(value)} and {outline(other)}")
        return {key: map_leaves(function, value[key], *(other[key] for other in others)) for key in value}
    if isinstance(value, tuple):
        for other in others:
            if not isinstance(other, tuple) or len(other) != len(value):
                raise ValueError(f"values differ in structure: {outline(value)} and {outline(other)}")
        return tuple(map_leaves(function, *parts) for parts in zip(value, *others, strict=True))
    for other in others:
        if is_composite(other):
            raise ValueError(f"values differ in structure: {outline(value)} and {outline(other)}")
    return function(value, *others)


def leaves(value: Nested) -> Iterator[Any]:
    """Yield the leaves, in the value's order."""
    if not is_composite(value):
        yield value
        return
    for part in value.values() if isinstance(value, Mapping) else value:
        yield from leaves(part)


def outline(value: Nested) -> str:
    """Describe the structure briefly for messages: `{camera: array, pose: (array, array)}`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {outline(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(outline(part) for part in value) + ")"
    return "array" if isinstance(value, np.ndarray) else type(value).__name__


def flatten(value: Nested, root: str) -> dict[str, Any]:
    """Flatten a value to leaf name -> leaf, `{"obs/camera": …, "obs/pose/0": …}`; a leaf becomes `{root: leaf}`.

    Raises:
        ValueError: two keys make the same leaf name.
    """
    if not is_composite(value):
        return {root: value}
    flat_leaves: dict[str, Any] = {}
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        for name, leaf in flatten(part, f"{root}{SEPARATOR}{key}").items():
            if name in flat_leaves:
                raise ValueError(f"two parts of a value share the leaf name {name!r}: rename one key")
            flat_leaves[name] = leaf
    return flat_leaves


def unflatten(flat_leaves: Mapping[str, Any], root: str, struct: Nested | None = None) -> Nested:
    """Restore a value from its leaves: the inverse of `flatten`.

    Args:
        flat_leaves: leaf name -> leaf; leaves of other roots are ignored.
        root: the column of the value, such as `obs`.
        struct: structure of the value (`space_struct`). Without it keys 0, 1, 2, … make a tuple, other keys a dict.

    Raises:
        ValueError: a leaf of the struct is missing; without a struct, no leaf exists.
    """
    if isinstance(struct, Mapping):
        return {key: unflatten(flat_leaves, f"{root}{SEPARATOR}{key}", part) for key, part in struct.items()}
    if isinstance(struct, tuple):
        return tuple(unflatten(flat_leaves, f"{root}{SEPARATOR}{i}", part) for i, part in enumerate(struct))
    if root in flat_leaves:
        return flat_leaves[root]
    prefix = root + SEPARATOR
    keys = list(
        dict.fromkeys(
            name[len(prefix) :].split(SEPARATOR, 1)[0] for name in flat_leaves if name.startswith(prefix)
        )
    )
    if not keys or struct is not None:
        raise ValueError(f"the leaf {root!r} does not exist; the leaves are {sorted(flat_leaves)}")
    parts = {key: unflatten(flat_leaves, prefix + key) for key in keys}
    if set(keys) == {str(i) for i in range(len(keys))}:
        return tuple(parts[str(i)] for i in range(len(keys)))
    return parts


def restore_tuples(value: Nested, struct: Nested | None) -> Nested:
    """Convert lists in a sample to tuples where the struct has tuples, since some formats have no tuples.

    Parts that the struct lacks are kept, and come last: a caller that knows the space can refuse them.
    """
    if isinstance(struct, Mapping):
        known_parts = {key: restore_tuples(value[key], part) for key, part in struct.items()}
        return known_parts | {key: value[key] for key in value if key not in struct}
    if isinstance(struct, tuple):
        return tuple(restore_tuples(item, part) for item, part in zip(value, struct, strict=True))
    return value


def lists_as_tuples(value: Nested) -> Nested:
    """Convert every list of a batched value to a tuple; such lists come only from formats without tuples."""
    if isinstance(value, Mapping):
        return {key: lists_as_tuples(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(lists_as_tuples(part) for part in value)
    return value


def equal(first: Nested, second: Nested) -> bool:
    """Return whether two values have the same structure and leaves (NaN equals NaN)."""
    if is_composite(first) or is_composite(second):
        try:
            return all(leaves(map_leaves(equal, first, second)))
        except ValueError:
            return False
    a, b = np.asarray(first), np.asarray(second)
    # equal_nan fails for text and objects
    is_float = a.dtype.kind in "fc" and b.dtype.kind in "fc"
    return bool(np.array_equal(a, b, equal_nan=is_float))
