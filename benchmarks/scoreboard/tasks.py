"""The tasks of the scoreboard: environments, their data, algorithms with their options, the board's pieces.

A piece is one training: who (Hindcast or a rival), environment, data, algorithm, seed. All have the same files,
updates, batches of 256, networks and learning rates; other options are each library's defaults, except those listed
here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

OURS, D3RLPY, RLLIB = "Hindcast", "d3rlpy", "RLlib"
NEXT_STATE_CQL = "CQL, next-state gap"
"""CQL with RLlib's objective; d3rlpy's has the authors' one."""
DEFAULTS = "-defaults"
"""Suffix of environments in which every algorithm is trained as it comes."""
JUDGES = "-judges"
"""Suffix of recordings of the same policies, which trained policies are judged by and never trained on."""


@dataclass(frozen=True)
class Stage:
    """A recording at one stage of SAC's training.

    Attributes:
        updates: number of updates that SAC had made; None plays at random.
        episodes: number of episodes to record, in which SAC samples its actions.
    """

    updates: int | None
    episodes: int


@dataclass(frozen=True)
class Environment:
    """An environment and its trainings.

    Attributes:
        id: Gymnasium id.
        sac_options: options of the SAC that plays the data.
        sac_iterations: number of SAC's iterations; a checkpoint is kept after each.
        sac_updates: updates per iteration of SAC.
        data: name of the data -> stages that are recorded for it.
        restore: sets the state of an environment to that of an observation; each of the data is then recorded a second
            time, to judge policies by. None judges none.
        reference_returns: returns with the scores 0 and 100; None for the means of the data `random` and `expert`.
        hidden_sizes: widths of the hidden layers of all networks.
        learning_rate: learning rate of all networks.
        updates: updates of each training.
        update_fractions: algorithm -> fraction of `updates` that it makes, since each takes several times as long.
        evaluation_interval: updates between evaluations; with fewer updates there are as many evaluations.
        evaluation_episodes: episodes of each evaluation, always from the same initial states.
        algorithms: the algorithms on the board.
        rivals: rival -> algorithms that it trains there too.
        models: algorithm -> model options that override `MODELS`.
        has_defaults_only: True if every library has its own defaults: networks, learning rates, batches and all other
            options, in place of the ones above.
        num_seeds: number of seeds.
    """

    id: str
    sac_options: Mapping[str, Any]
    sac_iterations: int
    sac_updates: int
    data: Mapping[str, tuple[Stage, ...]]
    restore: Callable[[Any, Any], None] | None
    reference_returns: tuple[float, float] | None
    hidden_sizes: tuple[int, ...]
    learning_rate: float
    updates: int
    update_fractions: Mapping[str, float]
    evaluation_interval: int
    evaluation_episodes: int
    algorithms: tuple[str, ...]
    rivals: Mapping[str, tuple[str, ...]]
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_defaults_only: bool = False
    num_seeds: int = 6


SHARED: Mapping[str, tuple[str, ...]] = {
    D3RLPY: ("BC", "10% BC", "TD3BC", "ReBRAC", "IQL", "CQL", "SAC"),
    RLLIB: ("BC", "10% BC", "IQL", NEXT_STATE_CQL, "SAC"),
}
"""Algorithms that a rival trains too. MARWIL is missing for RLlib, since its value targets come from its pipeline."""


REPLAY = (500, 1000, 1500, 1750, 2000, 2250, 2500, 2750, 3000, 5000)


IQL_PAPER_MODEL: Mapping[str, Any] = {
    "distribution": "boundedGaussian",
    "free_log_std": True,
    "log_std_min": -5.0,
    "log_std_max": 2.0,
}
"""The policy of IQL's paper, which d3rlpy also has."""


def mujoco(name: str, reference_returns: tuple[float, float], *, medium: int) -> Environment:
    """Return Hopper or HalfCheetah, with the papers' networks and learning rates, and fewer updates.

    Args:
        name: Gymnasium id.
        reference_returns: D4RL's (arXiv 2004.07219) returns of the random and the expert policy, by which papers score.
        medium: updates after which SAC is recorded as `medium`; `replay` has ten equal steps up to there.
    """
    return Environment(
        name,
        sac_options={"trainBatchSizePerLearner": 256},
        sac_iterations=medium // 1_000,
        sac_updates=1_000,
        data={
            "medium": (Stage(medium, 100),),
            "replay": tuple(Stage(medium * tenth // 10, 20) for tenth in range(1, 11)),
        },
        restore=None,
        reference_returns=reference_returns,
        hidden_sizes=(256, 256),
        learning_rate=3e-4,
        updates=20_000,
        update_fractions={"CQL": 0.25},
        evaluation_interval=5_000,
        evaluation_episodes=10,
        algorithms=("BC", "10% BC", "TD3BC", "ReBRAC", "IQL", "CQL"),
        rivals={D3RLPY: SHARED[D3RLPY]},
    )


def restore_pendulum(environment: Any, obs: Any) -> None:
    """Set the state of Pendulum to that of an observation: cosine, sine, angular velocity."""
    environment.unwrapped.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]], dtype=np.float64)


ENVIRONMENTS = {
    "pendulum": Environment(
        "Pendulum-v1",
        sac_options={
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
        restore=restore_pendulum,
        reference_returns=None,
        hidden_sizes=(64, 64),
        learning_rate=1e-3,
        updates=5_000,
        update_fractions={"DecisionTransformer": 0.4},
        evaluation_interval=1_000,
        evaluation_episodes=20,
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
        rivals=SHARED,
    ),
    # The squashed Gaussian, with which IQL learns more in Pendulum, reaches a return of 79 here on the medium data of
    # seed 1; the paper's policy reaches 541.
    "hopper": replace(
        mujoco("Hopper-v5", (-20.272305, 3234.3), medium=60_000), models={"IQL": IQL_PAPER_MODEL}
    ),
    "halfcheetah": mujoco("HalfCheetah-v5", (-280.178953, 12135.0), medium=40_000),
}

LOGS: Mapping[str, tuple[Stage, ...]] = {"log-good": (), "log-poor": (), "log-mixed": ()}
"""Logs of hand-written controllers; see `controllers.make_logs`."""

ENVIRONMENTS |= {
    "pendulum" + DEFAULTS: replace(
        ENVIRONMENTS["pendulum"],
        data={name: ENVIRONMENTS["pendulum"].data[name] for name in ("expert", "medium", "replay")} | LOGS,
        restore=None,
        reference_returns=(-1255.0, -155.0),
        updates=2_000,
        update_fractions={"ReBRAC": 0.5, "CQL": 0.5, "SAC": 0.5, "FQL": 0.5},
        algorithms=("BC", "MARWIL", "TD3BC", "ReBRAC", "IQL", "CQL", "SAC", "FQL"),
        rivals={D3RLPY: ("BC", "TD3BC", "ReBRAC", "IQL", "CQL", "SAC")},
        has_defaults_only=True,
        num_seeds=3,
    ),
    "cartpole" + DEFAULTS: Environment(
        "CartPole-v1",
        sac_options={},
        sac_iterations=0,
        sac_updates=0,
        data=LOGS,
        restore=None,
        reference_returns=(22.0, 500.0),
        hidden_sizes=(),
        learning_rate=0.0,
        updates=2_000,
        update_fractions={},
        evaluation_interval=1_000,
        evaluation_episodes=20,
        algorithms=("BC", "MARWIL", "IQL", "DQN", "DiscreteCQL", "DiscreteSAC"),
        rivals={D3RLPY: ("BC", "DQN", "DiscreteCQL", "DiscreteSAC")},
        has_defaults_only=True,
        num_seeds=3,
    ),
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
"""The options for each algorithm's learning rates."""

BATCH = 256
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "FQL": {"alpha": 3.0, "normalize_q_loss": True},
    NEXT_STATE_CQL: {"next_state_gap": True},
    "DecisionTransformer": {"train_batch_size_per_learner": 640, "embed_size": 64, "context_length": 10},
}
"""Hindcast's options that are neither common ones nor defaults."""

BETAS = {"expert": 0.1, "medium": 0.01, "replay": 0.01, "random": 0.01}
"""ReBRAC's weights of the actor's and the critics' penalty, in both libraries. Its paper chooses them for each dataset;
these are its choices for Hopper's datasets of the same names, fixed before the board was run."""

MODELS: Mapping[str, Mapping[str, Any]] = {
    "BC": {"distribution": "squashedDeterministic"},
    "TD3BC": {"observation_filter": "MeanStdFilter"},
    "IQL": {"distribution": "squashedGaussian"},
    "MARWIL": {"distribution": "squashedGaussian"},
    "DecisionTransformer": {"fcnet_hiddens": [], "observation_filter": "MeanStdFilter"},
}
"""Model options of the papers and of d3rlpy's defaults: BC fits bounded actions by squared error, TD3+BC normalises
observations, and the mean of IQL's policy is bounded, since it diverges if heavily weighted actions lie at the
bounds."""

GREEDY = ("BC", "TD3BC", "ReBRAC")
"""Algorithms whose policies have no density; all others sample when they are judged."""

UNJUDGED = ("DecisionTransformer",)
"""Algorithms whose policies have a memory: models cannot judge them, and ratios over 200 steps are meaningless."""


class Piece(NamedTuple):
    """One training of the board."""

    who: str
    environment: str
    data: str
    algorithm: str
    seed: int

    @property
    def data_folder(self) -> str:
        """The folder of the data, relative to that of all data."""
        return f"{self.environment.removesuffix(DEFAULTS)}/{self.data}"

    @property
    def algorithm_class(self) -> str:
        """The name of the algorithm's class, without variants."""
        return self.algorithm.removeprefix("10% ").partition(",")[0]

    @property
    def top(self) -> float | None:
        """Fraction of the episodes to learn from, those with the highest return; None for all."""
        return 0.1 if self.algorithm.startswith("10% ") else None

    @property
    def updates(self) -> int:
        """Number of updates."""
        environment = ENVIRONMENTS[self.environment]
        return int(environment.updates * environment.update_fractions.get(self.algorithm_class, 1.0))

    @property
    def evaluation_interval(self) -> int:
        """Number of updates between evaluations."""
        environment = ENVIRONMENTS[self.environment]
        return environment.evaluation_interval * self.updates // environment.updates


def all_pieces() -> Iterator[Piece]:
    """Yield all pieces: those of the first seed, then those of the second one, and so on."""
    for seed, (name, environment) in itertools.product(range(6), ENVIRONMENTS.items()):
        if seed >= environment.num_seeds:
            continue
        for data, algorithm in itertools.product(environment.data, environment.algorithms):
            yield Piece(OURS, name, data, algorithm, seed)
            for rival, rival_algorithms in environment.rivals.items():
                if algorithm in rival_algorithms:
                    yield Piece(rival, name, data, algorithm, seed)
