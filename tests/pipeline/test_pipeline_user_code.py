import json
import re

import pytest

from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.user_code import calling, import_object, import_subclass
from user_errors import raises_user_error


def test_error_within_a_library_names_the_users_line():
    with (
        pytest.raises(
            UserCodeError, match=r"^reading raised JSONDecodeError at .*test_pipeline_user_code\.py:\d+: "
        ),
        calling("reading"),
    ):
        json.loads("{")


def test_error_without_message_or_with_many_lines_is_reported_in_one_sentence():
    with pytest.raises(UserCodeError, match=r"raised ValueError at .*: no message$"), calling("it"):
        raise ValueError
    with pytest.raises(UserCodeError, match=r": first$"), calling("it"):
        raise ValueError("first\nsecond")


def test_user_error_passes_unchanged():
    with pytest.raises(DataError, match=r"^the file is damaged$"), calling("it"):
        raise DataError("the file is damaged")


def test_import_of_module_that_raises_is_a_user_code_error(tmp_path, monkeypatch):
    (tmp_path / "raising_module.py").write_text("import json\nnumber = 1 / 0\n")
    (tmp_path / "lacking_module.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserCodeError, match=r"ZeroDivisionError at .*raising_module\.py:2"):
        import_object("raising_module:number", "spec.x")
    with pytest.raises(UserCodeError, match="a_package_that_is_not_there"):
        import_object("lacking_module:number", "spec.x")


def test_syntax_error_names_its_line(tmp_path, monkeypatch):
    (tmp_path / "misspelt_module.py").write_text("number = 1\nnumber +* 2\n")
    (tmp_path / "importing_module.py").write_text("\n\n\nimport misspelt_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    location = rf"{re.escape(str(tmp_path))}/misspelt_module\.py:2"
    for path in ("misspelt_module:number", "importing_module:number"):
        with pytest.raises(UserCodeError, match=rf"raised SyntaxError at {location}: invalid syntax$"):
            import_object(path, "spec.x")


@pytest.mark.parametrize("path", ["nowhere:X", "json.nowhere:X", "json:Nobody"])
def test_invalid_import_path_is_a_spec_error(path):
    with raises_user_error(SpecError, "is ", field="spec.x"):
        import_object(path, "spec.x")


def test_import_subclass_rejects_other_classes():
    assert import_subclass("json:JSONDecodeError", ValueError, "spec.x") is json.JSONDecodeError
    with pytest.raises(SpecError, match="not a subclass of ValueError"):
        import_subclass("json:JSONDecoder", ValueError, "spec.x")
