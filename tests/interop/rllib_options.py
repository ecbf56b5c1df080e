"""The options of RLlib 2.60's configs, printed as one line of JSON.

Runs in RLlib's environment: `python rllib_options.py`.

`{config: {"methods": {method: [option, …]}, "attributes": {name: default}, "own": [method, …]}}`: the named
arguments of its methods, the defaults with a plain value, and all public methods. Defaults that are not JSON are null.
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
    "environment",
    "env_runners",
    "training",
    "learners",
    "offline_data",
    "evaluation",
    "rl_module",
    "debugging",
    "framework",
    "api_stack",
    "resources",
    "reporting",
    "checkpointing",
    "fault_tolerance",
    "callbacks",
    "multi_agent",
    "python_environment",
    "experimental",
    "rollouts",
    "exploration",
)


def main():
    options = {}
    for name, module in CONFIGS.items():
        kind = getattr(import_module(f"ray.rllib.algorithms.{module}"), name)
        config = AlgorithmConfig() if kind is AlgorithmConfig else kind()
        options[name] = {
            "methods": {method: options_of(kind, method) for method in SETTERS if hasattr(kind, method)},
            "attributes": {key: plain(value) for key, value in vars(config).items() if key[0] != "_"},
            "own": sorted(
                key
                for key in dir(kind)
                if key[0] != "_" and callable(getattr(kind, key)) and key not in SETTERS
            ),
        }
    print(json.dumps(options))


def options_of(kind, method):
    """Return the keyword arguments of a method, and of the overridden methods that it passes others on to."""
    names = {}
    for base in kind.__mro__:
        if method not in vars(base):
            continue
        parameters = inspect.signature(vars(base)[method]).parameters.values()
        keywords = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names |= {p.name: None for p in parameters if p.kind in keywords and p.name != "self"}
    return list(names)


def plain(value):
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return value


if __name__ == "__main__":
    main()
