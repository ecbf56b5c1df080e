"""Every benchmark, one after the other: ours and the rival, as tables.

    python benchmarks/run_all.py

RLlib is installed into an environment of its own, `.venv-rllib`, on the first call.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RLLIB = HERE.parent / ".venv-rllib"
ALONE = (
    "decode.py",
    "learner_overhead.py",
    "training.py",
    "cartpole.py",
    "ray_data.py",
    "inspect_dataset.py",
)
PACKAGES = ("torch==2.13.0", "ray[rllib]==2.60.0", "gymnasium==1.2.2", "msgpack-numpy")


def install_rllib() -> str:
    """The interpreter that has RLlib."""
    python = RLLIB / "bin" / "python"
    if not (RLLIB / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(RLLIB)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (RLLIB / ".ready").touch()
    return str(python)


def main() -> None:
    """Run them all; stop at the first that fails."""
    for script in ALONE:
        subprocess.run([sys.executable, str(HERE / script)], check=True)
    for script in ("recording.py", "decode_messagepack.py", "convert.py", "columns.py", "prepare.py"):
        subprocess.run([sys.executable, str(HERE / script), "--rllib", install_rllib()], check=True)


if __name__ == "__main__":
    main()
