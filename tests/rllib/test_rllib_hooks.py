"""A method of RLlib's classes that a user's class overrides is called, or is refused before anything runs."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hindcast import (
    BCConfig,
    BCTorchLearner,
    ConnectorV2,
    OfflineData,
    OfflinePreLearner,
    RLlibCallback,
    RLModuleSpec,
)
from hindcast.errors import SpecError
from hindcast.models.rl_module import RLModule
from hindcast.user_code import refuse_unused_overrides

KINDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "pre-learner": (OfflinePreLearner, ("offline/offline_prelearner.py",)),
    "offline data": (OfflineData, ("offline/offline_data.py",)),
    "callback": (RLlibCallback, ("callbacks/callbacks.py",)),
    "learner": (BCTorchLearner, ("core/learner/learner.py", "core/learner/torch/torch_learner.py")),
    "module": (RLModule, ("core/rl_module/rl_module.py", "core/rl_module/torch/torch_rl_module.py")),
    "connector": (ConnectorV2, ("connectors/connector_v2.py",)),
}
"""Kind -> the class that users subclass, and the files of RLlib's."""
CLASSES = (
    "OfflinePreLearner",
    "OfflineData",
    "RLlibCallback",
    "Learner",
    "TorchLearner",
    "RLModule",
    "TorchRLModule",
)
HELPERS = {"foreach_batch_item_change_in_place", "switch_batch_from_column_to_module_ids"}
"""Functions that connectors call, and RLlib does not call by itself."""


def rllib_methods(files: tuple[str, ...]) -> list[str]:
    """Return the methods in the source of RLlib's classes, without special ones. RLlib need not be importable."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "rllib"
    return [
        method.name
        for file in files
        for cls in ast.parse((folder / file).read_text()).body
        if isinstance(cls, ast.ClassDef) and cls.name in (*CLASSES, "ConnectorV2")
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("__")
    ]


METHODS = {kind: rllib_methods(files) for kind, (_, files) in KINDS.items()}


def subclass(base: type, **attributes: Any) -> type:
    return type("Mine", (base,), {"__module__": "__main__", **attributes})


def method(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand for a user's method."""


def is_known(base: type, name: str) -> bool:
    refused = {name for cls in base.__mro__ for name in vars(cls).get("unsupported_overrides", {})}
    return hasattr(base, name) and name not in refused


@pytest.mark.parametrize("kind", KINDS)
def test_method_of_rllib_is_known_or_refused_with_a_remedy(kind: str) -> None:
    base, _ = KINDS[kind]
    assert METHODS[kind]
    for name in set(METHODS[kind]) - HELPERS:
        cls = subclass(base, **{name: method})
        if is_known(base, name):
            refuse_unused_overrides(cls)
            continue
        with pytest.raises(SpecError, match=rf"^Mine overrides {name}, which is never called: \S.*[^.]\.$"):
            refuse_unused_overrides(cls)
        with pytest.raises(SpecError, match="never called"):
            refuse_unused_overrides(subclass(cls))


HELPER_USES = {
    "lambda": ("__init__", "return list(map(lambda item: self.{name}(item), [1]))", True),
    "nested": ("helper", "\n  def inner(): return self.{name}\n  return inner()", True),
    "call of two": ("helper", "return print(self, self.{name}())", True),
    "helper of a helper": ("helper", "return self.my_{name}()", True),
    "another object": ("helper", "return self.environment.{name}", False),
    "item": ("helper", "return list(map(lambda item: item.{name}, [1]))", False),
    "super": ("helper", "return super(Mine, self).{name}()", False),
    "itself": ("{name}", "return self.{name}()", False),
}
"""How a class uses its method -> name and code of the user, and True if the method is a helper."""


@pytest.mark.parametrize("use", HELPER_USES)
@pytest.mark.parametrize("kind", KINDS)
def test_method_that_only_rllib_calls_may_be_a_helper_of_the_class(kind: str, use: str) -> None:
    base, _ = KINDS[kind]
    user_name, code, is_helper = HELPER_USES[use]
    for name in {name for name in METHODS[kind] if not is_known(base, name)} - HELPERS:
        namespace: dict[str, Any] = {}
        exec(f"def user(self): {code.format(name=name)}", namespace)
        exec(f"def extension(self): return super(Mine, self).{name}()", namespace)
        exec(f"def helper_of_helper(self): return self.{name}()", namespace)
        attributes = {name: method, f"my_{name}": method, user_name.format(name=name): namespace["user"]}
        if use == "helper of a helper":
            attributes[f"my_{name}"] = namespace["helper_of_helper"]
        if is_helper:
            refuse_unused_overrides(subclass(base, **attributes))
            attributes[name] = namespace["extension"]
        with pytest.raises(SpecError, match=rf"overrides {name}, which is never called"):
            refuse_unused_overrides(subclass(base, **attributes))


def misspell(name: str) -> set[str]:
    """Return a name with a letter less, more or swapped, and with other underscores."""
    middle = len(name) // 2
    swapped = name[:middle] + name[middle + 1] + name[middle] + name[middle + 2 :]
    names = {name[:-1], f"{name}s", f"_{name.lstrip('_')}", name.lstrip("_"), name.replace("_", "")}
    return (names | {swapped} if len(name) > 16 else names) - {name}


@pytest.mark.parametrize("kind", KINDS)
def test_misspelt_method_is_refused_unless_something_uses_it(kind: str) -> None:
    base, _ = KINDS[kind]
    attributes = {"input_observation_space", "input_action_space"}  # no methods here
    hooks = {name for name in METHODS[kind] if len(name) > 7} - HELPERS - attributes
    names = {wrong for name in hooks for wrong in misspell(name) if not hasattr(base, wrong)} - set(
        METHODS[kind]
    )
    assert names
    for name in names:
        with pytest.raises(SpecError, match=rf"^Mine (defines|overrides) {name}, which is never called: "):
            refuse_unused_overrides(subclass(base, **{name: method}))
        namespace: dict[str, Any] = {}
        exec(f"def helper(self): return self.{name}()", namespace)
        refuse_unused_overrides(subclass(base, **{name: method, "my_helper": namespace["helper"]}))


USES = {
    "comprehension": "def use(self): return [self.{name}(i) for i in range(3)]",
    "lambda": "def use(self): return list(map(lambda i: self.{name}(i), range(3)))",
    "function in a method": "def use(self):\n        def inner(): return self.{name}(1)\n        return inner()",
    "static method": "@staticmethod\n    def use(): return [Mine.{name}(i) for i in range(3)]",
    "class method": "@classmethod\n    def use(cls): return cls.{name}(1)",
    "property": "@property\n    def use(self): return self.{name}(1)",
    "cached property": "@functools.cached_property\n    def use(self): return self.{name}(1)",
    "cached method": "@functools.lru_cache\n    def use(self): return self.{name}(1)",
    "decorator": "@decorate\n    def use(self): return self.{name}(1)",
    "getattr": "def use(self): return getattr(self, '{name}')(1)",
    "table": "table = {{'name': [{name}]}}",
    "another name": "use = {name}",
    "partial method": "use = functools.partialmethod({name}, 1)",
    "default argument": "def use(self, function={name}): return function(self, 1)",
    "mixin": "pass\nclass Mixin:\n    def use(self): return self.{name}(1)\nclass Mine(Mixin, Mine): pass",
    "mixin after": "pass\nclass Mixin:\n    def use(self): return self.{name}(1)\nclass Mine(Mine, Mixin): pass",
    "subclass": "pass\nclass Mine(Mine):\n    def use(self): return self.{name}(1)",
    "function": "pass\ndef use(learner): return [learner.{name}(i) for i in range(3)]",
    "none": "pass",
    "itself": "def use(self): pass",
}
"""How code of a notebook, which has no file, uses a method -> code in its class."""


@pytest.mark.parametrize("use", USES)
def test_method_of_a_notebook_that_any_code_uses_is_a_helper(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = (
        "import functools\n"
        "def decorate(function): return lambda self: function(self)\n"
        "class Mine(Base):\n"
        "    def {name}(self, i): return self.{name}(i - 1) if i else super().{name}(i)\n"
        f"    {USES[use]}\n"
    )
    monkeypatch.setitem(sys.modules, "notebook", notebook := ModuleType("notebook"))
    vars(notebook)["Base"] = OfflinePreLearner
    exec(cell.format(name="_make_episode"), vars(notebook))
    if use in ("none", "itself"):
        with pytest.raises(SpecError, match="_make_episode, which is never called"):
            refuse_unused_overrides(notebook.Mine)
    else:
        refuse_unused_overrides(notebook.Mine)


def test_method_with_another_name_or_of_a_file_that_uses_it_is_a_helper() -> None:
    class Helpers(OfflinePreLearner):
        def tokenize(self, text: str) -> list[str]:
            return text.split()

        def _map_to_episode(self, row: Any) -> Any:
            return row

    refuse_unused_overrides(Helpers)
    assert Helpers._map_to_episode is not None  # a use


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("pre-learner", "map_to_episodes"),
        ("offline data", "default_iter_batches_kwargs"),
        ("callback", "on_episodes_end"),
        ("learner", "compute_loss_for_modules"),
        ("module", "_forward_trains"),
        ("connector", "get_state"),
    ],
)
def test_class_with_a_method_that_nothing_calls_is_refused_before_data_are_prepared(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl").write_text(
        '{"obs": [1.0], "actions": 0, "rewards": 1.0, "terminateds": true}\n'
    )
    cls = subclass(
        KINDS[kind][0], **{name: method, "__call__": method} if kind == "connector" else {name: method}
    )
    config = BCConfig().environment(
        observation_space=gym.spaces.Box(-9, 9, (1,), np.float32), action_space=gym.spaces.Discrete(2)
    )
    config.offline_data(input_=str(tmp_path / "rows.jsonl"))
    with pytest.raises(SpecError, match=f"^.*Mine.*{name}, which is never called: "):
        match kind:
            case "pre-learner":
                config.offline_data(prelearner_class=cls)
            case "offline data":
                config.offline_data(offline_data_class=cls)
            case "callback":
                config.callbacks(cls)
            case "learner":
                config.training(learner_class=cls)
            case "module":
                config.rl_module(rl_module_spec=RLModuleSpec(module_class=cls))
            case "connector":
                config.training(learner_connector=cls)
        config.build_algo()
    assert not (tmp_path / "cache").exists()
