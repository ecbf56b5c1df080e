"""The pages' code blocks with one thing changed in the config: it has an effect, or a sentence says what is wrong."""

from __future__ import annotations

import ast
import copy
import random
import re
import sys
from collections.abc import Sized
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from test_rllib_options import SAMPLES, YAML_WORDS

from hindcast import AlgorithmConfig, OfflinePreLearner
from hindcast.errors import UserError
from hindcast.rllib.builder.options import OPTIONS
from layers import repeats
from option_effects import effective_options

BLOCKS = Path(__file__).parents[2] / "examples" / "reference" / "offline_data"
METHODS = [method for method in OPTIONS if method[0].islower()]
NUM_VARIATIONS = repeats(150, 10_000)
WRONG_VALUES = (
    *("yes", "", "False", "no such", b"bytes", 3 + 0j),
    *(-7, 2.5, float("nan"), float("inf"), 10**30),
    *([], {}, (), {1}, [None], [[]], {"a": {"b": 1}}, {1: 2}, range(3)),
    *(object(), np.zeros(2), np.float32(1.5), len, int, Path("there")),
)


class Names(ModuleType):
    """Stands for another block: has any name that a block imports from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (OfflinePreLearner,), {}) if name[0].isupper() else "data"


def find_calls(tree: ast.Module) -> list[ast.Call]:
    """Return the calls of a config's methods with options."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in METHODS
        and node.keywords
    ]


def keep_configs(tree: ast.Module) -> ast.Module:
    """Return the statements of a block up to the last one that calls a config's method."""
    last = max(index for index, statement in enumerate(tree.body) if find_calls(ast.Module([statement], [])))
    return ast.Module(tree.body[: last + 1], [])


def read_block(path: Path) -> ast.Module | None:
    """Return the beginning of a block with a config; None if it has none, or runs something before it."""
    tree = ast.parse(path.read_text())
    if not find_calls(tree):
        return None
    block = keep_configs(tree)
    is_config = (ast.Import, ast.ImportFrom, ast.Assign, ast.ClassDef, ast.FunctionDef)
    return block if all(isinstance(node, is_config) or is_docstring(node) for node in block.body) else None


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


TREES = {
    path.stem: tree
    for path in sorted(BLOCKS.glob("*.py"))
    if path.stem != "multiple_output_paths" and (tree := read_block(path)) is not None  # refused as it is
}


def make_config(tree: ast.Module, values: dict[str, Any]) -> AlgorithmConfig:
    """Run a block; return its config, completed by what any training needs."""
    names = {name for node in tree.body if isinstance(node, ast.ImportFrom) for name in [node.module]}
    others = {name: Names(name) for name in names & {path.stem for path in BLOCKS.glob("*.py")}}
    namespace = dict(values)
    before = {name: sys.modules.get(name) for name in others}
    sys.modules.update(others)
    try:
        exec(compile(ast.fix_missing_locations(tree), "block", "exec"), namespace)
    finally:
        for name, module in before.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})
    config = next(value for value in reversed(namespace.values()) if isinstance(value, AlgorithmConfig))
    if config.algorithm is None:
        config = AlgorithmConfig("BC").update_from_dict(config.to_dict())
    if config.get("env") is None and config.get("observation_space") is None:
        config.environment("CartPole-v1")
    if config.get("input_") is None and config.get("output") is None:
        config.offline_data(input_="data")
    return config


def vary(tree: ast.Module, rng: random.Random) -> tuple[ast.Module, dict[str, Any], str, str]:
    """Return the block with one thing changed, the values that it refers to, and the change and its option."""
    tree = copy.deepcopy(tree)
    call = rng.choice(find_calls(tree))
    keyword = rng.choice([keyword for keyword in call.keywords if keyword.arg])
    method, option = call.func.attr, str(keyword.arg)  # type: ignore[attr-defined]
    change = rng.choice(
        ["value", "value", "entry", "name", "removal", "method", "addition", "addition", "order"]
    )
    values: dict[str, Any] = {}
    if change == "value":
        keyword.value, values["changed_value"] = (
            ast.Name("changed_value", ast.Load()),
            rng.choice(WRONG_VALUES),
        )
    elif change == "entry":
        entries = [node for node in ast.walk(keyword.value) if isinstance(node, ast.Constant)]
        if entries:
            rng.choice(entries).value = rng.choice([-7, 2.5, "no such", None, True])
    elif change == "name":
        index = rng.randrange(len(option))
        keyword.arg = rng.choice([option[:index] + option[index + 1 :], option.title(), option + "_"])
        option = keyword.arg if keyword.arg.isidentifier() else option
        keyword.arg = option
    elif change == "removal":
        call.keywords.remove(keyword)
    elif change == "method":
        call.func.attr = rng.choice(METHODS)  # type: ignore[attr-defined]
    elif change == "addition":
        option = rng.choice(
            [name for name in OPTIONS[method] if name not in {key.arg for key in call.keywords}]
        )
        values["changed_value"] = rng.choice(
            [*WRONG_VALUES, *(copy.copy(value) for value in SAMPLES.get(option, ()))]
        )
        call.keywords.append(ast.keyword(option, ast.Name("changed_value", ast.Load())))
    else:
        call.keywords.reverse()
    return tree, values, change, option


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(NUM_VARIATIONS))
def test_block_with_one_change_has_an_effect_or_a_sentence(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(sorted(TREES))
    tree, values, change, option = vary(TREES[name], rng)
    description = f"{name}: {change} of {option}: {values}"
    try:
        config = make_config(tree, values)
        config.validate()
    except UserError as error:
        text = re.sub(r"'[^']*'|<.*?>", "", str(error))
        assert text.strip(), description
        assert not YAML_WORDS.search(text), f"{description}: {error}"
        return
    except Exception as error:
        raise AssertionError(description) from error
    wrong_values = [value for value in WRONG_VALUES if not (isinstance(value, Sized) and len(value) == 0)]
    if any(values.get("changed_value") is value for value in wrong_values):
        notes = [line for line in config.replaced_options if line.startswith(f"{option}: ")]
        assert notes or effective_options(config) != effective_options(make_config(TREES[name], {})), (
            description
        )


def test_blocks_have_configs() -> None:
    assert len(TREES) > 20
