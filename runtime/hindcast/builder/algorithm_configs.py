"""`BCConfig`, `PPOConfig` and so on: the config of each registered algorithm, created on first use.

For editors and type checkers `make crds` writes the classes to `algorithm_configs.pyi`.
"""

from __future__ import annotations

from hindcast.api.options import algorithms, schemas
from hindcast.api.sentences import similar
from hindcast.builder.config import AlgorithmConfig
from hindcast.builder.option_names import get_or_create_class
from hindcast.errors import SpecError

_SUFFIX = "Config"


class UnknownConfig(SpecError, ImportError):
    """The config of an unknown algorithm.

    An ImportError, because `from … import` would replace the message of an AttributeError.
    """


def __getattr__(name: str) -> type[AlgorithmConfig]:
    algorithm = name.removesuffix(_SUFFIX)
    # Python itself looks up lower-case names such as `__path__`, and expects an AttributeError.
    if name[:1].isupper() and (name == algorithm or algorithm not in schemas()):
        raise UnknownConfig(f"Hindcast has no {name}{_advice(algorithm.partition('Conf')[0])}")
    return get_or_create_class(algorithm, name, AlgorithmConfig, globals(), "default_algorithm")


def _advice(algorithm: str) -> str:
    """Return the end of the message: the nearest config, else the algorithms that there are."""
    if guess := similar(algorithm, schemas()):
        return guess.replace("'?", "Config'?")  # "; did you mean 'BC'?" names the algorithm
    online, offline = (", ".join(algorithms(kind)) for kind in ("OfflineRecording", "OfflineTraining"))
    return (
        f": {online} learn in an environment, {offline} from data; for a custom algorithm use "
        'AlgorithmConfig("package.module:Class").'
    )


def __dir__() -> list[str]:
    return [f"{algorithm}{_SUFFIX}" for algorithm in schemas()]
