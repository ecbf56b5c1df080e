"""The tasks of the scoreboard: environments, their data, algorithms with their options, the board's pieces.

A piece is one training: who (ours or a rival), algorithm, data, seed. All have the same files, updates, batches of 256,
networks and learning rates; other options are each library's defaults, but for those that stand here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

SEEDS = range(6)
OURS, D3RLPY, RLLIB = "Hindcast", "d3rlpy", "RLlib"
NEXT_STATE_CQL = "CQL, next-state gap"
"""RLlib's objective; d3rlpy's CQL is the authors'."""
JUDGES = "-judges"
"""Ends the names of recordings of the same behaviour that policies are judged by and never trained on."""


@dataclass(frozen=True)
class Stage:
    """A recording of one moment of SAC's training.

    Attributes:
        updates: SAC had made; None plays at random.
        episodes: to record, sampled as SAC explores.
    """

    updates: int | None
    episodes: int


@dataclass(frozen=True)
class Environment:
    """An environment and its trainings.

    Attributes:
        id: Gymnasium's.
        sac: options of the SAC that plays the data.
        sac_iterations: of `sac_updates` updates each; the SAC of each iteration's end is kept.
        sac_updates: of an iteration.
        data: recordings by the name of the data that they make together.
        judged: whether as much is recorded once more, to judge policies by.
        reference: returns whose scores are 0 and 100; None for the means of the data `random` and `expert`.
        hidden: widths of all networks.
        rate: learning rate of all networks.
        updates: of each training.
        shares: of the updates, for algorithms whose updates cost several times as much as the others'.
        every: updates between evaluations, of which such an algorithm has as many.
        episodes: of each evaluation, from the same initial states always.
        algorithms: those on the board.
        rivals: who trains there besides us, of `SHARED`.
        models: over `MODELS`.
    """

    id: str
    sac: Mapping[str, Any]
    sac_iterations: int
    sac_updates: int
    data: Mapping[str, tuple[Stage, ...]]
    judged: bool
    reference: tuple[float, float] | None
    hidden: tuple[int, ...]
    rate: float
    updates: int
    shares: Mapping[str, float]
    every: int
    episodes: int
    algorithms: tuple[str, ...]
    rivals: tuple[str, ...]
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


REPLAY = (500, 1000, 1500, 1750, 2000, 2250, 2500, 2750, 3000, 5000)


IQLS_OWN: Mapping[str, Any] = {
    "distribution": "boundedGaussian",
    "free_log_std": True,
    "log_std_min": -5.0,
    "log_std_max": 2.0,
}
"""The policy of IQL's paper, which is d3rlpy's, too."""


def mujoco(name: str, reference: tuple[float, float], *, medium: int) -> Environment:
    """Hopper or HalfCheetah: networks and rates of the papers, fewer updates than theirs.

    Args:
        name: Gymnasium's.
        reference: D4RL's (arXiv 2004.07219) returns of the random and the expert policy, by which papers score.
        medium: updates after which SAC is recorded as `medium`; `replay` has ten equal steps up to there.
    """
    return Environment(
        name,
        sac={"trainBatchSizePerLearner": 256},
        sac_iterations=medium // 1_000,
        sac_updates=1_000,
        data={
            "medium": (Stage(medium, 100),),
            "replay": tuple(Stage(medium * tenth // 10, 20) for tenth in range(1, 11)),
        },
        judged=False,
        reference=reference,
        hidden=(256, 256),
        rate=3e-4,
        updates=20_000,
        shares={"CQL": 0.25},
        every=5_000,
        episodes=10,
        algorithms=("BC", "10% BC", "TD3BC", "ReBRAC", "IQL", "CQL"),
        rivals=(D3RLPY,),
    )


ENVIRONMENTS = {
    "pendulum": Environment(
        "Pendulum-v1",
        sac={
            "actorLr": 1e-3,
            "criticLr": 1e-3,
            "alphaLr": 1e-3,
            "trainBatchSizePerLearner": 128,
        },
        sac_iterations=40,
        sac_updates=250,
        data={
            "expert": (Stage(10_000, 100),),
            "medium": (Stage(2_000, 100),),
            "replay": tuple(Stage(updates, 10) for updates in REPLAY),
            "random": (Stage(None, 100),),
        },
        judged=True,
        reference=None,
        hidden=(64, 64),
        rate=1e-3,
        updates=5_000,
        shares={"DecisionTransformer": 0.4},
        every=1_000,
        episodes=20,
        algorithms=(
            "BC",
            "10% BC",
            "MARWIL",
            "TD3BC",
            "ReBRAC",
            "IQL",
            "CQL",
            NEXT_STATE_CQL,
            "SAC",
            "FQL",
            "DecisionTransformer",
        ),
        rivals=(D3RLPY, RLLIB),
    ),
    # The squashed Gaussian, with which IQL learns more in Pendulum, ends at a return of 79 on the medium data of seed 1
    # here, and the paper's policy at 541.
    "hopper": replace(mujoco("Hopper-v5", (-20.272305, 3234.3), medium=60_000), models={"IQL": IQLS_OWN}),
    "halfcheetah": mujoco("HalfCheetah-v5", (-280.178953, 12135.0), medium=40_000),
}

RATES = {
    "BC": ("lr",),
    "MARWIL": ("lr",),
    "IQL": ("actor_lr", "critic_lr", "value_lr"),
    "TD3BC": ("actor_lr", "critic_lr"),
    "ReBRAC": ("actor_lr", "critic_lr"),
    "FQL": ("actor_lr", "critic_lr"),
    "CQL": ("actor_lr", "critic_lr", "alpha_lr"),
    "SAC": ("actor_lr", "critic_lr", "alpha_lr"),
    "DecisionTransformer": ("lr",),
}
"""The options that hold an algorithm's learning rates."""

BATCH = 256
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "FQL": {"alpha": 3.0, "normalize_q_loss": True},
    NEXT_STATE_CQL: {"next_state_gap": True},
    "DecisionTransformer": {"train_batch_size_per_learner": 640, "embed_size": 64, "context_length": 10},
}
"""Options of ours where neither the common rates and batches nor the defaults will do."""

BETAS = {"expert": 0.1, "medium": 0.01, "replay": 0.01, "random": 0.01}
"""ReBRAC's weights of its actor's and its critics' penalty, in both libraries. Its paper chooses them for each dataset;
these are its choices for Hopper's datasets of the same names, fixed before the board was run."""

MODELS: Mapping[str, Mapping[str, Any]] = {
    "BC": {"distribution": "squashedDeterministic"},
    "TD3BC": {"observation_filter": "MeanStdFilter"},
    "IQL": {"distribution": "squashedGaussian"},
    "MARWIL": {"distribution": "squashedGaussian"},
    "DecisionTransformer": {"fcnet_hiddens": [], "observation_filter": "MeanStdFilter"},
}
"""The paper's, and those of d3rlpy's defaults. Its BC fits actions within their bounds by squared error. It gets a
scaler of observations for TD3+BC, and bounds the mean of IQL's policy by itself: where a few heavily weighted actions
lie at their bounds, a mean without bounds strays."""

GREEDY = ("BC", "TD3BC", "ReBRAC")
"""Policies without a density: all others are judged offline as they sample."""

UNJUDGED = ("DecisionTransformer",)
"""Policies with a memory, which no model judges, and whose ratios over 200 steps say nothing."""

EXPLORING = ("FQL",)
"""Policies that are evaluated as they sample: FQL's maps noise to actions, as its authors evaluate it."""

SHARED: Mapping[str, tuple[str, ...]] = {
    D3RLPY: ("BC", "10% BC", "TD3BC", "ReBRAC", "IQL", "CQL", "SAC"),
    RLLIB: ("BC", "10% BC", "IQL", NEXT_STATE_CQL, "SAC"),
}
"""Those that a rival trains, too. RLlib's MARWIL takes its value targets from its own pipeline."""


class Piece(NamedTuple):
    """One training of the board."""

    who: str
    environment: str
    data: str
    algorithm: str
    seed: int

    @property
    def trained(self) -> str:
        """The algorithm's name where the library has it."""
        return self.algorithm.removeprefix("10% ").partition(",")[0]

    @property
    def top(self) -> float | None:
        """Share of the episodes that is learned from: those with the highest return; None for all."""
        return 0.1 if self.algorithm.startswith("10% ") else None

    @property
    def updates(self) -> int:
        """Number of updates of its training."""
        environment = ENVIRONMENTS[self.environment]
        return int(environment.updates * environment.shares.get(self.trained, 1.0))

    @property
    def every(self) -> int:
        """Updates between its evaluations."""
        environment = ENVIRONMENTS[self.environment]
        return environment.every * self.updates // environment.updates


def pieces() -> Iterator[Piece]:
    """All of them; of every algorithm the first seed, then the second."""
    for seed, (name, environment) in itertools.product(SEEDS, ENVIRONMENTS.items()):
        for data, algorithm in itertools.product(environment.data, environment.algorithms):
            yield Piece(OURS, name, data, algorithm, seed)
            for rival in environment.rivals:
                if algorithm in SHARED[rival]:
                    yield Piece(rival, name, data, algorithm, seed)
