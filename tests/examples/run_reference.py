"""Runs RLlib's code blocks, those of `examples/reference/`, one after the other in one process.

    python run_reference.py FOLDER PART FILE…

`/tmp/` in a block is FOLDER, as if the machine were the example's own, and what a block imports of one before it is
what that one has made. Blocks that record for long record one PART-th. FOLDER/outcomes.json says what became of each:
file -> None, or a traceback.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType

from hindcast import AlgorithmConfig
from hindcast.errors import UserError

RECORDED = re.compile(r'("timesteps_total": |in range\()(100000|10)\b')
"""What the blocks say that record for long."""

REFUSED = "\nRefused: "
"""A block whose docstring has such a line is one that cannot work; it says with which sentence it is refused."""


def main(folder: Path, part: int, files: list[Path]) -> None:
    outcomes: dict[str, str | None] = {}
    for file in files:
        source = file.read_text().replace("/tmp/", f"{folder}/")
        source = RECORDED.sub(lambda found: f"{found[1]}{int(found[2]) // part}", source)
        try:
            if file.suffix == ".sh":
                subprocess.run(["bash", "-euo", "pipefail", "-c", source], check=True)
            else:
                check(run(file.stem, source))
            outcomes[file.name] = None
        except Exception:
            outcomes[file.name] = traceback.format_exc()
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


def run(name: str, source: str) -> ModuleType:
    sys.modules[name] = module = ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


def check(module: ModuleType) -> None:
    """A config that a block makes has to be one that can be built; options alone go to BC's for that."""
    config = getattr(module, "config", None)
    if not isinstance(config, AlgorithmConfig):
        return
    if config.algorithm is None:
        config = AlgorithmConfig("BC").offline_data(input_="data").update_from_dict(config.to_dict())
        config.environment("CartPole-v1")
    sentence = (module.__doc__ or "").partition(REFUSED)[2].partition("\n")[0]
    try:
        config.validate()
    except UserError as error:
        if not sentence or sentence not in str(error):
            raise
    else:
        assert not sentence, f"it is not refused: {sentence}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [Path(argument) for argument in sys.argv[3:]])
