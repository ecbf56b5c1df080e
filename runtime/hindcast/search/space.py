"""The settings that a search tries: every combination of values, or random draws from values and ranges."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hindcast.api.documents import documents_of
from hindcast.errors import SpecError
from hindcast.formatting import as_yaml, plural

_RANGE_PATTERN: Final = re.compile(r"\s*(uniform|loguniform)\(([^,()]*),([^,()]*)\)\s*")
_MAX_TRIALS: Final = 10_000
"""Maximum number of combinations to try without `trials`."""

Setting = dict[str, Any]
"""Path below `spec` -> value."""


@dataclass(frozen=True)
class Range:
    """A range from which numbers are drawn.

    Attributes:
        low: lower bound.
        high: upper bound.
        log: True if the logarithm of the numbers is uniform, False if the numbers are.

    Raises:
        SpecError: `low` is not below `high`, or is not above 0 although `log` is True.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise SpecError(f"{self}: the first bound must be below the second.")
        if self.log and self.low <= 0:
            raise SpecError(f"{self}: a logarithmic range needs bounds above 0.")

    def draw(self, generator: np.random.Generator) -> float:
        """Draw one number; it is rounded to four significant digits unless that leaves the range."""
        if self.log:
            number = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        else:
            number = generator.uniform(self.low, self.high)
        rounded_number = float(f"{number:.4g}")
        return rounded_number if self.low <= rounded_number <= self.high else float(number)

    def __str__(self) -> str:
        return f"{'log' if self.log else ''}uniform({self.low:g}, {self.high:g})"


SearchSpace = Mapping[str, Sequence[Any] | Range]
"""Path below `spec` -> the values to try, or a range to draw from."""


def uniform(low: float, high: float) -> Range:
    """Return a range from which numbers are drawn uniformly."""
    return Range(low, high)


def loguniform(low: float, high: float) -> Range:
    """Return a range from which numbers are drawn with a uniform logarithm, as for learning rates."""
    return Range(low, high, log=True)


def parse_search_space(texts: Sequence[str]) -> dict[str, list[Any] | Range]:
    """Parse `--over PATH=VALUE,…` options; the values are YAML, `uniform(LOW,HIGH)` or `loguniform(LOW,HIGH)`.

    Raises:
        SpecError: an option has no path, is repeated, or has values that are not YAML.
    """
    search_space: dict[str, list[Any] | Range] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        path = path.strip()
        if not path or not equals:
            raise SpecError(f"--over {text}: expected PATH=VALUE,VALUE,… such as config.lr=1e-4,1e-3.")
        if path in search_space:
            raise SpecError(f"--over {path} is repeated: put all its values into one option.")
        search_space[path] = _parse_values(path, values)
    return search_space


def choose_settings(search_space: SearchSpace, trials: int | None, seed: int) -> list[Setting]:
    """Return the settings of all trials in order.

    Args:
        search_space: values or ranges by path; at least one path.
        trials: number of draws; None for every combination of the values. A larger number begins with the same draws.
        seed: seed of the draws.

    Raises:
        SpecError: there is no path or no value, a range but no `trials`, too many combinations, or fewer combinations
            than `trials`.
    """
    _check_search_space(search_space)
    ranges = [path for path, path_values in search_space.items() if isinstance(path_values, Range)]
    num_combinations = math.prod(
        len(path_values) for path_values in search_space.values() if not isinstance(path_values, Range)
    )
    if trials is None:
        if ranges:
            raise SpecError(
                f"{ranges[0]} is {search_space[ranges[0]]}: set the number of trials to draw (--trials)."
            )
        if num_combinations > _MAX_TRIALS:
            raise SpecError(
                f"the values have {num_combinations:,} combinations: draw some of them at random (--trials)."
            )
        return [
            dict(zip(search_space, values, strict=True))
            for values in itertools.product(*search_space.values())  # type: ignore[arg-type]
        ]
    if not ranges and trials > num_combinations:
        raise SpecError(
            f"--trials is {trials}, but the values have only {plural(num_combinations, 'combination')}: omit --trials "
            "to try all of them."
        )
    # One generator makes all draws, so that a larger number begins with the same draws.
    return _draw_settings(search_space, trials, np.random.default_rng(seed), allow_repeats=bool(ranges))


def setting_text(setting: Setting) -> str:
    """Return a setting as text: `config.lr=0.001, model.fcnetHiddens=[64]`."""
    return ", ".join(f"{path}={as_yaml(value)}" for path, value in setting.items())


def _parse_values(path: str, text: str) -> list[Any] | Range:
    if match := _RANGE_PATTERN.fullmatch(text):
        try:
            low, high = float(match[2]), float(match[3])
        except ValueError as error:
            raise SpecError(f"--over {path}={text}: the bounds of a range must be numbers.") from error
        return Range(low, high, log=match[1] == "loguniform")
    document = next(documents_of(f"[{text}]"))  # as a YAML list: commas within brackets belong to a value
    if document.problems or not isinstance(document.value, list):
        raise SpecError(f"--over {path}={text}: the values must be YAML, separated by commas.")
    return document.value


def _check_search_space(search_space: SearchSpace) -> None:
    if not search_space:
        raise SpecError(
            "the search has nothing to vary: add a path with its values (--over config.lr=1e-4,1e-3)."
        )
    for path, values in search_space.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Sequence | Range):
            raise SpecError(f"{path} is {values!r}: expected a list of values, uniform(…) or loguniform(…).")
        if not isinstance(values, Range) and not values:
            raise SpecError(f"{path} has no values to try: add at least one (--over {path}=VALUE,VALUE).")


def _draw_settings(
    search_space: SearchSpace, trials: int, generator: np.random.Generator, *, allow_repeats: bool
) -> list[Setting]:
    drawn_settings: list[Setting] = []
    while len(drawn_settings) < trials:
        setting = {path: _draw_value(values, generator) for path, values in search_space.items()}
        if allow_repeats or setting not in drawn_settings:
            drawn_settings.append(setting)
    return drawn_settings


def _draw_value(values: Sequence[Any] | Range, generator: np.random.Generator) -> Any:
    if isinstance(values, Range):
        return values.draw(generator)
    return values[int(generator.integers(len(values)))]
