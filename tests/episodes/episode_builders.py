"""Episodes for tests: observation t is [t, t], action t is t, reward t is float(t), info t is {"i": t}."""

import numpy as np
from gymnasium import spaces

from hindcast.episodes.episode import SingleAgentEpisode

OBSERVATIONS = spaces.Box(-100, 100, (2,), np.float32)
ACTIONS = spaces.Discrete(10)


def observation(t: int) -> np.ndarray:
    return np.full(2, t, np.float32)


def make_episode(steps: int = 6, numpy: bool = False, **changes) -> SingleAgentEpisode:
    arguments = {
        "id_": "e",
        "observations": [observation(t) for t in range(steps + 1)],
        "actions": list(range(steps)),
        "rewards": [float(t) for t in range(steps)],
        "infos": [{"i": t} for t in range(steps + 1)],
        "extra_model_outputs": {"logp": [t / 4 for t in range(steps)]},
        "observation_space": OBSERVATIONS,
        "action_space": ACTIONS,
        "len_lookback_buffer": 0,
        **changes,
    }
    episode = SingleAgentEpisode(**arguments)
    return episode.to_numpy() if numpy else episode


def add_step(episode: SingleAgentEpisode, t: int, **changes) -> None:
    """Add the step from observation t to t + 1."""
    arguments = {"infos": {"i": t + 1}, "extra_model_outputs": {"logp": t / 4}, **changes}
    episode.add_env_step(observation(t + 1), t, float(t), **arguments)


def first_entries(observations) -> list[float]:
    """Return the first entry of each observation."""
    return [float(item[0]) for item in observations]


def contents(episode: SingleAgentEpisode) -> dict:
    """Return all data of an episode, lookback included, as plain values."""
    buffers = {
        "actions": episode.actions,
        "rewards": episode.rewards,
        **episode.extra_model_outputs,
    }
    return {
        "id": episode.id_,
        "t": (episode.t_started, episode.t),
        "lookback": episode.rewards.lookback,
        "done": (episode.is_terminated, episode.is_truncated),
        "observations": first_entries(episode.observations.data),
        "infos": list(episode.infos.data),
        **{name: [float(value) for value in buffer.data] for name, buffer in buffers.items()},
    }
