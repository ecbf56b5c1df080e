"""Sizes as Kubernetes writes them: `128Mi`, `1Gi`, `500M`, or a plain number of bytes."""

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
_LONGEST: Final = 32


def parse_bytes(quantity: str | int) -> int:
    """Bytes of a quantity: `parse_bytes("128Mi") == 134217728`. Fractions round up to a whole byte.

    Raises ValueError with a sentence when the text is no quantity.
    """
    match = re.fullmatch(_PATTERN, str(quantity))
    if match is None:
        raise ValueError(f"is {quantity!r}, expected a size such as 512Mi, 1Gi or a number of bytes")
    return math.ceil(Decimal(match.group(1)) * _UNITS[match.group(3) or ""])


def _check(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)) > _LONGEST:
        raise ValueError(f"is {value!r}, expected a size such as 512Mi, 1Gi or a number of bytes")
    parse_bytes(value)
    return str(value)


Quantity = Annotated[
    str,
    BeforeValidator(_check),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "maxLength": _LONGEST, "minimum": 0, "pattern": _PATTERN}
    ),
]
