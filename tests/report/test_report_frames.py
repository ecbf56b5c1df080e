"""Frames of recorded images, and of an episode of the trained policy, in reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hindcast.datasets.inspection.frames import MAX_FRAMES, choose_frames, is_image
from hindcast.report import rollout
from hindcast.report.canvas import DARK, LIGHT, render
from hindcast.report.rollout import rollout_picture
from support import make_policy, training
from toy_environments import Walk

RENDERED = {"id": "test_report_frames:RenderedWalk", "kwargs": {"render_mode": "rgb_array"}}
PIXELS = {"id": "toy_environments:Frames"}


class RenderedWalk(Walk):
    """A `Walk` that can be seen; `fails` makes rendering raise."""

    def __init__(self, render_mode: str | None = None, longest: int = 12, fails: bool = False) -> None:
        super().__init__(longest, longest)
        self.render_mode, self._fails = render_mode, fails

    def render(self) -> np.ndarray:
        if self._fails:
            raise OSError("no display")
        return np.full((40, 60, 3), self._t % 256, np.uint8)


def show(environment: dict[str, Any], folder: Any) -> Any:
    policy = make_policy(environment)
    policy.save(folder / "policy")
    resource = training(folder, "data", environment=environment, evaluation={"interval": 1})
    return rollout_picture(resource, str(folder / "policy"))


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("shape", [(4, 4, 1), (300, 40, 3), (84, 84, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int16])
def test_frames_span_an_episode_in_bounded_size(length, shape, dtype):
    rng = np.random.default_rng(0)
    observations = (rng.random((length, *shape)) * 250).astype(dtype)
    if dtype == np.float32:
        observations[0, 0, 0, -1] = np.nan
    frames = choose_frames("e", observations, first_timestep=5)
    assert len(frames.images) == len(frames.timesteps) == min(length, MAX_FRAMES)
    assert (frames.timesteps[0], frames.timesteps[-1]) == (5, 5 + length - 1)
    for image in frames.images:
        assert image.dtype == np.uint8 and max(image.shape[:2]) <= 128
        assert image.shape[2:] == ((3,) if shape[2] == 3 else ())


@pytest.mark.parametrize(
    ("shape", "expected"), [((4, 4, 1), True), ((3, 84, 84), False), ((5,), False), ((8, 8), False)]
)
def test_image_is_recognised_by_shape(shape, expected):
    assert is_image(shape) is expected


def test_rollout_shows_what_the_environment_renders(tmp_path):
    picture = show(RENDERED, tmp_path)
    assert picture.title.startswith("An episode of the policy: 12 timesteps, return ")
    assert picture.caption == f"Renderings of the environment: {MAX_FRAMES} of 13 images"
    light, dark = render(picture, LIGHT), render(picture, DARK)
    assert light != dark and max(len(light), len(dark)) < 300_000


def test_rollout_shows_images_that_the_policy_sees(tmp_path):
    assert show(PIXELS, tmp_path).caption.startswith("Observations of the policy")


def test_rollout_of_an_endless_episode_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout, "_MAX_STEPS", 300)
    environment = {**RENDERED, "kwargs": {"render_mode": "rgb_array", "longest": 10_000}}
    picture = show(environment, tmp_path)
    assert picture.title.startswith("The first 300 timesteps of an episode of the policy")
    assert picture.caption == f"Renderings of the environment: {MAX_FRAMES} of 301 images"


def test_rollout_that_cannot_be_seen_is_not_played(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout, "make_environment", None)
    assert show({"id": "toy_environments:Walk"}, tmp_path) is None


def test_failure_of_a_rollout_is_a_warning(tmp_path, caplog):
    assert show({**RENDERED, "kwargs": {"render_mode": "rgb_array", "fails": True}}, tmp_path) is None
    assert "The report shows no episode of the policy (OSError: no display)." in caplog.text
