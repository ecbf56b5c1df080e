"""What the kernel did for want of memory in this process's container."""

from __future__ import annotations

from pathlib import Path

_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of cgroup v2 and v1; both have a line `oom_kill <count>`."""


def oom_kills() -> int:
    """Processes of this container that the kernel has killed for memory; 0 where it does not say."""
    for path in map(Path, _EVENTS):
        if path.exists():
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0
