"""Play an episode of a trained policy for the report, if there are images of it: observations or renderings."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.api import OfflineTraining
from hindcast.datasets.inspection.frames import MAX_FRAMES, Frames, is_image, to_pictures
from hindcast.episodes.columns import Columns
from hindcast.episodes.nested import flatten
from hindcast.episodes.spaces import flatten_space
from hindcast.models.policy import Policy
from hindcast.record.environments import make_environment
from hindcast.record.seeding import reset_seed
from hindcast.report.canvas import Picture
from hindcast.report.data_plots import frames_picture

_LOG = logging.getLogger("hindcast")
_MAX_STEPS: Final = 2_000
_MAX_SECONDS: Final = 20.0
_RENDER_MODE: Final = "rgb_array"


def rollout_picture(training: OfflineTraining, checkpoint: str | None) -> Picture | None:
    """Play an episode with a policy, for up to 20 seconds, and return a picture of it.

    Args:
        training: the training, which evaluates in its environment.
        checkpoint: path of the policy; None without one.

    Returns:
        None if there is nothing to see, or after a warning if it fails: the training itself has finished.
    """
    spec = training.spec
    if checkpoint is None or spec.environment is None:
        return None
    try:
        module_class = spec.model.module_class
        policy = Policy.load(checkpoint, allow_classes=[module_class] if module_class else [])
        is_rendered = spec.environment.kwargs.get("render_mode") == _RENDER_MODE
        leaf_spaces = flatten_space(policy.observation_space, Columns.OBS).values()
        if not is_rendered and not any(is_image(leaf.shape or ()) for leaf in leaf_spaces):
            return None
        environment = make_environment(spec.environment)
        try:
            explore = spec.evaluation is not None and spec.evaluation.explore
            title, frames = _play(policy, environment, explore, is_rendered, spec.seed)
        finally:
            environment.close()
    except Exception as error:  # also of the user's environment
        _LOG.warning("The report shows no episode of the policy (%s: %s).", type(error).__name__, error)
        return None
    return frames_picture(
        frames, title, "Renderings of the environment" if is_rendered else "Observations of the policy"
    )


def _play(
    policy: Policy, environment: gym.Env, explore: bool, is_rendered: bool, seed: int
) -> tuple[str, Frames]:
    """Return the result of an episode as a sentence, and frames spread evenly over it."""
    deadline = time.monotonic() + _MAX_SECONDS
    policy.reset(seed)
    observation, _ = environment.reset(seed=reset_seed(seed, "rollout"))
    episode_return, reward, timestep, is_over = 0.0, 0.0, 0, False
    images: dict[int, NDArray[Any]] = {}
    stride = 1

    def keep_frame() -> None:
        image = environment.render() if is_rendered else _find_image(observation)
        images[timestep] = np.array(image)

    keep_frame()
    while not is_over and timestep < _MAX_STEPS and time.monotonic() < deadline:
        action = policy(observation, explore=explore, reward=reward)
        observation, reward, terminated, truncated, _ = environment.step(action)
        is_over = terminated or truncated
        episode_return += float(reward)
        timestep += 1
        if is_over or timestep % stride == 0:
            keep_frame()
        if len(images) > 2 * MAX_FRAMES:  # bounded, although the length of the episode is not known yet
            stride *= 2
            images = {t: image for t, image in images.items() if t % stride == 0 or t == timestep}
    chosen_images = np.linspace(0, len(images) - 1, min(MAX_FRAMES, len(images))).round().astype(np.int64)
    timesteps = np.array(list(images))[chosen_images].tolist()
    frames = Frames("", timesteps, to_pictures([images[t] for t in timesteps]), timestep + 1)
    amount = formatting.plural(timestep, "timestep")
    return_text = formatting.significant(episode_return)
    if is_over:
        return f"An episode of the policy: {amount}, return {return_text}", frames
    return f"The first {amount} of an episode of the policy: return {return_text}", frames


def _find_image(observation: Any) -> NDArray[Any] | None:
    """Return the first image of an observation."""
    leaves: Mapping[str, Any] = flatten(observation, Columns.OBS)
    return next((leaf for leaf in leaves.values() if is_image(np.shape(leaf))), None)
