"""Run every code block of README and docs in order, as a reader would.

The blocks of a page run in an empty folder. A YAML block is saved if its first comment names a file, or, as
`cartpole.yaml`, if it is a resource. The `python` blocks are one program, which runs the `bash` blocks between them.
If a page names `s3://bucket`, the test starts an object store with that bucket. Except in a soak, repetitions are
shortened (SHORTENINGS), because they would take most of a page's time and no page depends on them.
Blocks with a second word (`bash cluster`) need other machines: tests/control_plane/test_docs_install.py runs them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layers import LAYER
from object_store_servers import SCRIPTS, make_buckets, require, seaweed
from warm_python import WarmPython

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/data").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORTENINGS = {
    r"(--model-updates |modelUpdates: |offline_evaluation_model_updates=)\d+": r"\g<1>20",
    r"(duration: {episodes: )500\b": r"\g<1>50",
    r"(stop: {episodeReturnMean: )450\b": r"\g<1>120",
    r"(stop: {updates: 1\d)00\b": r"\g<1>0",
    r"(datasetNumItersPerLearner: 5)00\b": r"\g<1>0",
    r"(seed=tune.grid_search\()\[0, 1\]": r"\g<1>[0]",
    r"(for seed in 0 1) 2": r"\g<1>",
    r"(--seeds )3": r"\g<1>2",
}
"""Pattern on a page -> replacement with fewer updates, episodes or seeds, or a lower return."""
DEMO = ROOT / "runtime" / "hindcast" / "cli" / "demo.yaml"
FILE_COMMENT = re.compile(r"#\s*(\S+\.yaml)")
LANGUAGES = ("bash", "python", "yaml")


def read_blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and code of the blocks of a page, with repetitions shortened."""
    blocks = BLOCK.findall(shorten(page.read_text()))
    return [(language, code) for language, code in blocks if language in LANGUAGES]


def shorten(text: str) -> str:
    """Shorten repetitions in a page's text, except in a soak."""
    if LAYER != "soak":
        for pattern, replacement in SHORTENINGS.items():
            text = re.sub(pattern, replacement, text)
    return text


def find_pages_with_code() -> list[Path]:
    return [page for page in PAGES if read_blocks(page)]


def mark_page(page: Path) -> object:
    """Return the page as a test parameter, marked if it searches with Ray Tune, and therefore starts Ray."""
    marks = [pytest.mark.ray] if "tune.Tuner(" in page.read_text() else []
    return pytest.param(page, id=page.name, marks=marks)


@pytest.fixture
def environment(warm: WarmPython) -> dict[str, str]:
    """Return environment variables with which `hindcast` and `python` start in a warm process, others as usual."""
    path = [str(warm.folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start an object store with a bucket `bucket`; yield the environment variables for its clients."""
    require((SCRIPTS / "weed").exists(), "SeaweedFS", "pip install -e '.[dev]'")
    server = seaweed(tmp_path_factory.mktemp("s3"))
    try:
        server.start()
        make_buckets(server.port, "bucket")
        yield {
            "AWS_ACCESS_KEY_ID": "writer",
            "AWS_SECRET_ACCESS_KEY": "writer-secret",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.kill()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [mark_page(page) for page in find_pages_with_code()])
def test_code_of_page_runs(
    page: Path, tmp_path: Path, environment: dict[str, str], request: pytest.FixtureRequest
) -> None:
    store_variables = request.getfixturevalue("bucket") if "s3://bucket" in page.read_text() else {}
    if LAYER != "soak" and "hindcast demo" in page.read_text():
        save_demo(tmp_path / "demo")
    blocks = [block for block in read_blocks(page) if not save_yaml(block, tmp_path)]
    (tmp_path / "page.py").write_text(make_program(blocks))
    process = subprocess.run(
        ["python", "page.py"],
        cwd=tmp_path,
        env=environment | store_variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, f"{process.stdout[-3000:]}\n{process.stderr[-3000:]}"


def make_program(blocks: list[tuple[str, str]]) -> str:
    """Return the Python program that runs the blocks in order."""
    program = "import subprocess as _subprocess\n"
    for language, code in blocks:
        command = ["bash", "-euo", "pipefail", "-c", code]
        program += code if language == "python" else f"_subprocess.run({command!r}, check=True)\n"
    return program


def save_yaml(block: tuple[str, str], folder: Path) -> bool:
    """Save a YAML block if it names a file or is a resource; return True for any YAML block."""
    language, code = block
    match = FILE_COMMENT.match(code)
    if language == "yaml" and (match or "apiVersion" in code):
        (folder / (match[1] if match else "cartpole.yaml")).write_text(code)
    return language == "yaml"


def save_demo(folder: Path) -> None:
    """Save a shortened version of the demo's file, which `hindcast demo` then uses."""
    folder.mkdir()
    (folder / "cartpole.yaml").write_text(shorten(DEMO.read_text().replace("FOLDER", folder.name)))


def test_pages_have_code() -> None:
    assert ROOT / "README.md" in find_pages_with_code()
    assert ROOT / "docs" / "cli.md" in find_pages_with_code()


def test_shortened_code_occurs_on_pages() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [pattern for pattern in SHORTENINGS if not re.search(pattern, text)] == []
