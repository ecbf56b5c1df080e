from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from hindcast.api.model import ModelSpec
from hindcast.errors import DataError, SpecError
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import PolicyModule, RLModule, build_module
from module_toys import LinearModule, Net

OBS = Box(-np.inf, np.inf, (4,))
COMPOSITE_OBS = Dict(a=Box(-1.0, 1.0, (2,)), b=Discrete(3))
COMPOSITE_ACTION = Dict(go=Box(0.0, 2.0, (1,)), how=Tuple((Discrete(2, start=4), MultiBinary(2))))


def _make_policy(
    observation_space: Space = OBS,
    action_space: Space | None = None,
    module_class: type[RLModule] = PolicyModule,
    **options: object,
) -> Policy:
    torch.manual_seed(0)
    action_space = action_space or Discrete(3)
    model = ModelSpec(fcnet_hiddens=[16], **options)
    preprocessing = Preprocessing.from_specs(observation_space, action_space, model)
    spaces = preprocessing.observation_space, preprocessing.action_space
    module = build_module(*spaces, model, value=True, module_class=module_class)
    with torch.no_grad():  # initial policies are nearly uniform
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return Policy(module, preprocessing, observation_space, action_space)


def _make_rows(count: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def _draw_noise(policy: Policy, count: int = 8, seed: int = 0) -> np.ndarray:
    return policy.draw_noise(np.random.default_rng(seed), count)


def _assert_same_outputs(actual_policy: Policy, expected_policy: Policy) -> None:
    actual, expected = (policy.act(_make_rows()).dist_inputs for policy in (actual_policy, expected_policy))
    np.testing.assert_array_equal(actual, expected)


def _edit_description(folder: Path, key: str, value: object) -> None:
    """Set a field of a saved policy's `module.json`."""
    file = folder / "module.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))


class TestAct:
    @pytest.mark.parametrize(
        ("space", "distribution"),
        [
            (Discrete(3, start=7), "auto"),
            (MultiDiscrete([2, 4]), "auto"),
            (MultiBinary(3), "auto"),
            (Box(-2.0, 3.0, (2,)), "auto"),
            (Box(-2.0, 3.0, (2, 2), dtype=np.float64), "squashedGaussian"),
            (Box(-2.0, 3.0, (2, 2)), "boundedGaussian"),
            (Box(-2.0, 3.0, (2,)), "deterministic"),
            (COMPOSITE_ACTION, "auto"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("explore", [True, False])
    def test_environment_actions_lie_in_the_space(
        self, space: Space, distribution: str, explore: bool
    ) -> None:
        policy = _make_policy(action_space=space, distribution=distribution)
        actions = policy.act(_make_rows(), _draw_noise(policy) if explore else None)
        assert all(space.contains(actions.env_actions[slot]) for slot in range(8))
        assert (actions.logp is not None) == policy.has_logp(explore)
        assert actions.dist_inputs is not None
        assert actions.dist_inputs.shape == (8, policy.module.action_head.inputs_size)

    @pytest.mark.parametrize("space", [Discrete(3, start=7), Box(-2.0, 3.0, (2,)), COMPOSITE_ACTION], ids=str)
    def test_logp_can_be_recomputed_from_recorded_columns(self, space: Space) -> None:
        policy = _make_policy(action_space=space)
        result = policy.act(_make_rows(), _draw_noise(policy))
        actions = {leaf: torch.from_numpy(rows) for leaf, rows in result.actions.items()}
        distribution = policy.module.distribution(torch.from_numpy(result.dist_inputs))
        logp = distribution.logp(actions.get("actions", actions))
        assert result.logp is not None
        assert result.logp.dtype == np.float32
        assert np.array_equal(result.logp, logp.numpy())

    def test_greedy_discrete_actions_have_probability_one(self) -> None:
        actions = _make_policy().act(_make_rows())
        assert actions.logp is not None
        assert (actions.logp == 0).all()
        assert actions.dist_inputs is not None
        assert np.array_equal(actions.actions["actions"], actions.dist_inputs.argmax(-1))

    def test_row_depends_only_on_its_own_observation_and_noise(self) -> None:
        policy = _make_policy()
        obs, noise = _make_rows(), _draw_noise(policy)
        other_obs, other_noise = _make_rows(seed=1), _draw_noise(policy, seed=1)
        other_obs[5], other_noise[5] = obs[5], noise[5]
        actions, other_actions = policy.act(obs, noise), policy.act(other_obs, other_noise)
        assert actions.actions["actions"][5] == other_actions.actions["actions"][5]
        assert actions.logp is not None
        assert other_actions.logp is not None
        assert actions.logp[5] == other_actions.logp[5]

    def test_read_only_and_float64_observations_are_accepted(self) -> None:
        policy = _make_policy()
        read_only_obs = _make_rows()
        read_only_obs.flags.writeable = False
        expected = policy.act(_make_rows()).dist_inputs
        for obs in (read_only_obs, read_only_obs.astype(np.float64)):
            np.testing.assert_array_equal(policy.act(obs).dist_inputs, expected)

    def test_act_returns_module_actions_and_scaled_environment_actions(self) -> None:
        policy = _make_policy(action_space=Box(-2.0, 6.0, (1,)))
        actions = policy.act(_make_rows(), _draw_noise(policy))
        expected = np.clip(2.0 + 4.0 * actions.actions["actions"], -2.0, 6.0)
        np.testing.assert_allclose(actions.env_actions, expected, rtol=1e-6)


class TestCall:
    def test_call_equals_act_on_one_row(self) -> None:
        policy = _make_policy(action_space=Box(-2.0, 6.0, (2,)))
        np.testing.assert_array_equal(policy(_make_rows()[0]), policy.act(_make_rows()[:1]).env_actions[0])

    def test_call_keeps_its_frames_until_reset(self) -> None:
        policy = _make_policy(action_space=Box(-2.0, 6.0, (2,)), frame_stack=2, observation_filter="meanStd")
        first_obs, second_obs = _make_rows(2)
        first_action = policy(first_obs)
        second_action = policy(second_obs)
        policy.act(_make_rows(8))
        assert not np.array_equal(policy(second_obs), second_action)
        policy.reset()
        np.testing.assert_array_equal(policy(first_obs), first_action)
        np.testing.assert_array_equal(policy(second_obs), second_action)

    def test_call_accepts_composite_spaces(self) -> None:
        policy = _make_policy(COMPOSITE_OBS, COMPOSITE_ACTION)
        COMPOSITE_OBS.seed(0)
        assert COMPOSITE_ACTION.contains(policy(COMPOSITE_OBS.sample(), explore=True))

    def test_exploration_follows_from_the_seed(self) -> None:
        policy = _make_policy(action_space=Box(-2.0, 6.0, (2,)))
        policy.reset(seed=3)
        first_actions = [policy(_make_rows()[0], explore=True).tolist() for _ in range(3)]
        policy.reset(seed=3)
        assert [policy(_make_rows()[0], explore=True).tolist() for _ in range(3)] == first_actions
        assert first_actions[0] != first_actions[1]

    @pytest.mark.parametrize("obs", [np.zeros(5), np.zeros((1, 4)), 3.0, {"a": np.zeros(4)}], ids=str)
    def test_observation_of_another_shape_is_refused(self, obs: object) -> None:
        with pytest.raises(DataError, match=r"expected Box\(-inf, inf, \(4,\)"):
            _make_policy()(obs)

    @pytest.mark.parametrize(
        ("space", "obs", "description"),
        [
            (Box(0, 1, (4,)), {"a": 1}, r"received {a: int}, expected Box\(0\.0, 1\.0, \(4,\)"),
            (Box(0, 1, (4,)), (np.zeros(4), 0.5), r"received \(array, float\), expected Box\("),
            (COMPOSITE_OBS, np.zeros(4), r"received array, expected Dict\("),
        ],
        ids=["dict", "tuple", "array"],
    )
    def test_observation_of_another_structure_is_refused(
        self, space: Space, obs: object, description: str
    ) -> None:
        with pytest.raises(DataError, match=rf"{description}.*: pass one raw observation of the environment"):
            _make_policy(space)(obs)


class TestFiles:
    @pytest.mark.parametrize("subfolder", ["", "module"])
    def test_loaded_policy_acts_the_same(self, tmp_path: Path, subfolder: str) -> None:
        policy = _make_policy(action_space=Box(-2.0, 6.0, (2,)), observation_filter="meanStd", frame_stack=2)
        policy.preprocessing.update({"obs": _make_rows(100) * 3})
        policy.save(tmp_path / subfolder)
        restored_policy = Policy.load(tmp_path)
        assert restored_policy.observation_space == OBS
        assert restored_policy.action_space == policy.action_space
        noise = _draw_noise(policy)
        for step in range(3):
            expected, actual = (p.act(_make_rows(seed=step), noise) for p in (policy, restored_policy))
            assert np.array_equal(expected.env_actions, actual.env_actions)
            assert np.array_equal(expected.dist_inputs, actual.dist_inputs)

    def test_load_restores_composite_spaces_and_options(self, tmp_path: Path) -> None:
        policy = _make_policy(COMPOSITE_OBS, COMPOSITE_ACTION, free_log_std=True, vf_share_layers=True)
        policy.save(tmp_path)
        restored_policy = Policy.load(tmp_path)
        assert restored_policy.module.model_config == policy.module.model_config
        assert restored_policy.module.value
        assert restored_policy.digest == policy.digest

    def test_digest_depends_on_weights_and_filters(self) -> None:
        policy, equal_policy = (_make_policy(observation_filter="meanStd") for _ in range(2))
        assert policy.digest == equal_policy.digest
        equal_policy.preprocessing.update({"obs": _make_rows()})
        assert policy.digest != equal_policy.digest
        with torch.no_grad():
            next(policy.module.parameters()).add_(1.0)
        assert policy.digest != _make_policy(observation_filter="meanStd").digest

    def test_load_does_not_advance_torchs_generator(self, tmp_path: Path) -> None:
        _make_policy().save(tmp_path)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        Policy.load(tmp_path)
        assert torch.equal(torch.rand(3), expected)

    @pytest.mark.parametrize("space", [Discrete(3), Box(-2.0, 3.0, (2,)), COMPOSITE_ACTION], ids=str)
    def test_copies_of_policy_have_its_digest(self, space: Space) -> None:
        policy = _make_policy(COMPOSITE_OBS, space, observation_filter="meanStd", frame_stack=2)
        assert copy.deepcopy(policy).digest == policy.digest
        assert pickle.loads(pickle.dumps(policy)).digest == policy.digest
        assert Policy.from_files(policy.to_files()).digest == policy.digest

    def test_save_and_load_work_on_fsspec_file_systems(self) -> None:
        policy = _make_policy()
        policy.save("memory://models-test/checkpoint/module")
        assert Policy.load("memory://models-test/checkpoint").digest == policy.digest

    @pytest.mark.slow
    def test_load_and_act_do_not_import_ray(self, tmp_path: Path) -> None:
        _make_policy().save(tmp_path)
        code = (
            "import sys, numpy; from hindcast.models.policy import Policy\n"
            f"Policy.load({str(tmp_path)!r})(numpy.zeros(4)); assert 'ray' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestDamage:
    @pytest.fixture
    def saved_policy(self, tmp_path: Path) -> Path:
        _make_policy(observation_filter="meanStd").save(tmp_path / "module")
        return tmp_path

    def test_folder_without_policy_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"no policy: it has neither module\.json nor module/module\.json"
        ):
            Policy.load(tmp_path)

    def test_missing_path_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=rf"^{tmp_path}/zzz does not exist: check the path"):
            Policy.load(tmp_path / "zzz")

    @pytest.mark.parametrize("name", ["weights.safetensors", "preprocessing.safetensors"])
    def test_missing_file_is_named(self, saved_policy: Path, name: str) -> None:
        (saved_policy / "module" / name).unlink()
        with pytest.raises(DataError, match=name):
            Policy.load(saved_policy)

    @pytest.mark.parametrize("name", ["weights.safetensors", "preprocessing.safetensors"])
    def test_truncated_file_is_named(self, saved_policy: Path, name: str) -> None:
        file = saved_policy / "module" / name
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(DataError, match=rf"{name} is damaged: its sha256"):
            Policy.load(saved_policy)

    def test_pickle_is_never_opened(self, saved_policy: Path, tmp_path: Path) -> None:
        marker_file = tmp_path / "executed"

        class Bomb:
            def __reduce__(self) -> tuple[object, ...]:
                return Path.touch, (marker_file,)

        for name in ("weights.safetensors", "preprocessing.safetensors"):
            (saved_policy / "module" / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(DataError, match="is damaged"):
            Policy.load(saved_policy)
        _edit_description(saved_policy / "module", "checksums", None)
        with pytest.raises(DataError, match="invalid or missing fields: checksums"):
            Policy.load(saved_policy)
        assert not marker_file.exists()

    def test_newer_format_is_refused(self, saved_policy: Path) -> None:
        _edit_description(saved_policy / "module", "formatVersion", 2)
        with pytest.raises(DataError, match="formatVersion 2, but this Hindcast reads up to 1"):
            Policy.load(saved_policy)

    @pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\x80\x04", b'{"a": 1}'])
    def test_damaged_description_is_named(self, saved_policy: Path, content: bytes) -> None:
        (saved_policy / "module" / "module.json").write_bytes(content)
        with pytest.raises(DataError, match=r"module\.json is damaged"):
            Policy.load(saved_policy)

    @pytest.mark.parametrize(
        ("key", "value", "problem"),
        [
            ("model", {"fcnetHiddens": "many"}, "is damaged: invalid or missing fields: model"),
            ("model", {"unknown": 1}, "is damaged: invalid or missing fields: model"),
            ("moduleClass", 3, "is damaged: invalid or missing fields: moduleClass"),
            ("value", None, "is damaged: invalid or missing fields: value"),
            ("model", {"fcnetHiddens": [3]}, "and the tensor files next to it do not match"),
            ("observationSpace", {"type": "Discrete"}, "and the tensor files next to it do not match"),
            ("preprocessing", {}, "and the tensor files next to it do not match"),
        ],
    )
    def test_invalid_field_of_the_description_is_named(
        self, saved_policy: Path, key: str, value: object, problem: str
    ) -> None:
        _edit_description(saved_policy / "module", key, value)
        with pytest.raises(DataError, match=rf"module/module\.json {problem}"):
            Policy.load(saved_policy)


class TestClasses:
    def test_allowed_class_is_used(self, tmp_path: Path) -> None:
        policy = _make_policy(module_class=LinearModule)
        policy.save(tmp_path)
        restored_policy = Policy.load(tmp_path, allow_classes=[LinearModule])
        assert isinstance(restored_policy.module, LinearModule)
        _assert_same_outputs(restored_policy, policy)

    def test_class_named_only_by_a_file_is_not_imported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "never_imported.py").write_text("from module_toys import Net\nclass Other(Net): pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        policy = _make_policy(module_class=Net)
        policy.save(tmp_path)
        _edit_description(tmp_path, "moduleClass", "never_imported:Other")
        with pytest.raises(
            DataError, match=r":Other'\. Hindcast never imports a class only because a file n"
        ):
            Policy.load(tmp_path)
        assert "never_imported" not in sys.modules
        restored_policy = Policy.load(tmp_path, allow_classes=["never_imported:Other"])
        _assert_same_outputs(restored_policy, policy)

    def test_imported_class_need_not_be_allowed(self, tmp_path: Path) -> None:
        _make_policy(module_class=Net).save(tmp_path)
        assert type(Policy.load(tmp_path).module) is Net

    def test_missing_allowed_class_is_refused(self, tmp_path: Path) -> None:
        _make_policy().save(tmp_path)
        _edit_description(tmp_path, "moduleClass", "no_such_module:Net")
        with pytest.raises(SpecError, match="moduleClass is 'no_such_module:Net': there is no module"):
            Policy.load(tmp_path, allow_classes=["no_such_module:Net"])

    @pytest.mark.parametrize("path", ["os:system", "hindcast.models.policy:Policy", "hindcast.nothing:X"])
    def test_object_that_is_not_a_module_class_is_refused(self, tmp_path: Path, path: str) -> None:
        _make_policy().save(tmp_path)
        _edit_description(tmp_path, "moduleClass", path)
        with pytest.raises(DataError, match=path):
            Policy.load(tmp_path)
