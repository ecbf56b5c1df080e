"""A clone of the behaviour policy: its propensities where none were recorded.

The clone is fitted to the episodes that it is used on, which makes estimates better than true propensities do (Hanna,
Niekum, Stone 2019, arXiv 1806.01347); on other episodes its errors would multiply along each of them. So it is fitted
twice: without a tenth of the episodes, which says for how long and how well it fits, and then to all of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hindcast.api.model import ModelSpec
from hindcast.evaluate.fitting import FitOptions, fit
from hindcast.evaluate.recorded_episodes import map_steps, steps_of_episodes
from hindcast.evaluate.target_policy import Batch, sample_noise
from hindcast.learn.batches import actions_of
from hindcast.models.distributions import Distribution
from hindcast.models.policy import Policy
from hindcast.models.rl_module import RLModule, build_module
from hindcast.pipeline.rng import derive_seed
from hindcast.pipeline.window import WindowData

_EVERY = 100
_SAMPLES = 64


@dataclass(frozen=True, kw_only=True)
class CloneFit(FitOptions):
    """How the behaviour is cloned: for as long as the loss on a tenth of the episodes falls.

    Attributes:
        updates: most updates of each of the two fits.
        patience: updates without a smaller loss there, after which the first fit ends.
    """

    updates: int = 5_000
    patience: int = 500


@dataclass(frozen=True)
class Calibration:
    """How well a clone's probabilities fit episodes that it was not fitted to.

    Attributes:
        loss: mean negative log-likelihood of their actions.
        error: greatest gap between how often actions lie within the clone's likeliest x % and x %, for all x; 0 is
            right, and 1 as wrong as can be.
    """

    loss: float
    error: float


class Clone:
    """A stochastic policy that imitates recorded actions.

    Args:
        policy: whose spaces, and whose view of observations.
        window: what to imitate.
        options: of the fit.
        seed: of weights and batches.
        check: called now and then, with the updates made of both fits; what it raises ends the fit.

    Attributes:
        calibration: of the first fit, on the tenth of the episodes that it has not seen.
    """

    def __init__(
        self,
        policy: Policy,
        window: WindowData,
        options: CloneFit,
        seed: int,
        check: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._generator = torch.Generator().manual_seed(derive_seed(seed, "clone", "batches"))
        self._window = window
        self._check = check
        learnt, held = _apart(window, self._generator)
        of_weights = derive_seed(seed, "clone", "weights")
        self._module = _new_module(policy, options, of_weights)
        updates = self._learn(learnt, held, options)
        self.calibration = self._calibration(held)
        self._module = _new_module(policy, options, of_weights)
        self._repeat(torch.cat([learnt, held]), options, updates)

    @torch.no_grad()
    def logp(self, batch: Batch) -> Tensor:
        """`[B]` float64 of the batch's actions."""
        return self._distribution(batch).logp(actions_of(batch)).double()

    def _learn(self, learnt: Tensor, held: Tensor, options: CloneFit) -> int:
        """Fit until the loss of the held steps grows; keep the best weights. The updates that gave them."""
        least, best, best_at = float("inf"), copy.deepcopy(self._module.state_dict()), 0
        for update in self._fitting(learnt, options, begun=0):
            if update % _EVERY == 0:
                loss = -float(map_steps(self._window, self.logp, held).mean())
                if loss < least:
                    least, best, best_at = loss, copy.deepcopy(self._module.state_dict()), update
                if update - best_at >= options.patience:
                    break
        self._module.load_state_dict(best)
        return best_at

    def _repeat(self, steps: Tensor, options: CloneFit, updates: int) -> None:
        """Learn as much as in the first `updates` of the first fit, the rate decaying to 0: what is left of noise in
        the weights would multiply along each episode.
        """
        learnt = math.sin(math.pi * updates / options.updates) * options.updates / math.pi
        as_much = round(updates + learnt)  # of equal sum of learning rates
        for _ in self._fitting(steps, replace(options, updates=as_much), begun=options.updates):
            pass

    def _fitting(self, steps: Tensor, options: CloneFit, begun: int) -> Iterator[int]:
        return fit(
            self._module,
            steps,
            options,
            self._loss,
            generator=self._generator,
            check=lambda update: self._check(begun + update),
        )

    @torch.no_grad()
    def _calibration(self, held: Tensor) -> Calibration:
        batch = self._window.gather(held)
        logp = self._distribution(batch).logp(actions_of(batch))
        ranks = self._ranks(batch).sort().values
        even = (torch.arange(len(ranks)) + 0.5) / len(ranks)
        return Calibration(-float(logp.mean()), float((ranks - even).abs().max()))

    def _loss(self, steps: Tensor) -> Tensor:
        batch = self._window.gather(steps)
        return -self._distribution(batch).logp(actions_of(batch)).mean()

    def _distribution(self, batch: Batch) -> Distribution:
        return self._module.distribution(self._module.forward_train(batch)["action_dist_inputs"])

    def _ranks(self, batch: Batch) -> Tensor:
        """`[B]` share of the clone's own samples that are likelier than the recorded action, ties cut at random."""
        distribution, rows = self._distribution(batch), len(batch["rewards"])
        taken = distribution.logp(actions_of(batch))
        below, level = torch.zeros(rows), torch.zeros(rows)
        for _ in range(_SAMPLES):
            noise = sample_noise(self._module, batch, self._generator)
            drawn = distribution.logp(distribution.sample(noise))
            below += drawn > taken
            level += drawn == taken
        return (below + level * torch.rand(rows, generator=self._generator)) / _SAMPLES


def _new_module(policy: Policy, options: CloneFit, seed: int) -> RLModule:
    module = policy.module
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ModelSpec(fcnet_hiddens=list(options.hiddens), fcnet_activation="relu")
        return build_module(module.observation_space, module.action_space, model, False)


def _apart(window: WindowData, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The steps of nine episodes in ten, and of the others."""
    episodes = len(window.length)
    order = torch.randperm(episodes, generator=generator)
    held = torch.zeros(episodes, dtype=torch.bool)
    held[order[: max(1, episodes // 10)]] = True
    return steps_of_episodes(window, ~held), steps_of_episodes(window, held)
