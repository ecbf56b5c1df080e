"""Quantities in Kubernetes' notation."""

from typing import Final

MI: Final = 2**20
GI: Final = 2**30


def format_bytes(count: int) -> str:
    """Format a number of bytes in whole Gi, else in whole Mi, else in bytes: `2147483648` is `2Gi`."""
    for unit, name in ((GI, "Gi"), (MI, "Mi")):
        if count % unit == 0:
            return f"{count // unit}{name}"
    return str(count)


def format_cpus(cpus: float) -> str:
    """Format a number of CPUs: `0.5` is `500m`, `2.0` is `2`; at least `1m`."""
    thousandths = max(1, round(cpus * 1000))
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def round_up(count: float, unit: int) -> int:
    """Round up to the next multiple of `unit`."""
    return -int(-count // unit) * unit
