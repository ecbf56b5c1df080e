"""The screen of `hindcast status` in each state of a resource, rendered from plain objects."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster_objects import (
    CHECKPOINT,
    PROGRESS,
    SIZES,
    UNSCHEDULABLE,
    make_attempt,
    make_condition,
    make_pod,
    make_recording,
    make_training,
    running_status,
)
from rich.console import Console

from hindcast.cli.cluster.explain import explain
from hindcast.cli.cluster.next_step import next_steps
from hindcast.cli.cluster.status_view import format_span, render_explanation
from hindcast.cli.commands.status import to_json

NOW = datetime(2026, 11, 21, 6, 10, tzinfo=UTC)
PODS = [
    make_pod("head"),
    make_pod("data"),
    make_pod("data", restarts=2),
    make_pod("learner"),
    make_pod("submitter"),
]


def render_text(resource: dict[str, Any], pods: list[dict[str, Any]] | None = None, width: int = 120) -> str:
    """Return the screen of a resource as text, as it was at NOW."""
    explanation = explain(resource, pods or [], NOW)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for view in render_explanation(explanation, next_steps(explanation)):
        if isinstance(view, str):
            console.print(view, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(view)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def waiting_status(
    state: str, reason: str, message: str, *other_conditions: dict[str, Any], **status: Any
) -> dict[str, Any]:
    """Return a status that is not ready for a reason."""
    ready = make_condition("Ready", False, reason, message)
    return {"state": state, "message": message, "conditions": [ready, *other_conditions], **status}


def finished_status(state: str, reason: str, message: str, **status: Any) -> dict[str, Any]:
    """Return the status of a training that succeeded or failed in its first attempt."""
    is_success = state == "Succeeded"
    end_time = "2026-11-21T06:05:00Z"
    return running_status(
        state=state,
        message=message,
        conditions=[
            make_condition("Ready", is_success, reason, message, end_time),
            make_condition("Complete" if is_success else "Failed", True, reason, message, end_time),
            make_condition("Finished", True, reason, message, end_time),
        ],
        runs=[make_attempt(1, outcome=state, reason=reason, message=message, endTime=end_time)],
        **status,
    )


PATCH = "kubectl patch offlinetraining clone -n rl --type merge -p"
# State -> a resource in this state, the text that says since when, and the next command or remedy.
STATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "Unseen": (
        make_training(),
        "since 2026-11-21 06:00:00 UTC, 10 min 0 s",
        "kubectl get pods --all-namespaces -l app.kubernetes.io/name=hindcast",
    ),
    "Pending": (
        make_training(
            waiting_status("Pending", "KubeRayNotInstalled", "KubeRay is not installed: install KubeRay")
        ),
        "(KubeRayNotInstalled) since 2026-11-21 06:02:00 UTC, 8 min 0 s",
        "Install KubeRay 1.5.1 or later; the run then continues by itself",
    ),
    "Waiting": (
        make_training(
            waiting_status(
                "Waiting", "ReferenceUnfinished", "Waiting for OfflineRecording/expert to complete"
            )
        ),
        "(ReferenceUnfinished) since 2026-11-21 06:02:00 UTC, 8 min 0 s",
        "hindcast status OfflineRecording/expert -n rl",
    ),
    "Queued": (
        make_training(
            waiting_status(
                "Queued", "Queued", "RayJob is queued by Kueue", runs=[make_attempt(1, admissionTime=None)]
            )
        ),
        "since 2026-11-21 06:00:05 UTC, 9 min 55 s",
        "kubectl get workloads -n rl",
    ),
    "Starting": (
        make_training(
            waiting_status(
                "Starting", "ClusterStarting", "The pods start", runs=[make_attempt(1)], resolved=SIZES
            )
        ),
        "(ClusterStarting) since 2026-11-21 06:00:05 UTC, 9 min 55 s",
        "kubectl get pods -n rl -l hindcast.dev/kind=OfflineTraining,hindcast.dev/name=clone,"
        "hindcast.dev/revision=1,hindcast.dev/attempt=1",
    ),
    "Running": (
        make_training(running_status()),
        "since 2026-11-21 06:02:00 UTC, 8 min 0 s",
        "hindcast logs OfflineTraining/clone --follow -n rl",
    ),
    "Retrying": (
        make_training(
            waiting_status(
                "Retrying",
                "Retrying",
                "Attempt 1 was lost (LostDriver)",
                runs=[make_attempt(1, outcome="Lost", reason="LostDriver", endTime="2026-11-21T06:09:30Z")],
            )
        ),
        "since 2026-11-21 06:09:30 UTC, 30 s",
        "hindcast logs OfflineTraining/clone -n rl",
    ),
    "Suspended": (
        make_training(
            running_status(
                state="Suspended",
                message="Suspended by spec.suspend",
                conditions=[
                    make_condition("Ready", True, "Suspended"),
                    make_condition("Suspended", True, "Suspended", transition_time="2026-11-21T03:10:00Z"),
                ],
                runs=[make_attempt(1, outcome="Suspended")],
            ),
            suspend=True,
        ),
        "since 2026-11-21 03:10:00 UTC, 3 h 0 min",
        f"""{PATCH} '{{"spec": {{"suspend": false}}}}'""",
    ),
    "Stalled": (
        make_training(
            waiting_status(
                "Stalled",
                "DependencyFailed",
                "OfflineRecording/expert has failed",
                make_condition("Stalled", True, "DependencyFailed", transition_time="2026-11-19T04:10:00Z"),
            )
        ),
        "(DependencyFailed) since 2026-11-19 04:10:00 UTC, 2 d 2 h",
        "hindcast status OfflineRecording/expert -n rl",
    ),
    "Succeeded": (
        make_training(finished_status("Succeeded", "Succeeded", "Return 330 reached")),
        "since 2026-11-21 06:05:00 UTC, 5 min 0 s",
        "hindcast evaluate s3://bucket/runs/clone/r1/checkpoints/checkpoint-200",
    ),
    "Failed": (
        make_training(finished_status("Failed", "UserCodeFailed", "ValueError at my_env.py:12: bad action")),
        "(UserCodeFailed) since 2026-11-21 06:05:00 UTC, 5 min 0 s",
        f"""{PATCH} '{{"spec": {{"revision": 2}}}}'""",
    ),
}
STATES["Suspending"] = (
    make_training(
        running_status(
            state="Suspending",
            message="The attempt was asked to save a checkpoint and stop",
            runs=[make_attempt(1, stopRequestedTime="2026-11-21T06:09:55Z")],
        ),
        suspend=True,
    ),
    "since 2026-11-21 06:09:55 UTC, 5 s",
    "The attempt was asked to save a checkpoint and stop",
)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("state", STATES)
def test_every_state_is_explained(state: str, width: int) -> None:
    resource, since, next_command = STATES[state]
    text = render_text(resource, PODS if state == "Running" else [], width)
    lines = text.splitlines()
    assert lines[0] == "OfflineTraining/clone  in rl"
    assert lines[1].split()[:2] == ["state", state]
    assert since in text
    # Commands are not cut or wrapped, so that they can be copied; everything else fits the width.
    assert next_command in text
    assert all(len(line) <= width for line in lines if "kubectl" not in line and "hindcast " not in line)
    assert (message := resource["status"].get("message")) is None or message in text


def test_running_training_fits_one_screen() -> None:
    text = render_text(make_training(running_status(), runPolicy={"backoffLimit": 5}), PODS)
    assert "30 %  30/100 iterations  about 12 min 4 s left  reported 12 s ago" in text
    assert (
        "loss 0.123  return 312  timesteps/s 12.3k  waits for data 3 %  learner memory 1.5 GiB  entropy 0.5"
        in text
    )
    assert f"{CHECKPOINT['path']} (iteration 30, 2 min 0 s old)" in text
    assert f"best: {CHECKPOINT['bestPath']} (return 330)" in text
    assert "1 used of 5" in text
    assert "head       1 of 1 ready       0.54 CPU, 2Gi" in text
    assert "data       2 of 2 to 8 ready  1 CPU, 3Gi" in text
    assert "learner    1 of 1 ready       4 CPU, 1 GPU, 10Gi" in text
    assert "256Mi Ray's daemons + 1Gi a learner" in text
    assert "clone-t1-2-abcde-data-x7k2p  Running on node-a, 2 restarts" in text
    assert "r1-2     in progress  8 min 30 s ago  8 min 30 s" in text
    assert (
        "r1-1     Lost         9 min 55 s ago  1 min 0 s   OutOfMemory: A learner ran out of memory" in text
    )
    assert len(text.splitlines()) < 40


def test_retries_without_own_limit_use_platform_default() -> None:
    assert "1 used of 3, unless the platform overrides it" in render_text(make_training(running_status()))


def test_blocked_pod_shows_problem_and_remedy() -> None:
    pending_pod = make_pod("learner", phase="Pending", is_ready=False, node=None, conditions=(UNSCHEDULABLE,))
    status = waiting_status(
        "Starting", "Unschedulable", "no node can run the pod", runs=[make_attempt(2)], resolved=SIZES
    )
    text = render_text(make_training(status), [make_pod("head"), pending_pod])
    assert "learner  0 of 1 ready" in text
    assert f"{pending_pod['metadata']['name']}  Pending\n" in text
    assert "3 Insufficient nvidia.com/gpu; add GPU nodes or lower spec.learners.gpus" in " ".join(
        text.split()
    )
    assert f"kubectl describe pod {pending_pod['metadata']['name']} -n rl" in text


def test_large_pool_lists_all_pods_not_ready() -> None:
    ready = [make_pod("data", f"data-{number:02}") for number in range(40)]
    text = render_text(
        make_training(running_status()),
        [*ready, make_pod("data", "data-99", phase="Pending", is_ready=False)],
    )
    assert "data-03  Running" in text
    assert "data-04" not in text
    assert "data-99  Pending" in text
    assert "and 36 more in data, all ready" in text


def test_pods_of_earlier_attempts_are_ignored() -> None:
    explanation = explain(
        make_training(running_status()), [make_pod("head"), make_pod("learner", attempt=1)], NOW
    )
    assert {pool.pool: pool.num_ready for pool in explanation.pools} == {"head": 1, "data": 0, "learner": 0}


def test_pod_terminating_or_not_ready_is_labelled() -> None:
    deleted_pod = make_pod("head")
    deleted_pod["metadata"]["deletionTimestamp"] = "2026-11-21T06:12:00Z"
    text = render_text(make_training(running_status()), [deleted_pod, make_pod("learner", is_ready=False)])
    assert "head-x7k2p  Terminating on node-a" in text
    assert "head     0 of 1 ready" in text
    assert "learner-x7k2p  Running, not ready on node-a" in text


def test_notes_show_deletion_and_pending_change() -> None:
    resource = make_training(running_status())
    resource["metadata"] |= {"generation": 2, "deletionTimestamp": "2026-11-21T06:09:00Z"}
    text = render_text(resource)
    assert "The resource is being deleted." in text
    assert "The operator has not processed the latest change of the spec yet." in text


def test_training_without_environment_shows_estimate_and_verdict() -> None:
    sentence = "probably better than the recorded policy (97 %; 412 effective episodes)"
    progress = PROGRESS | {"metrics": {"estimatedReturn": 8.5, "validationLoss": 0.25}, "verdict": sentence}
    checkpoint = {name: value for name, value in CHECKPOINT.items() if name != "bestEpisodeReturnMean"}
    text = render_text(
        make_training(
            running_status(progress=progress, checkpoint=checkpoint | {"bestEstimatedReturn": 8.75})
        )
    )
    assert sentence in text
    assert "estimated return 8.5  validation loss 0.25" in text
    assert f"best: {CHECKPOINT['bestPath']} (estimated return 8.75)" in text


def test_silent_run_shows_age_of_last_report() -> None:
    progress = PROGRESS | {"lastReportTime": "2026-11-21T06:05:00Z"}
    assert "reported 5 min 0 s ago" in render_text(make_training(running_status(progress=progress)))


def test_finished_recording_suggests_inspecting_its_data() -> None:
    output = {"path": "s3://bucket/data", "episodes": 500, "timesteps": 97_600, "bytes": 12 << 20}
    text = render_text(
        make_recording(
            finished_status("Succeeded", "Succeeded", "500 episodes", output=output, checkpoint={})
        )
    )
    assert "s3://bucket/data (500 episodes, 97,600 timesteps, 12.0 MiB)" in text
    assert text.splitlines()[-1] == "        hindcast inspect s3://bucket/data"
    # Pools without pods no longer matter, nor does a bar that ended before 100 %.
    assert " ready" not in text
    assert "━" not in text


def test_unknown_state_and_reason_are_shown_as_they_are() -> None:
    text = render_text(make_training(waiting_status("Resting", "TeaTime", "It has tea.")))
    assert "Resting (TeaTime) since 2026-11-21 06:02:00 UTC" in text
    assert "It has tea." in text


def test_only_the_latest_attempts_are_listed() -> None:
    runs = [
        make_attempt(number, outcome="Lost", endTime="2026-11-21T06:01:00Z") for number in range(20, 0, -1)
    ]
    text = render_text(make_training(running_status(runs=runs)))
    assert "r1-16" in text
    assert "r1-15" not in text
    assert "and 15 earlier" in text


def test_commands_repeat_chosen_context() -> None:
    explanation = explain(make_training(running_status()), [], NOW)
    (step,) = next_steps(explanation, "my cluster")
    assert step.command == "hindcast logs OfflineTraining/clone --follow -n rl --context 'my cluster'"


def test_json_document_has_content_of_screen() -> None:
    pending_pod = make_pod("learner", phase="Pending", is_ready=False, node=None, conditions=(UNSCHEDULABLE,))
    explanation = explain(make_training(running_status()), [make_pod("head"), pending_pod], NOW)
    document = to_json(explanation, next_steps(explanation))
    assert (document["state"], document["since"]) == ("Running", "2026-11-21T06:02:00Z")
    assert document["retries"] == {"used": 1, "allowed": None}
    pools = {pool["pool"]: pool for pool in document["pools"]}
    assert (pools["data"]["desired"], pools["data"]["ready"]) == ("2 to 8", 0)
    (learner,) = pools["learner"]["pods"]
    assert learner["problem"].endswith("add GPU nodes or lower spec.learners.gpus")
    assert document["progress"] == PROGRESS
    assert document["next"][0]["command"].startswith("hindcast logs")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (59, "59 s"),
        (60, "1 min 0 s"),
        (3600, "1 h 0 min"),
        (86399, "23 h 59 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_span_has_its_two_largest_units(seconds: int, text: str) -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    assert format_span(start, datetime.fromtimestamp(start.timestamp() + seconds, UTC)) == text
