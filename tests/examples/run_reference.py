"""Run RLlib's code blocks in `examples/reference/`, one after the other in one process.

    python run_reference.py FOLDER whole|shorter

Each line of standard input is a file; the same line of FOLDER/outcomes.jsonl is its outcome: null, or a traceback.
`/tmp/` in a block is replaced by FOLDER, and a block can import the blocks before it as modules. `shorter` trains and
records less (SHORTER_CODE).
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType

from hindcast import AlgorithmConfig
from hindcast.errors import UserError

SHORTER_CODE = {
    "in range(10)": "in range(2)",
    "evaluation_duration=50": "evaluation_duration=25",
    '"evaluation_duration": 100': '"evaluation_duration": 20',
    '"timesteps_total": 100000': '"timesteps_total": 10000',
    '"timesteps_total": 20000': '"timesteps_total": 2000',
    "metric: 450.0": "metric: 250.0",
}
"""Code of blocks that record or train for long -> replacement."""

REFUSAL_MARK = "\nRefused: "
"""Starts the line of a block's docstring that contains the sentence with which the block is refused."""


def main(folder: Path, shorter: bool) -> None:
    warnings.simplefilter("default", DeprecationWarning)  # the pages use Ray Data, which warns of itself
    with (folder / "outcomes.jsonl").open("w", buffering=1) as outcomes:
        for line in sys.stdin:
            print(json.dumps(outcome(Path(line.strip()), folder, shorter)), file=outcomes)


def outcome(file: Path, folder: Path, shorter: bool) -> str | None:
    source = file.read_text().replace("/tmp/", f"{folder}/")
    for code, replacement in SHORTER_CODE.items() if shorter else ():
        source = source.replace(code, replacement)
    try:
        if file.suffix == ".sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", source], check=True)
        else:
            check(run(file.stem, source))
    except Exception:
        return traceback.format_exc()
    return None


def run(name: str, source: str) -> ModuleType:
    sys.modules[name] = module = ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


def check(module: ModuleType) -> None:
    """Check that the config of a block can be built; options without an algorithm are merged into BC's config."""
    config = getattr(module, "config", None)
    if not isinstance(config, AlgorithmConfig):
        return
    if config.algorithm is None:
        config = AlgorithmConfig("BC").offline_data(input_="data").update_from_dict(config.to_dict())
        config.environment("CartPole-v1")
    sentence = (module.__doc__ or "").partition(REFUSAL_MARK)[2].partition("\n")[0]
    try:
        config.validate()
    except UserError as error:
        if not sentence or sentence not in str(error):
            raise
    else:
        assert not sentence, f"it is not refused: {sentence}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "shorter")
