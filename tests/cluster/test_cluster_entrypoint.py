"""The entrypoint that operators write into RayJobs exists."""

from __future__ import annotations

import runpy
import sys

import pytest

from hindcast.errors import SpecError
from hindcast_operator.manifests.rayjob import ENTRYPOINT


def test_operator_entrypoint_starts_driver(monkeypatch, capsys):
    python, option, module, _folder = ENTRYPOINT.split()
    assert (python, option) == ("python", "-m")
    monkeypatch.setattr(sys, "argv", [module])
    with pytest.raises(SystemExit) as error_info:
        runpy.run_module(module, run_name="__main__")
    assert error_info.value.code == SpecError.exit_code
    assert "the argument FOLDER is missing" in capsys.readouterr().err
