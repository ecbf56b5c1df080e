"""Ray's errors, with tracebacks of other processes, become one sentence with the user's error, file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray.exceptions

import hindcast
from hindcast.errors import DataError, UserCodeError, UserError, WorkerLost
from hindcast.formats.media.ray_errors import ray_errors_in_one_sentence

USER_ERROR = """\
\x1b[36mray::ReadParquet->Filter(<lambda>)()\x1b[39m (pid=1, ip=10.0.0.1)
  File "/opt/python/site-packages/numpy/core.py", line 3, in take
  File "/home/me/mine.py", line 7, in <lambda>
    self.data = self.data.filter(lambda row: row["nope"] < 2)
                                             ~~~^^^^^^^^
KeyError: 'nope'

The above exception was the direct cause of the following exception:

\x1b[36mray::ReadParquet->Filter(<lambda>)()\x1b[39m (pid=1, ip=10.0.0.1)
ray.exceptions.UserCodeException: UDF failed to process a data block."""
LOCAL_ERROR = f"""\
ray::Map(f)() (pid=1, ip=10.0.0.1)
  File "{Path(hindcast.__file__).parent}_project/mine.py", line 7, in f
    raise Broken("no words")
mine.f.<locals>.Broken: no words"""
OWN_FILE = pytest.__file__  # an installed package
FILE_ERROR = f"""\
ray::ReadAvro() (pid=1, ip=10.0.0.1)
  File "{OWN_FILE}", line 3, in read
    raise ValueError("cannot read header - is it an avro file?")
ValueError: cannot read header - is it an avro file?"""


@pytest.mark.parametrize(
    ("error", "expected_class", "sentence"),
    [
        (
            ray.exceptions.RayTaskError("f", USER_ERROR, KeyError("nope")),
            UserCodeError,
            "data/a.parquet: a function on its rows raised KeyError at /home/me/mine.py:7: 'nope'",
        ),
        (
            ray.exceptions.RayTaskError("f", LOCAL_ERROR, Exception()),
            UserCodeError,
            "data/a.parquet: a function on its rows raised Broken at "
            f"{Path(hindcast.__file__).parent}_project/mine.py:7: no words",
        ),
        (
            ray.exceptions.RayTaskError("f", FILE_ERROR, ValueError()),
            DataError,
            "data/a.parquet cannot be read: ValueError: cannot read header - is it an avro file?",
        ),
        (
            ray.exceptions.WorkerCrashedError(),
            WorkerLost,
            "data/a.parquet: a process of Ray died while it read or changed the data, perhaps because memory ran "
            "out: The worker died unexpectedly while executing this task.",
        ),
    ],
)
def test_error_of_ray_is_one_sentence(
    error: Exception, expected_class: type[UserError], sentence: str
) -> None:
    with pytest.raises(expected_class) as error_info, ray_errors_in_one_sentence("data/a.parquet"):
        raise error
    assert str(error_info.value).startswith(sentence)
    assert "\n" not in str(error_info.value)
