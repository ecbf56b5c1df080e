"""Initialisers of weights and biases: the defaults, or those of torch that the model's options name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from hindcast.api.environment import NamedCall
from hindcast.api.model import ModelSpec
from hindcast.errors import SpecError


class LayerInitialisers(NamedTuple):
    """Initialisers of the layers in one part of a network; None is the default.

    Attributes:
        kernel: initialiser of weights; by default orthogonal (arXiv 1312.6120).
        bias: initialiser of biases; by default zero.
    """

    kernel: NamedCall | None = None
    bias: NamedCall | None = None

    def fill(self, weights: Tensor, bias: Tensor, gain: float) -> None:
        """Fill weights and biases in place, from torch's global generator; `gain` applies to the default.

        Raises:
            SpecError: the initialiser does not accept its arguments.
        """
        self.fill_weights(weights, gain)
        fill(bias, self.bias, nn.init.zeros_)

    def fill_weights(self, weights: Tensor, gain: float) -> None:
        """Fill weights in place, see `fill`."""
        fill(weights, self.kernel, partial(nn.init.orthogonal_, gain=gain))


DEFAULT_INITIALISER = LayerInitialisers()


def encoder_initialiser(model: ModelSpec) -> LayerInitialisers:
    """Return the initialiser of the dense layers of encoders and critics."""
    return LayerInitialisers(model.fcnet_kernel_initializer, model.fcnet_bias_initializer)


def head_initialiser(model: ModelSpec) -> LayerInitialisers:
    """Return the initialiser of heads, their last layer included."""
    return LayerInitialisers(model.head_fcnet_kernel_initializer, model.head_fcnet_bias_initializer)


def conv_initialiser(model: ModelSpec) -> LayerInitialisers:
    """Return the initialiser of convolutions."""
    return LayerInitialisers(model.conv_kernel_initializer, model.conv_bias_initializer)


def recurrent_initialiser(model: ModelSpec) -> LayerInitialisers:
    """Return the initialiser of the recurrent layer."""
    return LayerInitialisers(model.recurrent_kernel_initializer, model.recurrent_bias_initializer)


def fill(tensor: Tensor, initialiser: NamedCall | None, default: Callable[[Tensor], Any]) -> None:
    """Fill a tensor in place by `initialiser`, or by `default` if it is None.

    Raises:
        SpecError: the initialiser does not accept its arguments.
    """
    # detach(): tensors that require gradients cannot be changed in place.
    if initialiser is None:
        default(tensor.detach())
        return
    try:
        getattr(nn.init, f"{initialiser.name}_")(tensor.detach(), **initialiser.kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"the initialiser {initialiser.name} with {initialiser.kwargs} raised "
            f"{type(error).__name__}: {error}.",
            field="model",
        ) from error
