"""Changes of a resource that start its run again, and changes that do not: revision, drift, stop, pools, defaults."""

from __future__ import annotations

from plan_world import DEFAULTS, World, make_running_world

from hindcast.api import spec_hash
from hindcast.api.cluster import ClusterSpec
from hindcast.api.loading import validate_resource
from hindcast_operator.decision import CreateAttempt, DeleteAttempt
from hindcast_operator.manifests import compute_sizes


# -- revisions -----------------------------------------------------------------------------------------------
def test_higher_revision_replaces_running_attempt() -> None:
    world = make_running_world()
    world.edit_spec(revision=2)
    decision = world.reconcile()
    assert decision.actions == (DeleteAttempt("cartpole-bc-t1-1"),)
    world.settle()
    assert world.created_children == ["cartpole-bc-t1-1", "cartpole-bc-t2-1"]
    # Newest first: `runs` holds one entry for each attempt.
    assert [run.get("outcome") for run in world.status["runs"]] == [None, "Superseded"]
    assert "progress" not in world.status and "checkpoint" not in world.status
    assert world.events_with("Superseded")[0].type == "Normal"


def test_higher_revision_reruns_finished_resource() -> None:
    world = make_running_world()
    world.report_end("Failed", "UserCodeFailed").settle()
    world.edit_spec(revision=2, stop={"iterations": 5}).settle()
    assert world.created_children == ["cartpole-bc-t1-1", "cartpole-bc-t2-1"]
    assert "cartpole-bc-t1-1" not in world.attempts, "objects of the older revision are deleted"
    assert world.condition_statuses.keys() == {"Ready", "Reconciling", "ClusterReady"}


def test_changed_spec_at_same_revision_is_drift() -> None:
    world = make_running_world()
    world.edit_spec(seed=7).settle()
    assert (world.state, world.find_reason("SpecDrift")) == ("Running", "SpecChanged")
    assert "spec.revision" in world.find_condition("SpecDrift")["message"]  # type: ignore[index]
    assert world.events_with("SpecChanged")[0].type == "Warning"
    world.edit_spec(seed=0).settle()
    assert world.find_condition("SpecDrift") is None


def test_drifted_spec_is_not_retried() -> None:
    world = make_running_world()
    world.edit_spec(seed=7).settle()
    world.report_end("Lost", "WorkerLost").settle()
    world.advance(60).settle()
    assert (world.state, world.find_reason(), len(world.created_children)) == ("Stalled", "SpecChanged", 1)
    world.edit_spec(seed=0).settle()
    assert len(world.created_children) == 2


def test_finished_training_continues_after_raised_stop() -> None:
    world = make_running_world()
    world.report_end("Succeeded", "Succeeded").settle()
    assert (world.state, len(world.created_children)) == ("Succeeded", 1)
    world.edit_spec(stop={"iterations": 200}).settle()
    assert world.created_children == ["cartpole-bc-t1-1", "cartpole-bc-t1-2"]
    assert (world.find_condition("Complete"), world.find_condition("SpecDrift")) == (None, None)
    world.start_pods().send_report().report_end("Succeeded", "Succeeded").settle()
    world.advance(3600).settle()
    assert (world.state, len(world.created_children)) == ("Succeeded", 2)


def test_running_training_applies_raised_stop_in_next_attempt() -> None:
    world = make_running_world()
    world.edit_spec(stop={"iterations": 200}, evaluation=None).settle()
    assert world.find_condition("SpecDrift") is None
    sentence = "spec.stop.iterations changed from 100 to 200; attempt 1 keeps its settings"
    assert sentence in world.find_condition("ChangeWaiting")["message"]  # type: ignore[index]
    world.report_end("Succeeded", "Succeeded").settle()
    world.start_pods().send_report().settle()
    assert (world.state, len(world.created_children), world.find_condition("ChangeWaiting")) == (
        "Running",
        2,
        None,
    )


def test_failed_training_ignores_raised_stop() -> None:
    world = make_running_world()
    world.report_end("Failed", "UserCodeFailed", "raised").settle()
    world.edit_spec(stop={"iterations": 200}).settle()
    assert (world.state, len(world.created_children)) == ("Failed", 1)


def test_run_without_course_hash_ignores_raised_stop() -> None:
    """An entry of an earlier operator has no course hash, so it is unknown whether only `stop` has changed."""
    world = make_running_world()
    world.report_end("Succeeded", "Succeeded").settle()
    del world.run["courseHash"]
    world.edit_spec(stop={"iterations": 200}).settle()
    assert (world.state, world.find_reason("SpecDrift"), len(world.created_children)) == (
        "Succeeded",
        "SpecChanged",
        1,
    )


def test_pool_sizes_may_change_without_new_revision() -> None:
    world = make_running_world()
    world.edit_spec(learners={"replicas": 3, "gpus": 1}).settle()
    assert world.find_condition("SpecDrift") is None
    world.report_end("Lost", "WorkerLost").settle()
    world.advance(60).settle()
    assert world.run["initialLearners"] == 1, (
        "the global batch keeps the size of the revision's first attempt"
    )


def test_waiting_change_is_reported_until_next_attempt() -> None:
    world = make_running_world()
    assert world.find_condition("ChangeWaiting") is None
    world.edit_spec(learners={"replicas": 3, "gpus": 1}, runPolicy={"backoffLimit": 9}).settle()
    sentence = (
        "spec.learners.replicas changed from 1 to 3; "
        "attempt 1 keeps its settings, the change applies from the next one on"
    )
    assert world.find_condition("ChangeWaiting")["message"] == sentence  # type: ignore[index]
    assert world.status["message"] == f"Attempt 1 is running: Training. {sentence}"
    assert [event.type for event in world.events_with("ChangeWaits")] == ["Normal"]
    world.report_end("Lost", "WorkerLost").settle()
    assert world.find_condition("ChangeWaiting") is None
    world.advance(60).settle()
    world.start_pods().send_report().settle()
    assert (world.state, world.find_condition("ChangeWaiting")) == ("Running", None)
    assert "operationalFields" not in world.status["runs"][1], "ended attempts record no operational fields"


def test_reverted_change_is_not_waiting_and_waiting_change_of_list_shows_no_values() -> None:
    world = make_running_world()
    world.edit_spec(checkpoint={"path": "s3://bucket/runs", "every": 5}).settle()
    assert "spec.checkpoint.every changed from 10 to 5" in world.status["message"]
    world.edit_spec(checkpoint={"path": "s3://bucket/runs"}).settle()
    assert world.find_condition("ChangeWaiting") is None
    world.edit_spec(cluster={"env": [{"name": "LEVEL", "value": "1"}], "image": "other:1"}).settle()
    assert (
        "spec.cluster.env changed; spec.cluster.image changed from not set to other:1"
        in world.status["message"]
    )


def test_uncreated_attempt_applies_change_immediately() -> None:
    world = World()
    world.reconcile()
    world.attempts.clear()
    world.edit_spec(learners={"replicas": 3, "gpus": 1}).settle()
    assert world.find_condition("ChangeWaiting") is None


def test_uncreated_attempt_uses_current_spec_and_defaults() -> None:
    """Until the RayJob exists, edits of the spec apply to the RayJob, the sizes and the entry alike."""
    world = World()
    world.reconcile()
    world.attempts.clear()
    world.edit_spec(learners={"replicas": 3, "gpus": 1}, stop={"iterations": 200}, cluster={"image": "own:2"})
    world.defaults = world.defaults.model_copy(update={"image": "runtime:2"})
    create = world.reconcile().actions[0]
    assert isinstance(create, CreateAttempt)
    run = world.run
    assert world.status["resolved"] == compute_sizes(create.resource, create.attempt.inputs).to_status()
    assert world.status["resolved"]["pools"]["learner"]["pods"]["value"] == 3
    assert (run["image"], run["initialLearners"], run["specHash"]) == ("own:2", 3, create.attempt.spec_hash)
    assert run["specHash"] == spec_hash(validate_resource(world.manifest))
    assert run["inputs"]["defaults"]["image"] == "runtime:2"
    world.start_pods().send_report().report_end("Succeeded", "Succeeded").settle()
    assert set(world.created_children) == {"cartpole-bc-t1-1"}, (
        "the first attempt already had the raised stop"
    )


def test_history_is_bounded_and_keeps_latest_attempt_of_each_revision() -> None:
    world = World()
    world.settle()
    world.edit_spec(revision=2).settle()
    for _ in range(11):  # each suspension ends an attempt
        world.start_pods().send_report().settle()
        world.edit_spec(suspend=True).settle()
        world.report_end("Suspended", "Suspended").settle()
        world.edit_spec(suspend=False).settle()
    runs = world.status["runs"]
    assert len(runs) == 10
    assert runs[0]["attempt"] == 12
    assert "inputs" in runs[0]
    assert not any(entry.keys() & {"inputs", "operationalFields"} for entry in runs[1:])
    assert (runs[-1]["revision"], runs[-1]["outcome"]) == (1, "Superseded")


# -- what a revision began with ------------------------------------------------------------------------------
def test_storage_root_and_image_stay_until_next_revision() -> None:
    world = World(checkpoint={"path": "runs"})
    world.settle()
    new_defaults = world.defaults.model_copy(update={"storage_root": "s3://other", "image": "runtime:2"})
    world.defaults = new_defaults
    world.start_pods().send_report().report_end("Lost", "WorkerLost").settle()
    decision = world.advance(60).reconcile()
    create = decision.actions[0]
    assert isinstance(create, CreateAttempt)
    assert create.resource.spec.checkpoint.path.startswith("s3://bucket/hindcast")  # type: ignore[union-attr]
    assert create.resource.spec.cluster.image == "hindcast-runtime:0.1.0"
    world.settle()
    world.edit_spec(revision=2).settle()
    assert world.run["image"] == "runtime:2"
    assert world.run["inputs"]["defaults"]["storageRoot"] == "s3://other"


def test_image_and_ray_version_stay_when_defaults_cluster_changes_within_revision() -> None:
    """`defaults.cluster.image` may be set when the revision begins, or only later."""
    for image, later_image in (("cluster:1", None), (None, "cluster:2"), ("cluster:1", "cluster:2")):
        world = World(defaults=DEFAULTS.model_copy(update={"cluster": ClusterSpec(image=image)}))
        world.settle()
        image_before = world.run["image"]
        world.start_pods().send_report().settle()
        cluster = ClusterSpec(image=later_image, ray_version="2.61.0", node_selector={"zone": "b"})
        world.defaults = world.defaults.model_copy(update={"cluster": cluster, "image": "runtime:2"})
        world.report_end("Lost", "WorkerLost").settle()
        create = world.advance(60).reconcile().actions[0]
        assert isinstance(create, CreateAttempt)
        effective_cluster = create.resource.spec.cluster
        assert (effective_cluster.image, effective_cluster.ray_version) == (
            image_before,
            world.defaults.ray_version,
        )
        assert effective_cluster.node_selector == {"zone": "b"}, "other defaults apply to the next attempt"


def test_image_stays_after_more_attempts_than_history_keeps() -> None:
    """Regression: once the entry of the attempt that reported was dropped, a new default image replaced its image."""
    world = make_running_world(runPolicy={"backoffLimit": 100})
    image = world.run["image"]
    world.report_end("Lost", "WorkerLost").settle()
    world.defaults = world.defaults.model_copy(update={"image": "runtime:2"})
    for _ in range(12):
        world.advance(6000).settle()
        assert world.run["image"] == image
        world.start_pods().finish_job().advance(10).settle()
    assert world.run["attempt"] > 11


def test_corrected_default_image_applies_if_no_attempt_has_reported() -> None:
    world = World()
    world.settle()
    world.defaults = world.defaults.model_copy(update={"image": "runtime:2"})
    world.start_pods().finish_job("FAILED").advance(10).settle()
    world.advance(60).settle()
    assert [run["image"] for run in world.status["runs"]] == ["runtime:2", "hindcast-runtime:0.1.0"]


# -- deleted and restored resources --------------------------------------------------------------------------
def test_deleted_resource_needs_no_action() -> None:
    world = make_running_world()
    world.is_deleting = True
    decision = world.plan()
    assert (decision.actions, decision.events) == ((), ())
    assert not world.write_status(decision)


def test_restored_resource_finishes_by_success_marker() -> None:
    world = World()
    world.settle()
    world.start_pods().report_end(
        "Succeeded", "AlreadyFinished", "The run folder has its success marker"
    ).settle()
    assert world.state == "Succeeded"
    assert world.run["reason"] == "AlreadyFinished"
