"""The registry of algorithms, one file each; `resolve` also imports custom ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import gymnasium as gym
import numpy as np
from pydantic import ValidationError

from hindcast.algorithms.bc import BC
from hindcast.algorithms.cql import CQL
from hindcast.algorithms.decision_transformer import DecisionTransformer
from hindcast.algorithms.discrete_sac import DiscreteSAC
from hindcast.algorithms.dqn import DQN, DiscreteCQL
from hindcast.algorithms.fql import FQL
from hindcast.algorithms.iql import IQL
from hindcast.algorithms.marwil import MARWIL
from hindcast.algorithms.ppo import PPO
from hindcast.algorithms.rebrac import ReBRAC
from hindcast.algorithms.sac import SAC
from hindcast.algorithms.td3_bc import TD3BC
from hindcast.api.sentences import nearest, problems_of
from hindcast.errors import SpecError, parse_path
from hindcast.learn.algorithm import Algorithm
from hindcast.user_code import calling, import_subclass, refuse_unused_overrides

REGISTRY: Final[dict[str, type[Algorithm]]] = {
    "BC": BC,
    "CQL": CQL,
    "DQN": DQN,
    "DecisionTransformer": DecisionTransformer,
    "DiscreteCQL": DiscreteCQL,
    "DiscreteSAC": DiscreteSAC,
    "FQL": FQL,
    "IQL": IQL,
    "MARWIL": MARWIL,
    "PPO": PPO,
    "ReBRAC": ReBRAC,
    "SAC": SAC,
    "TD3BC": TD3BC,
}
"""Name -> class. An algorithm's file needs only a line here and `make crds`: resources, builder, Tune and the reference
page are derived from it."""
_BOUNDED_ACTIONS: Final = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
__all__ = ["REGISTRY", "build", "option_schemas", "resolve"]


def build(name: str, config: Mapping[str, Any], field: str = "config") -> Algorithm:
    """Build an algorithm with its options.

    Args:
        name: see `resolve`.
        config: options, camelCase or snake_case; omitted ones have their defaults.
        field: field of the config in the resource, for messages.

    Raises:
        SpecError: the algorithm does not exist, or an option is invalid.
        UserCodeError: the constructor of a custom algorithm raised.
    """
    algorithm = resolve(name)
    try:
        options = algorithm.Options.model_validate(dict(config))
    except ValidationError as error:
        raise SpecError.of(problems_of(error, algorithm.Options, dict(config), parse_path(field))) from error
    with calling(f"algorithm {algorithm.__name__}", algorithm):
        return algorithm(options)


def resolve(name: str) -> type[Algorithm]:
    """Return the class of an algorithm.

    Args:
        name: one of `REGISTRY`, or "package.module:Class" of a custom algorithm.

    Raises:
        SpecError: the algorithm does not exist, the class is not an algorithm, or it overrides a method that is never
            called.
        UserCodeError: importing the user's module raised.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    if ":" not in name:
        raise SpecError(
            f'algorithm is {name!r}, which is neither an algorithm nor a "package.module:Class"'
            f"{nearest(name, REGISTRY)}"
        )
    algorithm = import_subclass(name, Algorithm, "algorithm")  # type: ignore[type-abstract]
    refuse_unused_overrides(algorithm)
    return algorithm


def option_schemas() -> dict[str, dict[str, Any]]:
    """Return algorithm name -> JSON schema of its options, with properties that resources are checked against.

    `x-kinds` are the resources in which the algorithm can be used, and `x-distributions` the distributions that it can
    train, if not all. The booleans say whether it can train recurrent policies (`x-recurrent`), learn from episodes
    that its policy plays (`x-live`), be compiled (`x-compiled`), and whether it builds its own class of policy
    (`x-own-policy`). `x-actions` is the kind of actions that it can learn. `x-model` has its defaults of `model` that
    differ from RLlib's, for bounded continuous actions.
    """
    return {
        name: algorithm.Options.model_json_schema() | _schema_traits(algorithm)
        for name, algorithm in REGISTRY.items()
    }


def _schema_traits(algorithm: type[Algorithm]) -> dict[str, Any]:
    distributions = algorithm.distributions
    defaults = algorithm(algorithm.Options()).model_defaults(_BOUNDED_ACTIONS)
    return {
        "x-kinds": sorted(algorithm.kinds),
        "x-recurrent": algorithm.can_train_recurrent,
        "x-live": algorithm.can_train_online,
        "x-compiled": bool(algorithm.compiled_methods),
        "x-own-policy": algorithm.has_own_policy,
        "x-actions": algorithm.actions,
        "x-model": defaults.model_dump(by_alias=True, exclude_defaults=True),
    } | ({} if distributions is None else {"x-distributions": list(distributions)})


def _point_to_public_name(name: str) -> Any:
    """Refuse a name that RLlib's module has and Hindcast's lacks, such as `BCConfig` of `algorithms.bc`.

    Raises:
        ImportError: the package `hindcast` has the name.
        AttributeError: there is no such name.
    """
    if name[0].isupper() and hasattr(import_module("hindcast"), name):
        raise ImportError(f"{name} is not in the modules of its algorithm: from hindcast import {name}")
    raise AttributeError(f"the modules of algorithms have no attribute {name!r}")


__getattr__ = _point_to_public_name
for _algorithm in REGISTRY.values():
    vars(sys.modules[_algorithm.__module__])["__getattr__"] = _point_to_public_name
