"""What a search tries: every combination of the values, or random draws from values and ranges."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hindcast.api.documents import documents_of
from hindcast.errors import SpecError
from hindcast.formatting import plural

_RANGE: Final = re.compile(r"\s*(uniform|loguniform)\(([^,()]*),([^,()]*)\)\s*")
_MOST: Final = 10_000

Setting = dict[str, Any]
"""Path below `spec` -> value."""


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, drawn uniformly, or uniformly in their logarithm.

    Raises:
        SpecError: `low` is not below `high`, or not above 0 for a logarithm.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise SpecError(f"{self}: the first bound must be below the second.")
        if self.log and self.low <= 0:
            raise SpecError(f"{self}: a logarithm needs bounds above 0.")

    def draw(self, generator: np.random.Generator) -> float:
        """One number, of four significant digits unless the bounds are closer than these."""
        if self.log:
            drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = generator.uniform(self.low, self.high)
        rounded = float(f"{drawn:.4g}")
        return rounded if self.low <= rounded <= self.high else float(drawn)

    def __str__(self) -> str:
        return f"{'log' if self.log else ''}uniform({self.low:g}, {self.high:g})"


Over = Mapping[str, Sequence[Any] | Range]
"""Path below `spec` -> the values to try, or a range to draw from."""


def uniform(low: float, high: float) -> Range:
    """Numbers drawn uniformly from between two bounds."""
    return Range(low, high)


def loguniform(low: float, high: float) -> Range:
    """Numbers drawn from between two bounds whose logarithm is uniform: for learning rates."""
    return Range(low, high, log=True)


def parse_over(texts: Sequence[str]) -> dict[str, list[Any] | Range]:
    """The values of `--over PATH=VALUE,…` options, which are YAML, or `uniform(LOW,HIGH)` or `loguniform(LOW,HIGH)`.

    Raises:
        SpecError: an option without a path, given twice, or with values that are not YAML.
    """
    over: dict[str, list[Any] | Range] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        path = path.strip()
        if not path or not equals:
            raise SpecError(f"--over {text}: expected PATH=VALUE,VALUE,… such as config.lr=1e-4,1e-3.")
        if path in over:
            raise SpecError(f"--over {path} is given twice: give all its values at once.")
        over[path] = _values(path, values)
    return over


def choose_settings(over: Over, trials: int | None, seed: int) -> list[Setting]:
    """What each trial changes, in order.

    Args:
        over: the values; at least one path.
        trials: how many to draw; None is every combination of the values. More draws begin with the same ones.
        seed: of the draws.

    Raises:
        SpecError: nothing to try, a range without `trials`, or more trials than combinations.
    """
    _check(over)
    ranges = [path for path, values in over.items() if isinstance(values, Range)]
    total = math.prod(len(values) for values in over.values() if not isinstance(values, Range))
    if trials is None:
        if ranges:
            raise SpecError(f"{ranges[0]} is {over[ranges[0]]}: say how many trials to draw (--trials).")
        if total > _MOST:
            raise SpecError(f"the values have {total:,} combinations: draw some of them (--trials).")
        return [dict(zip(over, chosen, strict=True)) for chosen in itertools.product(*over.values())]  # type: ignore[arg-type]
    if not ranges and trials > total:
        raise SpecError(f"{trials} trials are asked for, and the values have {plural(total, 'combination')}.")
    return _drawn(over, trials, np.random.default_rng(seed), repeats=bool(ranges))


def yaml_value(value: Any) -> str:
    """A value as it is written in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def setting_text(setting: Setting) -> str:
    """`config.lr=0.001, model.fcnetHiddens=[64]`."""
    return ", ".join(f"{path}={yaml_value(value)}" for path, value in setting.items())


def _values(path: str, text: str) -> list[Any] | Range:
    if ranged := _RANGE.fullmatch(text):
        try:
            low, high = float(ranged[2]), float(ranged[3])
        except ValueError as error:
            raise SpecError(f"--over {path}={text}: the bounds of a range must be numbers.") from error
        return Range(low, high, log=ranged[1] == "loguniform")
    document = next(documents_of(f"[{text}]"))
    if document.problems or not isinstance(document.value, list):
        raise SpecError(f"--over {path}={text}: the values must be YAML, separated by commas.")
    return document.value


def _check(over: Over) -> None:
    if not over:
        raise SpecError(
            "there is nothing to search over: give a path with its values (--over config.lr=1e-4,1e-3)."
        )
    for path, values in over.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Sequence | Range):
            raise SpecError(f"{path} is {values!r}: expected a list of values, uniform(…) or loguniform(…).")
        if not isinstance(values, Range) and not values:
            raise SpecError(f"{path} has no values to try: give at least one (--over {path}=VALUE,VALUE).")


def _drawn(over: Over, trials: int, generator: np.random.Generator, *, repeats: bool) -> list[Setting]:
    found: list[Setting] = []
    while len(found) < trials:
        setting = {
            path: values.draw(generator)
            if isinstance(values, Range)
            else values[int(generator.integers(len(values)))]
            for path, values in over.items()
        }
        if repeats or setting not in found:
            found.append(setting)
    return found
