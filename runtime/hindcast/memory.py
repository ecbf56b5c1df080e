"""Memory of this process and its container: the allocator's settings, the limit, out-of-memory kills."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_EVENT_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Files of cgroup v2 and v1; both contain a line `oom_kill <count>`."""
_LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NO_LIMIT_BYTES = 1 << 60
"""Without a limit cgroup v1 reports a larger number, and v2 reports "max"."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # options of mallopt, from glibc's malloc.h
_MAX_FREE_BYTES, _LARGE_BLOCK_BYTES = 256 * 2**20, 32 * 2**20


def keep_freed_memory() -> None:
    """Keep up to 256 MiB of freed memory, in blocks below 32 MiB, instead of returning it to the kernel immediately.

    Does nothing without glibc.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if set_option is not None:
        # An update allocates as much memory as the previous update freed. If the kernel had it back, it would clear the
        # pages each time, which takes a third of the time of CQL's updates.
        set_option(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        set_option(_M_TRIM_THRESHOLD, _MAX_FREE_BYTES)


def peak_memory_bytes() -> int:
    """Return the maximum of this process's resident memory since its start; 0 if the system does not tell."""
    try:
        match = re.search(r"^VmHWM:\s*([0-9]+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return 0
    return 1024 * int(match[1]) if match else 0


def count_oom_kills() -> int:
    """Return the number of this container's processes that were killed so far for lack of memory; 0 if unknown."""
    events = "\n".join(path.read_text() for path in map(Path, _EVENT_FILES) if path.exists())
    match = re.search(r"^oom_kill ([0-9]+)$", events, re.MULTILINE)
    return int(match[1]) if match else 0


def memory_limit_bytes() -> int | None:
    """Return the bytes that this container may use; None if there is no limit or it is unknown."""
    texts = [path.read_text().strip() for path in map(Path, _LIMIT_FILES) if path.exists()]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < _NO_LIMIT_BYTES), default=None)
