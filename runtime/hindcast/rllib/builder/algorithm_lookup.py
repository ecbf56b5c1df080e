"""Find RLlib's class of an algorithm by its name."""

from __future__ import annotations

from hindcast.api.options import schemas
from hindcast.api.sentences import nearest
from hindcast.errors import SpecError
from hindcast.rllib.builder import algorithm_classes
from hindcast.rllib.builder.named_algorithm import NamedAlgorithm


def get_trainable_cls(name: str) -> type[NamedAlgorithm]:
    """Return the class of an algorithm.

    Raises:
        SpecError: the algorithm is unknown.
    """
    if name not in schemas():
        raise SpecError(f"{name!r} is not an algorithm{nearest(name, schemas())}")
    # A registered algorithm has a class only after `make crds`, which a test of the generated files checks.
    algorithm: type[NamedAlgorithm] = getattr(algorithm_classes, name)
    return algorithm
