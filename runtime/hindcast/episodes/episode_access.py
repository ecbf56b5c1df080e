"""`EpisodeAccess`: the getters and setters of `SingleAgentEpisode`, by timestep.

All getters take indices in the same way:

* an int selects one timestep, a list or a slice several, None all (without the lookback buffer);
* a negative index counts from the end, and reaches into the lookback buffer if it goes beyond the start;
  with `neg_index_as_lookback=True`, -1 is the last timestep before the episode's first;
* `fill` replaces timesteps out of range; without it an index out of range is an IndexError, and a slice is
  clipped to the available timesteps;
* `one_hot_discrete=True` encodes discrete values as float32 one-hot vectors (the space is required).

Getters return one sample for an int; otherwise a list of samples or, in NumPy mode, arrays with a leading time
dimension.
"""

from __future__ import annotations

from typing import Any

from hindcast.episodes.lookback_buffer import Indices, InfiniteLookbackBuffer


class EpisodeAccess:
    """Getters and setters over an episode's buffers."""

    __slots__ = ()

    observations: InfiniteLookbackBuffer
    infos: InfiniteLookbackBuffer
    actions: InfiniteLookbackBuffer
    rewards: InfiniteLookbackBuffer
    extra_model_outputs: dict[str, InfiniteLookbackBuffer]

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return observations at timesteps; there is one more than there are steps."""
        return self.observations.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_infos(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Return info dicts at timesteps, as a list in either mode; there is one more than there are steps."""
        return self.infos.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return actions at timesteps: action t responds to observation t."""
        return self.actions.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_rewards(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: float | None = None
    ) -> Any:
        """Return rewards at timesteps: reward t follows action t."""
        return self.rewards.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_extra_model_outputs(
        self,
        key: str,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Any:
        """Return one of the model's further outputs (`action_logp`, …) at timesteps.

        Raises:
            KeyError: the episode has no such output.
        """
        return self._find_output_buffer(key).get(
            indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill
        )

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite observations: one sample for an int, else one for each index (None: all timesteps).

        Raises:
            IndexError: an index is out of range, or there is not one sample for each index.
            ValueError: in NumPy mode, samples have another structure or shape.
        """
        self.observations.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite actions; see `set_observations`."""
        self.actions.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite rewards; see `set_observations`."""
        self.rewards.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite one of the model's further outputs; see `set_observations`.

        Raises:
            KeyError: the episode has no such output.
        """
        self._find_output_buffer(key).set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def _find_output_buffer(self, key: str) -> InfiniteLookbackBuffer:
        if key not in self.extra_model_outputs:
            names = ", ".join(self.extra_model_outputs) or "none"
            raise KeyError(f"the episode has no extra model output {key!r}; it has: {names}")
        return self.extra_model_outputs[key]
