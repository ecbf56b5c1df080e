"""Hindcast: offline reinforcement learning from recorded experience.

The public names are imported when they are first used, so that `import hindcast` costs nothing. `__init__.pyi` says
where they are.
"""

from functools import cache
from importlib import import_module
from typing import Any

from hindcast.version import __version__ as __version__


@cache
def _public() -> dict[str, tuple[str, str]]:
    """Public name -> its module, and its name there; names that follow from the algorithms come in addition."""
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        imported.asname: (node.module, imported.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for imported in node.names
        if imported.asname
    }


def __getattr__(name: str) -> Any:
    module, own = _public().get(name, ("", name))
    if not module and name[0].isupper():
        import_module("hindcast.rllib_names").refuse_unsupported(name)
        module = _generating(name)
    if not module or not hasattr(import_module(module), own):
        raise AttributeError(f"module 'hindcast' has no attribute {name!r}")
    return getattr(import_module(module), own)


def _generating(name: str) -> str:
    """The module that makes a name which follows from the algorithms, or has the names of results; "" if none does."""
    if name in import_module("hindcast.api.options").schemas():
        return "hindcast.builder.algorithm_classes"
    if "Conf" in name:
        return "hindcast.builder.algorithm_configs"
    return "hindcast.names" if name.isupper() else ""


def __dir__() -> list[str]:
    constants = (name for name in vars(import_module("hindcast.names")) if name.isupper())
    configs = dir(import_module("hindcast.builder.algorithm_configs"))
    return sorted({*globals(), *_public(), *configs, *constants})
