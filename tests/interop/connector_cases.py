"""Pipelines of connectors, written once for the libraries of RLlib and Hindcast; it imports neither of them."""

import gymnasium as gym
import numpy as np
import torch

VECTORS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
FRAMES = gym.spaces.Box(-np.inf, np.inf, (5, 6, 1), np.float32)
NESTED = gym.spaces.Dict(
    a=gym.spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
    b=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3])]),
    c=gym.spaces.Box(-np.inf, np.inf, (), np.float32),
)
ACTIONS = gym.spaces.Discrete(2)
DEFAULTS = (
    ("AddObservationsFromEpisodesToBatch", {"as_learner_connector": True}),
    ("AddColumnsFromEpisodesToTrainBatch", {}),
    ("BatchIndividualItems", {"multi_agent": False}),
    ("NumpyToTensor", {"as_learner_connector": True}),
)
GAE = "GeneralAdvantageEstimation"
LONGER = ("AddOneTsToEpisodesAndTruncate", {})

CASES = {
    "defaults": (VECTORS, DEFAULTS),
    "next": (VECTORS, (("AddNextObservationsFromEpisodesToTrainBatch", {}), *DEFAULTS)),
    "returns 0": (VECTORS, (("ComputeReturnsToGo", {"gamma": 0.0}), *DEFAULTS)),
    "returns 0.9": (VECTORS, (("ComputeReturnsToGo", {"gamma": 0.9}), *DEFAULTS)),
    "returns 1": (VECTORS, (("ComputeReturnsToGo", {"gamma": 1.0}), *DEFAULTS)),
    "frames 3": (
        FRAMES,
        (("FrameStackingLearner", {"num_frames": 3, "as_learner_connector": True}), *DEFAULTS),
    ),
    "flat": (NESTED, (("FlattenObservations", {"as_learner_connector": True}), *DEFAULTS)),
    "flat without b": (
        NESTED,
        (("FlattenObservations", {"as_learner_connector": True, "keys_to_remove": ["b"]}), *DEFAULTS),
    ),
    "arrays": (VECTORS, (*DEFAULTS, ("TensorToNumpy", {}))),
    **{
        f"gae {gamma} {lambda_}": (VECTORS, (LONGER, *DEFAULTS, (GAE, {"gamma": gamma, "lambda_": lambda_})))
        for gamma, lambda_ in ((0.99, 1.0), (0.9, 0.5), (0.1, 0.0), (1.0, 0.95))
    },
}


def make_episodes(episode_class, space):
    """Return a terminated, a truncated and a short episode; observations follow from the space's seed."""
    rng, episodes = np.random.default_rng(0), []
    space.seed(0)
    # RLlib's FlattenObservations fails on episodes of several steps, and on arrays.
    is_nested = isinstance(space, gym.spaces.Dict)
    for index, num_steps in enumerate((1, 1, 1) if is_nested else (4, 6, 1)):
        episode = episode_class(
            id_=f"e{index}",
            observation_space=space,
            action_space=ACTIONS,
            observations=[space.sample() for _ in range(num_steps + 1)],
            actions=rng.integers(0, 2, num_steps).tolist(),
            rewards=rng.normal(size=num_steps).tolist(),
            terminated=index != 1,
            truncated=index == 1,
            len_lookback_buffer=0,
        )
        if not is_nested:
            episode.to_numpy()
        episodes.append(episode)
    return episodes


def make_value_network(base):
    class Net(base):
        def compute_values(self, batch, embeddings=None):
            return torch.as_tensor(batch["obs"]) @ torch.arange(1.0, 5.0)

        def is_stateful(self):
            return False

    return Net


def run_case(name, library, episode_class, make_module):
    """Return `{column: array}` of a case. A time step that `LONGER` adds is removed."""
    space, pieces = CASES[name]
    pipeline = library.LearnerConnectorPipeline(space, ACTIONS, connectors=[])
    for piece, arguments in pieces:
        # RLlib's FrameStackingLearner fails if it gets spaces.
        spaces = (space, ACTIONS) if piece == "FlattenObservations" else ()
        pipeline.append(getattr(library, piece)(*spaces, **arguments))
    module = make_module(space)
    batch = pipeline(
        rl_module=module,
        batch={},
        episodes=make_episodes(episode_class, space),
        explore=False,
        shared_data={},
    )
    columns = batch["default_policy"]
    mask = columns.pop("loss_mask", None)
    columns = {column: np.asarray(value) for column, value in columns.items() if not isinstance(value, dict)}
    return columns if mask is None else {column: value[np.asarray(mask)] for column, value in columns.items()}
