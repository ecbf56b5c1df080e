from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.models.mean_std import MeanStdFilter
from hindcast.models.preprocessing import ActionToEnv, FrameStack, Preprocessing, stack_rows
from layers import examples


class TestMeanStd:
    @given(
        sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6),
        offset=st.floats(-1e6, 1e6),
        seed=st.integers(0, 1000),
    )
    @examples(50)
    def test_merged_filters_equal_one_filter_over_all_rows(
        self, sizes: list[int], offset: float, seed: int
    ) -> None:
        rows = np.random.default_rng(seed).normal(offset, 3.0, (sum(sizes), 2))
        filters, start = [], 0
        for size in sizes:
            slice_filter = MeanStdFilter((2,))
            slice_filter.update(rows[start : start + size])
            filters.append(slice_filter)
            start += size
        merged_filter = MeanStdFilter((2,))
        merged_filter.merge(filters)
        assert merged_filter.count == len(rows)
        if len(rows) >= 2:
            np.testing.assert_allclose(merged_filter.mean, rows.mean(0), rtol=1e-9)
            np.testing.assert_allclose(merged_filter.std, rows.std(0, ddof=1), rtol=1e-6)

    def test_normalises_and_clips(self) -> None:
        mean_std = MeanStdFilter((1,))
        mean_std.update(np.array([[1.0], [2.0], [3.0]]))
        assert mean_std(np.array([[2.0], [4.0], [1e6]])).tolist() == [[0.0], [2.0], [10.0]]

    def test_filter_without_statistics_passes_rows(self) -> None:
        assert MeanStdFilter((1,))(np.array([[3.0]], dtype=np.float32)).tolist() == [[3.0]]

    def test_constant_element_is_only_shifted(self) -> None:
        mean_std = MeanStdFilter((1,))
        mean_std.update(np.full((5, 1), 0.1))
        np.testing.assert_allclose(mean_std(np.array([[0.1], [0.3]])), [[0.0], [0.2]], atol=1e-7)

    def test_large_float64_values_keep_their_differences(self) -> None:
        mean_std = MeanStdFilter((1,))
        mean_std.update(np.array([[1e9], [1e9 + 2]]))
        actual = mean_std(np.array([[1e9 + 1], [1e9 + 2]]))
        np.testing.assert_allclose(actual, [[0.0], [1 / np.sqrt(2)]], atol=1e-6)

    @pytest.mark.parametrize("shape", [(), (3,)])
    def test_state_round_trip_is_exact(self, shape: tuple[int, ...]) -> None:
        """Regression: the statistics of rows of shape [] were scalars, which cannot be saved."""
        source, target = MeanStdFilter(shape), MeanStdFilter(shape)
        source.update(np.random.default_rng(0).normal(size=(10, *shape)))
        target.load(safetensors.numpy.load(safetensors.numpy.save(source.state())))
        rows = np.random.default_rng(1).normal(size=(4, *shape))
        assert np.array_equal(source(rows), target(rows))
        assert np.array_equal(source(rows)[0], source(rows[0]))

    def test_state_of_another_shape_is_refused(self) -> None:
        with pytest.raises(ValueError, match="expected"):
            MeanStdFilter((3,)).load(MeanStdFilter((2,)).state())


class TestFrameStack:
    def test_stacks_on_the_last_axis_oldest_first(self) -> None:
        stack = FrameStack(3, ["obs"])
        for step in (1.0, 2.0, 3.0, 4.0):
            frames = stack({"obs": np.full((1, 2), step)}, None)["obs"]
        assert frames.tolist() == [[2.0, 2.0, 3.0, 3.0, 4.0, 4.0]]

    def test_slot_that_begins_an_episode_clears_only_its_own_frames(self) -> None:
        stack = FrameStack(2, ["obs"])
        stack({"obs": np.array([[1.0], [1.0]])}, np.array([True, True]))
        frames = stack({"obs": np.array([[2.0], [2.0]])}, np.array([False, True]))["obs"]
        assert frames.tolist() == [[1.0, 2.0], [0.0, 2.0]]

    def test_image_frames_are_stacked_on_channels(self) -> None:
        stack = FrameStack(4, ["obs"])
        assert stack({"obs": np.ones((2, 84, 84, 1), dtype=np.uint8)}, None)["obs"].shape == (2, 84, 84, 4)

    def test_other_number_of_slots_is_refused(self) -> None:
        stack = FrameStack(2, ["obs"])
        stack({"obs": np.zeros((2, 1))}, None)
        with pytest.raises(ValueError, match="3 slots, but the frame stack has 2"):
            stack({"obs": np.zeros((3, 1))}, None)

    def test_other_number_of_slots_is_accepted_when_all_begin_an_episode(self) -> None:
        stack = FrameStack(2, ["obs"])
        stack({"obs": np.ones((2, 1))}, None)
        assert stack({"obs": np.ones((3, 1))}, np.ones(3, dtype=np.bool_))["obs"].tolist() == [[0.0, 1.0]] * 3

    @pytest.mark.parametrize("shape", [(3,), (2, 2, 1), (2, 2, 3)])
    @pytest.mark.parametrize("k", [2, 4])
    def test_stack_rows_equals_frame_stack_step_by_step(self, shape: tuple[int, ...], k: int) -> None:
        lengths = [5, 1, 3]
        column = np.random.default_rng(0).integers(1, 255, (sum(lengths), *shape)).astype(np.uint8)
        first_rows = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
        stack, expected = FrameStack(k, ["obs"]), []
        for row, first_row in enumerate(first_rows):
            expected.append(stack({"obs": column[row : row + 1]}, np.array([row == first_row]))["obs"][0])
        rows = np.random.default_rng(1).permutation(len(column))
        actual = stack_rows(*map(torch.from_numpy, (column, rows, first_rows[rows])), k)
        assert np.array_equal(actual.numpy(), np.stack(expected)[rows])


class TestActionToEnv:
    def test_scales_to_the_bounds_and_clips(self) -> None:
        space = Box(np.array([-2.0, 0.0], dtype=np.float32), np.array([2.0, 10.0], dtype=np.float32))
        to_env = ActionToEnv(space)
        assert to_env.module_space == Box(-1.0, 1.0, (2,))
        actions = to_env({"actions": np.array([[-1.0, -1.0], [0.0, 0.5], [7.0, 7.0]], dtype=np.float32)})
        assert isinstance(actions, np.ndarray)
        assert actions.tolist() == [[-2.0, 0.0], [0.0, 7.5], [2.0, 10.0]]

    def test_to_module_inverts_the_scaling(self) -> None:
        space = Box(np.array([-2.0, 0.0, 3.0]), np.array([2.0, 10.0, 3.0]), dtype=np.float64)
        to_env = ActionToEnv(space)
        actions = np.array([[-1.0, 1.0, 0.0], [0.25, -0.5, 0.0]])
        assert np.allclose(to_env.to_module("actions", to_env({"actions": actions})), actions)

    def test_environment_action_has_the_dtype_of_the_space(self) -> None:
        space = Box(-0.4, 0.4, (17,), dtype=np.float64)
        actions = ActionToEnv(space)({"actions": np.full((2, 17), 3.0, dtype=np.float32)})
        assert all(space.contains(action) for action in actions)

    def test_actions_without_normalisation_pass_or_are_clipped(self) -> None:
        space, actions = Box(-2.0, 2.0, (1,)), {"actions": np.array([[3.0]], dtype=np.float32)}
        assert ActionToEnv(space, normalize_actions=False)(actions)[0].tolist() == [3.0]
        assert ActionToEnv(space, normalize_actions=False, clip_actions=True)(actions)[0].tolist() == [2.0]
        assert ActionToEnv(space, normalize_actions=False).module_space == space

    def test_unbounded_box_is_never_scaled(self) -> None:
        space = Box(-np.inf, np.inf, (1,))
        assert ActionToEnv(space)({"actions": np.array([[3.0]], dtype=np.float32)})[0].tolist() == [3.0]

    def test_discrete_actions_pass_unchanged(self) -> None:
        actions = ActionToEnv(Discrete(3, start=5), clip_actions=True)({"actions": np.array([5, 7])})
        assert isinstance(actions, np.ndarray)
        assert actions.tolist() == [5, 7]

    def test_composite_actions_are_one_per_slot(self) -> None:
        space = Dict(grip=Discrete(2), move=Tuple((Box(0.0, 4.0, (1,)), MultiDiscrete([2, 2]))))
        module_actions = {
            "actions/grip": np.array([0, 1]),
            "actions/move/0": np.array([[0.0], [1.0]], dtype=np.float32),
            "actions/move/1": np.array([[0, 1], [1, 1]]),
        }
        actions = ActionToEnv(space)(module_actions)
        assert len(actions) == 2
        assert all(space.contains(action) for action in actions)
        assert actions[1]["move"][0].tolist() == [4.0]


class TestPreprocessing:
    OBS = Dict(
        image=Box(0, 255, (6, 6, 1), dtype=np.uint8),
        speed=Box(1.0, 9.0, (2,), dtype=np.float64),
        gear=Discrete(3),
    )

    def _make_preprocessing(self) -> Preprocessing:
        model = ModelSpec(observation_filter="meanStd", frame_stack=3)
        return Preprocessing.from_specs(self.OBS, Box(0.0, 1.0, (2,)), model)

    def _make_obs(self, count: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            "obs/gear": rng.integers(3, size=count),
            "obs/image": rng.integers(255, size=(count, 6, 6, 1)).astype(np.uint8),
            "obs/speed": rng.normal(5.0, 1.0, (count, 2)),
        }

    def test_module_space_contains_preprocessed_observations(self) -> None:
        preprocessing = self._make_preprocessing()
        preprocessing.update(self._make_obs(50))
        observations = preprocessing.observe(self._make_obs())
        observation = {leaf.removeprefix("obs/"): rows[0] for leaf, rows in observations.items()}
        assert preprocessing.observation_space.contains(observation)
        assert preprocessing.observation_space["image"].shape == (6, 6, 3)
        assert preprocessing.observation_space["speed"].shape == (6,)
        assert preprocessing.action_space == Box(-1.0, 1.0, (2,))

    def test_only_float_boxes_are_filtered_and_only_boxes_stacked(self) -> None:
        preprocessing = self._make_preprocessing()
        assert set(preprocessing.filters) == {"obs/speed"}
        assert set(preprocessing.stacked_leaves) == {"obs/image", "obs/speed"}

    def test_acting_does_not_change_the_filter(self) -> None:
        preprocessing = self._make_preprocessing()
        preprocessing.update(self._make_obs(20))
        state_before = preprocessing.state()
        preprocessing.observe(self._make_obs(seed=1))
        preprocessing.process_episodes(self._make_obs(seed=2), np.zeros(1, np.int64))
        state_after = preprocessing.state()
        assert all(np.array_equal(state_before[name], state_after[name]) for name in state_before)

    def test_frames_are_stacked_after_filtering(self) -> None:
        preprocessing = self._make_preprocessing()
        preprocessing.update(self._make_obs(20))
        obs = self._make_obs()
        frames = preprocessing.observe(obs)["obs/speed"]
        np.testing.assert_array_equal(frames[:, :4], 0.0)
        np.testing.assert_array_equal(frames[:, 4:], preprocessing.filters["obs/speed"](obs["obs/speed"]))

    def test_nested_batches_are_flattened(self) -> None:
        flat_batch = self._make_obs()
        nested_batch = {leaf.removeprefix("obs/"): rows for leaf, rows in flat_batch.items()}
        flat_result, nested_result = (
            self._make_preprocessing().observe(batch) for batch in (flat_batch, nested_batch)
        )
        assert all(np.array_equal(flat_result[leaf], nested_result[leaf]) for leaf in flat_result)

    def test_loaded_preprocessing_observes_the_same(self) -> None:
        preprocessing = self._make_preprocessing()
        preprocessing.update(self._make_obs(20))
        restored = Preprocessing.from_json(self.OBS, Box(0.0, 1.0, (2,)), preprocessing.to_json())
        restored.load(preprocessing.state())
        expected, actual = preprocessing.observe(self._make_obs()), restored.observe(self._make_obs())
        assert all(np.array_equal(expected[leaf], actual[leaf]) for leaf in expected)

    def test_merge_adds_the_statistics_of_others(self) -> None:
        reference, first, second = (self._make_preprocessing() for _ in range(3))
        reference.update(self._make_obs(10, 0))
        reference.update(self._make_obs(30, 1))
        first.update(self._make_obs(10, 0))
        second.update(self._make_obs(30, 1))
        first.merge([second])
        actual, expected = (merged.filters["obs/speed"].std for merged in (first, reference))
        np.testing.assert_allclose(actual, expected, rtol=1e-12)

    def test_fork_shares_filters_but_not_frames(self) -> None:
        preprocessing = self._make_preprocessing()
        fork = preprocessing.fork()
        preprocessing.observe(self._make_obs(4))
        preprocessing.update(self._make_obs(20))
        frames = fork.observe(self._make_obs(2))["obs/speed"]
        assert (frames[:, :4] == 0).all()
        np.testing.assert_array_equal(
            frames[:, 4:], preprocessing.filters["obs/speed"](self._make_obs(2)["obs/speed"])
        )

    def test_observations_without_options_pass_unchanged(self) -> None:
        preprocessing = Preprocessing.from_specs(Box(-1.0, 1.0, (4,)), Discrete(2), ModelSpec())
        obs = np.zeros((8, 4), dtype=np.float32)
        assert preprocessing.observe(obs)["obs"] is obs
        assert preprocessing.state() == {}

    def test_from_specs_uses_the_environment_options(self) -> None:
        environment = EnvironmentSpec(id="x", normalize_actions=False, clip_actions=True)
        preprocessing = Preprocessing.from_specs(Discrete(2), Box(-2.0, 2.0, (1,)), ModelSpec(), environment)
        assert preprocessing.action_space == Box(-2.0, 2.0, (1,))
        assert preprocessing.to_env({"actions": np.array([[9.0]], dtype=np.float32)})[0].tolist() == [2.0]
