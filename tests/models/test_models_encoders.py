from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from hindcast.api.model import ModelSpec
from hindcast.episodes.nested import flatten
from hindcast.errors import SpecError
from hindcast.models.encoders import Encoder

WITHOUT_LAYERS = ModelSpec(fcnet_hiddens=[])
ONE_LAYER = ModelSpec(fcnet_hiddens=[8])


def _make_batch(space: Space, count: int = 3) -> dict[str, torch.Tensor]:
    space.seed(0)
    samples = [flatten(space.sample(), "obs") for _ in range(count)]
    return {leaf: torch.from_numpy(np.stack([sample[leaf] for sample in samples])) for leaf in samples[0]}


def test_leaves_are_flattened_or_one_hot_and_concatenated() -> None:
    space = Dict(a=Box(-1.0, 1.0, (2, 2)), b=Discrete(3, start=5), c=MultiDiscrete([2, 4]), d=MultiBinary(2))
    batch = {
        "obs/a": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]),
        "obs/b": torch.tensor([6]),
        "obs/c": torch.tensor([[1, 3]]),
        "obs/d": torch.tensor([[1, 0]], dtype=torch.int8),
    }
    features = Encoder(space, WITHOUT_LAYERS)(batch)
    assert features.tolist() == [[1, 2, 3, 4, 0, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0]]


def test_float64_observations_are_computed_in_float32() -> None:
    encoder = Encoder(Box(-1.0, 1.0, (4,), dtype=np.float64), ONE_LAYER)
    assert encoder(_make_batch(Box(-1.0, 1.0, (4,), dtype=np.float64))).dtype == torch.float32


def test_uint8_observations_are_divided_by_their_bound() -> None:
    encoder = Encoder(Box(0, 255, (3,), dtype=np.uint8), WITHOUT_LAYERS)
    features = encoder({"obs": torch.tensor([[0, 51, 255]], dtype=torch.uint8)})
    torch.testing.assert_close(features, torch.tensor([[0.0, 0.2, 1.0]]))


@pytest.mark.parametrize("side", [4, 7, 10, 15, 36, 42, 64, 84, 96])
@pytest.mark.parametrize("channels", [1, 4])
def test_images_of_common_sizes_have_default_filters(side: int, channels: int) -> None:
    space = Box(0, 255, (side, side, channels), dtype=np.uint8)
    encoder = Encoder(space, ONE_LAYER)
    assert any(isinstance(layer, torch.nn.Conv2d) for layer in encoder.modules())
    features = encoder(_make_batch(space))
    assert features.shape == (3, 8)
    assert torch.isfinite(features).all()


def test_images_are_channels_last() -> None:
    space = Box(0.0, 1.0, (5, 9, 2))
    encoder = Encoder(space, ModelSpec(fcnet_hiddens=[], conv_filters=[[1, 1, 1]], conv_activation="linear"))
    convolution = next(layer for layer in encoder.modules() if isinstance(layer, torch.nn.Conv2d))
    images = torch.rand(3, 5, 9, 2)
    expected = (images @ convolution.weight.flatten() + convolution.bias).flatten(1)
    torch.testing.assert_close(encoder({"obs": images}), expected)


def test_filters_too_large_for_the_image_are_refused() -> None:
    with pytest.raises(SpecError, match=r"\[8, 5, 2\] leaves nothing of the 8x8 images of 'obs'"):
        Encoder(Box(0, 255, (8, 8, 1), dtype=np.uint8), ModelSpec(conv_filters=[[8, 5, 2], [8, 5, 2]]))


def test_text_observation_is_refused() -> None:
    space = Dict(image=Box(0, 255, (7, 7, 3), dtype=np.uint8), mission=Text(20))
    with pytest.raises(SpecError, match="'obs/mission' is a Text space"):
        Encoder(space, ONE_LAYER)


@pytest.mark.parametrize(
    "space",
    [
        Box(-1.0, 1.0, ()),
        Box(-1.0, 1.0, (2, 2, 2)),
        Discrete(7),
        MultiDiscrete([[2, 3], [2, 3]]),
        MultiBinary((2, 3)),
        Tuple((Discrete(2), Dict(x=Box(0, 255, (12, 12, 3), dtype=np.uint8), y=Box(-1.0, 1.0, (3,))))),
    ],
    ids=str,
)
def test_any_leading_dimensions_are_accepted(space: Space) -> None:
    torch.manual_seed(0)
    encoder = Encoder(space, ONE_LAYER)
    batch = _make_batch(space, 6)
    sequences = {leaf: rows.reshape(2, 3, *rows.shape[1:]) for leaf, rows in batch.items()}
    torch.testing.assert_close(encoder(sequences).reshape(6, 8), encoder(batch))
