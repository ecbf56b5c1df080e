"""Format numbers for people, on the console and in reports: `12.3k`, `1.5 MiB`, `2 min 4 s`."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_AFTER_AN: Final = re.compile(r"[aei]|o(?!ne)|u(?!int|ni|s)|nd", re.IGNORECASE)
_MIN_SCIENTIFIC: Final = 1e15  # numbers from here on are written as 1e+15


def count(value: float) -> str:
    """Format a quantity with three significant digits and a suffix: 950, 12.3k, 4.56M, 0.0123."""
    magnitude = abs(value)
    if magnitude < 999.5:  # from here on, three digits round to 1000
        return significant(value)
    for suffix, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if magnitude < 999.5 * size:
            return significant(value / size) + suffix
    return f"{value:.3g}"


def significant(value: float) -> str:
    """Format three significant digits; from 1000 on, all digits in groups: 0.0123, 4.5, 487, 10,401, 1e+20."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 999.5 <= abs(value) < _MIN_SCIENTIFIC else f"{value:.3g}"


def integer(value: float) -> str:
    """Format a whole number with all digits in groups of three: 225,280."""
    return f"{value:,.0f}"


def size(nbytes: float) -> str:
    """Format a number of bytes in binary units: 512 B, 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def duration(seconds: float) -> str:
    """Format a time span: 0.42 s, 8.1 s, 2 min 4 s, 3 h 12 min."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 59.95:  # from here on, one decimal rounds to 60.0 s
        return f"{seconds:.1f} s"
    minutes, remaining_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remaining_seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def as_percentage(fraction: float) -> str:
    """Format a fraction as a percentage: 51 %, 0.4 %, < 0.1 %."""
    percent = 100 * fraction
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 1 else f"{percent:.0f} %"


def discount(gamma: float, is_timed: bool) -> str:
    """Format a discount, of a step or of a unit of time: `0.99`, `0.99 per unit of time`."""
    return f"{gamma:g} per unit of time" if is_timed else f"{gamma:g}"


def acting(explore: bool) -> str:
    """Name the actions of a policy that samples them, or takes their mode: `sampled actions`, `greedy actions`."""
    return f"{'sampled' if explore else 'greedy'} actions"


def plural(number: float, noun: str) -> str:
    """Format a number with its noun: `1 episode`, `500 episodes`, `1,024 updates`."""
    return f"{integer(number)} {noun}" + ("" if number == 1 else "s")


def describe_type(value: object) -> str:
    """Return the name of a value's type after its article: `a str`, `an int`, `a uint8`."""
    name = type(value).__name__
    return f"{'an' if _AFTER_AN.match(name) else 'a'} {name}"


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in names by value: `data-2` before `data-10`."""
    return [
        (int(token), "") if token.isdecimal() and token.isascii() else (-1, token)
        for token in re.split(r"([0-9]+)", name)
    ]


def capitalise(text: str) -> str:
    """Return a text with a capital first letter, and otherwise unchanged: `best: bc` -> `Best: bc`."""
    return text[:1].upper() + text[1:]


def first_few(items: Sequence[object], limit: int) -> str:
    """Join the first `limit` items, with an ellipsis if there are more: `a, b, c, …`."""
    return ", ".join(map(str, items[:limit])) + (", …" if len(items) > limit else "")


def as_yaml(value: Any) -> str:
    """Format a value of a resource as YAML on one line: `0.001`, `[256, 256]`, `default`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def space(document: Mapping[str, Any] | None) -> str:
    """Format a space's JSON briefly: `Box(4) in [-1, 1]`, `Discrete(2)`, `Dict(goal: Box(3), on: Discrete(2))`."""
    if document is None:
        return "unknown"
    kind, children = document["type"], document.get("spaces")
    if kind == "Box":
        dimensions = ", ".join(map(str, document["shape"]))
        return f"Box({dimensions}){_format_bounds(document['low'], document['high'])}"
    if isinstance(children, Mapping):
        return f"{kind}({', '.join(f'{name}: {space(child)}' for name, child in children.items())})"
    if children is not None:
        return f"{kind}({', '.join(map(space, children))})"
    return f"{kind}({document.get('n', document.get('nvec', ''))})"


def _format_bounds(low: Any, high: Any) -> str:
    if isinstance(low, list) or isinstance(high, list) or "inf" in f"{low}{high}":
        return ""
    return f" in [{significant(low)}, {significant(high)}]"
