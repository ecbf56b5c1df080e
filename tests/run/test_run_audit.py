"""Audit bundles: written from a run, checked from the data, refused if anything differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from visit_log import log_visits, train

from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.evaluate.offline import OfflineOptions
from hindcast.run import audit
from hindcast.run.audit import AUDIT_FILE, create_audit, verify_audit
from hindcast.run.gate import look

OPTIONS = OfflineOptions(explore=True, fit=None)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return a bundle of a run that was judged by a log and has a gate with two looks; the log; the run folder."""
    folder = tmp_path_factory.mktemp("audit")
    run = train(folder, log_visits(folder / "expert", "expert", 40, share=0.8), explore=True)
    log = log_visits(folder / "log", "a", 30)
    look(run, [log])
    log_visits(folder / "log", "bb", 30)
    look(run, [log])
    create_audit(run, folder / "bundle", [log], options=OPTIONS)
    return folder / "bundle", log, run


@pytest.fixture
def copy(bundle: tuple[Path, str, str], tmp_path: Path) -> Path:
    """Return a copy of the bundle, to be changed."""
    return Path(shutil.copytree(bundle[0], tmp_path / "bundle"))


def test_bundle_holds_by_the_data_it_was_made_of(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, log, _ = bundle
    # The log has grown, and lies elsewhere.
    moved = shutil.copytree(log, tmp_path / "moved")
    log_visits(Path(moved), "later", 5)
    result = verify_audit(folder, [str(moved)])
    assert len(result.checks) == 6
    assert "60 episodes that judged the policy are in" in result.checks[2]
    assert result.checks[5].startswith("the gate's looks at ")
    assert result.decision == json.loads((folder / AUDIT_FILE).read_bytes())["decision"]


def _change_document(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / AUDIT_FILE).read_bytes())
        change(document)
        (folder / AUDIT_FILE).write_text(json.dumps(document))

    return apply


def _raise_estimate(document: dict[str, Any]) -> None:
    document["report"]["estimates"]["wis"]["value"] += 0.2


def _numbers_and_texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each leaf of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _numbers_and_texts(item, (*path, key))
    if not isinstance(value, dict | list):
        yield path


def _falsify(document: dict[str, Any], path: tuple[Any, ...]) -> None:
    *parents, key = path
    for parent in parents:
        document = document[parent]
    value = document[key]
    document[key] = value + 1 if isinstance(value, int | float) else f"{value} for sure"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "spec.json").write_text("{}"), "spec.json was changed after"),
        (lambda folder: (folder / "gate.json").unlink(), "gate.json is missing"),
        (_change_document(lambda document: document["files"].pop("gate.json")), "gate.json was added after"),
        (
            _change_document(lambda document: document["files"].update({"../outside": "x"})),
            "it lists files that no bundle has",
        ),
        (_change_document(lambda document: document.update(policy="x")), "the policy is not the one"),
        (_change_document(_raise_estimate), r"wis is \S+, but \S+ by the data"),
        (
            _change_document(lambda document: document["report"]["verdict"].update(answer="?")),
            "the verdict is '\\?', but",
        ),
    ],
)
def test_changed_bundle_does_not_hold(
    bundle: tuple[Path, str, str], copy: Path, change: Callable[[Path], None], problem: str
) -> None:
    change(copy)
    with pytest.raises(DataError, match=problem):
        verify_audit(copy, [bundle[1]])


def test_change_of_any_file_is_named(bundle: tuple[Path, str, str], copy: Path) -> None:
    """One byte of each file, a file that is missing or empty, at positions all over the files."""
    rng = np.random.default_rng(0)
    files = [str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()]
    assert len(files) >= 8
    for name in sorted({*files} - {AUDIT_FILE}):
        file, content = copy / name, (copy / name).read_bytes()
        for position in rng.integers(0, len(content), 8):
            changed_byte = bytes([content[position] ^ int(rng.integers(1, 256))])
            file.write_bytes(content[:position] + changed_byte + content[position + 1 :])
            with pytest.raises(DataError, match=f"does not hold: {name} was changed after"):
                verify_audit(copy, [bundle[1]])
        file.unlink()
        with pytest.raises(DataError, match=f"does not hold: {name} is missing"):
            verify_audit(copy, [bundle[1]])
        file.write_bytes(content)


def test_change_of_any_judgement_is_found(bundle: tuple[Path, str, str], copy: Path) -> None:
    """All that a reader decides by: estimates, intervals, difference, verdict, decision."""
    file = copy / AUDIT_FILE
    content = file.read_text()
    document = json.loads(content)
    report = document["report"]
    paths = [("decision",), ("policy",), ("report", "verdict", "answer")]
    paths += [("report", "verdict", name) for name in ("difference", "sentence")]
    for part in ("estimates", "behaviour", "verdict"):
        paths += [
            ("report", part, *path)
            for path in _numbers_and_texts(report[part])
            if path[-1] == "value" or "interval" in path
        ]
    assert len(paths) > 15
    for path in paths:
        document = json.loads(content)
        _falsify(document, path)
        file.write_text(json.dumps(document))
        with pytest.raises(DataError, match="does not hold: "):
            verify_audit(copy, [bundle[1]])


def test_other_data_do_not_confirm_a_bundle(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    part = log_visits(tmp_path / "part", "a", 30)
    with pytest.raises(DataError, match="30 of 60 episodes that judged the policy are not in"):
        verify_audit(bundle[0], [part])


def test_policy_outside_of_a_run_has_no_bundle(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    module = shutil.copytree(bundle[0] / "module", tmp_path / "module")
    with pytest.raises(SpecError, match="is not in the folder of a training's run"):
        create_audit(module, tmp_path / "new", [bundle[1]], options=OPTIONS)


def test_bundle_needs_an_empty_folder(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(OutputConflict, match="is not empty"):
        create_audit(bundle[2], tmp_path, [bundle[1]], options=OPTIONS)


def test_bundle_is_not_written_over_its_run(bundle: tuple[Path, str, str]) -> None:
    run = bundle[2]
    with pytest.raises(OutputConflict, match="is the run's folder"):
        create_audit(run, run, [bundle[1]], options=OPTIONS)


def test_interrupted_bundle_is_written_again(
    bundle: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (_, log, run) = tmp_path / "new", bundle

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(audit, "write_verdict_page", interrupt)
        create_audit(run, folder, [log], options=OPTIONS)
    assert (folder / "module").exists()
    (folder / ".spec.json.0123abcd.tmp").write_text("half")
    create_audit(run, folder, [log], options=OPTIONS)
    verify_audit(folder, [log])
    assert not (folder / ".spec.json.0123abcd.tmp").exists()
    with pytest.raises(OutputConflict, match="is not empty"):
        create_audit(run, folder, [log], options=OPTIONS)


def test_folder_without_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"has no {AUDIT_FILE}"):
        verify_audit(tmp_path, ["data"])
