"""Run RLlib's code blocks in `examples/reference/`, one after the other in one process.

    python run_reference.py FOLDER whole|shorter

Each line of standard input names a file. The line with the same number in FOLDER/outcomes.jsonl is its outcome: null,
or a traceback. `/tmp/` in a block is replaced by FOLDER, and a block can import the blocks before it as modules. With
`shorter`, blocks train and record less (SHORTER_CODE).
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
    '"timesteps_total": 100000': '"timesteps_total": 10000',
    '"timesteps_total": 20000': '"timesteps_total": 2000',
    "metric: 450.0": "metric: 150.0",
}
"""Code of blocks that record or train for long -> replacement."""

REFUSAL_MARK = "\nRefused: "
"""Begins the line of a block's docstring with the message of the error that refuses the block's config."""


def main(folder: Path, is_shortened: bool) -> None:
    warnings.simplefilter("default", DeprecationWarning)  # not errors, as Ray Data causes some
    with (folder / "outcomes.jsonl").open("w", buffering=1) as outcomes:
        for line in sys.stdin:
            print(json.dumps(run_file(Path(line.strip()), folder, is_shortened)), file=outcomes)


def run_file(file: Path, folder: Path, is_shortened: bool) -> str | None:
    source = file.read_text().replace("/tmp/", f"{folder}/")
    for code, replacement in SHORTER_CODE.items() if is_shortened else ():
        source = source.replace(code, replacement)
    try:
        if file.suffix == ".sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", source], check=True)
        else:
            check_config(run_module(file.stem, source))
    except Exception:
        return traceback.format_exc()
    return None


def run_module(name: str, source: str) -> ModuleType:
    sys.modules[name] = module = ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


def check_config(module: ModuleType) -> None:
    """Check that the config of a block is valid, or refused with the message in the block's docstring.

    A config without an algorithm is merged into BC's config.
    """
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
        assert not sentence, f"the config is valid, expected the error: {sentence}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "shorter")
