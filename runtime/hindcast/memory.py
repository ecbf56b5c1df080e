"""Memory of this process: what it keeps for later, and what the kernel did for want of it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of cgroup v2 and v1; both have a line `oom_kill <count>`."""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NO_LIMIT = 1 << 60
"""Version 1 has a number of about this size where there is no limit."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT, _LARGE = 256 * 2**20, 32 * 2**20


def keep_freed_memory() -> None:
    """Let the process keep up to 256 MiB that it has freed, in blocks below 32 MiB, rather than give it back at once.

    An update frees what the next one takes again. Having the kernel clear those pages in each was a third of the time
    of CQL's updates. Without glibc nothing is done.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _LARGE)
        set_option(_TRIM_THRESHOLD, _KEPT)


def oom_kills() -> int:
    """Processes of this container that the kernel has killed for memory; 0 where it does not say."""
    events = "\n".join(path.read_text() for path in map(Path, _EVENTS) if path.exists())
    found = re.search(r"^oom_kill ([0-9]+)$", events, re.MULTILINE)
    return int(found[1]) if found else 0


def memory_limit() -> int | None:
    """Bytes that this container may use; None without a limit."""
    texts = [path.read_text().strip() for path in map(Path, _LIMITS) if path.exists()]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)
