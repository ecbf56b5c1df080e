"""How long to pause between attempts."""

import hashlib
from typing import Final

FIRST_SECONDS: Final = 10
LONGEST_SECONDS: Final = 600


def pause_seconds(child: str, losses: int) -> int:
    """Seconds between the end of a lost attempt and the next one.

    10 s after the first loss, doubled with each, at most 600 s; then up to a quarter more or less, by the lost
    attempt's name: runs that a node took down together do not come back together, and a restarted operator
    finds the same pause.

    Args:
        child: name of the lost attempt.
        losses: attempts of the revision that were lost so far, this one included.
    """
    whole = min(FIRST_SECONDS * 2 ** min(losses - 1, 16), LONGEST_SECONDS)
    share = int.from_bytes(hashlib.sha256(child.encode()).digest()[:4]) / 2**32
    return round(whole * (0.75 + share / 2))
