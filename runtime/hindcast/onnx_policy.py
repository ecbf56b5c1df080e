"""`OnnxPolicy`: acts with what `hindcast export` wrote, by onnxruntime and NumPy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns
from hindcast.episodes.nested import flatten, unflatten
from hindcast.errors import DataError

FORMAT_VERSION = 1
PROGRAM, DESCRIPTION = "policy.onnx", "policy.json"


class OnnxPolicy:
    """An exported policy in one environment: `policy(obs)` gives the action, `policy.reset()` begins an episode.

    Needs the packages numpy and onnxruntime (`pip install 'hindcast-rl[onnx]'`), and no torch.

    Args:
        folder: that `hindcast export` wrote.

    Raises:
        DataError: there is no such policy, or it is of a newer format.
    """

    def __init__(self, folder: str | Path) -> None:
        import onnxruntime

        description = Path(folder, DESCRIPTION)
        if not description.is_file() or not Path(folder, PROGRAM).is_file():
            raise DataError(
                f"{folder} holds no {PROGRAM} and {DESCRIPTION}: write them with hindcast export CHECKPOINT {folder}"
            )
        said = json.loads(description.read_bytes())
        if said["formatVersion"] > FORMAT_VERSION:
            raise DataError(
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
            obs: nested as the observation space is.
            reward: of the step before, which a Decision Transformer looks at.

        Raises:
            DataError: the observation is not one of the policy's space.
        """
        leaves = {**flatten(obs, Columns.OBS), Columns.PREV_REWARDS: reward}
        given = {each["name"]: self._state.get(each["name"]) for each in self._inputs}
        given |= {each["name"]: _row(each, leaves) for each in self._inputs if "start" not in each}
        found = dict(zip(self._outputs, self._session.run(self._outputs, given), strict=True))
        self._state = {each["name"]: found[each["follows"]] for each in self._inputs if "start" in each}
        return unflatten({name: rows[0] for name, rows in found.items()}, Columns.ACTIONS, self._struct)


def _row(port: dict[str, Any], leaves: dict[str, Any]) -> NDArray[Any]:
    name, shape = port["name"], tuple(port["shape"])
    if name not in leaves or np.shape(leaves[name]) != shape:
        found = f"of shape {list(np.shape(leaves[name]))}" if name in leaves else "missing"
        raise DataError(f"the observation's {name} is {found}; the policy takes shape {list(shape)}")
    return np.asarray(leaves[name], port["dtype"])[None]


def _struct(space: dict[str, Any]) -> Any:
    """Nested as a value of the space is."""
    parts = space.get("spaces")
    if isinstance(parts, dict):
        return {key: _struct(part) for key, part in parts.items()}
    return None if parts is None else tuple(_struct(part) for part in parts)
