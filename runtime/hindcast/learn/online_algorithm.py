"""What an algorithm is that learns in its environment: one that makes the experts of recordings."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from hindcast.episodes.block import Block
from hindcast.learn.algorithm import Algorithm, Kind, Tensors


class OnlineAlgorithm(Algorithm):
    """An algorithm that learns from what its own policy samples: an iteration is minibatches of one rollout."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"OfflineRecording"})

    @property
    @abstractmethod
    def timesteps_per_update(self) -> int:
        """Timesteps of the batch that one update takes."""

    @abstractmethod
    def prepare(self, nets: nn.ModuleDict, rollout: Block) -> dict[str, Tensor]:
        """What an iteration learns from, `[S, ...]` for the S timesteps of a rollout, on the networks' device.

        Args:
            nets: with the weights that sampled it.
            rollout: at least `train_batch_size_per_learner` timesteps, as the module sees them (preprocessed), in
                episodes and fragments; has `action_logp` and `action_dist_inputs`.
        """

    @abstractmethod
    def minibatches(self, steps: int, seed: int, iteration: int) -> Tensor:
        """Which of S = `steps` rows each update takes: `[updates, timesteps_per_update]` int64.

        The order follows from `seed` and `iteration`, the number of iterations finished before.
        """

    def after_iteration(
        self,
        nets: nn.ModuleDict,  # noqa: ARG002
        rows: Tensors,  # noqa: ARG002
        metrics: dict[str, float],  # noqa: ARG002
    ) -> dict[str, float]:
        """Runs after the last update, with what `prepare` gave and means over the updates. Returns further metrics."""
        return {}
