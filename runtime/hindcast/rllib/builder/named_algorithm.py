"""`NamedAlgorithm`, the base of RLlib's classes of algorithms.

`BC(config=config)` is the same as `config.build_algo()`. `BC.from_checkpoint(path)` and `tune.Tuner(BC, …)` work as in
RLlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hindcast.errors import SpecError
from hindcast.rllib.builder.algorithm import RunningAlgorithm
from hindcast.rllib.builder.config import AlgorithmConfig


class NamedAlgorithm(RunningAlgorithm):
    """Base class of `BC`, `PPO` and so on; each subclass has the name of its algorithm.

    Args:
        config: the algorithm's config, or its options by name; None is a config without options.
        env: see `AlgorithmConfig.environment`; None uses the config's environment.

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
        """Return a config of this algorithm without options."""
        return AlgorithmConfig(cls.algorithm_name)
