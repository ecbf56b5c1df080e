"""Train updates FIRST to LAST in a separate process: `learn_resume_worker.py FOLDER FIRST LAST`.

If FIRST is not 0, the training resumes from the checkpoint in FOLDER. Prints JSON: for each algorithm a digest of
everything that the next update depends on, and the metrics without rounding.
"""

import hashlib
import json
import sys
import warnings

from learn_toys import INPUTS, ActorCritic, ToyOptions, make_batch, make_networks

from hindcast.algorithms import build
from hindcast.learn.checkpoint import CheckpointStore, TrainingState
from hindcast.learn.learner import Learner
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.storage.location import resolve

ALGORITHMS = {
    "BC": lambda: build("BC", {"lr": [[0, 1e-2], [5000, 0.0]], "gradClip": 1.0}),
    "ActorCritic": lambda: ActorCritic(ToyOptions(lr=[[0, 0.1], [3200, 0.01]], grad_clip=0.5)),
}


def train(name, folder, first_update, last_update):
    algorithm = ALGORITHMS[name]()
    store = CheckpointStore(resolve(folder).child(name))
    # The seed differs from the one that the run began with, so that anything not restored would show.
    learner = Learner(algorithm, make_networks(algorithm, seed=first_update), seed=first_update)
    if first_update:
        learner.load(store.latest().learner_state())
    for index in range(first_update, last_update):
        learner.update(make_batch(index))
        if index == 20:
            learner.metrics()
    spaces = (INPUTS.observation_space, INPUTS.action_space)
    policy = Policy(learner.nets["policy"], Preprocessing.from_specs(*spaces, INPUTS.model), *spaces)
    training = TrainingState(iteration=last_update, algorithm=name, options={}, spec_hash="hash")
    store.save(policy, learner.state(), training)
    state = learner.state()
    digest = hashlib.sha256()
    for key in sorted(state.tensors):
        digest.update(key.encode() + state.tensors[key].numpy().tobytes())
    meta = json.dumps(state.meta, sort_keys=True)
    metrics = {metric: value.hex() for metric, value in learner.metrics().items()}
    return {"digest": digest.hexdigest(), "meta": meta, "metrics": metrics}


if __name__ == "__main__":
    warnings.simplefilter("error")
    folder, first_update, last_update = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps({name: train(name, folder, first_update, last_update) for name in ALGORITHMS}))
