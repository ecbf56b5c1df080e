"""Kubernetes quantities: sizes (`128Mi`, `1Gi`, `500M`, or a plain number of bytes) and CPUs (`2`, `0.5`, `500m`)."""

import math
import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

_UNITS: Final[dict[str, int]] = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P"))},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTP", start=1)},
}
_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?)(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
# Matches numbers above 0, without lookahead, which the API server's regular expressions (RE2) do not have.
_CPUS_PATTERN: Final = r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*)m?$"
_MAX_LENGTH: Final = 32


def parse_bytes(quantity: str | int) -> int:
    """Return the bytes of a quantity: `parse_bytes("128Mi") == 134217728`. Fractions round up to a whole byte.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = re.fullmatch(_PATTERN, str(quantity))
    if match is None:
        raise ValueError(f"is {quantity!r}, expected a size such as 512Mi, 1Gi or a number of bytes")
    return math.ceil(Decimal(match.group(1)) * _UNITS[match.group(3) or ""])


def _to_quantity_text(value: Any) -> Any:
    """Check a quantity, and return it as text."""
    if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)) > _MAX_LENGTH:
        raise ValueError(f"is {value!r}, expected a size such as 512Mi, 1Gi or a number of bytes")
    parse_bytes(value)
    return str(value)


Quantity = Annotated[
    str,
    BeforeValidator(_to_quantity_text),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "maxLength": _MAX_LENGTH, "minimum": 0, "pattern": _PATTERN}
    ),
]


def parse_cpus(quantity: str | float) -> float:
    """Return the CPUs of a quantity: `parse_cpus("500m") == 0.5`.

    Raises:
        ValueError: the value is not a quantity of CPUs above 0.
    """
    text = str(quantity)
    is_number = isinstance(quantity, int | float) and not isinstance(quantity, bool)
    if is_number and 0 < quantity < math.inf:  # type: ignore[operator]
        return float(quantity)
    if not isinstance(quantity, str) or len(text) > _MAX_LENGTH or not re.fullmatch(_CPUS_PATTERN, text):
        raise ValueError(f"is {quantity!r}, expected CPUs above 0 such as 2, 0.5 or 500m")
    return float(Decimal(text.removesuffix("m")) / (1000 if text.endswith("m") else 1))


# An int-or-string field of a CRD refuses a plain 0.5 (API server 1.34). So the field has no type, and its bounds refuse
# all but numbers and quantities.
Cpus = Annotated[
    float,
    BeforeValidator(parse_cpus),
    WithJsonSchema(
        {
            "x-kubernetes-preserve-unknown-fields": True,
            "exclusiveMinimum": 0,
            "maxItems": 0,
            "maxLength": _MAX_LENGTH,
            "maxProperties": 0,
            "not": {"enum": [True, False, [], {}]},
            "pattern": _CPUS_PATTERN,
        }
    ),
]
