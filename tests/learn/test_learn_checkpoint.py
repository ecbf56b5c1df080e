import json
import pickle
from hashlib import sha256

import fsspec
import numpy as np
import pytest
import torch
from learn_toys import INPUTS, ActorCritic, ToyOptions, make_batch, make_networks
from safetensors.torch import load

from hindcast.errors import DataError, StorageError
from hindcast.learn.checkpoint import CheckpointStore, TrainingState, find_checkpoint
from hindcast.learn.learner import Learner
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.storage.location import Location, resolve


class Run:
    """A learner, its policy and a store of their checkpoints."""

    def __init__(self, folder, keep=3):
        algorithm = ActorCritic(ToyOptions())
        self.learner = Learner(algorithm, make_networks(algorithm))
        spaces = (INPUTS.observation_space, INPUTS.action_space)
        preprocessing = Preprocessing.from_specs(*spaces, INPUTS.model)
        self.policy = Policy(self.learner.nets["policy"], preprocessing, *spaces)
        self.store = CheckpointStore(resolve(folder) if isinstance(folder, str) else folder, keep)

    def train(self, updates=1):
        for _ in range(updates):
            self.learner.update(make_batch(self.learner.updates))
        return self

    def save(self, protect=(), **training):
        defaults = {"iteration": 1, "algorithm": "BC", "options": {"lr": 0.1}, "spec_hash": "abc"}
        state = TrainingState(**(defaults | training))
        return self.store.save(self.policy, self.learner.state(), state, protect)


@pytest.fixture
def run(tmp_path):
    """A run after three updates, without a checkpoint."""
    return Run(str(tmp_path / "run")).train(3)


@pytest.fixture
def written_names(monkeypatch):
    """Names of the files that are written, in order."""
    write_bytes, names = Location.write_bytes, []
    monkeypatch.setattr(
        Location, "write_bytes", lambda file, data: names.append(file.name) or write_bytes(file, data)
    )
    return names


def list_entry_names(run):
    return sorted(entry.relative_path for entry in run.store.location.list())


def test_load_after_save_restores_everything(run):
    run.save(
        iteration=7,
        feed={"cursor": 123, "sources": [1, 2]},
        metrics={"loss": 0.5, "return": float("nan")},
        counters={"episodes": 9},
    )
    checkpoint = run.store.latest()
    training = checkpoint.training
    assert (checkpoint.updates, training.iteration, training.algorithm) == (3, 7, "BC")
    assert (training.options, training.spec_hash) == ({"lr": 0.1}, "abc")
    assert (training.feed, training.counters) == ({"cursor": 123, "sources": [1, 2]}, {"episodes": 9})
    assert training.metrics == {"loss": 0.5, "return": None}
    state, expected = checkpoint.learner_state(), run.learner.state()
    assert state.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(state.tensors[name], tensor) for name, tensor in expected.tensors.items())


def test_loaded_policy_acts_like_the_saved_one(run):
    obs = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    checkpoint = run.save()
    action = run.policy(obs)
    assert Policy.load(checkpoint.location)(obs) == action
    assert Policy.load(checkpoint.module).digest == run.policy.digest


def test_checkpoint_holds_only_safetensors_and_json(run):
    folder = run.save().location
    files = {entry.relative_path for entry in folder.files(recursive=True)}
    assert files >= {"checkpoint.json", "learner.safetensors"}
    assert files >= {"module/module.json", "module/weights.safetensors"}
    assert all(name.endswith((".json", ".safetensors")) for name in files)


def test_policy_weights_are_stored_once(run):
    tensors = load(run.save().location.child("learner.safetensors").read_bytes())
    assert not any(name.startswith("nets/policy.") for name in tensors)
    assert any(name.startswith("nets/critic.") for name in tensors)


def test_folder_without_record_is_not_a_checkpoint(run):
    first_checkpoint = run.save()
    run.train()
    run.save().location.child("checkpoint.json").delete()
    assert run.store.latest().updates == first_checkpoint.updates
    with pytest.raises(DataError, match=r"checkpoint\.json is missing \(the folder contains learner"):
        find_checkpoint(run.store.location.child("checkpoint-000000004"))


def test_save_writes_the_record_last(run, written_names):
    run.save()
    assert written_names[-1] == "checkpoint.json"


@pytest.mark.parametrize("failing_write", range(5))
def test_failed_save_keeps_the_previous_checkpoint(run, monkeypatch, failing_write):
    run.save()
    run.train()
    original_write_bytes, calls = Location.write_bytes, []

    def write_bytes(file, data):
        calls.append(file.name)
        if len(calls) == failing_write + 1:
            raise StorageError(f"cannot write {file}: no space is left")
        original_write_bytes(file, data)

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no space"):
        patch.setattr(Location, "write_bytes", write_bytes)
        run.save()
    assert run.store.latest().updates == 3
    run.store.latest().learner_state()
    assert run.save().updates == 4
    assert run.store.latest().updates == 4


def test_save_keeps_the_newest_checkpoints(run):
    for _ in range(5):
        run.train()
        run.save()
    assert [checkpoint.updates for checkpoint in run.store.all()] == [6, 7, 8]
    assert list_entry_names(run) == ["checkpoint-000000006", "checkpoint-000000007", "checkpoint-000000008"]


def test_save_keeps_the_best_checkpoint_of_any_age(run):
    scores = [10.0, 30.0, 20.0, float("nan"), 5.0]
    for score in scores:
        run.train()
        run.store.mark_best(run.save(), score)
    assert [checkpoint.updates for checkpoint in run.store.all()] == [5, 6, 7, 8]
    assert run.store.best().updates == 5
    assert run.store.best_score() == 30.0


def test_mark_best_returns_whether_the_score_is_best(run):
    checkpoint = run.save()
    assert run.store.best() is None
    is_best = [run.store.mark_best(checkpoint, score) for score in (1.0, 1.0, 2.0, 0.0)]
    assert is_best == [True, False, True, False]


def test_revert_end_mark_restores_the_best_before_the_end(tmp_path):
    run = Run(str(tmp_path), keep=1)
    run.store.mark_best(run.train().save(), 1.0)
    for score in (2.0, 3.0):  # a training evaluates its end twice if it was killed in between
        run.store.mark_best(run.train().save(), score, at_end=True)
    run.train().save()
    assert [checkpoint.updates for checkpoint in run.store.all()] == [1, 3, 4]
    assert (run.store.best().updates, run.store.best_score()) == (3, 3.0)
    run.store.revert_end_mark()
    assert (run.store.best().updates, run.store.best_score()) == (1, 1.0)
    run.store.revert_end_mark()
    assert run.store.best_score() == 1.0


def test_revert_end_mark_without_earlier_mark_leaves_no_best(run):
    run.store.revert_end_mark()
    run.store.mark_best(run.save(), 1.0, at_end=True)
    run.store.revert_end_mark()
    assert (run.store.best(), run.store.best_score()) == (None, None)


def test_scores_of_other_methods_are_not_compared(run):
    run.store.mark_best(run.save(), 90.0, method="in one episode")
    later_checkpoint = run.train().save()
    assert run.store.best_score(method="in twenty") is None
    assert not run.store.mark_best(later_checkpoint, 20.0, method="in one episode")
    assert run.store.mark_best(later_checkpoint, 20.0, method="in twenty")
    assert run.store.best().updates == 4


def test_scores_without_method_are_compared_by_metric(run):
    run.save()
    run.store.location.child("best.json").write_bytes(b'{"updates": 3, "score": 90.0, "metric": "wis"}')
    assert run.store.best_score("wis", "in one way") == 90.0
    assert run.store.best_score("dm", "in one way") is None
    run.store.revert_end_mark()
    assert run.store.best_score("wis") == 90.0


def test_save_keeps_protected_checkpoints(tmp_path):
    run = Run(str(tmp_path), keep=1)
    run.train().save()
    run.train().save(protect=[1])
    assert [checkpoint.updates for checkpoint in run.store.all()] == [1, 2]
    run.train().save()
    assert [checkpoint.updates for checkpoint in run.store.all()] == [3]


def test_remove_incomplete_deletes_interrupted_saves(run):
    run.store.location.child("checkpoint-000000001", "learner.safetensors").write_bytes(b"half")
    run.store.location.child("notes.txt").write_bytes(b"the user's")
    run.save()
    assert list_entry_names(run) == ["checkpoint-000000003", "notes.txt"]


def test_save_again_at_the_same_update_rewrites_only_the_record(run, written_names):
    run.save(counters={"evaluating": None})
    written_names.clear()
    run.save(counters={"evaluating": 3})
    assert written_names == ["checkpoint.json"]
    assert run.store.latest().training.counters == {"evaluating": 3}
    run.store.latest().learner_state()


def test_save_of_other_weights_at_the_same_update_replaces_them(run):
    run.save()
    with torch.no_grad():
        run.learner.nets["critic"].weight.zero_()
    run.save()
    state = run.store.latest().learner_state()
    assert not state.tensors["nets/critic.weight"].any()


def test_find_checkpoint_accepts_its_folder_or_the_run_folder(run):
    first_checkpoint = run.save()
    run.train()
    run.save()
    assert find_checkpoint(str(first_checkpoint.location)).updates == 3
    assert find_checkpoint(run.store.location).updates == 4
    run.store.mark_best(first_checkpoint, 1.0)
    assert find_checkpoint(run.store.location).updates == 3


@pytest.mark.parametrize("name", ["learner.safetensors", "module/weights.safetensors", "module/module.json"])
def test_changed_file_is_named_in_the_error(run, name):
    folder = run.save().location
    data = bytearray(folder.child(name).read_bytes())
    data[-1] ^= 1
    folder.child(name).write_bytes(bytes(data))
    with pytest.raises(DataError, match=rf"{name} is damaged: its checksum"):
        find_checkpoint(folder).learner_state()


@pytest.mark.parametrize("name", ["learner.safetensors", "module/weights.safetensors"])
def test_missing_file_is_named_in_the_error(run, name):
    folder = run.save().location
    folder.child(name).delete()
    with pytest.raises(DataError, match=f"has no file {name}"):
        find_checkpoint(folder).learner_state()


def edit_record(folder, change):
    file = folder.child("checkpoint.json")
    content = json.loads(file.read_bytes())
    change(content)
    file.write_bytes(json.dumps(content).encode())


def test_file_that_the_record_does_not_list_is_not_read(run):
    folder = run.save().location
    edit_record(folder, lambda content: content["files"].pop("learner.safetensors"))
    with pytest.raises(DataError, match=r"has no file learner\.safetensors"):
        find_checkpoint(folder).learner_state()


def test_newer_format_is_refused_with_a_remedy(run):
    folder = run.save().location
    edit_record(folder, lambda content: content.update(formatVersion=99, training="of another shape"))
    with pytest.raises(DataError, match="formatVersion 99, but this Hindcast reads up to 1: upgrade"):
        find_checkpoint(folder)


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff\xfe", b'{"formatVersion": "x"}'])
def test_damaged_record_is_reported_as_damaged(run, content):
    folder = run.save().location
    folder.child("checkpoint.json").write_bytes(content)
    with pytest.raises(DataError, match=r"checkpoint\.json is damaged"):
        find_checkpoint(folder)


class Bomb:
    """Raises when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_pickle_as_weights_is_refused_and_never_opened(run):
    folder = run.save().location
    payload = pickle.dumps(Bomb())
    folder.child("learner.safetensors").write_bytes(payload)
    record = {"sha256": sha256(payload).hexdigest(), "bytes": len(payload)}
    edit_record(folder, lambda content: content["files"].update({"learner.safetensors": record}))
    with pytest.raises(DataError, match=r"learner\.safetensors is not a safetensors file .* from pickles"):
        find_checkpoint(folder).learner_state()


def test_missing_path_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"there is no checkpoint at .*nowhere: the path does not exist"):
        find_checkpoint(str(tmp_path / "nowhere"))


def test_rllib_checkpoint_is_named_in_the_error(tmp_path):
    (tmp_path / "rllib_checkpoint.json").write_text("{}")
    with pytest.raises(DataError, match="is an RLlib checkpoint"):
        find_checkpoint(tmp_path)


def test_nan_weights_are_not_saved(run):
    run.learner.update({**make_batch(3), "y": torch.full((32,), float("nan"))})
    with pytest.raises(DataError, match="became NaN"):  # from `Learner.state`
        run.save()
    assert run.store.latest() is None


def test_checkpoints_work_on_fsspec_file_systems():
    filesystem = fsspec.filesystem("memory")
    location = resolve("learn-checkpoints/run", filesystem)
    run = Run(location, keep=1).train()
    try:
        run.save()
        run.train().save()
        assert [checkpoint.updates for checkpoint in run.store.all()] == [2]
        restored_learner = Run(location).learner
        restored_learner.load(run.store.latest().learner_state())
        assert restored_learner.updates == 2
    finally:
        location.delete()
