"""Print the options of RLlib 2.60's configs as one line of JSON.

Run it with the Python that has RLlib: `python rllib_options.py`.

The line is `{config: {"methods": {method: [option, …]}, "attributes": {name: default}, "other_methods":
[method, …]}}`: the keyword arguments of the methods in `SETTERS`, all public attributes, and the other public methods.
Defaults that are not JSON are null.
"""

import inspect
import json
from importlib import import_module

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

CONFIGS = {
    "AlgorithmConfig": "algorithm_config",
    **{f"{name}Config": name.lower() for name in ("BC", "MARWIL", "CQL", "IQL", "DQN", "SAC", "PPO")},
}
SETTERS = (
    "environment", "env_runners", "training", "learners", "offline_data", "evaluation", "rl_module", "debugging",
    "framework", "api_stack", "resources", "reporting", "checkpointing", "fault_tolerance", "callbacks", "multi_agent",
    "python_environment", "experimental", "rollouts", "exploration",
)  # fmt: skip


def main():
    options = {}
    for name, module in CONFIGS.items():
        config_class = getattr(import_module(f"ray.rllib.algorithms.{module}"), name)
        config = AlgorithmConfig() if config_class is AlgorithmConfig else config_class()
        methods = [key for key in dir(config_class) if callable(getattr(config_class, key))]
        options[name] = {
            "methods": {method: options_of(config_class, method) for method in SETTERS if method in methods},
            "attributes": {key: json_or_none(value) for key, value in vars(config).items() if key[0] != "_"},
            "other_methods": sorted(key for key in methods if key[0] != "_" and key not in SETTERS),
        }
    print(json.dumps(options))


def options_of(config_class, method):
    """Return the keyword arguments of a method and of the methods that it overrides, which receive its **kwargs."""
    names = {}
    for base in config_class.__mro__:
        if method not in vars(base):
            continue
        parameters = inspect.signature(vars(base)[method]).parameters.values()
        keyword_kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names |= {
            parameter.name: None
            for parameter in parameters
            if parameter.kind in keyword_kinds and parameter.name != "self"
        }
    return list(names)


def json_or_none(value):
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return value


if __name__ == "__main__":
    main()
