"""Audit bundles: written from a run, checked from the data, refused if anything differs."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
from visit_log import log_visits, train

from hindcast.errors import DataError, OutputConflict, SpecError, UserError
from hindcast.evaluate.offline import OfflineOptions
from hindcast.run import audit
from hindcast.run.audit import AUDIT_FILE, create_audit, verify_audit
from hindcast.run.checkpoint_evaluation import OfflineEvaluation, evaluate_checkpoint_offline
from hindcast.run.gate import GATE_FILE, look
from layers import repeats

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


def _forge(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes `audit.json` in a folder, with checksums that fit."""

    def apply(folder: Path) -> None:
        document = json.loads((folder / AUDIT_FILE).read_bytes())
        change(document)
        _write_canonical(folder, document, forge=True)

    return apply


def _add_line(folder: Path) -> None:
    with (folder / AUDIT_FILE).open("a") as file:
        file.write("\n")


def _lose_episodes(folder: Path) -> None:
    """Delete the judging episodes, also from the list of files."""
    (folder / "episodes.json").unlink()
    _forge(lambda document: document["files"].pop("episodes.json"))(folder)


def _leaf_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value of a document that has no parts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _leaf_paths(item, (*path, key))
    if not isinstance(value, dict | list) or not value:
        yield path


def _all_paths(value: Any) -> list[tuple[Any, ...]]:
    """Return the path of each value of a document, also of those with parts and of the whole."""
    paths = {path[:length] for path in _leaf_paths(value) for length in range(len(path) + 1)}
    return sorted(paths, key=str)


def _falsify(document: dict[str, Any], path: tuple[Any, ...]) -> None:
    """Change the value at a path of the document."""
    *parents, index = path
    value: Any = document
    for parent in parents:
        value = value[parent]
    match value[index]:
        case bool(truth):
            value[index] = not truth
        case int(number):
            value[index] = number + 1
        case float(number):
            value[index] = 1.3 * number + 1
        case str(text) if any(character.isdigit() for character in text):
            value[index] = re.sub("[0-9]", lambda digit: str((int(digit.group()) + 1) % 10), text)
        case str(text):
            value[index] = f"{text} for sure"
        case None:
            value[index] = 0.5
        case _:
            value[index] = {"added": "x"} if isinstance(value[index], dict) else ["x"]


def _write_canonical(folder: Path, document: dict[str, Any], *, forge: bool = False) -> None:
    """Write `audit.json` as a bundle has it; with `forge`, with checksums that fit the changed document."""
    if forge:
        document["checksums"] = audit._leaf_checksums({k: v for k, v in document.items() if k != "checksums"})
    (folder / AUDIT_FILE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "spec.json").write_text("{}"), "spec.json was changed after"),
        (lambda folder: (folder / "gate.json").unlink(), "gate.json is missing"),
        (
            lambda folder: (folder / "module" / "spec.json").write_text("{}"),
            "module/spec.json was added after",
        ),
        (
            lambda folder: (folder / "audit.json.sig").write_text("signature"),
            "audit.json.sig was added after the bundle was written; move it out of the folder",
        ),
        (_lose_episodes, "hold: episodes.json is missing"),
        (_forge(lambda document: document["files"].pop("gate.json")), "gate.json was added after"),
        (
            _forge(lambda document: document["files"].update({"../outside": "x"})),
            "it lists files that no bundle has",
        ),
        (_forge(lambda document: document.update(policy="x")), "the policy is not the one"),
        (
            _forge(lambda document: document.update(note="x")),
            "note in audit.json: Extra inputs are not permitted",
        ),
        (
            _forge(lambda document: document["report"].update(note="x")),
            "report.note in audit.json: Unexpected",
        ),
        (
            _forge(lambda document: document["options"].pop("clip")),
            "options.clip in audit.json: Field required",
        ),
        (
            _forge(lambda document: document["options"].update(seed="0")),
            "options.seed in audit.json: Input should",
        ),
        (
            _forge(lambda document: document["options"].update(explore=1)),
            "options.explore in audit.json: Input",
        ),
        (_forge(lambda document: document.update(formatVersion=2)), "newer version of Hindcast"),
        (_add_line, "audit.json was written by another program"),
        (lambda folder: (folder / AUDIT_FILE).write_text("{"), "audit.json is not JSON"),
        (
            lambda folder: (folder / AUDIT_FILE).write_text("[]"),
            "hold: audit.json: Input should be an object",
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


def test_change_of_any_value_is_named(bundle: tuple[Path, str, str], copy: Path) -> None:
    content = (copy / AUDIT_FILE).read_bytes()
    paths = list(_leaf_paths(json.loads(content)))
    assert len(paths) > 100
    for path in paths:
        document = json.loads(content)
        _falsify(document, path)
        _write_canonical(copy, document)
        name = re.escape(".".join(map(str, path)).removeprefix("checksums."))
        with pytest.raises(
            DataError, match=rf"(does not hold: {name}(\.added)? in audit\.json|newer version)"
        ):
            verify_audit(copy, [bundle[1]])


def test_forged_judgement_is_found_by_the_data(
    bundle: tuple[Path, str, str], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a reader decides by, with checksums that fit: estimates, intervals, verdict, signals, decision."""
    content = (copy / AUDIT_FILE).read_bytes()
    monkeypatch.setattr(audit, "evaluate_checkpoint_offline", _evaluate_once(bundle))
    paths = [path for path in _leaf_paths(json.loads(content)) if path[0] in ("report", "decision")]
    assert len(paths) > 30
    for path in paths:
        document = json.loads(content)
        _falsify(document, path)
        _write_canonical(copy, document, forge=True)
        with pytest.raises(DataError, match="does not hold: "):
            verify_audit(copy, [bundle[1]])


def _evaluate_once(bundle: tuple[Path, str, str]) -> Callable[..., OfflineEvaluation]:
    """Return a function that gives the bundle's evaluation whatever it is called with."""
    evaluation = evaluate_checkpoint_offline(bundle[2], [bundle[1]], gamma=0.99, options=OPTIONS)
    return lambda *_, **__: evaluation


@pytest.mark.parametrize("path", [("test", "by"), ("looks", 0, "evidence"), ("policy",)])
def test_forged_gate_is_found_by_the_data(
    bundle: tuple[Path, str, str], copy: Path, path: tuple[Any, ...]
) -> None:
    state = json.loads((copy / GATE_FILE).read_bytes())
    _falsify(state, path)
    _forge_file(copy, GATE_FILE, state)
    with pytest.raises(DataError, match=f"gate.json.{'.'.join(map(str, path))} is .* by the data"):
        verify_audit(copy, [bundle[1]])


def _forge_file(folder: Path, file: str, content: Any) -> None:
    """Replace a file of a bundle by bytes or a JSON document, with checksums that fit."""
    (folder / file).write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    digests = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest()}
    if file.endswith(".safetensors"):
        description = json.loads((folder / "module/module.json").read_bytes())
        description["checksums"][Path(file).name] = digests[file]
        (folder / "module/module.json").write_text(json.dumps(description, indent=1, sort_keys=True))
        digests["module/module.json"] = hashlib.sha256(
            (folder / "module/module.json").read_bytes()
        ).hexdigest()
    _forge(
        lambda document: document.update(
            files=document["files"] | digests,
            policy=digests.get("module/module.json", document["policy"]),
        )
    )(folder)


def _damaged_contents(content: bytes, file: str) -> Iterator[bytes]:
    """Yield contents of other types and lengths than a file has."""
    for length in (0, 1, 9, len(content) // 2, len(content) - 1):
        yield content[:length]
    yield from (b"text\n", b"{}", b"[" * 100_000, b"PK\x03\x04" + bytes(50), bytes(1_000_000))
    yield pickle.dumps({"spec": 1})
    yield "{}".encode("utf-16")
    if file.endswith(".npy"):
        rows = np.load(io.BytesIO(content))
        arrays: list[Any] = [rows[:0], rows[None], rows["id"], rows[["id", "length"]], np.float64(1)]
        for array in arrays:
            buffer = io.BytesIO()
            np.save(buffer, array)
            yield buffer.getvalue()
        shape = f"({len(rows)},)".encode()
        yield content.replace(shape + b", }" + b" " * 8, b"(99999999999,), }"[: len(shape) + 11])
    if file.endswith(".safetensors"):
        yield (2**60).to_bytes(8, "little") + content[8:]
        tensors = safetensors.numpy.load(content)
        for name, tensor in tensors.items():
            others = {key: value for key, value in tensors.items() if key != name}
            yield safetensors.numpy.save(others)
            yield safetensors.numpy.save(others | {name: tensor[None]})


def test_forged_bytes_of_any_file_do_not_hold(
    bundle: tuple[Path, str, str], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "evaluate_checkpoint_offline", _evaluate_once(bundle))
    files = sorted({str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()})
    audit_content = (copy / AUDIT_FILE).read_bytes()
    description = (copy / "module/module.json").read_bytes()
    for file in files:
        if file in (AUDIT_FILE, "verdict.html"):  # nothing is read from the page
            continue
        content = (copy / file).read_bytes()
        for forged in _damaged_contents(content, file):
            _forge_file(copy, file, forged)
            with pytest.raises(DataError, match=f"(does not hold: .*{Path(file).name}|module/module.json)"):
                verify_audit(copy, [bundle[1]])
            (copy / AUDIT_FILE).write_bytes(audit_content)
            (copy / "module/module.json").write_bytes(description)
        (copy / file).write_bytes(content)


@pytest.mark.parametrize("file", ["spec.json", "module/module.json"])
def test_forged_value_of_resource_or_policy_is_named(
    bundle: tuple[Path, str, str], copy: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle holds if a value has no part in the evaluation; otherwise one sentence says what is wrong."""
    monkeypatch.setattr(audit, "evaluate_checkpoint_offline", _evaluate_once(bundle))
    content = json.loads((copy / file).read_bytes())
    values = (None, True, -1, 1.5, 2**62, "x", "", [], {}, [None], [[]], {"x": 1})
    cases = [(path, value) for path in _all_paths(content) for value in values]
    num_refused = 0
    for path, value in random.Random(0).sample(cases, repeats(60, soak=1_000)):
        _forge_file(copy, file, _replace(content, path, value))
        try:
            verify_audit(copy, [bundle[1]])
        except UserError:
            num_refused += 1
    assert num_refused > 30


@pytest.mark.parametrize("file", ["episodes.json", GATE_FILE])
def test_forged_file_with_other_types_does_not_hold(
    bundle: tuple[Path, str, str], copy: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any part, also the whole file, is another JSON value; of lists the first items."""
    monkeypatch.setattr(audit, "evaluate_checkpoint_offline", _evaluate_once(bundle))
    content = json.loads((copy / file).read_bytes())
    values = (None, True, -1, 1.5, "x", [], {}, [None], [[]], {"x": 1})
    cases = [
        (path, value)
        for path in _all_paths(content)
        for value in values
        if all(isinstance(part, str) or part == 0 for part in path)
        # The data do not say when a look was.
        and not (path[-1:] == ("time",) and value == "x")
    ]
    for path, value in random.Random(0).sample(cases, min(len(cases), 40)):
        _forge_file(copy, file, _replace(content, path, value))
        with pytest.raises(DataError, match="does not hold: "):
            verify_audit(copy, [bundle[1]])


def _replace(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a document with another value at a path."""
    if not path:
        return value
    copied = content.copy()
    copied[path[0]] = _replace(content[path[0]], path[1:], value)
    return copied


def test_gate_that_counts_episodes_twice_does_not_hold(bundle: tuple[Path, str, str], copy: Path) -> None:
    state = json.loads((copy / GATE_FILE).read_bytes())
    _forge_file(copy, GATE_FILE, state | {"looks": [*state["looks"], state["looks"][0]]})
    with pytest.raises(DataError, match="lacks 30 of 60 episodes that the gate has counted"):
        verify_audit(copy, [bundle[1]])


def test_other_data_do_not_confirm_a_bundle(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    part = log_visits(tmp_path / "part", "a", 30)
    with pytest.raises(DataError, match="30 of 60 episodes that judged the policy are not in"):
        verify_audit(bundle[0], [part])


def test_data_that_trained_the_policy_are_named(bundle: tuple[Path, str, str]) -> None:
    trained = str(bundle[0].parent / "expert")
    with pytest.raises(SpecError, match=f"^{re.escape(trained)}: .* trained the policy"):
        verify_audit(bundle[0], [trained])


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
