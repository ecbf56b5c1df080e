"""A saved policy: safetensors and JSON, checked before anything is built from it. Nothing is ever unpickled.

module.json                 formatVersion, class, spaces, options, checksums of the other two; written last
weights.safetensors         the module's state dict
preprocessing.safetensors   the observation filters' statistics
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import safetensors.numpy
import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from hindcast.api.model import ModelSpec
from hindcast.errors import DataError
from hindcast.models.connectors import Preprocessing
from hindcast.models.rl_module import RLModule, build_module
from hindcast.store.filesystem import Location
from hindcast.store.spaces import space_from_json, space_to_json

FORMAT_VERSION = 1
FOLDER = "module"
DESCRIPTION = "module.json"
WEIGHTS = "weights.safetensors"
STATISTICS = "preprocessing.safetensors"
NAMES = (WEIGHTS, STATISTICS, DESCRIPTION)


class Parts(NamedTuple):
    """What a saved policy is made of; the spaces are the environment's."""

    module: RLModule
    preprocessing: Preprocessing
    observation_space: gym.Space
    action_space: gym.Space


def find_folder(location: Location) -> Location:
    """The folder with the policy's files: the location itself, or `module` in it.

    Raises:
        DataError: there is no policy.
    """
    for folder in (location, location.child(FOLDER)):
        if folder.child(DESCRIPTION).exists():
            return folder
    raise DataError(
        f"{location} holds no policy: neither {DESCRIPTION} nor {FOLDER}/{DESCRIPTION} is there; "
        "give a checkpoint folder that Hindcast wrote."
    )


def write(parts: Parts) -> dict[str, bytes]:
    """The files by name, the description last; the same policy gives the same bytes."""
    module = parts.module
    tensors = {
        WEIGHTS: safetensors.torch.save({name: t.contiguous() for name, t in module.get_state().items()}),
        STATISTICS: safetensors.numpy.save(parts.preprocessing.state()),
    }
    description = {
        "formatVersion": FORMAT_VERSION,
        "class": _class_path(type(module)),
        "observationSpace": space_to_json(parts.observation_space),
        "actionSpace": space_to_json(parts.action_space),
        "model": module.model_config.model_dump(by_alias=True, mode="json"),
        "value": module.value,
        "preprocessing": parts.preprocessing.to_json(),
        "checksums": {name: hashlib.sha256(data).hexdigest() for name, data in tensors.items()},
    }
    return {**tensors, DESCRIPTION: json.dumps(description, indent=1, sort_keys=True).encode()}


def read(files: Mapping[str, bytes], allow_classes: Sequence[type[RLModule]], where: str) -> Parts:
    """The parts of a saved policy.

    Args:
        files: content by name, all of `NAMES`.
        allow_classes: module classes that are not Hindcast's own and may be used.
        where: the folder, for messages.

    Raises:
        DataError: damaged, of a newer format, or of a class that is not allowed.
    """
    description = _description(files[DESCRIPTION], f"{where}/{DESCRIPTION}")
    try:
        for name in (WEIGHTS, STATISTICS):
            _check(files[name], description["checksums"][name], f"{where}/{name}")
        return _build(description, files, allow_classes, where)
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise DataError(f"{where}/{DESCRIPTION} is not a policy's description: {error!r}") from error
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"{where}: the tensors do not fit {DESCRIPTION}: {reason}") from error


def _description(data: bytes, where: str) -> dict[str, Any]:
    try:
        description = json.loads(data)
        version = description["formatVersion"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where} is damaged or no policy's description: it is not JSON with a formatVersion ({error!r})."
        ) from error
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise DataError(
            f"{where} has formatVersion {version!r}, and this Hindcast reads up to {FORMAT_VERSION}: "
            "use a newer Hindcast."
        )
    return description


def _check(data: bytes, checksum: str, where: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != checksum:
        raise DataError(
            f"{where} is damaged: its sha256 is {found[:12]}…, and {DESCRIPTION} says {checksum[:12]}…; "
            "use another checkpoint."
        )


def _build(
    description: Mapping[str, Any],
    files: Mapping[str, bytes],
    allow_classes: Sequence[type[RLModule]],
    where: str,
) -> Parts:
    observation_space = space_from_json(description["observationSpace"])
    action_space = space_from_json(description["actionSpace"])
    preprocessing = Preprocessing.from_json(observation_space, action_space, description["preprocessing"])
    preprocessing.load(safetensors.numpy.load(files[STATISTICS]))
    with torch.random.fork_rng(
        devices=[]
    ):  # the weights are about to be replaced: leave the caller's stream alone
        module = build_module(
            preprocessing.observation_space,
            preprocessing.action_space,
            ModelSpec.model_validate(description["model"]),
            description["value"],
            _find_class(description["class"], allow_classes, where),
        )
    module.set_state(safetensors.torch.load(files[WEIGHTS]))
    return Parts(module, preprocessing, observation_space, action_space)


def _class_path(kind: type[RLModule]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _find_class(path: str, allow_classes: Sequence[type[RLModule]], where: str) -> type[RLModule]:
    """A class that the caller gave, or one of Hindcast's own; no other is imported because a file says so."""
    for kind in allow_classes:
        if _class_path(kind) == path:
            return kind
    if path.startswith("hindcast."):
        module_name, _, name = path.partition(":")
        found = getattr(importlib.import_module(module_name), name, None)
        if isinstance(found, type) and issubclass(found, RLModule):
            return found
    raise DataError(
        f"{where}/{DESCRIPTION} names the module class {path!r}, which a file alone does not get imported; "
        "if it is yours, pass it: Policy.load(path, allow_classes=[YourModule])."
    )
