"""Recurrent layers, and the recurrent states of the episodes in progress.

Shape suffixes: B = slots or sequences, T = steps of a sequence, F = features, H = units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import SEPARATOR, Columns
from hindcast.errors import DataError
from hindcast.models.initial_weights import (
    DEFAULT_INITIALISER,
    LayerInitialisers,
    fill,
    recurrent_initialiser,
)

T = TypeVar("T")
State = dict[str, Tensor]
"""Name -> `[B, *shape]`."""
NEXT_STEPS: Final = "next_steps"
"""Column of sequences: the index of each step's next observation in `new_obs` `[B, T + n, ...]`, `[B, T]`."""
OUTPUT_STEPS: Final = "output_steps"
"""Column of sequences `[B, L, ...]`: the steps whose outputs a network returns, `[B, T]`; without it, all steps."""


class RecurrentLayer(nn.Module):
    """One LSTM (Hochreiter and Schmidhuber, 1997) or GRU layer (arXiv 1406.1078).

    By default each gate's weights are orthogonal, drawn from torch's global generator. The gate that keeps the state
    starts with a bias of 1 (Jozefowicz et al., ICML 2015), the other gates with 0.

    Args:
        kind: "lstm" or "gru".
        size_in: number of input features, F.
        size: number of units, H.
        initialiser: initialiser of each gate's weights and of the biases, in place of the default.

    Attributes:
        output_size: number of units, H.
    """

    def __init__(
        self, kind: str, size_in: int, size: int, initialiser: LayerInitialisers = DEFAULT_INITIALISER
    ) -> None:
        super().__init__()
        self.output_size = size
        self._is_lstm = kind == "lstm"
        self._state_names = ("h", "c") if self._is_lstm else ("h",)
        self._layer = (nn.LSTM if self._is_lstm else nn.GRU)(size_in, size)
        for name, parameter in self._layer.named_parameters():
            if name.startswith("weight"):
                for gate in parameter.detach().split(size):
                    initialiser.fill_weights(gate, 1.0)
            else:
                fill(parameter, initialiser.bias, nn.init.zeros_)
        if initialiser.bias is None:
            # The weights and then the biases of inputs and of the state; the sum of both biases counts.
            _, _, bias, _ = self._layer.all_weights[0]
            # The forget gate of an LSTM, the update gate of a GRU.
            nn.init.ones_(bias.detach()[size : 2 * size])

    def initial_state(self) -> State:
        """Return zeros, `[H]` each: `h`, and for an LSTM `c`."""
        weight = next(self._layer.parameters())
        return {name: weight.new_zeros(self.output_size) for name in self._state_names}

    def forward(self, features: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Compute the outputs, and the state after the last step.

        Args:
            features: `[B, F]` for one step, or `[B, T, F]`.
            state: state before the first step, name -> `[B, H]`; empty for the initial state.

        Returns:
            `[B, H]` or `[B, T, H]` outputs, and the state, name -> `[B, H]`.

        Raises:
            DataError: the state belongs to a layer of another kind or size.
        """
        initial_tensors = self._state_tensors(state, features)
        if features.dim() == 2:
            final_tensors = self._step(features, initial_tensors)
            return final_tensors[0], dict(zip(self._state_names, final_tensors, strict=True))
        hidden = [tensor.unsqueeze(0) for tensor in initial_tensors]
        # With batch_first, torch transposes its output in place, which a recorded update cannot repeat.
        outputs, final_hidden = self._layer(
            features.transpose(0, 1), tuple(hidden) if self._is_lstm else hidden[0]
        )
        final_tensors = final_hidden if self._is_lstm else (final_hidden,)
        return outputs.transpose(0, 1), {
            name: tensor.squeeze(0) for name, tensor in zip(self._state_names, final_tensors, strict=True)
        }

    def _step(self, features: Tensor, initial_tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Compute one step; for an LSTM several times as fast as a sequence of length 1."""
        weights = self._layer.all_weights[0]
        if self._is_lstm:
            return torch.lstm_cell(features, initial_tensors, *weights)
        return (torch.gru_cell(features, initial_tensors[0], *weights),)

    def _state_tensors(self, state: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, ...]:
        """Return `state`, or the initial state if it is empty, as tensors `[B, H]`."""
        # Not len(features): an export would record the batch size as a constant.
        shape = (features.shape[0], self.output_size)
        if not state:
            return tuple(
                initial_value.expand(shape).contiguous() for initial_value in self.initial_state().values()
            )
        for name in self._state_names:
            state_shape = state[name].shape if name in state else None
            if state_shape != shape:
                problem = "is missing" if state_shape is None else f"has shape {list(state_shape)}"
                raise DataError(
                    f"the recurrent state {name!r} {problem}, but the policy needs shape {list(shape)}: pass the state "
                    "of a policy with the same recurrent and cellSize"
                )
        # cuDNN does not accept views, and an expanded initial state of a batch of 1 is one.
        return tuple(state[name].to(features.dtype).contiguous() for name in self._state_names)


def build_recurrent_layer(size_in: int, model: ModelSpec) -> RecurrentLayer | None:
    """Build the layer of `model.recurrent`; None without one."""
    if model.recurrent == "none":
        return None
    return RecurrentLayer(model.recurrent, size_in, model.cell_size, recurrent_initialiser(model))


def at_output_steps(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Select the outputs `[B, T, ...]` of the batch's `output_steps`; without this column, return all outputs."""
    if OUTPUT_STEPS not in batch:
        return outputs
    index = batch[OUTPUT_STEPS]
    index = index.reshape(*index.shape, *[1] * (outputs.dim() - 2)).expand(*index.shape, *outputs.shape[2:])
    return outputs.gather(1, index)


class SlotStates:
    """Recurrent states of B slots between steps, as `FrameStack` keeps their frames.

    Args:
        make_initial_states: returns the states of a number of slots before an episode's first step.
    """

    def __init__(self, make_initial_states: Callable[[int], State]) -> None:
        self._make_initial_states = make_initial_states
        self._states: State = {}

    def before_step(self, count: int, is_first: NDArray[np.bool_] | None) -> State:
        """Return leaves `state_in/…` for a step of `count` slots; slots in `is_first` `[B]` begin an episode.

        Raises:
            ValueError: the number of slots differs from the previous step's, and not all begin an episode.
        """
        initial_states = self._make_initial_states(count)
        if self.is_all_first(is_first):
            return as_leaves(Columns.STATE_IN, initial_states)
        num_slots = len(next(iter(self._states.values())))
        if num_slots != count:
            raise ValueError(
                f"the observations have {count} slots, but the recurrent state has {num_slots}; begin an episode in "
                "every slot (is_first)"
            )
        if is_first is None or not is_first.any():
            return as_leaves(Columns.STATE_IN, self._states)
        is_first_tensor = torch.from_numpy(is_first).to(next(iter(initial_states.values())).device)
        states = {
            name: torch.where(
                is_first_tensor.reshape(count, *[1] * (initial_rows.dim() - 1)),
                initial_rows,
                self._states[name],
            )
            for name, initial_rows in initial_states.items()
        }
        return as_leaves(Columns.STATE_IN, states)

    def is_all_first(self, is_first: NDArray[np.bool_] | None) -> bool:
        """Return True if all slots begin an episode, as they do in the very first step."""
        return not self._states or (is_first is not None and bool(is_first.all()))

    def update(self, states: State) -> None:
        """Store the states after the step, name -> `[B, *shape]`."""
        self._states = states


def extract_state(column: str, batch: Mapping[str, T]) -> dict[str, T]:
    """Return the leaves of a state in a batch by name: `state_in/h` as `h`."""
    prefix = column + SEPARATOR
    return {leaf.removeprefix(prefix): rows for leaf, rows in batch.items() if leaf.startswith(prefix)}


def as_leaves(column: str, state: Mapping[str, T]) -> dict[str, T]:
    """Return a state as leaves of a batch: the inverse of `extract_state`."""
    return {f"{column}{SEPARATOR}{name}": tensor for name, tensor in state.items()}
