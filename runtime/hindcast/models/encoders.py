"""Encoders: map the leaves of an observation to one feature vector.

Shape suffixes: B = any leading dimensions, F = features, HWC = image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError
from hindcast.formatting import describe_type
from hindcast.models.initial_weights import LayerInitialisers, conv_initialiser, encoder_initialiser

ConvFilters = Sequence[Sequence[int]]


class _TanhInPlace(nn.Tanh):
    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh_(features)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": _TanhInPlace,
    "relu": partial(nn.ReLU, inplace=True),
    "silu": nn.SiLU,
    "elu": partial(nn.ELU, inplace=True),
    "gelu": nn.GELU,
    "linear": nn.Identity,
}
"""Name -> activation. An activation whose gradient needs only its output runs in place; this is safe because the layer
before it does not need its own output for its gradient."""
HIDDEN_GAIN = 2.0**0.5
"""Gain of the initial weights of hidden layers."""
_MAX_ONE_HOT_SIZE = 1 << 24
# (smallest side, filters as [channels out, kernel, stride]); the first are those of Mnih et al., Nature 2015.
_DEFAULT_FILTERS: tuple[tuple[int, ConvFilters], ...] = (
    (36, ((32, 8, 4), (64, 4, 2), (64, 3, 1))),
    (10, ((32, 4, 2), (64, 3, 1), (64, 2, 1))),
    (4, ((16, 2, 1), (32, 2, 1), (64, 2, 1))),
)


class Features(nn.Module):
    """Maps every leaf to a vector and concatenates the vectors.

    Boxes are flattened, except images (observations of rank 3, channels last), which first pass through convolutions:
    `conv_filters`, or a default by size, which requires sides of at least 4. uint8 boxes are divided by their largest
    upper bound. Discrete and MultiDiscrete become one-hot vectors, MultiBinary 0s and 1s. All features are float32.

    Args:
        space: the module's space (`Preprocessing.observation_space` or `action_space`).
        model: options; those of convolutions are used.
        column: column of the leaves; boxes can be images only in "obs".

    Attributes:
        output_size: number of features, F.

    Raises:
        SpecError: a leaf has no numeric values (Text), or the filters are too large for the image.
    """

    def __init__(self, space: gym.Space, model: ModelSpec, column: str = Columns.OBS) -> None:
        super().__init__()
        leaves = flatten_space(space, column)
        encoders = [
            _leaf_encoder(leaf, leaf_space, model, column == Columns.OBS)
            for leaf, leaf_space in leaves.items()
        ]
        self._names = list(leaves)
        self._leaves = nn.ModuleList(encoders)
        self.output_size = sum(encoder.output_size for encoder in encoders)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return `[B, F]` features of the space's leaves; other columns of the batch are ignored."""
        features = [encode(batch[name]) for name, encode in zip(self._names, self._leaves, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


class Encoder(Features):
    """`Features` of an observation, followed by the fully connected stack.

    Args:
        observation_space: the module's observation space.
        model: options; those of dense layers (such as `fcnet_hiddens`) and those of `Features` are used.

    Attributes:
        output_size: number of features, F.

    Raises:
        SpecError: see `Features`.
    """

    def __init__(self, observation_space: gym.Space, model: ModelSpec) -> None:
        super().__init__(observation_space, model)
        sizes = [self.output_size, *model.fcnet_hiddens]
        self._stack = fully_connected(sizes, model, encoder_initialiser(model))
        self.output_size = sizes[-1]

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return `[B, F]` features of the observation leaves in `batch`."""
        return self._stack(super().forward(batch))


def sees_images(space: gym.Space, model: ModelSpec) -> bool:
    """Return True if any observation passes through convolutions."""
    leaves = flatten_space(space, Columns.OBS).values()
    return any(isinstance(leaf, gym.spaces.Box) and _conv_filters(leaf, model) is not None for leaf in leaves)


def fully_connected(sizes: Sequence[int], model: ModelSpec, initialiser: LayerInitialisers) -> nn.Sequential:
    """Build linear layers from `sizes[0]` to `sizes[-1]`, each followed by dropout, normalisation and activation.

    A single size gives an empty stack. Initial weights are orthogonal with gain √2, or those of `initialiser`, drawn
    from torch's global generator.
    """
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers.append(linear(size_in, size_out, HIDDEN_GAIN, initialiser))
        layers += _layers_after_linear(size_out, model)
    return nn.Sequential(*layers)


class Dropout(nn.Dropout):
    """Dropout that applies only while gradients are computed.

    Targets within a loss are computed without gradients, but with the networks in training mode.
    """

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) if torch.is_grad_enabled() else features


def _layers_after_linear(size: int, model: ModelSpec) -> list[nn.Module]:
    """Return the layers after a linear layer, as at most one module."""
    # One module per linear layer keeps the names of weights the same with and without dropout.
    layers: list[nn.Module] = [Dropout(model.dropout)] if model.dropout else []
    layers += [nn.LayerNorm(size)] if model.layer_norm else []
    layers += [ACTIVATIONS[model.fcnet_activation]()] if model.fcnet_activation != "linear" else []
    return [nn.Sequential(*layers)] if len(layers) > 1 else layers


def linear(size_in: int, size_out: int, gain: float, initialiser: LayerInitialisers) -> nn.Linear:
    """Build a linear layer; by default its initial weights are orthogonal with the given gain and its biases zero."""
    layer = nn.Linear(size_in, size_out)
    initialiser.fill(layer.weight, layer.bias, gain)
    return layer


class _LeafEncoder(nn.Module):
    output_size: int


class _Vector(_LeafEncoder):
    """Flattens a Box or MultiBinary of any rank, and scales it."""

    def __init__(self, shape: tuple[int, ...], scale: float | None) -> None:
        super().__init__()
        self.output_size = int(np.prod(shape))
        self._rank = len(shape)
        self._scale = scale

    def forward(self, values: Tensor) -> Tensor:
        values = values.float()
        if self._rank == 0:
            values = values.unsqueeze(-1)
        elif self._rank > 1:
            values = values.flatten(-self._rank)
        return values if self._scale is None else values * self._scale


class _OneHot(_LeafEncoder):
    """Maps integers to concatenated one-hot vectors."""

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], rank: int) -> None:
        super().__init__()
        self.output_size = sum(sizes)
        self._rank = rank
        max_size = max(sizes)
        is_possible = torch.arange(max_size) < torch.tensor(sizes).unsqueeze(-1)
        # Columns of possible values; the remaining columns pad integers with fewer values to the width of `max_size`.
        columns = is_possible.flatten().nonzero().squeeze(-1) if len(set(sizes)) > 1 else None
        self._columns: Tensor | None
        self._starts: Tensor
        self._classes: Tensor
        self.register_buffer("_columns", columns, persistent=False)
        self.register_buffer("_starts", torch.tensor(starts), persistent=False)
        self.register_buffer("_classes", torch.arange(max_size), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        values = values.long()
        values = values.unsqueeze(-1) if self._rank == 0 else values.flatten(-self._rank)
        # Not functional.one_hot: it reads the values to check them, which waits for the device.
        one_hot = ((values - self._starts).unsqueeze(-1) == self._classes).flatten(-2).float()
        return one_hot if self._columns is None else one_hot[..., self._columns]


class _Image(_LeafEncoder):
    """Convolutions over `[B, H, W, C]`."""

    def __init__(self, leaf: str, space: gym.spaces.Box, filters: ConvFilters, model: ModelSpec) -> None:
        super().__init__()
        height, width, channels = space.shape
        self._scale = _uint8_scale(space)
        layers: list[nn.Module] = []
        has_same_padding = model.conv_padding == "same"
        for channels_out, kernel, stride in filters:
            if has_same_padding:
                width_padding, height_padding = (
                    _same_padding(width, kernel, stride),
                    _same_padding(height, kernel, stride),
                )
                # torch's own padding="same" supports a stride of 1 only.
                layers.append(nn.ZeroPad2d((*width_padding, *height_padding)))
                height, width = height + sum(height_padding), width + sum(width_padding)
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if height < 1 or width < 1:
                raise SpecError(
                    f"[{channels_out}, {kernel}, {stride}] leaves nothing of the "
                    f"{space.shape[0]}x{space.shape[1]} images of {leaf!r}; use smaller kernels or strides, or "
                    "convPadding: same.",
                    field="model.convFilters",
                )
            convolution = nn.Conv2d(channels, channels_out, kernel, stride)
            assert convolution.bias is not None
            conv_initialiser(model).fill(convolution.weight, convolution.bias, HIDDEN_GAIN)
            layers += [convolution, ACTIVATIONS[model.conv_activation]()]
            channels = channels_out
        self._stack = nn.Sequential(*layers)
        self.output_size = channels * height * width

    def forward(self, images: Tensor) -> Tensor:
        leading_shape = images.shape[:-3]
        values = images.float()
        if self._scale is not None:
            values = values * self._scale
        features = self._stack(values.reshape(-1, *images.shape[-3:]).movedim(-1, -3))
        return features.reshape(*leading_shape, self.output_size)


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after an axis, so that its output size is `ceil(size / stride)`."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _check_one_hot_size(leaf: str, space: gym.spaces.Discrete | gym.spaces.MultiDiscrete) -> None:
    """Refuse spaces with so many values that their one-hot vectors would not fit into memory."""
    num_values = (
        int(space.n) if isinstance(space, gym.spaces.Discrete) else int(space.nvec.astype(object).sum())
    )
    if num_values > _MAX_ONE_HOT_SIZE:
        raise SpecError(
            f"observation space: {leaf!r} has {num_values:,} values, and networks read each as an input of its own, at "
            f"most {_MAX_ONE_HOT_SIZE:,}; use fewer values, or store the numbers as a Box."
        )


def _leaf_encoder(leaf: str, space: gym.Space, model: ModelSpec, can_be_image: bool) -> _LeafEncoder:
    if isinstance(space, gym.spaces.Box):
        filters = _conv_filters(space, model) if can_be_image else None
        return (
            _Vector(space.shape, _uint8_scale(space))
            if filters is None
            else _Image(leaf, space, filters, model)
        )
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        _check_one_hot_size(leaf, space)
    if isinstance(space, gym.spaces.Discrete):
        return _OneHot([int(space.n)], [int(space.start)], rank=0)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _OneHot(space.nvec.ravel().tolist(), space.start.ravel().tolist(), rank=len(space.shape))
    if isinstance(space, gym.spaces.MultiBinary):
        return _Vector(space.shape, None)
    raise SpecError(
        f"observation space: {leaf!r} is {describe_type(space)} space, which the networks cannot read; "
        "leave it out (environment.wrappers: FilterObservation), or convert it to numbers in a custom wrapper."
    )


def _conv_filters(space: gym.spaces.Box, model: ModelSpec) -> ConvFilters | None:
    if len(space.shape) != 3:
        return None
    if model.conv_filters is not None:
        return model.conv_filters
    side = min(space.shape[:2])
    return next((filters for min_side, filters in _DEFAULT_FILTERS if side >= min_side), None)


def _uint8_scale(space: gym.spaces.Box) -> float | None:
    return 1.0 / max(float(space.high.max()), 1.0) if space.dtype == np.uint8 else None
