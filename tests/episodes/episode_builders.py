"""Episodes for tests: observation t is [t, t], action t is t, reward t is float(t), info t is {"i": t}."""

import numpy as np
from gymnasium import spaces

from hindcast.episodes.episode import SingleAgentEpisode

OBSERVATION_SPACE = spaces.Box(-100, 100, (2,), np.float32)
ACTION_SPACE = spaces.Discrete(10)


def make_observation(t: int) -> np.ndarray:
    """Make observation t."""
    return np.full(2, t, np.float32)


def make_episode(num_steps: int = 6, is_numpy: bool = False, **changes) -> SingleAgentEpisode:
    """Make the episode `e`, in list or NumPy mode; `changes` are other arguments of `SingleAgentEpisode`."""
    arguments = {
        "id_": "e",
        "observations": [make_observation(t) for t in range(num_steps + 1)],
        "actions": list(range(num_steps)),
        "rewards": [float(t) for t in range(num_steps)],
        "infos": [{"i": t} for t in range(num_steps + 1)],
        "extra_model_outputs": {"logp": [t / 4 for t in range(num_steps)]},
        "observation_space": OBSERVATION_SPACE,
        "action_space": ACTION_SPACE,
        "len_lookback_buffer": 0,
        **changes,
    }
    episode = SingleAgentEpisode(**arguments)
    return episode.to_numpy() if is_numpy else episode


def add_step(episode: SingleAgentEpisode, t: int, **changes) -> None:
    """Add the step from observation t to t + 1; `changes` are other arguments of `add_env_step`."""
    arguments = {"infos": {"i": t + 1}, "extra_model_outputs": {"logp": t / 4}, **changes}
    episode.add_env_step(make_observation(t + 1), t, float(t), **arguments)


def first_entries(observations) -> list[float]:
    """Return the first entry of each observation."""
    return [float(item[0]) for item in observations]


def get_contents(episode: SingleAgentEpisode) -> dict:
    """Return all data of an episode, lookback included, as plain values."""
    buffers = {"actions": episode.actions, "rewards": episode.rewards, **episode.extra_model_outputs}
    return {
        "id": episode.id_,
        "t": (episode.t_started, episode.t),
        "lookback": episode.rewards.lookback,
        "done": (episode.is_terminated, episode.is_truncated),
        "observations": first_entries(episode.observations.data),
        "infos": list(episode.infos.data),
        **{name: [float(value) for value in buffer.data] for name, buffer in buffers.items()},
    }
