"""`python -m hindcast.cluster FOLDER`: the entrypoint of a RayJob."""

import sys
from pathlib import Path

from hindcast.cluster.channel import ConfigMapName, open_channel
from hindcast.cluster.driver import connect_to_ray, drive
from hindcast.errors import SpecError


def main() -> int:
    """Execute the attempt in the folder that the command line names; return the exit code."""
    if len(sys.argv) != 2:
        print("error: the argument FOLDER is missing: python -m hindcast.cluster FOLDER", file=sys.stderr)
        return SpecError.exit_code
    try:
        channel = open_channel(ConfigMapName.from_environment())
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return drive(Path(sys.argv[1]), channel, connect_to_ray)


if __name__ == "__main__":
    sys.exit(main())
