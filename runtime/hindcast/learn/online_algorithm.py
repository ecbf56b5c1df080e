"""What an algorithm is that learns in its environment: one that makes the experts of recordings."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from hindcast.episodes.block import Block
from hindcast.learn.algorithm import Algorithm, Kind
from hindcast.learn.learner import Learner


class OnlineAlgorithm(Algorithm):
    """An algorithm that learns from what its own policy samples."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"OfflineRecording"})

    @property
    @abstractmethod
    def timesteps_per_update(self) -> int:
        """Timesteps of the batch that one update takes."""

    @abstractmethod
    def train_on(self, learner: Learner, rollout: Block, seed: int, iteration: int) -> dict[str, float]:
        """One iteration.

        Args:
            learner: of this algorithm.
            rollout: the `train_batch_size_per_learner` timesteps that the policy has just sampled, as the module
                sees them (preprocessed); has `action_logp` and `action_dist_inputs`.
            seed: with `iteration` it fixes the order of what is drawn from the rollout.
            iteration: iterations finished before.

        Returns:
            Metrics.
        """
