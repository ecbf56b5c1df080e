"""Names imported by code written for RLlib, and the errors for names that Hindcast does not have."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hindcast
from hindcast import BC, PPO, Algorithm, BCConfig, OfflinePreLearner, get_trainable_cls, override
from hindcast.errors import SpecError
from hindcast.rllib.names import REPLACEMENTS
from hindcast.user_code import import_object

FIXTURES = Path(__file__).parents[1] / "fixtures"
ALIASES = {
    "RLlibCallback": "Callbacks",
    "DefaultCallbacks": "Callbacks",
    "TorchRLModule": "RLModule",
    "Algorithm": "RunningAlgorithm",
    "EpisodeType": "SingleAgentEpisode",
    "ConnectorPipelineV2": "LearnerConnectorPipeline",
    "BCTorchRLModule": "DefaultBCTorchRLModule",
}
"""RLlib's name -> Hindcast's name of the same object."""


@pytest.mark.parametrize("name", ALIASES)
def test_rllib_name_is_the_hindcast_object(name: str) -> None:
    assert getattr(hindcast, name) is getattr(hindcast, ALIASES[name])


@pytest.mark.parametrize("name", sorted(hindcast.PUBLIC_NAMES))
def test_every_public_name_exists(name: str) -> None:
    assert getattr(hindcast, name) is not None
    assert name in dir(hindcast)


@pytest.mark.parametrize("name", (FIXTURES / "rllib_names.txt").read_text().split())
def test_public_name_of_rllib_is_here_or_has_a_sentence(name: str) -> None:
    try:
        exec(f"from hindcast import {name}")
    except ImportError as error:
        assert str(error).startswith(f"Hindcast has no {name}")
        assert "cannot import" not in str(error)


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_unsupported_name_names_its_replacement(name: str) -> None:
    with pytest.raises(ImportError, match=rf"^Hindcast has no {name}: .*[^.]\.$"):
        exec(f"from hindcast import {name}")


def test_run_config_names_tune_as_its_replacement() -> None:
    with pytest.raises(ImportError, match=r"write tune\.RunConfig, after `from hindcast import tune`"):
        exec("from hindcast import RunConfig")


@pytest.mark.parametrize(
    "module", ["hindcast.algorithms", "hindcast.algorithms.bc", "hindcast.algorithms.ppo"]
)
def test_name_in_the_module_of_an_algorithm_is_public(module: str) -> None:
    for name in ("BCConfig", "BCTorchLearner", "PPOConfig"):
        with pytest.raises(ImportError, match=f": from hindcast import {name}$"):
            exec(f"from {module} import {name}", {})
        with pytest.raises(SpecError, match=f"^f is '{module}:{name}': .*: from hindcast import {name}$"):
            import_object(f"{module}:{name}", "f")
    assert not hasattr(import_module(module), "NoSuchName")
    assert not hasattr(import_module(module), "no_such_name")


def test_unknown_name_raises_attribute_error() -> None:
    assert not hasattr(hindcast, "Frobnicator")
    assert not hasattr(hindcast, "frobnicate")


def test_override_checks_the_method_name() -> None:
    class Mine(OfflinePreLearner):
        @override(OfflinePreLearner)
        @staticmethod
        def _map_to_episodes(batch: Any, **kwargs: Any) -> Any:
            return {"episodes": []}

    assert Mine._map_to_episodes({}) == {"episodes": []}

    def no_such() -> None:
        """Overrides nothing."""

    with pytest.raises(NameError, match=r"OfflinePreLearner has no no_such\(\) to override"):
        override(OfflinePreLearner)(no_such)


def test_algorithm_classes_exist() -> None:
    assert get_trainable_cls("BC") is BC
    assert BC.algorithm_name == "BC"
    assert issubclass(BC, Algorithm)
    assert BC.get_default_config().algorithm == "BC"
    with pytest.raises(SpecError, match="'Bc' is not an algorithm; did you mean 'BC'"):
        get_trainable_cls("Bc")
    with pytest.raises(SpecError, match="BC cannot be built from a config of PPO"):
        BC(config=hindcast.PPOConfig())


@pytest.mark.slow
def test_algorithm_class_builds_the_algorithm(tmp_path: Path) -> None:
    options = {"env": "CartPole-v1", "output": str(tmp_path / "data"), "evaluation_duration": 3}
    with PPO(options) as recorder:
        recorder.evaluate()
    with BC(config=BCConfig().offline_data(input_=str(tmp_path / "data")), env="CartPole-v1") as algo:
        algo.train()
        checkpoint = algo.save_to_path(tmp_path / "saved")
    with BC.from_checkpoint(checkpoint) as restored_algo:
        assert restored_algo.iteration == 1
        assert restored_algo.get_policy("default_policy") is restored_algo.get_policy()
        assert restored_algo.get_config() is restored_algo.config
        with pytest.raises(SpecError, match="policy_id is 'p1': the only policy is 'default_policy'"):
            restored_algo.get_policy("p1")
        with pytest.raises(SpecError, match="logdir does not exist: train"):
            _ = restored_algo.logdir
        restored_algo.cleanup()


def test_option_is_set_by_key() -> None:
    config = BCConfig()
    config["lr"] = 3.0
    assert config.to_dict() == {"lr": 3.0}
