"""`OnlineAlgorithm`: the interface of algorithms that learn in an environment and train the experts of recordings."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from hindcast.episodes.block import Block
from hindcast.learn.algorithm import Algorithm, Kind, Tensors


class OnlineAlgorithm(Algorithm):
    """An algorithm that learns from rollouts of its own policy; an iteration trains on minibatches of one rollout."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"OfflineRecording"})

    @property
    @abstractmethod
    def timesteps_per_update(self) -> int:
        """Number of timesteps in the batch of one update, if a rollout has at least as many."""

    @abstractmethod
    def prepare(self, nets: nn.ModuleDict, rollout: Block) -> dict[str, Tensor]:
        """Compute the columns that an iteration learns from, `[S, ...]` for the S timesteps of a rollout.

        The columns are on the networks' device.

        Args:
            nets: with the weights that sampled the rollout.
            rollout: at least `train_batch_size_per_learner` preprocessed timesteps, in episodes and fragments; has
                `action_logp` and `action_dist_inputs`.
        """

    @abstractmethod
    def minibatches(self, steps: int, seed: int, iteration: int) -> Tensor:
        """Return the rows of each update's minibatch: `[updates, timesteps_per_update]` int64, from 0 to `steps` - 1.

        Args:
            steps: S, the number of timesteps in the rollout; minibatches are smaller if it is below
                `timesteps_per_update`.
            seed: with `iteration` it determines the order.
            iteration: number of iterations finished before.
        """

    def after_iteration(
        self,
        nets: nn.ModuleDict,  # noqa: ARG002
        rows: Tensors,  # noqa: ARG002
        metrics: dict[str, float],  # noqa: ARG002
    ) -> dict[str, float]:
        """Run after the last update of an iteration.

        Args:
            nets: the networks.
            rows: the columns from `prepare`.
            metrics: means over the iteration's updates.

        Returns:
            Further metrics of the iteration, by name.
        """
        return {}
