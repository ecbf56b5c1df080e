"""Custom pre-learners for files without timesteps, named in resources as "media_mappers:Name"."""

import uuid
from typing import Any

import numpy as np

from hindcast import SCHEMA, OfflinePreLearner, SingleAgentEpisode


class Words(OfflinePreLearner):
    """RLlib's documented example: each line becomes an episode, in which the next word is the action."""

    @staticmethod
    def _map_to_episodes(  # noqa: PLR0917
        is_multi_agent: bool,
        batch: dict[str, np.ndarray],
        schema: dict[str, str] = SCHEMA,
        to_numpy: bool = False,
        input_compress_columns: list[str] | None = None,
        observation_space: Any = None,
        action_space: Any = None,
        vocabulary: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, list[SingleAgentEpisode]]:
        if not vocabulary:
            raise ValueError("no vocabulary")
        episodes = []
        for text in batch["text"]:
            tokens = text.split(" ")
            token_ids = [vocabulary[token] for token in tokens]
            one_hot = np.zeros((len(tokens), len(vocabulary)), dtype=np.float32)
            for i, token in enumerate(tokens):
                one_hot[i][vocabulary[token] - 1] = 1.0
            episode = SingleAgentEpisode(
                id_=uuid.uuid4().hex,
                observations=list(one_hot),
                observation_space=observation_space,
                actions=token_ids[1:],
                action_space=action_space,
                rewards=[0.0 for _ in range(len(token_ids) - 2)] + [1.0],
                terminated=True,
                truncated=False,
                len_lookback_buffer=0,
                t_started=0,
            )
            if to_numpy:
                episode.to_numpy()
            episodes.append(episode)
        return {"episodes": episodes}


class Frames(OfflinePreLearner):
    """Converts the images of a folder to an episode."""

    @classmethod
    def map_rows(cls, rows, name="episode"):
        frames = rows["image"]
        num_steps = len(frames) - 1
        return [
            SingleAgentEpisode(
                f"{name} {rows['path'][0]}",
                observations=list(frames),
                actions=[0] * num_steps,
                rewards=[float(frame.mean()) for frame in frames[1:]],
                truncated=True,
                len_lookback_buffer=0,
            )
        ]


class Bytes(OfflinePreLearner):
    """Converts each file to an episode with its bytes as observations."""

    @classmethod
    def map_rows(cls, rows):
        return [
            SingleAgentEpisode(
                path,
                observations=[np.array([byte], dtype=np.uint8) for byte in data],
                actions=[0] * (len(data) - 1),
                rewards=[0.0] * (len(data) - 1),
                terminated=True,
                len_lookback_buffer=0,
            )
            for path, data in zip(rows["path"], rows["bytes"], strict=True)
        ]


class NoRowMapper(OfflinePreLearner):
    """Does not override `map_rows`."""


class ArrayMapper(OfflinePreLearner):
    """Returns an array instead of episodes."""

    @classmethod
    def map_rows(cls, rows):
        return rows["text"]


class NoPreLearner:
    """Does not derive from `OfflinePreLearner`."""
