import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hindcast import errors
from hindcast.cli.failures import EXIT_CODES
from hindcast.run import execute as carry_out_module

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(carry_out_module.__file__).parents[2])}


def raising(error):
    def carry_out(loaded, reporter):
        raise error

    return carry_out


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UserError, 1),
        (errors.SpecError, 2),
        (errors.DataError, 3),
        (errors.OutputConflict, 4),
        (errors.StorageError, 5),
        (errors.UserCodeError, 6),
    ],
)
def test_a_users_mistake_is_one_sentence_with_its_exit_code(hindcast, resources, monkeypatch, kind, code):
    monkeypatch.setattr(carry_out_module, "execute", raising(kind("[red] the folder is full")))
    called = hindcast("run", resources)
    assert (called.code, called.out, called.err) == (code, "", "error: [red] the folder is full\n")
    assert code in EXIT_CODES


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "a", "b", "--format", "onxx"), "'--format': 'onxx' is not one of 'onnx', 'torch', "),
        (("evaluate", "a", "--clip", "0.5"), "'--clip': '0.5', expected at least 1. See hindcast evaluate"),
        (("evaluate", "a", "--gamma", "x"), "'--gamma': 'x', expected a number. See hindcast evaluate"),
        (("evaluate", "a", "--seed", "1.5"), "'--seed': '1.5', expected a whole number."),
    ],
)
def test_a_wrong_value_of_an_option_says_what_was_found_and_expected(hindcast, arguments, said):
    called = hindcast(*arguments)
    assert called.code == 2
    assert called.err.startswith(f"error: invalid value for {said}")


def test_debug_adds_the_traceback_to_the_sentence(hindcast, resources, monkeypatch):
    monkeypatch.setattr(carry_out_module, "execute", raising(errors.DataError("no rows")))
    called = hindcast("run", resources, "--debug")
    assert called.code == 3
    assert "Traceback (most recent call last)" in called.err
    assert called.err.endswith("error: no rows\n")


def test_a_failure_is_a_json_document_too(hindcast, resources, monkeypatch):
    monkeypatch.setattr(carry_out_module, "execute", raising(errors.DataError("no rows")))
    called = hindcast("run", resources, "--json")
    assert json.loads(called.out) == {"error": {"type": "DataError", "message": "no rows", "exitCode": 3}}
    assert called.err == "error: no rows\n"


def test_a_defect_is_called_one_and_leaves_its_traceback_in_a_file(hindcast, resources, monkeypatch):
    monkeypatch.setattr(carry_out_module, "execute", raising(ZeroDivisionError("by zero")))
    called = hindcast("run", resources)
    assert called.code == 70
    assert called.err.startswith("error: this is a bug in Hindcast")
    assert called.err.count("\n") == 1
    file = Path(re.search(r"traceback in (\S+)", called.err)[1])
    assert "ZeroDivisionError: by zero" in file.read_text()
    file.unlink()


def test_a_defect_under_debug_shows_its_traceback_and_writes_no_file(hindcast, resources, monkeypatch):
    monkeypatch.setattr(carry_out_module, "execute", raising(ZeroDivisionError("by zero")))
    called = hindcast("--debug", "run", resources)
    assert called.code == 70
    assert "Traceback" in called.err
    assert ".traceback.txt" not in called.err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), errors.Interrupted("stopped; run it again to go on")])
def test_an_interruption_is_no_error_and_exits_with_130(hindcast, resources, monkeypatch, error):
    monkeypatch.setattr(carry_out_module, "execute", raising(error))
    called = hindcast("run", resources)
    assert called.code == 130
    assert "error" not in called.err
    assert called.err.strip() == (str(error) or "interrupted")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["rum"], "Did you mean 'run'?"),
        (["run"], "FILE"),
        (["run", "a.yaml", "--fast"], "--fast"),
        (["evaluate", "somewhere", "--episodes", "many"], "--episodes"),
        (["evaluate", "somewhere", "--episodes", "0"], "'0', expected at least 1"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(hindcast, arguments, found):
    called = hindcast(*arguments)
    assert called.code == 2
    assert called.out == ""
    assert called.err.startswith("error: ")
    assert called.err.count("\n") == 1
    assert found in called.err
    assert "--help" in called.err


def test_a_missing_runtime_extra_is_named_with_what_to_install(resources):
    called = without("torch", "run", resources)
    assert called.returncode == 1
    assert called.stderr == (
        "error: hindcast run needs torch, which is not installed: pip install 'hindcast-rl[runtime]'\n"
    )


def test_validate_works_without_the_runtime_extra(resources):
    missing = ["torch", "ray", "pyarrow", "numpy", "gymnasium", "fsspec"]
    called = without(",".join(missing), "validate", resources)
    assert called.returncode == 0, called.stderr
    assert called.stdout.count("is valid") == 2


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["validate", "resources.yaml"], []])
def test_help_and_validate_import_nothing_heavy(resources, arguments):
    code = (
        "import sys; sys.argv = ['hindcast', *sys.argv[1:]]\n"
        "from hindcast.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as exit: print('EXIT', exit.code, file=sys.stderr)\n"
        "heavy = {'torch', 'ray', 'pyarrow', 'numpy', 'gymnasium', 'matplotlib'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy), file=sys.stderr)"
    )
    called = python(code, *arguments, folder=resources.parent)
    assert called.stderr.split("\n")[-3:] == ["EXIT 0", "HEAVY []", ""]


def test_output_into_a_closed_pipe_is_no_defect(resources):
    command = f"{sys.executable} -m hindcast.cli.main validate {resources} | true"
    called = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert called.stderr == ""


def without(packages: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line where packages (comma-separated) cannot be imported."""
    code = (
        "import sys\n"
        "for name in sys.argv[1].split(','): sys.modules[name] = None\n"
        "sys.argv = ['hindcast', *sys.argv[2:]]\n"
        "from hindcast.cli.main import main; main()"
    )
    return python(code, packages, *arguments)


def python(code: str, *arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=ENVIRONMENT)
