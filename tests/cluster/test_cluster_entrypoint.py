"""What RayJobs start is there, under the name that operators write."""

from __future__ import annotations

import runpy
import sys

import pytest

from hindcast.errors import SpecError
from hindcast_operator.manifests.rayjob import ENTRYPOINT


def test_the_operators_entrypoint_is_the_driver(monkeypatch, capsys):
    python, option, module, _folder = ENTRYPOINT.split()
    assert (python, option) == ("python", "-m")
    monkeypatch.setattr(sys, "argv", [module])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == SpecError.exit_code
    assert "give the folder of the attempt" in capsys.readouterr().err
