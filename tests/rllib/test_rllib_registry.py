"""A registered algorithm is available everywhere after `make crds`: builder, resources, pages and Tune."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, cast

import pytest
import torch
from pydantic import Field
from ruamel.yaml import YAML

import hindcast
from hindcast.algorithms import REGISTRY
from hindcast.algorithms.bc import BC, BCOptions
from hindcast.algorithms.ppo import PPO
from hindcast.api import checks, options
from hindcast.errors import SpecError
from hindcast.learn.algorithm import Losses, Step, Tensors
from hindcast.rllib.builder import algorithm_configs, trainables
from support import training
from toy_environments import Walk

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from generate_crds import generate


class WeightedOptions(BCOptions):
    """Behaviour cloning with a weight: L = -w·E[log π(a|s)]."""

    weight: Annotated[float, Field(gt=0)] = 2.0
    """The weight w."""


class WeightedBC(BC):
    """BC with a weighted loss."""

    Options = WeightedOptions
    options: WeightedOptions

    def losses(self, nets: torch.nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        loss = self.options.weight * super().losses(nets, batch, step).losses["policy"]
        return Losses({"policy": loss}, {"weighed": torch.tensor(1.0)})


class RenamedPPO(PPO):
    """PPO under another name: it learns in its environment."""


@pytest.fixture(scope="module")
def generated_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Register both algorithms, and return the folder with the output of `make crds`, which the package reads."""
    root = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(REGISTRY, "Weighted", WeightedBC)
        patch.setitem(REGISTRY, "Sampling", RenamedPPO)
        generate(root)
        patch.setattr(options, "files", lambda _: root / "runtime" / "hindcast" / "api")
        _clear_caches()
        for module, suffix in ((algorithm_configs, "Config"), (trainables, "")):
            for name in ("Weighted", "Sampling"):
                generated_class = _generated_class(root, module, name + suffix)
                patch.setattr(module, name + suffix, generated_class, raising=False)
        yield root
    _clear_caches()


def _clear_caches() -> None:
    for function in (options.schemas, options.options_model, options.options_of, checks.all_option_rules):
        function.cache_clear()


def _generated_class(root: Path, module: ModuleType, name: str) -> type:
    """Return a class of a generated module, as if the package contained this version of the module."""
    path = root / "runtime" / "hindcast" / "rllib" / "builder" / Path(str(module.__file__)).name
    namespace = {"__name__": module.__name__}
    exec(path.read_text(), namespace)
    return cast(type, namespace[name])


def test_builder_has_config_of_registered_algorithm(generated_root: Path, walks: Path) -> None:
    config = hindcast.WeightedConfig().environment(Walk).offline_data(input_=str(walks))
    assert (config.weight, config.lr) == (2.0, 1e-4)
    assert config.training(weight=3).to_resource().spec.config == {"weight": 3}
    assert type(pickle.loads(pickle.dumps(config))) is hindcast.WeightedConfig
    assert {"WeightedConfig", "SamplingConfig", "BCConfig"} <= set(dir(hindcast))
    with pytest.raises(SpecError, match="weigth is not an option; did you mean 'weight'"):
        config.training(weigth=1)
    with pytest.raises(SpecError, match="weight does not apply to BC; it is an option of Weighted"):
        hindcast.BCConfig().training(weight=1)
    with pytest.raises(SpecError, match=r"^weight is 0, expected more than 0"):
        config.training(weight=0).to_resource()


def test_resources_and_pages_contain_registered_algorithm(generated_root: Path) -> None:
    crds = {
        name: YAML(typ="safe").load(generated_root / f"crds/hindcast.dev_{name}.yaml")["spec"]["versions"][0]
        for name in ("offlinetrainings", "offlinerecordings")
    }
    spec_schema = crds["offlinetrainings"]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rules = spec_schema["x-kubernetes-validations"]
    assert spec_schema["properties"]["config"]["properties"]["weight"]["type"] == "number"
    assert "'Weighted'" in json.dumps(rules)
    assert "'Sampling'" in json.dumps(crds["offlinerecordings"])
    algorithm_rules = [rule for rule in rules if rule.get("fieldPath") == ".algorithm"]
    assert algorithm_rules and "Sampling" not in json.dumps(algorithm_rules)
    assert "\n### Weighted\n" in (generated_root / "docs/reference.md").read_text()


def test_resource_may_name_registered_algorithm(generated_root: Path) -> None:
    resource = training("folder", "data", algorithm="Weighted", config={"weight": 3})
    assert resource.spec.algorithm == "Weighted"
    with pytest.raises(SpecError, match="weight is 'much'"):
        training("folder", "data", algorithm="Weighted", config={"weight": "much"})


def test_tune_has_trainable_of_registered_algorithm(generated_root: Path) -> None:
    assert trainables.Weighted.algorithm == "Weighted"
    assert pickle.loads(pickle.dumps(trainables.Weighted)) is trainables.Weighted


def test_registered_algorithm_trains(generated_root: Path, walks: Path) -> None:
    config = hindcast.WeightedConfig().environment(Walk).training(train_batch_size_per_learner=16)
    config.offline_data(input_=str(walks), dataset_num_iters_per_learner=1)
    with config.rl_module(model_config={"fcnet_hiddens": [8]}).build_algo() as algo:
        result = algo.train()
    assert result["num_updates_lifetime"] == 1
    assert result["learners"]["default_policy"]["weighed"] == 1.0


def test_registered_online_algorithm_trains(generated_root: Path) -> None:
    config = hindcast.SamplingConfig().environment(Walk).rl_module(model_config={"fcnet_hiddens": [8]})
    config.training(train_batch_size_per_learner=16, minibatch_size=16, num_epochs=1)
    with config.env_runners(num_envs_per_env_runner=4).build_algo() as algo:
        assert algo.train()["num_updates_lifetime"] == 1
