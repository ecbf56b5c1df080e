"""Recurrent layers, and the states of the episodes that are being played.

Shape suffixes: B = slots or sequences, T = steps of a sequence, F = features, H = units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hindcast.episodes.columns import SEPARATOR, Columns
from hindcast.errors import DataError
from hindcast.models.initial_weights import DEFAULT_INITIALISER, Initialiser, fill

T = TypeVar("T")
State = dict[str, Tensor]
"""Name -> `[B, *shape]`."""


class RecurrentLayer(nn.Module):
    """One LSTM (Hochreiter and Schmidhuber, 1997) or GRU layer (arXiv 1406.1078).

    By default each gate's weights are orthogonal, from torch's global generator, and the gate that keeps the state
    begins with a bias of 1 (Jozefowicz et al., ICML 2015), the others with none.

    Args:
        kind: "lstm" or "gru".
        size_in: F.
        size: H.
        initial: what the weights of each gate, and the biases, begin with instead.

    Attributes:
        output_size: H.
    """

    def __init__(
        self, kind: str, size_in: int, size: int, initial: Initialiser = DEFAULT_INITIALISER
    ) -> None:
        super().__init__()
        self.output_size = size
        self._is_lstm = kind == "lstm"
        self._names = ("h", "c") if self._is_lstm else ("h",)
        self._layer = (nn.LSTM if self._is_lstm else nn.GRU)(size_in, size, batch_first=True)
        for name, parameter in self._layer.named_parameters():
            if name.startswith("weight"):
                for gate in parameter.detach().split(size):
                    initial.fill_weights(gate, 1.0)
            else:
                fill(parameter, initial.bias, nn.init.zeros_)
        if initial.bias is None:
            _, _, bias, _ = self._layer.all_weights[0]
            # The forget gate of an LSTM, the update gate of a GRU.
            nn.init.ones_(bias.detach()[size : 2 * size])

    def initial_state(self) -> State:
        """Zeros, `[H]` each: `h`, and of an LSTM `c`."""
        weight = next(self._layer.parameters())
        return {name: weight.new_zeros(self.output_size) for name in self._names}

    def forward(self, features: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Outputs and the state after the last step.

        Args:
            features: `[B, F]`, one step, or `[B, T, F]`.
            state: before the first step, name -> `[B, H]`; empty for the initial one.

        Returns:
            `[B, H]` or `[B, T, H]`, and name -> `[B, H]`.

        Raises:
            DataError: a state of another kind or size.
        """
        before = self._before(state, features)
        if features.dim() == 2:
            after = self._step(features, before)
            return after[0], dict(zip(self._names, after, strict=True))
        hidden = [tensor.unsqueeze(0) for tensor in before]
        outputs, last = self._layer(features, tuple(hidden) if self._is_lstm else hidden[0])
        after = last if self._is_lstm else (last,)
        return outputs, {name: tensor.squeeze(0) for name, tensor in zip(self._names, after, strict=True)}

    def _step(self, features: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step, for an LSTM several times faster than a sequence of one."""
        weights = self._layer.all_weights[0]
        if self._is_lstm:
            return torch.lstm_cell(features, before, *weights)
        return (torch.gru_cell(features, before[0], *weights),)

    def _before(self, state: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, ...]:
        """`[B, H]` each: the state given, or the initial one."""
        shape = (features.shape[0], self.output_size)  # of which len() would be a number to an export
        if not state:
            return tuple(start.expand(shape).contiguous() for start in self.initial_state().values())
        for name in self._names:
            found = state[name].shape if name in state else None
            if found != shape:
                given = "is missing" if found is None else f"has shape {list(found)}"
                raise DataError(
                    f"the recurrent state {name!r} {given}, where the policy has {list(shape)}: states are of use to a "
                    "model with the recurrent and cellSize of the one that they come from"
                )
        # cuDNN takes no views: a batch of one initial state is one
        return tuple(state[name].to(features.dtype).contiguous() for name in self._names)


class SlotStates:
    """The states of B slots between their steps, as `FrameStack` keeps their frames.

    Args:
        initial: gives the state of so many slots before an episode's first step.
    """

    def __init__(self, initial: Callable[[int], State]) -> None:
        self._initial = initial
        self._now: State = {}

    def before_step(self, count: int, is_first: NDArray[np.bool_] | None) -> State:
        """Leaves `state_in/…` for a step of `count` slots; those in `is_first` `[B]` begin an episode.

        Raises:
            ValueError: another number of slots than in the step before, and not all begin an episode.
        """
        fresh = self._initial(count)
        if self.is_all_first(is_first):
            return as_leaves(Columns.STATE_IN, fresh)
        known = len(next(iter(self._now.values())))
        if known != count:
            raise ValueError(
                f"{count} slots, where the recurrent states are of {known}; begin their episodes"
            )
        if is_first is None or not is_first.any():
            return as_leaves(Columns.STATE_IN, self._now)
        begin = torch.from_numpy(is_first).to(next(iter(fresh.values())).device)
        mixed = {
            name: torch.where(begin.reshape(count, *[1] * (start.dim() - 1)), start, self._now[name])
            for name, start in fresh.items()
        }
        return as_leaves(Columns.STATE_IN, mixed)

    def is_all_first(self, is_first: NDArray[np.bool_] | None) -> bool:
        """Whether all slots begin an episode."""
        return not self._now or (is_first is not None and bool(is_first.all()))

    def update(self, after: State) -> None:
        """Take the states after the step, name -> `[B, *shape]`."""
        self._now = after


def state_of(column: str, batch: Mapping[str, T]) -> dict[str, T]:
    """The state whose leaves are in a batch: `state_in/h` as `h`."""
    prefix = column + SEPARATOR
    return {leaf.removeprefix(prefix): rows for leaf, rows in batch.items() if leaf.startswith(prefix)}


def as_leaves(column: str, state: Mapping[str, T]) -> dict[str, T]:
    """The inverse of `state_of`."""
    return {f"{column}{SEPARATOR}{name}": tensor for name, tensor in state.items()}
