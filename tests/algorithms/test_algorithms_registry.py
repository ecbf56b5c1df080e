import json
import re
import sys

import pytest

from hindcast.algorithms import REGISTRY, build, option_schemas, resolve
from hindcast.errors import SpecError, UserCodeError
from hindcast.learn.algorithm import Algorithm

SIMPLE_TYPES = {"number", "integer", "boolean", "string", "array", "null"}


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A function that writes the module `algorithms_of_a_user`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "algorithms_of_a_user", raising=False)

    def write(source):
        (tmp_path / "algorithms_of_a_user.py").write_text(source)

    yield write
    sys.modules.pop("algorithms_of_a_user", None)


@pytest.mark.parametrize("name", REGISTRY)
def test_build_by_name_uses_the_defaults(name):
    assert resolve(name) is REGISTRY[name]
    algorithm = build(name, {})
    assert isinstance(algorithm, Algorithm)
    assert algorithm.options == REGISTRY[name].Options()
    assert algorithm.options == algorithm.Options.model_validate(algorithm.options.model_dump())


@pytest.mark.parametrize("name", REGISTRY)
def test_every_option_has_a_description_a_default_and_a_simple_type(name):
    schema = option_schemas()[name]
    assert schema["additionalProperties"] is False
    assert "$defs" not in schema
    for field, property_schema in schema["properties"].items():
        assert property_schema["description"], field
        assert "default" in property_schema, field
        for variant in property_schema.get("anyOf", [property_schema]):
            assert variant["type"] in SIMPLE_TYPES, field
            assert variant.keys().isdisjoint({"ge", "gt", "le", "lt"}), field
    json.dumps(schema)


@pytest.mark.parametrize("name", REGISTRY)
def test_options_docstring_states_the_objective(name):
    assert re.search(r"\bL(_\w+)? = ", option_schemas()[name]["description"])


def test_option_schemas_name_the_resources_of_an_algorithm():
    kinds = {name: schema["x-kinds"] for name, schema in option_schemas().items()}
    assert kinds == {name: sorted(algorithm.kinds) for name, algorithm in REGISTRY.items()}
    assert (kinds["BC"], kinds["PPO"]) == (["OfflineTraining"], ["OfflineRecording"])


def test_options_are_camel_case_in_yaml_and_snake_case_in_python():
    options_from_yaml = build("PPO", {"numEpochs": 3, "lambda": 0.5, "gradClipBy": "norm"}).options
    options_from_python = build("PPO", {"num_epochs": 3, "lambda_": 0.5, "grad_clip_by": "norm"}).options
    assert options_from_yaml == options_from_python
    yaml_options = options_from_yaml.model_dump(mode="json", by_alias=True)
    assert (yaml_options["numEpochs"], yaml_options["lambda"]) == (3, 0.5)
    assert build("PPO", yaml_options).options == options_from_yaml


@pytest.mark.parametrize(
    ("name", "config", "sentence"),
    [
        ("PPP", {}, "algorithm is 'PPP', .*did you mean 'PPO'?"),
        ("bc", {}, "did you mean 'BC'?"),
        ("nothing like it", {}, f"allowed: {', '.join(sorted(REGISTRY))}"),
        ("BC", {"lr": "fast"}, r"spec\.config\.lr is 'fast' \(text\), expected a number or a list"),
        ("BC", {"lr": -1}, r"spec\.config\.lr is -1, expected at least 0"),
        ("BC", {"lr": [[5, 1.0]]}, r"spec\.config\.lr: the schedule starts at timestep 5, expected 0"),
        ("BC", {"lrr": 1}, r"spec\.config\.lrr is not a field; did you mean 'lr'"),
        (
            "BC",
            {"lrSchedule": []},
            r"lrSchedule is not a field; here it is 'lr: \[\[0, 1e-3\], \[100000, 1e-5\]\]'",
        ),
        ("CQL", {"actorLearningRate": 1e-4}, "actorLearningRate is not a field; here it is 'actorLr'"),
        ("CQL", {"n_critics": 2}, "n_critics is not a field; here it is 'numCritics'"),
        ("CQL", {"conservativeWeight": 5.0}, "conservativeWeight is not a field; here it is 'minQWeight'"),
        ("IQL", {"batchSize": 256}, "batchSize is not a field; here it is 'trainBatchSizePerLearner'"),
        ("BC", {"gamma": 0.9}, r"spec\.config\.gamma is not a field"),
        ("BC", {"trainBatchSizePerLearner": 0}, "expected at least 1"),
        ("BC", {"gradClip": 0}, "expected more than 0"),
        ("PPO", {"gamma": 1.5}, "expected at most 1"),
        ("PPO", {"minibatchSize": 5000}, "5000, expected at most spec.config.trainBatchSizePerLearner, 4000"),
        ("IQL", {"expectile": 0.0}, "config.expectile is 0.0, expected more than 0"),
        ("IQL", {"expectile": 1.0}, "config.expectile is 1.0, expected less than 1"),
        ("IQL", {"beta": -1.0}, "config.beta is -1.0, expected at least 0"),
        ("MARWIL", {"beta": -1}, "config.beta is -1, expected at least 0"),
        ("CQL", {"numActions": 0}, "config.numActions is 0, expected at least 1"),
        ("TD3BC", {"tau": 0.0}, "config.tau is 0.0, expected more than 0"),
        ("ReBRAC", {"criticBeta": -0.1}, "config.criticBeta is -0.1, expected at least 0"),
        ("DecisionTransformer", {"dropout": 1.0}, "config.dropout is 1.0, expected less than 1"),
        (
            "DecisionTransformer",
            {"embedSize": 9, "numHeads": 2},
            "config.embedSize is 9, expected a multiple of spec.config.numHeads, 2",
        ),
    ],
)
def test_invalid_config_is_refused(name, config, sentence):
    with pytest.raises(SpecError, match=sentence):
        build(name, config, field="spec.config")


def test_custom_algorithm_is_imported(user_module):
    user_module(
        "from hindcast.algorithms.bc import BC, BCOptions\n"
        "class MyOptions(BCOptions):\n"
        "    temperature: float = 1.0\n"
        "class MyBC(BC):\n"
        "    Options = MyOptions\n"
        "number = 3\n"
    )
    algorithm = build("algorithms_of_a_user:MyBC", {"temperature": 2.0, "lr": 0.5})
    assert (algorithm.options.temperature, algorithm.options.lr) == (2.0, 0.5)
    with pytest.raises(SpecError, match="has no 'Other'"):
        resolve("algorithms_of_a_user:Other")
    with pytest.raises(SpecError, match="not a subclass of Algorithm"):
        resolve("algorithms_of_a_user:number")
    with pytest.raises(SpecError, match=r"config\.temperatur is not a field; did you mean 'temperature'"):
        build("algorithms_of_a_user:MyBC", {"temperatur": 2.0})


def test_custom_algorithm_that_builds_a_connector_is_refused(user_module):
    user_module(
        "from hindcast.algorithms import BC\n"
        "class CustomBC(BC):\n"
        "    def build_learner_connector(self, *args):\n"
        "        return super().build_learner_connector(*args)\n"
    )
    with pytest.raises(
        SpecError, match="CustomBC overrides build_learner_connector, which is never called: "
    ):
        resolve("algorithms_of_a_user:CustomBC")


def test_missing_algorithm_module_is_reported():
    with pytest.raises(SpecError, match=r"no module 'nowhere'; install it"):
        resolve("nowhere.at.all:CustomBC")


@pytest.mark.parametrize("source", ["1 / 0", "import no_such_package_anywhere", "def f(:"])
def test_algorithm_module_that_raises_is_a_user_code_error(user_module, source):
    user_module(source)
    with pytest.raises(UserCodeError, match=r"importing 'algorithms_of_a_user'"):
        resolve("algorithms_of_a_user:CustomBC")
