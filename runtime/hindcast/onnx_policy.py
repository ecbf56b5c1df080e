"""`OnnxPolicy`: acts with what `hindcast export` wrote. Needs numpy and onnxruntime, and nothing else.

`hindcast export` writes a copy of this file next to the policy, as policy.py, so that a machine which acts needs no
Hindcast: nothing is imported here but those two packages and the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
PROGRAM, DESCRIPTION, LOADER = "policy.onnx", "policy.json", "policy.py"
_OBS, _REWARD, _ACTIONS = "obs", "prev_rewards", "actions"


class OnnxPolicy:
    """An exported policy in one environment: `policy(obs)` gives the action, `policy.reset()` begins an episode.

    Args:
        folder: that `hindcast export` wrote.

    Raises:
        ValueError: there is no such policy, or it is of a newer format.
    """

    def __init__(self, folder: str | Path) -> None:
        import onnxruntime  # here, since exporting reads the names above without it

        description = Path(folder, DESCRIPTION)
        if not description.is_file() or not Path(folder, PROGRAM).is_file():
            raise ValueError(
                f"{folder} holds no {PROGRAM} and {DESCRIPTION}: write them with hindcast export CHECKPOINT {folder}"
            )
        said = json.loads(description.read_bytes())
        if said["formatVersion"] > FORMAT_VERSION:
            raise ValueError(
                f"{description} is of format {said['formatVersion']}, and this version of Hindcast reads "
                f"{FORMAT_VERSION}: upgrade Hindcast."
            )
        self._inputs: list[dict[str, Any]] = said["inputs"]
        self._outputs = [output["name"] for output in said["outputs"]]
        self._struct = _struct(said["actionSpace"])
        self._session = onnxruntime.InferenceSession(str(Path(folder, PROGRAM)))
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._state = {
            each["name"]: np.asarray(each["start"], each["dtype"])[None]
            for each in self._inputs
            if "start" in each
        }

    def __call__(self, obs: Any, reward: float = 0.0) -> Any:
        """The environment's action for one raw observation.

        Args:
            obs: nested as the observation space is: dicts and tuples of arrays and numbers.
            reward: of the step before, which a Decision Transformer looks at.

        Raises:
            ValueError: the observation is not one of the policy's space.
        """
        leaves = {**dict(_leaves(obs, _OBS)), _REWARD: reward}
        given = {each["name"]: self._state.get(each["name"]) for each in self._inputs}
        given |= {each["name"]: _row(each, leaves) for each in self._inputs if "start" not in each}
        found = dict(zip(self._outputs, self._session.run(self._outputs, given), strict=True))
        self._state = {each["name"]: found[each["follows"]] for each in self._inputs if "start" in each}
        return _nested({name: rows[0] for name, rows in found.items()}, _ACTIONS, self._struct)


def _row(port: dict[str, Any], leaves: dict[str, Any]) -> NDArray[Any]:
    name, shape = port["name"], tuple(port["shape"])
    if name not in leaves or np.shape(leaves[name]) != shape:
        found = f"of shape {list(np.shape(leaves[name]))}" if name in leaves else "missing"
        raise ValueError(f"the observation's {name} is {found}; the policy takes shape {list(shape)}")
    return np.asarray(leaves[name], port["dtype"])[None]


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Name -> leaf of a nested value: `obs/camera`, `obs/pose/0`; `obs` of a value without parts."""
    if not isinstance(value, Mapping | tuple):
        yield name, value
        return
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves(part, f"{name}/{key}")


def _nested(leaves: Mapping[str, Any], name: str, struct: Any) -> Any:
    """The value with these leaves, nested as `struct` is."""
    if isinstance(struct, dict):
        return {key: _nested(leaves, f"{name}/{key}", part) for key, part in struct.items()}
    if isinstance(struct, tuple):
        return tuple(_nested(leaves, f"{name}/{number}", part) for number, part in enumerate(struct))
    return leaves[name]


def _struct(space: dict[str, Any]) -> Any:
    """Nested as a value of the space is."""
    parts = space.get("spaces")
    if isinstance(parts, dict):
        return {key: _struct(part) for key, part in parts.items()}
    return None if parts is None else tuple(_struct(part) for part in parts)
