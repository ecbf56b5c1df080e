"""`BC`, `PPO` and so on: RLlib's classes of algorithms, each created on first use.

They build the same as `build_algo()`: `BC(config=BCConfig()…)`, `BC.from_checkpoint(path)`,
`tune.Tuner(BC, …)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hindcast.api.options import schemas
from hindcast.api.sentences import nearest
from hindcast.errors import SpecError
from hindcast.rllib.builder.algorithm import RunningAlgorithm
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.rllib.builder.option_names import named_class


class NamedAlgorithm(RunningAlgorithm):
    """A running algorithm with the class name of its algorithm.

    Args:
        config: its config, or options by name.
        env: see `environment()`; None uses the config's.

    Raises:
        UserError: the options, the environment or the data are invalid, or the config is for another algorithm.
    """

    algorithm_name: ClassVar[str]

    def __init__(self, config: AlgorithmConfig | Mapping[str, Any] | None = None, env: Any = None) -> None:
        if not isinstance(config, AlgorithmConfig):
            config = self.get_default_config().update_from_dict(config or {})
        if config.algorithm != self.algorithm_name:
            raise SpecError(f"{self.algorithm_name} cannot be built from a config of {config.algorithm}.")
        super().__init__(config if env is None else config.copy(copy_frozen=False).environment(env))

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """Return a config without options."""
        return AlgorithmConfig(cls.algorithm_name)


def get_trainable_cls(name: str) -> type[NamedAlgorithm]:
    """Return the class of an algorithm.

    Raises:
        SpecError: the algorithm is unknown.
    """
    if name not in schemas():
        raise SpecError(f"{name!r} is not an algorithm{nearest(name, schemas())}")
    # A module's own `__getattr__` is not called for its globals.
    return __getattr__(name)


def __getattr__(name: str) -> type[NamedAlgorithm]:
    return named_class(name, name, NamedAlgorithm, globals(), "algorithm_name")
