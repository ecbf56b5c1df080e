"""`OnnxPolicy` runs a policy that `hindcast export` wrote. It requires only numpy and onnxruntime.

`hindcast export` copies this file next to the policy as policy.py, so that the machine that acts needs no Hindcast.
Import nothing here but those two packages and the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
PROGRAM, DESCRIPTION, LOADER = "policy.onnx", "policy.json", "policy.py"
_OBS, _REWARD, _ACTIONS = "obs", "prev_rewards", "actions"


class OnnxPolicy:
    """An exported policy in one environment: `policy(obs)` returns the action, `policy.reset()` begins an episode.

    Args:
        folder: the folder that `hindcast export` wrote.
        seed: seed of a policy that samples its actions; None draws a new one.

    Raises:
        ValueError: the folder holds no policy, or one in a newer format.
    """

    def __init__(self, folder: str | Path, seed: int | None = None) -> None:
        import onnxruntime  # imported here because exporting, which needs the constants above, works without it

        description_file = Path(folder, DESCRIPTION)
        if not description_file.is_file() or not Path(folder, PROGRAM).is_file():
            raise ValueError(
                f"{folder} does not contain {PROGRAM} and {DESCRIPTION}: write them with "
                f"hindcast export CHECKPOINT {folder}"
            )
        description = json.loads(description_file.read_bytes())
        if description["formatVersion"] > FORMAT_VERSION:
            raise ValueError(
                f"{description_file} has format version {description['formatVersion']}, but this version of Hindcast "
                f"reads version {FORMAT_VERSION}: upgrade Hindcast."
            )
        self._inputs: list[dict[str, Any]] = description["inputs"]
        self._outputs = [output["name"] for output in description["outputs"]]
        self._struct = _make_struct(description["actionSpace"])
        self._generator = np.random.default_rng(seed)
        self._session = onnxruntime.InferenceSession(str(Path(folder, PROGRAM)))
        self.reset()

    def reset(self) -> None:
        """Begin an episode: reset the recurrent state."""
        # An input of the program with "start" is a recurrent state. "start" is its first value, and "follows" names the
        # output that is its next value.
        self._state = {
            port["name"]: np.asarray(port["start"], port["dtype"])[None]
            for port in self._inputs
            if "start" in port
        }

    def __call__(self, obs: Any, reward: float = 0.0) -> Any:
        """Return the environment's action for one raw observation.

        Args:
            obs: nested like the observation space: dicts and tuples of arrays and numbers. A vector with names may be
                a dict, such as {"heart_rate": 80, …}, in which a value that is None or left out is missing.
            reward: the reward of the previous step, which only a Decision Transformer reads.

        Raises:
            ValueError: a leaf of the observation is missing or has another shape than in the observation space, or a
                value is missing (NaN) that the policy does not replace.
        """
        names = {port["name"]: port["names"] for port in self._inputs if "names" in port}
        leaves = {**dict(_iterate_leaves(obs, _OBS, names)), _REWARD: reward}
        inputs = {port["name"]: self._input_row(port, leaves) for port in self._inputs}
        outputs = dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))
        self._state = {port["name"]: outputs[port["follows"]] for port in self._inputs if "start" in port}
        return _nest({name: rows[0] for name, rows in outputs.items()}, _ACTIONS, self._struct)

    def _input_row(self, port: dict[str, Any], leaves: dict[str, Any]) -> NDArray[Any]:
        """Return the value of an input of the program, as a batch of one row."""
        if "start" in port:
            return self._state[port["name"]]
        if "noise" in port:
            generator = self._generator
            draw = generator.standard_normal if port["noise"] == "normal" else generator.random
            return np.asarray(draw((1, *port["shape"]), dtype=np.float32))
        return _leaf_row(port, leaves)


def _leaf_row(port: dict[str, Any], leaves: dict[str, Any]) -> NDArray[Any]:
    """Return the leaf for an input of the program, `port`, as a batch of one row, after checking its shape."""
    name, shape = port["name"], tuple(port["shape"])
    if name not in leaves or np.shape(leaves[name]) != shape:
        problem = f"has shape {list(np.shape(leaves[name]))}" if name in leaves else "is missing"
        raise ValueError(f"the observation's {name} {problem}, expected shape {list(shape)}")
    row = np.asarray(leaves[name], port["dtype"])
    if (
        row.dtype.kind == "f"
        and (is_missing := np.isnan(row) & ~np.asarray(port.get("fillable", False))).any()
    ):
        position = int(np.argmax(is_missing))
        element = port["names"][position] if "names" in port else f"{name}[{position}]"
        raise ValueError(
            f"the observation has no {element} (NaN), and the policy does not replace missing values"
        )
    return row[None]


def _iterate_leaves(value: Any, name: str, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) of a nested value: `obs/camera`, `obs/pose/0`; `obs` for a value that is not nested."""
    if name in names and isinstance(value, Mapping):
        unknown = [key for key in value if key not in names[name]]
        if unknown:
            raise ValueError(
                f"the observation has no element {unknown[0]!r}; it has {', '.join(names[name])}"
            )
        values = [value.get(key) for key in names[name]]
        yield name, [np.nan if element is None else element for element in values]
        return
    if not isinstance(value, Mapping | tuple):
        yield name, value
        return
    for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _iterate_leaves(child, f"{name}/{key}", names)


def _nest(leaves: Mapping[str, Any], name: str, struct: Any) -> Any:
    """Nest the leaves below `name` like `struct`."""
    if isinstance(struct, dict):
        return {key: _nest(leaves, f"{name}/{key}", child) for key, child in struct.items()}
    if isinstance(struct, tuple):
        return tuple(_nest(leaves, f"{name}/{index}", child) for index, child in enumerate(struct))
    return leaves[name]


def _make_struct(space: dict[str, Any]) -> Any:
    """Return the nested dicts and tuples of the space's values, with None in place of each leaf."""
    children = space.get("spaces")
    if isinstance(children, dict):
        return {key: _make_struct(child) for key, child in children.items()}
    return None if children is None else tuple(_make_struct(child) for child in children)
