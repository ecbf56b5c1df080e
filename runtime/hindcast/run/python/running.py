"""What a running algorithm trains with: recorded data, an environment, or nothing but a policy to play with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hindcast.algorithms import build
from hindcast.api import ModelSpec, OfflineTraining, spec_hash
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.recording import TrainEvaluation, TrainPolicy, TrainStop
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState
from hindcast.learn.learner import Learner, LearnerState
from hindcast.models.policy import Policy
from hindcast.run.carry_out import InFiles
from hindcast.run.claim import title
from hindcast.run.events import Reporter
from hindcast.run.inputs import inputs_of, ready_inputs
from hindcast.run.online import OnlineTraining, new_policy
from hindcast.run.results import Result
from hindcast.run.session import TrainingSession
from hindcast.store.filesystem import Location


class Running(Protocol):
    """A training that goes on by iterations."""

    @property
    def policy(self) -> Policy:
        """Acts with the weights as they are."""
        ...

    @property
    def learner(self) -> Learner:
        """Of the policy."""
        ...

    @property
    def iteration(self) -> int:
        """Iterations finished."""
        ...

    def iterate(self) -> Result:
        """One more."""
        ...

    def save(self, store: CheckpointStore) -> Checkpoint:
        """Write all that `load` needs to go on exactly."""
        ...

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on where the checkpoint was written."""
        ...

    def close(self) -> None:
        """Let go of data and environments."""
        ...


class FromData(TrainingSession):
    """Trains on recorded data; what was done to them is told."""

    def __init__(self, resource: OfflineTraining, busy: int, reporter: Reporter) -> None:
        super().__init__(resource, ready_inputs(resource, inputs_of(resource, InFiles({})), reporter))
        for note in self.notes:
            reporter.note(title(resource), note)
        self.busy = busy
        self.begin()


class FromEnvironment(OnlineTraining):
    """Trains on samples of its own."""

    def __init__(self, resource: OfflineTraining, width: int) -> None:
        spec = resource.spec
        assert spec.environment is not None
        expert = TrainPolicy(
            algorithm=spec.algorithm,
            config=spec.config,
            model=spec.model,
            stop=TrainStop(iterations=1),
            evaluation=TrainEvaluation(),
        )
        super().__init__(spec.environment, expert, spec.seed, width, explore_in_evaluation=False)
        self._hash = spec_hash(resource)

    def iterate(self) -> Result:  # type: ignore[override]
        """One iteration; evaluations are the caller's."""
        return super().iterate(evaluate=False)

    def save(self, store: CheckpointStore) -> Checkpoint:  # type: ignore[override]
        """Write a checkpoint from which `load` goes on exactly."""
        return super().save(store, self._hash, {})


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


class OneFolder(CheckpointStore):
    """A store that is itself the one checkpoint in it.

    Args:
        location: the checkpoint's folder.
        counters: added to what the checkpoint counts.
    """

    def __init__(self, location: Location, counters: dict[str, Any] | None = None) -> None:
        super().__init__(location)
        self._counters = counters or {}

    def save(
        self, policy: Any, learner: LearnerState, training: TrainingState, protect: Any = ()
    ) -> Checkpoint:
        """Write the folder.

        Raises:
            DataError: it holds something else than a checkpoint.
        """
        names = [entry.relative for entry in self.location.list()]
        if names and not self.location.child("checkpoint.json").exists():
            raise DataError(
                f"{self.location} holds {', '.join(names[:3])} and is no checkpoint: give save_to_path() a new "
                "folder, an empty one or an earlier checkpoint."
            )
        counted = training.model_copy(update={"counters": {**training.counters, **self._counters}})
        return super().save(policy, learner, counted, protect)

    def all(self) -> list[Checkpoint]:
        """Evaluations mark none of them as best."""
        return []

    def _folder(self, updates: int) -> Location:  # noqa: ARG002
        return self.location

    def _numbers(self) -> list[int]:
        return []
