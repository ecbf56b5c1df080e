"""YAML text of plain values, in their order."""

import io
from collections.abc import Iterable
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

# Kubernetes' tools read YAML 1.1, in which these words mean a boolean or null unless they are quoted.
_QUOTED_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", ""})
_NUMERIC_STARTS: Final = tuple("0123456789+-.~")


def yaml_text(value: Any) -> str:
    """Return one YAML document with the same meaning in YAML 1.1 and 1.2."""
    stream = io.StringIO()
    _make_writer().dump(value, stream)
    return stream.getvalue()


def yaml_documents(values: Iterable[Any]) -> str:
    """Return several YAML documents, each after a line `---`."""
    return "".join(f"---\n{yaml_text(value)}" for value in values)


class _Representer(RoundTripRepresenter):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a repeated value in full each time, without YAML's anchors and aliases."""
        return True

    def represent_text(self, data: str) -> ScalarNode:
        """Represent text. It is quoted if a reader of YAML 1.1 or 1.2 would parse it as another type."""
        if "\n" in data:
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="|")
        is_ambiguous = data.lower() in _QUOTED_WORDS or data.startswith(_NUMERIC_STARTS)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if is_ambiguous else None)


_Representer.add_representer(str, _Representer.represent_text)


def _make_writer() -> YAML:
    writer = YAML(typ="rt", pure=True)
    writer.Representer = _Representer
    writer.default_flow_style = False
    writer.width = 110
    return writer
