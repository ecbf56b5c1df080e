"""Failures of commands: messages, exit codes, tracebacks, missing extras."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hindcast import errors
from hindcast.cli.failures import EXIT_CODES
from hindcast.run import execute as execute_module

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(execute_module.__file__).parents[2])}


def make_raising_execute(error):
    """Make a substitute for `execute` that raises the error."""

    def execute(entries, reporter):
        raise error

    return execute


@pytest.mark.parametrize(
    ("error_class", "code"),
    [
        (errors.UserError, 1),
        (errors.SpecError, 2),
        (errors.DataError, 3),
        (errors.OutputConflict, 4),
        (errors.StorageError, 5),
        (errors.UserCodeError, 6),
    ],
)
def test_user_error_is_reported_in_one_sentence_with_its_exit_code(
    hindcast, resources, monkeypatch, error_class, code
):
    monkeypatch.setattr(
        execute_module, "execute", make_raising_execute(error_class("[red] the folder is full"))
    )
    result = hindcast("run", resources)
    assert (result.code, result.out, result.err) == (code, "", "error: [red] the folder is full\n")
    assert code in EXIT_CODES


def test_debug_adds_traceback(hindcast, resources, monkeypatch):
    monkeypatch.setattr(execute_module, "execute", make_raising_execute(errors.DataError("no rows")))
    result = hindcast("run", resources, "--debug")
    assert result.code == 3
    assert "Traceback (most recent call last)" in result.err
    assert result.err.endswith("error: no rows\n")


def test_json_failure_is_a_document(hindcast, resources, monkeypatch):
    monkeypatch.setattr(
        execute_module, "execute", make_raising_execute(errors.DataError("no rows", path="a.csv", row=3))
    )
    result = hindcast("run", resources, "--json")
    assert json.loads(result.out)["error"] == {
        "type": "DataError",
        "message": "a.csv, row 3: no rows",
        "exitCode": 3,
        "problems": [{"message": "a.csv, row 3: no rows", "path": "a.csv", "row": 3}],
    }
    assert result.err == "error: a.csv, row 3: no rows\n"


def test_defect_saves_traceback_to_file(hindcast, resources, monkeypatch):
    monkeypatch.setattr(execute_module, "execute", make_raising_execute(ZeroDivisionError("by zero")))
    result = hindcast("run", resources)
    assert result.code == 70
    assert result.err.startswith("error: this is a bug in Hindcast")
    assert result.err.count("\n") == 1
    file = Path(re.search(r"traceback in (\S+)", result.err)[1])
    assert "ZeroDivisionError: by zero" in file.read_text()
    file.unlink()


def test_defect_with_debug_prints_traceback_without_file(hindcast, resources, monkeypatch):
    monkeypatch.setattr(execute_module, "execute", make_raising_execute(ZeroDivisionError("by zero")))
    result = hindcast("--debug", "run", resources)
    assert result.code == 70
    assert "Traceback" in result.err
    assert ".traceback.txt" not in result.err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), errors.Interrupted("stopped; run it again to go on")])
def test_interruption_exits_with_130_without_error(hindcast, resources, monkeypatch, error):
    monkeypatch.setattr(execute_module, "execute", make_raising_execute(error))
    result = hindcast("run", resources)
    assert result.code == 130
    assert "error" not in result.err
    assert result.err.strip() == (str(error) or "interrupted")


def test_missing_runtime_extra_is_named_with_install_command(resources):
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "sys.argv = ['hindcast', 'run', 'resources.yaml']\n"
        "from hindcast.cli.main import main; main()"
    )
    result = run_python(program, folder=resources.parent)
    assert result.returncode == 1
    assert result.stderr == (
        "error: hindcast run requires torch, which is not installed: pip install 'hindcast-rl[runtime]'\n"
    )


def test_help_and_validate_import_nothing_heavy(resources):
    """They work without the runtime extra, and start quickly."""
    program = (
        "import sys\n"
        "from hindcast.cli.main import main\n"
        "for arguments in ['--help'], ['run', '--help'], [], ['validate', 'resources.yaml']:\n"
        "    if arguments[:1] == ['validate']: print('HEAVY', *{'hindcast.api'} & {*sys.modules}, file=sys.stderr)\n"
        "    sys.argv = ['hindcast', *arguments]\n"
        "    try: main()\n"
        "    except SystemExit as exit: print('EXIT', exit.code, file=sys.stderr)\n"
        "heavy = {'torch', 'ray', 'pyarrow', 'numpy', 'gymnasium', 'matplotlib', 'fsspec'} & set(sys.modules)\n"
        "print('HEAVY', *heavy, file=sys.stderr)"
    )
    result = run_python(program, folder=resources.parent)
    assert result.stderr.splitlines() == [*["EXIT 0"] * 3, "HEAVY", "EXIT 0", "HEAVY"]
    assert result.stdout.count("is valid") == 2


def test_import_of_submodule_imports_no_other_packages(tmp_path):
    program = (
        "import sys\n"
        "from hindcast import formatting\n"
        "print(formatting.__name__, sorted({'numpy', 'gymnasium', 'hindcast.rllib'} & set(sys.modules)))"
    )
    result = run_python(program, folder=tmp_path)
    assert (result.stdout, result.stderr) == ("hindcast.formatting []\n", "")


def test_closed_output_pipe_is_no_defect(resources):
    command = f"{sys.executable} -m hindcast.cli.main validate {resources} | true"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert result.stderr == ""


def run_python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder and a new interpreter, in which Hindcast can be imported."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=ENVIRONMENT)
