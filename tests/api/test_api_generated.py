"""Generated files are up to date, and loading a resource imports neither torch nor Ray."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = (
    "runtime/hindcast/api/generated/algorithms.json",
    "runtime/hindcast/__init__.pyi",
    "runtime/hindcast/api/generated/connectors.json",
    "runtime/hindcast/api/generated/formats.json",
    "runtime/hindcast/rllib/builder/algorithm_classes.py",
    "runtime/hindcast/rllib/builder/algorithm_configs.py",
    "runtime/hindcast/rllib/builder/trainables.py",
    "crds/hindcast.dev_offlinerecordings.yaml",
    "crds/hindcast.dev_offlinetrainings.yaml",
    "docs/from-rllib.md",
    "docs/reasons.md",
    "docs/reference.md",
    "charts/hindcast/files/crds/offlinerecordings.yaml",
    "charts/hindcast/files/crds/offlinetrainings.yaml",
    "charts/hindcast/values.schema.json",
    "charts/hindcast/README.md",
)


@pytest.fixture(scope="module")
def generated_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("generated")
    tool = REPOSITORY / "tools" / "generate_crds.py"
    command = [sys.executable, str(tool), "--root", str(root)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert sorted(process.stdout.split()) == sorted(FILES)
    return root


@pytest.mark.parametrize("path", FILES)
def test_generated_file_is_up_to_date(generated_root: Path, path: str) -> None:
    stored_text = (REPOSITORY / path).read_text(encoding="utf-8")
    assert stored_text == (generated_root / path).read_text(encoding="utf-8"), "run `make crds`"


def test_crds_have_no_anchors() -> None:
    for plural in ("offlinerecordings", "offlinetrainings"):
        text = (REPOSITORY / "crds" / f"hindcast.dev_{plural}.yaml").read_text(encoding="utf-8")
        assert YAML(typ="safe", pure=True).load(text)["metadata"]["name"] == f"{plural}.hindcast.dev"
        assert not re.search(r": &\w+$", text, re.MULTILINE)


def test_reference_page_names_every_option() -> None:
    page = (REPOSITORY / "docs/reference.md").read_text(encoding="utf-8")
    schemas = json.loads((REPOSITORY / FILES[0]).read_text(encoding="utf-8"))
    for name, schema in schemas.items():
        chapter = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
        assert all(f"| `{option}` |" in chapter for option in schema["properties"])


def test_api_imports_no_large_package() -> None:
    code = (
        "import sys, hindcast.api, hindcast.api.crd\n"
        "large_packages = {'torch', 'ray', 'numpy', 'gymnasium', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "print(sorted(large_packages))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
