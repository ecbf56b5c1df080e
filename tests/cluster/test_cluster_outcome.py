"""What an error means for a run, and that its sentence tells no secrets."""

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
        (ray_errors.RuntimeEnvSetupError("no package x"), "Failed", "InvalidSpec", 2),
    ],
)
def test_each_kind_of_error(error: Exception, state: str, reason: str, code: int) -> None:
    outcome = classify(error)
    assert (outcome.state, outcome.reason) == (state, reason)
    assert "x" in outcome.message or not str(error)
    assert EXIT_CODES[outcome.reason] == code


def test_a_mistake_of_the_user_is_found_wherever_it_is_wrapped() -> None:
    mistake = errors.UserCodeError("environment 'a:B' in step() raised KeyError at /code/a.py:7: 'x'")
    in_task = ray_errors.RayTaskError("carry_out", "Traceback …", mistake)
    try:
        raise RuntimeError("the group ended") from in_task
    except RuntimeError as error:
        outcome = classify(error)
    assert (outcome.reason, outcome.message) == ("UserCodeFailed", str(mistake))


def test_a_defect_says_where_it_is() -> None:
    def defect() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError) as caught:
        defect()
    message = classify(caught.value).message
    line = defect.__code__.co_firstlineno + 1
    assert f"KeyError at {__file__}:{line}: 'lost'" in message
    remote = (
        'Traceback\n  File "/lib/a.py", line 3, in f\n  File "/lib/hindcast/b.py", line 9, in g\nKeyError: 1'
    )
    assert (
        "KeyError at /lib/hindcast/b.py:9"
        in classify(ray_errors.RayTaskError("f", remote, KeyError(1))).message
    )


def test_the_page_has_each_reason_with_its_state() -> None:
    page = (Path(__file__).parents[2] / "docs/cluster.md").read_text()
    told = dict(
        re.findall(r"^\| ((?:`\w+`,? ?)+) \| (Succeeded|Suspended|Failed|Lost) \|", page, re.MULTILINE)
    )
    states = {name: state for names, state in told.items() for name in re.findall(r"\w+", names)}
    assert states.keys() == set(get_args(AttemptReason)) == EXIT_CODES.keys()
    for kind in (
        errors.SpecError,
        errors.DataError,
        errors.StorageError,
        errors.OutOfMemory,
        errors.UserCodeError,
    ):
        outcome = classify(kind("x"))
        assert states[outcome.reason] == outcome.state


def test_messages_are_one_short_line() -> None:
    message = classify(errors.DataError("first\n  second " + "long " * 200)).message
    assert message.startswith("first second long")
    assert len(message) == 500


class TestRedaction:
    def redact(self, text: str, **environment: str) -> str:
        return make_redactor(environment)(text)

    def test_values_of_credentials(self) -> None:
        environment = {
            "AWS_SECRET_ACCESS_KEY": "s3cr3t/+x",
            "MY_TOKEN": "abcdefgh",
            "WANDB_API_KEY": "k" * 20,
        }
        text = f"denied for s3cr3t/+x, abcdefgh and {'k' * 20}"
        assert self.redact(text, **environment) == "denied for ***, *** and ***"

    def test_words_that_are_no_secrets_stay(self) -> None:
        environment = {
            "RAY_AUTH_MODE": "token",
            "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
            "HOME": "/home/hindcast",
            "SECRET_LEVEL": "low",
        }
        text = "token /var/run/token /home/hindcast low"
        assert self.redact(text, **environment) == text

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("cannot read s3://key:pass@host/data", "cannot read s3://***@host/data"),
            ("Authorization: Bearer abc.def-123456", "Authorization: Bearer ***"),
            ("token eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.s5x_Q", "token ***"),
            ("id AKIAIOSFODNN7EXAMPLE", "id ***"),
            ("https://a.blob/x?sv=1&sig=abc%3D&se=2", "https://a.blob/x?sv=1&sig=***&se=2"),
            ("s3://bucket/data/a@b.parquet", "s3://bucket/data/a@b.parquet"),
        ],
    )
    def test_what_looks_like_one(self, text: str, shown: str) -> None:
        assert self.redact(text) == shown

    def test_outcomes_are_redacted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_PASSWORD", "open sesame")
        assert (
            "sesame" not in make_outcome("Failed", "InvalidSpec", "the password open sesame is wrong").message
        )


CGROUPS = Path("/sys/fs/cgroup/memory")
EATER = """
import subprocess, sys
sys.path[:0] = {path}
from hindcast.cluster.memory import memory_here
print(*memory_here())
eat = "open('/proc/self/oom_score_adj', 'w').write('1000'); x = bytearray(b'x') * (400 << 20)"
print(subprocess.run([sys.executable, "-c", eat]).returncode)
print(*memory_here())
"""


@pytest.fixture
def container() -> Iterator[list[str]]:
    """A command that runs others as in a container with 256 MiB of memory, of cgroup v1."""
    group = CGROUPS / f"hindcast-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"making a memory cgroup (v1) takes root and the file system: {error}")
    (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    enter = f'echo $$ > {group}/cgroup.procs && mount --bind {group} {CGROUPS} && exec "$@"'
    yield ["unshare", "--mount", "sh", "-c", enter, "sh"]
    group.rmdir()


@pytest.mark.faults
def test_a_process_that_the_kernel_killed_for_memory_is_counted_in_its_container(
    container: list[str],
) -> None:
    code = EATER.format(path=[path for path in sys.path if path])
    ran = subprocess.run(
        [*container, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == ["0 268435456", "-9", "1 268435456"], ran.stderr


class TestMemory:
    LOST = AttemptOutcome(state="Lost", reason="WorkerLost", message="a process or its node was lost")

    def pod(self, pool: str, kills: int, limit: int | None = 2 << 30) -> Pod:
        return Pod(pool, (f"{pool}-node", "10.0.0.1"), ContainerMemory(kills, limit))  # type: ignore[arg-type]

    def test_a_pod_with_kills_explains_a_loss(self) -> None:
        found = explain_by_memory(self.LOST, lambda: [self.pod("data", 0), self.pod("learner", 1)])
        assert (found.state, found.reason, found.pool) == ("Lost", "OutOfMemory", "learner")
        assert "2.0 GiB; raise spec.cluster.resources.learner.memory" in found.message

    def test_the_field_of_the_data_pool_has_its_own_name(self) -> None:
        assert (
            "spec.cluster.resources.dataWorker.memory"
            in explain_by_memory(self.LOST, lambda: [self.pod("data", 3, None)]).message
        )

    def test_no_kill_and_no_loss_explain_nothing(self) -> None:
        silent = Pod("data", ("a",), None)
        assert explain_by_memory(self.LOST, lambda: [self.pod("data", 0), silent]) == self.LOST
        other = self.LOST.model_copy(update={"reason": "UserCodeFailed"})
        assert explain_by_memory(other, lambda: [self.pod("data", 1)]) == other

    def test_rays_own_kills_name_the_node(self) -> None:
        error = ray_errors.OutOfMemoryError(
            "Memory on the node (IP: 10.0.0.9, ID: data-node) was 1.9GB / 2.0GB, which exceeds the threshold"
        )
        found = explain_by_memory(classify(error), lambda: [self.pod("learner", 0), self.pod("data", 0)])
        assert (found.reason, found.pool) == ("OutOfMemory", "data")
        assert "spec.cluster.resources.dataWorker.memory" in found.message

    def test_rays_kills_of_a_worker_that_it_restarted_explain_a_loss(self) -> None:
        killed = self.pod("data", 0)._replace(killed_by_ray=4)
        found = explain_by_memory(self.LOST, lambda: [self.pod("learner", 0), killed])
        assert (found.reason, found.pool) == ("OutOfMemory", "data")

    def test_a_sentence_that_names_the_size_already_stays(self) -> None:
        told = classify(
            errors.OutOfMemory("a data worker was killed: raise spec.cluster.resources.dataWorker.memory")
        )
        assert explain_by_memory(told, lambda: [self.pod("learner", 1)]) == told
