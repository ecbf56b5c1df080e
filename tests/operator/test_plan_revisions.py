"""Revisions, drift, history, deletion: what starts a run again, and what does not."""

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
def test_a_higher_revision_deletes_the_running_attempt_and_starts_anew() -> None:
    world = running()
    world.edit(revision=2)
    decision = world.turn()
    assert decision.actions == (DeleteAttempt("cartpole-bc-t1-1"),)
    world.settle()
    assert world.created == ["cartpole-bc-t1-1", "cartpole-bc-t2-1"]
    assert [run.get("outcome") for run in world.status["runs"]] == [None, "Superseded"]
    assert "progress" not in world.status and "checkpoint" not in world.status
    assert world.events_with("Superseded")[0].type == "Normal"


def test_a_higher_revision_runs_a_finished_resource_again() -> None:
    world = running()
    world.end("Failed", "UserCodeFailed").settle()
    world.edit(revision=2, stop={"iterations": 5}).settle()
    assert world.created == ["cartpole-bc-t1-1", "cartpole-bc-t2-1"]
    assert "cartpole-bc-t1-1" not in world.attempts, "objects of the older revision are removed"
    assert kinds(world).keys() == {"Ready", "Reconciling", "ClusterReady"}


def test_a_changed_spec_at_the_same_revision_is_drift() -> None:
    world = running()
    world.edit(seed=7).settle()
    assert (world.state, world.reason("SpecDrift")) == ("Running", "SpecChanged")
    assert "spec.revision" in world.condition("SpecDrift")["message"]  # type: ignore[index]
    assert world.events_with("SpecChanged")[0].type == "Warning"
    world.edit(seed=0).settle()
    assert world.condition("SpecDrift") is None


def test_a_drifted_spec_is_not_retried() -> None:
    world = running()
    world.edit(seed=7).settle()
    world.end("Lost", "WorkerLost").settle()
    world.tick(60).settle()
    assert (world.state, world.reason(), len(world.created)) == ("Stalled", "SpecChanged", 1)
    world.edit(seed=0).settle()
    assert len(world.created) == 2


def test_a_finished_training_goes_on_when_its_stop_is_raised() -> None:
    world = running()
    world.end("Succeeded", "Succeeded").settle()
    assert (world.state, len(world.created)) == ("Succeeded", 1)
    world.edit(stop={"iterations": 200}).settle()
    assert world.created == ["cartpole-bc-t1-1", "cartpole-bc-t1-2"]
    assert (world.condition("Complete"), world.condition("SpecDrift")) == (None, None)
    world.up().beat().end("Succeeded", "Succeeded").settle()
    world.tick(3600).settle()
    assert (world.state, len(world.created)) == ("Succeeded", 2)


def test_a_running_training_takes_up_a_raised_stop_with_its_next_attempt() -> None:
    world = running()
    world.edit(stop={"iterations": 200}, evaluation=None).settle()
    assert world.condition("SpecDrift") is None
    sentence = "spec.stop.iterations changed from 100 to 200; attempt 1 keeps its settings"
    assert sentence in world.condition("ChangeWaiting")["message"]  # type: ignore[index]
    world.end("Succeeded", "Succeeded").settle()
    world.up().beat().settle()
    assert (world.state, len(world.created), world.condition("ChangeWaiting")) == ("Running", 2, None)


def test_a_failed_training_does_not_go_on_with_another_stop() -> None:
    world = running()
    world.end("Failed", "UserCodeFailed", "raised").settle()
    world.edit(stop={"iterations": 200}).settle()
    assert (world.state, len(world.created)) == ("Failed", 1)


def test_a_run_of_an_earlier_operator_does_not_go_on_with_another_stop() -> None:
    """Its entry does not say what else its spec was."""
    world = running()
    world.end("Succeeded", "Succeeded").settle()
    del world.status["runs"][0]["courseHash"]
    world.edit(stop={"iterations": 200}).settle()
    assert (world.state, world.reason("SpecDrift"), len(world.created)) == ("Succeeded", "SpecChanged", 1)


def test_pool_sizes_may_change_without_a_revision() -> None:
    world = running()
    world.edit(learners={"replicas": 3, "gpus": 1}).settle()
    assert world.condition("SpecDrift") is None
    world.end("Lost", "WorkerLost").settle()
    world.tick(60).settle()
    assert world.status["runs"][0]["initialLearners"] == 1, "the global batch is that of the revision's start"


def test_a_change_that_waits_for_the_next_attempt_is_reported_until_then() -> None:
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


def test_a_change_that_is_taken_back_or_long_waits_for_nothing_or_is_named() -> None:
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


def test_an_attempt_that_could_not_be_created_yet_takes_a_change() -> None:
    world = World()
    world.turn()
    world.attempts.clear()
    world.edit(learners={"replicas": 3, "gpus": 1}).settle()
    assert world.condition("ChangeWaiting") is None


def test_an_attempt_that_could_not_be_created_yet_is_the_spec_as_it_is_now() -> None:
    """Its RayJob, its sizes and its entry: one spec, however often that is edited until the RayJob exists."""
    world = World()
    world.turn()
    world.attempts.clear()
    world.edit(learners={"replicas": 3, "gpus": 1}, stop={"iterations": 200}, cluster={"image": "own:2"})
    world.defaults = world.defaults.model_copy(update={"image": "runtime:2"})
    create = world.turn().actions[0]
    assert isinstance(create, CreateAttempt)
    run = world.status["runs"][0]
    assert world.status["resolved"] == compute_sizes(create.resource, create.attempt.inputs).to_status()
    assert world.status["resolved"]["pools"]["learner"]["pods"]["value"] == 3
    assert (run["image"], run["initialLearners"], run["specHash"]) == ("own:2", 3, create.attempt.spec_hash)
    assert run["specHash"] == spec_hash(validate_resource(world.manifest))
    assert run["inputs"]["defaults"]["image"] == "runtime:2"
    world.up().beat().end("Succeeded", "Succeeded").settle()
    assert set(world.created) == {"cartpole-bc-t1-1"}, "it had the raised stop"


def test_history_is_bounded_and_keeps_the_latest_of_each_revision() -> None:
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
def test_a_revision_keeps_its_storage_root_and_the_image_that_has_run() -> None:
    world = World(checkpoint={"path": "runs"})
    world.settle()
    moved = world.defaults.model_copy(update={"storage_root": "s3://other", "image": "runtime:2"})
    world.defaults = moved
    world.up().beat().end("Lost", "WorkerLost").settle()
    decision = world.tick(60).turn()
    create = decision.actions[0]
    assert isinstance(create, CreateAttempt)
    assert create.resource.spec.checkpoint.path.startswith("s3://bucket/hindcast")  # type: ignore[union-attr]
    assert create.resource.spec.cluster.image == "hindcast-runtime:0.1.0"
    world.settle()
    world.edit(revision=2).settle()
    assert world.status["runs"][0]["image"] == "runtime:2"
    assert world.status["runs"][0]["inputs"]["defaults"]["storageRoot"] == "s3://other"


def test_a_revision_keeps_the_image_that_the_platform_gave_for_its_cluster() -> None:
    """`defaults.cluster` may name it too, before or after."""
    for image, later in (("cluster:1", None), (None, "cluster:2"), ("cluster:1", "cluster:2")):
        world = World(defaults=DEFAULTS.model_copy(update={"cluster": ClusterSpec(image=image)}))
        world.settle()
        before = world.status["runs"][0]["image"]
        world.up().beat().settle()
        cluster = ClusterSpec(image=later, ray_version="2.61.0", node_selector={"zone": "b"})
        world.defaults = world.defaults.model_copy(update={"cluster": cluster, "image": "runtime:2"})
        world.end("Lost", "WorkerLost").settle()
        create = world.tick(60).turn().actions[0]
        assert isinstance(create, CreateAttempt)
        given = create.resource.spec.cluster
        assert (given.image, given.ray_version) == (before, world.defaults.ray_version)
        assert given.node_selector == {"zone": "b"}, "the rest applies to the next attempt"


def test_a_default_image_that_never_ran_may_be_corrected() -> None:
    world = World()
    world.settle()
    world.defaults = world.defaults.model_copy(update={"image": "runtime:2"})
    world.up().over("FAILED").tick(10).settle()
    world.tick(60).settle()
    assert [run["image"] for run in world.status["runs"]] == ["runtime:2", "hindcast-runtime:0.1.0"]


# -- gone ----------------------------------------------------------------------------------------------------
def test_a_resource_that_is_deleted_is_left_to_the_garbage_collector() -> None:
    world = running()
    world.deleting = True
    decision = world.plan()
    assert (decision.actions, decision.events) == ((), ())
    assert not world.write(decision)


def test_a_restored_resource_finishes_by_its_marker() -> None:
    world = World()
    world.settle()
    world.up().end("Succeeded", "AlreadyFinished", "The run folder has its success marker").settle()
    assert world.state == "Succeeded"
    assert world.status["runs"][0]["reason"] == "AlreadyFinished"
