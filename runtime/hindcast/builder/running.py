"""What a running algorithm trains with: recorded data, an environment, or nothing but a policy to play with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hindcast.algorithms import build
from hindcast.api import ModelSpec, OfflineTraining, spec_hash
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.recording import TrainEvaluation, TrainPolicy, TrainStop
from hindcast.errors import SpecError
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState
from hindcast.learn.learner import Learner
from hindcast.models.policy import Policy
from hindcast.run.carry_out import InFiles
from hindcast.run.claim import title
from hindcast.run.events import Reporter
from hindcast.run.inputs import inputs_of, ready_inputs
from hindcast.run.online import OnlineTraining, new_policy
from hindcast.run.results import Result
from hindcast.run.session import TrainingSession, initial_policy


class FromData(TrainingSession):
    """Trains on recorded data; the reporter gets notes of how they were prepared."""

    def __init__(self, resource: OfflineTraining, busy: int, reporter: Reporter) -> None:
        if resource.spec.initial_checkpoint is not None:
            initial_policy(resource.spec.initial_checkpoint)
        super().__init__(resource, ready_inputs(resource, inputs_of(resource, InFiles({})), reporter))
        for note in self.notes:
            reporter.note(title(resource), note)
        self.busy = busy
        self.begin()


def from_environment(resource: OfflineTraining, width: int) -> OnlineTraining:
    """A training on samples of its own, from so many environments side by side."""
    spec = resource.spec
    assert spec.environment is not None
    expert = TrainPolicy(
        algorithm=spec.algorithm,
        config=spec.config,
        model=spec.model,
        stop=TrainStop(iterations=1),
        evaluation=TrainEvaluation(),
    )
    return OnlineTraining(
        spec.environment,
        expert,
        spec.seed,
        width,
        explore_in_evaluation=False,
        spec_hash=spec_hash(resource),
    )


class PolicyAlone:
    """Nothing to train on: a policy of the algorithm's networks, to be restored, evaluated, recorded."""

    iteration = 0

    def __init__(
        self,
        algorithm: str,
        config: Mapping[str, Any],
        model: ModelSpec,
        environment: EnvironmentSpec,
        seed: int,
    ) -> None:
        self._name = algorithm
        self._algorithm = build(algorithm, config)
        self.policy, nets = new_policy(self._algorithm, environment, model, seed)
        self.learner = Learner(self._algorithm, nets, seed=seed)

    def iterate(self) -> Result:
        """Refused."""
        raise SpecError(f"{self._name} has nothing to train on: give .offline_data(input_=...).")

    def save(self, store: CheckpointStore) -> Checkpoint:
        """Write the policy and its optimisers."""
        options = self._algorithm.options.model_dump(mode="json", by_alias=True)
        state = TrainingState(iteration=0, algorithm=self._name, options=options, spec_hash="")
        return store.save(self.policy, self.learner.state(), state)

    def load(self, checkpoint: Checkpoint) -> None:
        """Take over the learner; there is no place in the data to go to."""
        self.learner.load(checkpoint.learner_state())
        self.policy.preprocessing.load(Policy.load(checkpoint.location).preprocessing.state())

    def close(self) -> None:
        """Nothing to let go of."""


Running = FromData | OnlineTraining | PolicyAlone
"""What goes on by iterations, saves and loads."""
