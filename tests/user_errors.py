"""`raises_user_error`, which compares the place of an error rather than its wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hindcast.errors import UserError


@contextmanager
def raises_user_error(
    error_class: type[UserError] = UserError, match: str | None = None, **place: Any
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect an error in a `with` block.

    Args:
        error_class: class of the error.
        match: pattern that the message contains.
        place: expected parts of `Problem.to_json` of the first problem; of `path` and `file`, their ends.
    """
    with pytest.raises(error_class, match=match) as error_info:
        yield error_info
    parts = error_info.value.problems[0].to_json()
    for name, expected in place.items():
        part = parts.get(name)
        assert part == expected or (name in ("file", "path") and str(part).endswith(expected)), parts
