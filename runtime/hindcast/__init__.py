"""Hindcast: offline reinforcement learning from recorded experience.

Public names are imported on first use, so that `import hindcast` stays cheap. `__init__.pyi` lists their modules.
"""

from functools import cache
from importlib import import_module
from typing import Any

from hindcast.version import __version__ as __version__


@cache
def _public_names() -> dict[str, tuple[str, str]]:
    """Return the names that the stub lists: public name -> (module, name in that module)."""
    # The stub is the only list: type checkers read it too, and a second one would drift from it.
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.asname: (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname
    }


def __getattr__(name: str) -> Any:
    module, attribute = _public_names().get(name, ("", name))
    if not module and name[0].isupper():
        import_module("hindcast.rllib_names").refuse_unsupported(name)
        module = _module_of_unlisted_name(name)
    if not module or not hasattr(import_module(module), attribute):
        raise AttributeError(f"module 'hindcast' has no attribute {name!r}")
    return getattr(import_module(module), attribute)


def _module_of_unlisted_name(name: str) -> str:
    """Return the module of an algorithm's class, a config or a result key, which the stub does not list, else ""."""
    if name in import_module("hindcast.api.options").schemas():
        return "hindcast.builder.algorithm_classes"
    # Misspelled names of configs too: that module suggests the nearest one.
    if "Conf" in name:
        return "hindcast.builder.algorithm_configs"
    return "hindcast.names" if name.isupper() else ""


def __dir__() -> list[str]:
    constants = (name for name in vars(import_module("hindcast.names")) if name.isupper())
    configs = dir(import_module("hindcast.builder.algorithm_configs"))
    return sorted({*globals(), *_public_names(), *configs, *constants})
