"""`DataSpec`: the leaves of a dataset's columns, and its spaces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of, root
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import (
    NamedBox,
    flatten_space,
    space_from_json,
    space_from_struct,
    space_struct,
    space_to_json,
)
from hindcast.errors import DataError

Json = dict[str, Any]
LeafKind = Literal["array", "text", "json"]
_STORABLE_KINDS = "biufc"


@dataclass(frozen=True)
class Leaf:
    """The type of a leaf's values: one value for each timestep (for each observation in `obs` and `infos`).

    Attributes:
        dtype: type of the numbers, little-endian; None for text and JSON.
        shape: shape of one value, without the time axis.
        kind: "array" (fixed shape), "text" (one string) or "json" (one JSON document as a string).
        names: name of each element, such as the columns of a table; empty if they have none.

    Raises:
        DataError: the dtype is not boolean, integer, float or complex.
    """

    dtype: np.dtype | None
    shape: tuple[int, ...] = ()
    kind: LeafKind = "array"
    names: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.kind != "array":
            return
        dtype = np.dtype(self.dtype)
        if dtype.kind not in _STORABLE_KINDS:
            raise DataError(
                f"the dtype {dtype} cannot be stored: allowed are booleans, integers, floats and complex numbers"
            )
        object.__setattr__(self, "dtype", dtype.newbyteorder("<"))

    def fits(self, column: NDArray[Any]) -> bool:
        """Return whether the rows of a column have this leaf's dtype, in any byte order, and its shape."""
        if column.dtype == object:
            return self.dtype is None
        return (column.dtype.newbyteorder("<"), column.shape[1:]) == (self.dtype, self.shape)

    def is_same_up_to_dtype(self, other: Leaf) -> bool:
        """Return whether the leaves are equal, or both hold integers or floats of the same shape."""
        are_numbers = all(leaf.dtype is not None and leaf.dtype.kind in "iuf" for leaf in (self, other))
        return self == other or (are_numbers and self.shape == other.shape)

    def difference(self, name: str, other: Leaf, *, can_widen: bool) -> str | None:
        """Describe why the leaf `name` of two specs cannot be merged, as a clause; None if it can.

        Args:
            name: the leaf's name.
            other: the other leaf.
            can_widen: whether the dtypes of numbers may differ, if there is one that holds both.
        """
        if not (self.is_same_up_to_dtype(other) if can_widen else self == other):
            return f"{name!r} is {self} in one and {other} in the other"
        if self.dtype is not None and other.dtype is not None and loses_digits(self.dtype, other.dtype):
            return describe_lost_digits(name, self.dtype, other.dtype)
        return None

    def widen(self, other: Leaf) -> Leaf:
        """Return the leaf that holds the numbers of both; they are the same up to dtype."""
        if self.dtype is None or other.dtype is None:
            return self
        return replace(self, dtype=np.result_type(self.dtype, other.dtype))

    def element_names(self, leaf_name: str) -> tuple[str, ...]:
        """Return a name for each element; only the leaf's name if it is one number, or has more than one axis."""
        if self.names or len(self.shape) != 1:
            return self.names or (leaf_name,)
        return tuple(f"{leaf_name}[{index}]" for index in range(self.shape[0]))

    def with_names(self, names: Sequence[str]) -> Leaf:
        """Return the leaf with names for its elements, or without names if their number differs."""
        is_named = self.dtype is not None and len(self.shape) <= 1 and len(names) == math.prod(self.shape)
        return replace(self, names=tuple(names) if is_named else ())

    @property
    def itemsize(self) -> int:
        """Size of one value in bytes; 0 for text and JSON, whose size varies."""
        if self.dtype is None:
            return 0
        return int(self.dtype.itemsize * np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return self.kind if self.dtype is None else f"{self.dtype.name} {list(self.shape)}"

    def to_json(self) -> Json:
        """Return the leaf as JSON: `{"dtype": "float32", "shape": [17]}` or `{"kind": "text"}`."""
        if self.dtype is None:
            return {"kind": self.kind}
        names = {"names": list(self.names)} if self.names else {}
        return {"dtype": self.dtype.name, "shape": list(self.shape), **names}

    @classmethod
    def from_json(cls, data: Json) -> Leaf:
        """Make a leaf from JSON: the inverse of `to_json`."""
        kind = data.get("kind", "array")
        if kind != "array":
            return cls(None, (), kind)
        return cls(np.dtype(data["dtype"]), tuple(data["shape"]), names=tuple(data.get("names", ())))


@dataclass(frozen=True)
class DataSpec:
    """The leaves, spaces and environment of a dataset.

    Attributes:
        leaves: leaf name -> dtype and shape.
        observation_space: observation space of the environment; None if unknown.
        action_space: action space of the environment; None if unknown.
        environment: Gymnasium id of the environment; None if unknown.
        normalized_actions: whether Box actions are normalised ([-1, 1] before clipping) instead of in the units of the
            environment.
    """

    leaves: dict[str, Leaf] = field(default_factory=dict)
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    environment: str | None = None
    normalized_actions: bool = True

    def with_element_names(self, space: gym.Space, column: str) -> gym.Space:
        """Return the space of a column, `obs` or `actions`, with the data's names of the elements of its Boxes."""
        leaf_spaces = flatten_space(space, column)
        for name, leaf_space in leaf_spaces.items():
            names = self.leaves[name].names if name in self.leaves else ()
            if names and type(leaf_space) is gym.spaces.Box and math.prod(leaf_space.shape) == len(names):
                leaf_spaces[name] = NamedBox(leaf_space, names)
        return space_from_struct(unflatten(leaf_spaces, column, space_struct(space)))

    @property
    def required_leaves(self) -> set[str]:
        """Leaves that every file of the dataset has; JSON leaves are written only if they are not empty."""
        return {name for name, leaf in self.leaves.items() if leaf.kind != "json"}

    def to_json(self) -> Json:
        """Return the spec as JSON, as manifests and Parquet metadata store it."""
        return {
            "leaves": {name: leaf.to_json() for name, leaf in self.leaves.items()},
            "observationSpace": _space_to_json(self.observation_space),
            "actionSpace": _space_to_json(self.action_space),
            "environment": self.environment,
            **({} if self.normalized_actions else {"normalizedActions": False}),
        }

    @classmethod
    def from_json(cls, data: Json) -> DataSpec:
        """Make a spec from JSON: the inverse of `to_json`.

        Raises:
            DataError: a field is missing or invalid.
        """
        try:
            leaves = {name: Leaf.from_json(leaf) for name, leaf in data["leaves"].items()}
            observation_space, action_space = data.get("observationSpace"), data.get("actionSpace")
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"the description of the data cannot be read: {error!r}") from error
        return cls(
            leaves=leaves,
            observation_space=space_from_json(observation_space) if observation_space else None,
            action_space=space_from_json(action_space) if action_space else None,
            environment=data.get("environment"),
            normalized_actions=data.get("normalizedActions", True),
        )

    @classmethod
    def from_block(
        cls,
        block: Block,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        environment: str | None = None,
    ) -> DataSpec:
        """Return the spec of a block's columns, with these spaces and environment."""
        leaves = {name: infer_leaf(name, column) for name, column in block.columns.items()}
        return cls(leaves, observation_space, action_space, environment)

    @classmethod
    def merge_all(cls, specs: Iterable[tuple[object, DataSpec]]) -> DataSpec:
        """Merge the specs of several files or datasets; without specs the result is an empty spec.

        Args:
            specs: pairs of a name, for messages, and a spec; the dtypes of numbers may differ.

        Raises:
            DataError: two of the files or datasets cannot be one dataset.
        """
        pairs = iter(specs)
        first_source, common_spec = next(pairs, (None, cls()))
        previous_spec = common_spec
        for source, spec in pairs:
            if spec is not previous_spec:  # files of one recording share one object: skip the comparison
                if difference := common_spec.difference(spec, can_widen=True):
                    raise DataError(f"{first_source} and {source} cannot be one dataset: {difference}")
                common_spec = common_spec.merge(spec)
            previous_spec = spec
        return common_spec

    def difference(self, other: DataSpec, *, can_widen: bool = False) -> str | None:
        """Describe why two specs cannot be one dataset, as a clause; None if they can.

        Args:
            other: the other spec.
            can_widen: whether the dtypes of numbers may differ, if there is one that holds both.
        """
        if self is other:
            return None
        if self.required_leaves != other.required_leaves:
            common_leaves = ", ".join(sorted(self.required_leaves & other.required_leaves))
            return (
                f"the columns {sorted(self.required_leaves)} differ from {sorted(other.required_leaves)}; read "
                f"only those that all have (`columns`, --columns): {common_leaves}"
            )
        for name in sorted(self.required_leaves):
            if problem := self.leaves[name].difference(name, other.leaves[name], can_widen=can_widen):
                return problem
        if self.normalized_actions != other.normalized_actions and self.has_float_actions:
            return "the actions are normalised in one and in the environment's units in the other (actionsNormalized)"
        for attribute in ("observation_space", "action_space"):
            space, other_space = getattr(self, attribute), getattr(other, attribute)
            if space is not None and other_space is not None and space != other_space:
                return f"the {attribute.replace('_', ' ')} is {space} in one and {other_space} in the other"
        return None

    def array_bytes(self, steps: int, episodes: int) -> int:
        """Return the size in bytes of the arrays of this many steps and episodes; text and JSON count as 0."""
        return sum(
            leaf.itemsize * (steps + episodes if is_per_observation(name) else steps)
            for name, leaf in self.leaves.items()
        )

    def check_names(self, block: Block) -> None:
        """Check that a block has only columns of this spec.

        Raises:
            DataError: the block has other columns.
        """
        unknown = sorted(block.columns.keys() - self.leaves.keys())
        if unknown:
            raise DataError(f"the columns {unknown} are not in the dataset, which has {sorted(self.leaves)}")

    def require_column(self, block: Block, name: str) -> NDArray[Any]:
        """Return a leaf's column in a block, after checking it.

        Raises:
            DataError: the block does not have the leaf, or has it with another dtype or shape.
            ValueError: the column does not have as many rows as the block has steps or observations.
        """
        leaf, column = self.leaves[name], block.columns.get(name)
        if column is None:
            raise DataError(f"the column {name!r} is missing: found {sorted(block.columns)}")
        rows = block.num_steps + is_per_observation(name) * block.num_episodes
        if len(column) != rows:
            raise ValueError(f"{name!r} has {len(column)} rows for {rows} timesteps or observations")
        if not leaf.fits(column):
            raise DataError(f"the column {name!r} is {describe_array(column)}, but {leaf} in the dataset")
        return column

    @property
    def has_float_actions(self) -> bool:
        """True if an action leaf holds floats, which may be normalised."""
        dtypes = [self.leaves[name].dtype for name in leaves_of(Columns.ACTIONS, self.leaves)]
        return any(dtype is not None and dtype.kind == "f" for dtype in dtypes)

    def merge(self, other: DataSpec) -> DataSpec:
        """Merge two specs that have no `difference`, or only one in the dtypes of numbers; the wider dtype remains.

        The environment is None unless both have the same one.
        """
        common_leaves = {
            name: leaf.widen(other.leaves[name]) for name, leaf in self.leaves.items() if name in other.leaves
        }
        return DataSpec(
            leaves={**self.leaves, **other.leaves, **common_leaves},
            observation_space=_first_known(self.observation_space, other.observation_space),
            action_space=_first_known(self.action_space, other.action_space),
            environment=self.environment if self.environment == other.environment else None,
            normalized_actions=self.normalized_actions,
        )


def infer_leaf(name: str, column: NDArray[Any]) -> Leaf:
    """Return the leaf of a block's column; object columns are JSON under `infos` and text elsewhere."""
    if column.dtype != object:
        return Leaf(column.dtype, column.shape[1:])
    return Leaf(None, (), "json" if root(name) == Columns.INFOS else "text")


def loses_digits(first: np.dtype, second: np.dtype) -> bool:
    """Return whether the common dtype of two integer dtypes is a float, which rounds large integers."""
    return first.kind in "iu" and second.kind in "iu" and np.result_type(first, second).kind == "f"


def describe_lost_digits(name: str, first: np.dtype, second: np.dtype) -> str:
    """Describe two integer dtypes of one column without a common one, as a clause."""
    return f"{name!r} is {first} in one and {second} in the other, and no dtype holds both: write one of them"


def describe_array(array: NDArray[Any]) -> str:
    """Describe the values of a column for messages, without its time dimension: `float32 [17]`, or `text`."""
    return "text" if array.dtype == object else f"{array.dtype.name} {list(array.shape[1:])}"


def _first_known(space: gym.Space | None, other: gym.Space | None) -> gym.Space | None:
    return other if space is None else space


def _space_to_json(space: gym.Space | None) -> Json | None:
    return None if space is None else space_to_json(space)
