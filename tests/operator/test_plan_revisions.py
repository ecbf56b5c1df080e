"""Revisions, drift, history, deletion: changes that start a run again, and changes that do not."""

from __future__ import annotations

from plan_world import DEFAULTS, World, running

from hindcast.api import spec_hash
from hindcast.api.cluster import ClusterSpec
from hindcast.api.loading import validate_resource
from hindcast_operator.decision import CreateAttempt, DeleteAttempt
from hindcast_operator.manifests import compute_sizes


def kinds(world: World) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in world.status["conditions"]}


# -- revisions -----------------------------------------------------------------------------------------------
def test_higher_revision_replaces_running_attempt() -> None:
    world = running()
    world.edit(revision=2)
    decision = world.reconcile()
    assert decision.actions == (DeleteAttempt("cartpole-bc-t1-1"),)
    world.settle()
    assert world.created_children == ["cartpole-bc-t1-1", "cartpole-bc-t2-1"]
    assert [run.get("outcome") for run in world.status["runs"]] == [None, "Superseded"]
    assert "progress" not in world.status and "checkpoint" not in world.status
    assert world.events_with("Superseded")[0].type == "Normal"


def test_higher_revision_reruns_finished_resource() -> None:
    world = running()
    world.end("Failed", "UserCodeFailed").settle()
    world.edit(revision=2, stop={"iterations": 5}).settle()
    assert world.created_children == ["cartpole-bc-t1-1", "cartpole-bc-t2-1"]
    assert "cartpole-bc-t1-1" not in world.attempts, "objects of the older revision are removed"
    assert kinds(world).keys() == {"Ready", "Reconciling", "ClusterReady"}


def test_changed_spec_at_same_revision_is_drift() -> None:
    world = running()
    world.edit(seed=7).settle()
    assert (world.state, world.reason("SpecDrift")) == ("Running", "SpecChanged")
    assert "spec.revision" in world.condition("SpecDrift")["message"]  # type: ignore[index]
    assert world.events_with("SpecChanged")[0].type == "Warning"
    world.edit(seed=0).settle()
    assert world.condition("SpecDrift") is None


def test_drifted_spec_is_not_retried() -> None:
    world = running()
    world.edit(seed=7).settle()
    world.end("Lost", "WorkerLost").settle()
    world.tick(60).settle()
    assert (world.state, world.reason(), len(world.created_children)) == ("Stalled", "SpecChanged", 1)
    world.edit(seed=0).settle()
    assert len(world.created_children) == 2


def test_finished_training_continues_after_raised_stop() -> None:
    world = running()
    world.end("Succeeded", "Succeeded").settle()
    assert (world.state, len(world.created_children)) == ("Succeeded", 1)
    world.edit(stop={"iterations": 200}).settle()
    assert world.created_children == ["cartpole-bc-t1-1", "cartpole-bc-t1-2"]
    assert (world.condition("Complete"), world.condition("SpecDrift")) == (None, None)
    world.up().beat().end("Succeeded", "Succeeded").settle()
    world.tick(3600).settle()
    assert (world.state, len(world.created_children)) == ("Succeeded", 2)


def test_running_training_applies_raised_stop_in_next_attempt() -> None:
    world = running()
    world.edit(stop={"iterations": 200}, evaluation=None).settle()
    assert world.condition("SpecDrift") is None
    sentence = "spec.stop.iterations changed from 100 to 200; attempt 1 keeps its settings"
    assert sentence in world.condition("ChangeWaiting")["message"]  # type: ignore[index]
    world.end("Succeeded", "Succeeded").settle()
    world.up().beat().settle()
    assert (world.state, len(world.created_children), world.condition("ChangeWaiting")) == (
        "Running",
        2,
        None,
    )


def test_failed_training_ignores_raised_stop() -> None:
    world = running()
    world.end("Failed", "UserCodeFailed", "raised").settle()
    world.edit(stop={"iterations": 200}).settle()
    assert (world.state, len(world.created_children)) == ("Failed", 1)


def test_run_without_course_hash_ignores_raised_stop() -> None:
    """The entry of an earlier operator does not record the rest of the spec."""
    world = running()
    world.end("Succeeded", "Succeeded").settle()
    del world.status["runs"][0]["courseHash"]
    world.edit(stop={"iterations": 200}).settle()
    assert (world.state, world.reason("SpecDrift"), len(world.created_children)) == (
        "Succeeded",
        "SpecChanged",
        1,
    )


def test_pool_sizes_may_change_without_new_revision() -> None:
    world = running()
    world.edit(learners={"replicas": 3, "gpus": 1}).settle()
    assert world.condition("SpecDrift") is None
    world.end("Lost", "WorkerLost").settle()
    world.tick(60).settle()
    assert world.status["runs"][0]["initialLearners"] == 1, "the global batch is that of the revision's start"


def test_waiting_change_is_reported_until_next_attempt() -> None:
    world = running()
    assert world.condition("ChangeWaiting") is None
    world.edit(learners={"replicas": 3, "gpus": 1}, runPolicy={"backoffLimit": 9}).settle()
    sentence = (
        "spec.learners.replicas changed from 1 to 3; "
        "attempt 1 keeps its settings, the change applies from the next one on"
    )
    assert world.condition("ChangeWaiting")["message"] == sentence  # type: ignore[index]
    assert world.status["message"] == f"Attempt 1 is running: Training. {sentence}"
    assert [event.type for event in world.events_with("ChangeWaits")] == ["Normal"]
    world.end("Lost", "WorkerLost").settle()
    assert world.condition("ChangeWaiting") is None
    world.tick(60).settle()
    world.up().beat().settle()
    assert (world.state, world.condition("ChangeWaiting")) == ("Running", None)
    assert "operationalFields" not in world.status["runs"][1], "of attempts that are over it says nothing"


def test_waiting_change_is_dropped_when_reverted_and_names_long_fields() -> None:
    world = running()
    world.edit(checkpoint={"path": "s3://bucket/runs", "every": 5}).settle()
    assert "spec.checkpoint.every changed from 10 to 5" in world.status["message"]
    world.edit(checkpoint={"path": "s3://bucket/runs"}).settle()
    assert world.condition("ChangeWaiting") is None
    world.edit(cluster={"env": [{"name": "LEVEL", "value": "1"}], "image": "other:1"}).settle()
    assert (
        "spec.cluster.env changed; spec.cluster.image changed from not set to other:1"
        in world.status["message"]
    )


def test_uncreated_attempt_applies_change_immediately() -> None:
    world = World()
    world.reconcile()
    world.attempts.clear()
    world.edit(learners={"replicas": 3, "gpus": 1}).settle()
    assert world.condition("ChangeWaiting") is None


def test_uncreated_attempt_uses_current_spec_and_defaults() -> None:
    """RayJob, sizes and entry come from one spec, however often it is edited until the RayJob exists."""
    world = World()
    world.reconcile()
    world.attempts.clear()
    world.edit(learners={"replicas": 3, "gpus": 1}, stop={"iterations": 200}, cluster={"image": "own:2"})
    world.defaults = world.defaults.model_copy(update={"image": "runtime:2"})
    create = world.reconcile().actions[0]
    assert isinstance(create, CreateAttempt)
    run = world.status["runs"][0]
    assert world.status["resolved"] == compute_sizes(create.resource, create.attempt.inputs).to_status()
    assert world.status["resolved"]["pools"]["learner"]["pods"]["value"] == 3
    assert (run["image"], run["initialLearners"], run["specHash"]) == ("own:2", 3, create.attempt.spec_hash)
    assert run["specHash"] == spec_hash(validate_resource(world.manifest))
    assert run["inputs"]["defaults"]["image"] == "runtime:2"
    world.up().beat().end("Succeeded", "Succeeded").settle()
    assert set(world.created_children) == {"cartpole-bc-t1-1"}, "it had the raised stop"


def test_history_is_bounded_and_keeps_latest_run_of_each_revision() -> None:
    world = World()
    world.settle()
    world.edit(revision=2).settle()
    for _ in range(40):
        world.up().beat().settle()
        world.edit(suspend=True).settle()
        world.end("Suspended", "Suspended").settle()
        world.edit(suspend=False).settle()
    runs = world.status["runs"]
    assert len(runs) == 32
    assert runs[0]["attempt"] == 41
    assert (runs[-1]["revision"], runs[-1]["outcome"]) == (1, "Superseded")


# -- what a revision began with ------------------------------------------------------------------------------
def test_revision_keeps_storage_root_and_image() -> None:
    world = World(checkpoint={"path": "runs"})
    world.settle()
    new_defaults = world.defaults.model_copy(update={"storage_root": "s3://other", "image": "runtime:2"})
    world.defaults = new_defaults
    world.up().beat().end("Lost", "WorkerLost").settle()
    decision = world.tick(60).reconcile()
    create = decision.actions[0]
    assert isinstance(create, CreateAttempt)
    assert create.resource.spec.checkpoint.path.startswith("s3://bucket/hindcast")  # type: ignore[union-attr]
    assert create.resource.spec.cluster.image == "hindcast-runtime:0.1.0"
    world.settle()
    world.edit(revision=2).settle()
    assert world.status["runs"][0]["image"] == "runtime:2"
    assert world.status["runs"][0]["inputs"]["defaults"]["storageRoot"] == "s3://other"


def test_revision_keeps_image_of_platform_cluster_defaults() -> None:
    """`defaults.cluster` may name it too, before or after."""
    for image, later in (("cluster:1", None), (None, "cluster:2"), ("cluster:1", "cluster:2")):
        world = World(defaults=DEFAULTS.model_copy(update={"cluster": ClusterSpec(image=image)}))
        world.settle()
        image_before = world.status["runs"][0]["image"]
        world.up().beat().settle()
        cluster = ClusterSpec(image=later, ray_version="2.61.0", node_selector={"zone": "b"})
        world.defaults = world.defaults.model_copy(update={"cluster": cluster, "image": "runtime:2"})
        world.end("Lost", "WorkerLost").settle()
        create = world.tick(60).reconcile().actions[0]
        assert isinstance(create, CreateAttempt)
        effective_cluster = create.resource.spec.cluster
        assert (effective_cluster.image, effective_cluster.ray_version) == (
            image_before,
            world.defaults.ray_version,
        )
        assert effective_cluster.node_selector == {"zone": "b"}, "the rest applies to the next attempt"


def test_default_image_without_report_may_be_corrected() -> None:
    world = World()
    world.settle()
    world.defaults = world.defaults.model_copy(update={"image": "runtime:2"})
    world.up().finish_job("FAILED").tick(10).settle()
    world.tick(60).settle()
    assert [run["image"] for run in world.status["runs"]] == ["runtime:2", "hindcast-runtime:0.1.0"]


# -- gone ----------------------------------------------------------------------------------------------------
def test_deleted_resource_needs_no_action() -> None:
    world = running()
    world.is_deleting = True
    decision = world.plan()
    assert (decision.actions, decision.events) == ((), ())
    assert not world.write(decision)


def test_restored_resource_finishes_by_success_marker() -> None:
    world = World()
    world.settle()
    world.up().end("Succeeded", "AlreadyFinished", "The run folder has its success marker").settle()
    assert world.state == "Succeeded"
    assert world.status["runs"][0]["reason"] == "AlreadyFinished"
