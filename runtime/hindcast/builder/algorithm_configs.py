"""`BCConfig`, `PPOConfig` and so on: the config of each registered algorithm, made when it is first used.

For editors and type checkers `make crds` writes the classes out, in `algorithm_configs.pyi`.
"""

from __future__ import annotations

from hindcast.api.options import schemas
from hindcast.builder.config import AlgorithmConfig

_SUFFIX = "Config"


def __getattr__(name: str) -> type[AlgorithmConfig]:
    algorithm = name.removesuffix(_SUFFIX)
    if name == algorithm or algorithm not in schemas():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    about = schemas()[algorithm]["description"].partition("\n\n")[0]
    body = {"__module__": __name__, "__doc__": about, "default_algorithm": algorithm}
    # Kept, so that a class is one and the same wherever it is imported, and can be pickled by its name.
    globals()[name] = found = type(name, (AlgorithmConfig,), body)
    return found


def __dir__() -> list[str]:
    return [f"{algorithm}{_SUFFIX}" for algorithm in schemas()]
