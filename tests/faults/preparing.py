"""Prepare rows in a separate process, for tests that kill it.

    python preparing.py ROWS here|ray [KILL_POINT]

Prepared data are in `$HINDCAST_CACHE`. KILL_POINT is a file operation there (kill_points.py). The script prints a
line at the start, at every progress and at the end.
"""

from __future__ import annotations

import os
import sys

from kill_points import arrange_kill_at_point

from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare import job, opening, preparer
from hindcast.datasets.prepare.reading import Reading

PARTITION_BYTES = 1 << 11  # many small partitions


def main() -> int:
    rows, executor, *kill_at = sys.argv[1:]
    job.PARTITION_BYTES = PARTITION_BYTES
    if executor == "ray":
        preparer._MAX_LOCAL_BYTES = 0  # data of any size are prepared on Ray
    arrange_kill_at_point(kill_at[0] if kill_at else None, os.environ["HINDCAST_CACHE"])
    print("begun", flush=True)
    hooks = Hooks(lambda _, *done: print("progress", *done, flush=True))
    opened_data = opening.open_reading(Reading((rows,)), hooks=hooks)
    print("outcome", opened_data.paths[0], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
