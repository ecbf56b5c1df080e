"""Classification of errors, and redaction of their messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import ray.exceptions as ray_errors

from hindcast import errors
from hindcast.api.attempt import AttemptOutcome, AttemptReason
from hindcast.cluster import driver
from hindcast.cluster.log import make_redactor
from hindcast.cluster.memory import ContainerMemory, Pod, explain_by_memory
from hindcast.cluster.outcome import EXIT_CODES, classify, make_outcome


@pytest.mark.parametrize(
    ("error", "state", "reason", "code"),
    [
        (errors.SpecError("x"), "Failed", "InvalidSpec", 2),
        (errors.NoCudaDevice("x"), "Failed", "NoCudaDevice", 2),
        (errors.DataError("x"), "Failed", "InvalidData", 3),
        (errors.OutputConflict("x"), "Failed", "OutputConflict", 4),
        (errors.UserCodeError("x"), "Failed", "UserCodeFailed", 6),
        (errors.StorageError("x"), "Lost", "StorageFailed", 1),
        (errors.StorageUnavailable("x"), "Lost", "StorageUnavailable", 1),
        (errors.WorkerLost("x"), "Lost", "WorkerLost", 1),
        (errors.OutOfMemory("x"), "Lost", "OutOfMemory", 1),
        (errors.Interrupted("x"), "Suspended", "Suspended", 0),
        (ValueError("x"), "Failed", "InternalError", 70),
        (ray_errors.ActorDiedError(), "Lost", "WorkerLost", 1),
        (ray_errors.NodeDiedError("x"), "Lost", "WorkerLost", 1),
        (ray_errors.WorkerCrashedError(), "Lost", "WorkerLost", 1),
        (ray_errors.OutOfDiskError("x"), "Lost", "WorkerLost", 1),
        (ray_errors.ObjectStoreFullError("x"), "Lost", "WorkerLost", 1),
        (ray_errors.OutOfMemoryError("x"), "Lost", "OutOfMemory", 1),
        (ray_errors.RuntimeEnvSetupError("no package x"), "Lost", "WorkerLost", 1),
        (ray_errors.RaySystemError("x"), "Lost", "WorkerLost", 1),
        (ray_errors.RayChannelTimeoutError("x"), "Lost", "WorkerLost", 1),
        (ray_errors.RpcError("x"), "Lost", "WorkerLost", 1),
        (ray_errors.GetTimeoutError("x"), "Lost", "WorkerLost", 1),
        (ray_errors.AuthenticationError("x"), "Failed", "InternalError", 70),
    ],
)
def test_error_has_state_reason_and_exit_code(error: Exception, state: str, reason: str, code: int) -> None:
    outcome = classify(error)
    assert (outcome.state, outcome.reason) == (state, reason)
    assert "x" in outcome.message or not str(error)
    assert EXIT_CODES[outcome.reason] == code


def test_head_without_ray_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ConnectionError("could not find any running Ray instance")

    monkeypatch.setattr(driver, "join_cluster", fail)
    with pytest.raises(errors.WorkerLost, match="could not find any running Ray"):
        driver.connect_to_ray()


def test_wrapped_user_error_is_classified() -> None:
    user_error = errors.UserCodeError("environment 'a:B' in step() raised KeyError at /code/a.py:7: 'x'")
    task_error = ray_errors.RayTaskError("execute", "Traceback …", user_error)
    try:
        raise RuntimeError("the group ended") from task_error
    except RuntimeError as error:
        outcome = classify(error)
    assert (outcome.reason, outcome.message) == ("UserCodeFailed", str(user_error))


def test_bug_names_its_location() -> None:
    def defect() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError) as error_info:
        defect()
    message = classify(error_info.value).message
    line = defect.__code__.co_firstlineno + 1
    assert f"KeyError at {__file__}:{line}: 'lost'" in message
    remote_traceback = (
        'Traceback\n  File "/lib/a.py", line 3, in f\n  File "/lib/hindcast/b.py", line 9, in g\nKeyError: 1'
    )
    assert (
        "KeyError at /lib/hindcast/b.py:9"
        in classify(ray_errors.RayTaskError("f", remote_traceback, KeyError(1))).message
    )


def test_bug_without_remote_traceback_has_unknown_location() -> None:
    error = KeyError("lost")
    error.traceback_str = None  # type: ignore[attr-defined]  # as in Ray's system errors
    assert "KeyError at an unknown location: 'lost'" in classify(error).message


def test_docs_list_each_reason_with_its_state() -> None:
    page = (Path(__file__).parents[2] / "docs/cluster.md").read_text()
    rows = dict(
        re.findall(r"^\| ((?:`\w+`,? ?)+) \| (Succeeded|Suspended|Failed|Lost) \|", page, re.MULTILINE)
    )
    states = {name: state for names, state in rows.items() for name in re.findall(r"\w+", names)}
    assert states.keys() == set(get_args(AttemptReason)) == EXIT_CODES.keys()
    for error_class in (
        errors.SpecError,
        errors.DataError,
        errors.StorageError,
        errors.OutOfMemory,
        errors.UserCodeError,
    ):
        outcome = classify(error_class("x"))
        assert states[outcome.reason] == outcome.state


def test_long_message_is_cut_to_one_line_of_500_characters() -> None:
    message = classify(errors.DataError("first\n  second " + "long " * 200)).message
    assert message.startswith("first second long")
    assert len(message) == 500


class TestRedaction:
    def redact(self, text: str, **environment: str) -> str:
        return make_redactor(environment)(text)

    def test_values_of_credentials_are_hidden(self) -> None:
        environment = {
            "AWS_SECRET_ACCESS_KEY": "s3cr3t/+x",
            "MY_TOKEN": "abcdefgh",
            "WANDB_API_KEY": "k" * 20,
        }
        text = f"denied for s3cr3t/+x, abcdefgh and {'k' * 20}"
        assert self.redact(text, **environment) == "denied for ***, *** and ***"

    def test_ordinary_values_are_not_hidden(self) -> None:
        environment = {
            "RAY_AUTH_MODE": "token",
            "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
            "HOME": "/home/hindcast",
            "SECRET_LEVEL": "low",
        }
        text = "token /var/run/token /home/hindcast low"
        assert self.redact(text, **environment) == text

    @pytest.mark.parametrize(
        ("text", "redacted"),
        [
            ("cannot read s3://key:pass@host/data", "cannot read s3://***@host/data"),
            ("Authorization: Bearer abc.def-123456", "Authorization: Bearer ***"),
            ("token eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.s5x_Q", "token ***"),
            ("id AKIAIOSFODNN7EXAMPLE", "id ***"),
            ("https://a.blob/x?sv=1&sig=abc%3D&se=2", "https://a.blob/x?sv=1&sig=***&se=2"),
            ("s3://bucket/data/a@b.parquet", "s3://bucket/data/a@b.parquet"),
        ],
    )
    def test_text_like_credentials_is_hidden(self, text: str, redacted: str) -> None:
        assert self.redact(text) == redacted

    def test_outcome_message_is_redacted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_PASSWORD", "open sesame")
        assert (
            "sesame" not in make_outcome("Failed", "InvalidSpec", "the password open sesame is wrong").message
        )


CGROUPS = Path("/sys/fs/cgroup/memory")
MEMORY_PROGRAM = """
import subprocess, sys
sys.path[:0] = {path}
from hindcast.cluster.memory import read_container_memory
print(*read_container_memory())
allocate = "open('/proc/self/oom_score_adj', 'w').write('1000'); x = bytearray(b'x') * (400 << 20)"
print(subprocess.run([sys.executable, "-c", allocate]).returncode)
print(*read_container_memory())
"""


@pytest.fixture
def container() -> Iterator[list[str]]:
    """A command prefix that runs programs in a memory cgroup (v1) of 256 MiB, like a container."""
    group = CGROUPS / f"hindcast-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"creating a memory cgroup (v1) requires root and its file system: {error}")
    (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    enter = f'echo $$ > {group}/cgroup.procs && mount --bind {group} {CGROUPS} && exec "$@"'
    yield ["unshare", "--mount", "sh", "-c", enter, "sh"]
    group.rmdir()


@pytest.mark.faults
def test_kernel_kill_is_counted_in_container(container: list[str]) -> None:
    code = MEMORY_PROGRAM.format(path=[path for path in sys.path if path])
    completed = subprocess.run(
        [*container, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert completed.stdout.splitlines() == ["0 268435456", "-9", "1 268435456"], completed.stderr


class TestMemory:
    LOST_OUTCOME = AttemptOutcome(state="Lost", reason="WorkerLost", message="a process or its node was lost")

    def make_pod(self, pool: str, kills: int, limit: int | None = 2 << 30) -> Pod:
        return Pod(pool, (f"{pool}-node", "10.0.0.1"), ContainerMemory(kills, limit))  # type: ignore[arg-type]

    def test_pod_with_kills_explains_loss(self) -> None:
        outcome = explain_by_memory(
            self.LOST_OUTCOME, lambda: [self.make_pod("data", 0), self.make_pod("learner", 1)]
        )
        assert (outcome.state, outcome.reason, outcome.pool) == ("Lost", "OutOfMemory", "learner")
        assert "ran out of memory (2.0 GiB); raise spec.cluster.resources.learner.memory" in outcome.message

    def test_data_pool_is_named_data_worker(self) -> None:
        assert (
            "spec.cluster.resources.dataWorker.memory"
            in explain_by_memory(self.LOST_OUTCOME, lambda: [self.make_pod("data", 3, None)]).message
        )

    def test_outcome_stays_without_kill_or_loss(self) -> None:
        silent_pod = Pod("data", ("a",), None)
        assert (
            explain_by_memory(self.LOST_OUTCOME, lambda: [self.make_pod("data", 0), silent_pod])
            == self.LOST_OUTCOME
        )
        user_error = self.LOST_OUTCOME.model_copy(update={"reason": "UserCodeFailed"})
        assert explain_by_memory(user_error, lambda: [self.make_pod("data", 1)]) == user_error

    def test_ray_kill_names_node(self) -> None:
        error = ray_errors.OutOfMemoryError(
            "Memory on the node (IP: 10.0.0.9, ID: data-node) was 1.9GB / 2.0GB, which exceeds the threshold"
        )
        outcome = explain_by_memory(
            classify(error), lambda: [self.make_pod("learner", 0), self.make_pod("data", 0)]
        )
        assert (outcome.reason, outcome.pool) == ("OutOfMemory", "data")
        assert "spec.cluster.resources.dataWorker.memory" in outcome.message

    def test_ray_kill_of_restarted_worker_explains_loss(self) -> None:
        pod_with_ray_kills = self.make_pod("data", 0)._replace(num_killed_by_ray=4)
        outcome = explain_by_memory(
            self.LOST_OUTCOME, lambda: [self.make_pod("learner", 0), pod_with_ray_kills]
        )
        assert (outcome.reason, outcome.pool) == ("OutOfMemory", "data")

    def test_outcome_that_names_memory_field_stays_unchanged(self) -> None:
        outcome = classify(
            errors.OutOfMemory("a data worker was killed: raise spec.cluster.resources.dataWorker.memory")
        )
        assert explain_by_memory(outcome, lambda: [self.make_pod("learner", 1)]) == outcome
