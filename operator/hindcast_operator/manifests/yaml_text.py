"""Plain values as YAML, in their order."""

import io
from collections.abc import Iterable
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

# Kubernetes' tools read YAML 1.1, in which these words are not text.
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", ""})
_NUMERIC: Final = tuple("0123456789+-.~")


def yaml_text(value: Any) -> str:
    """One document, the same for readers of YAML 1.1 and 1.2."""
    text = io.StringIO()
    _writer().dump(value, text)
    return text.getvalue()


def yaml_documents(values: Iterable[Any]) -> str:
    """Several documents, each after a line `---`."""
    return "".join(f"---\n{yaml_text(value)}" for value in values)


class _Representer(RoundTripRepresenter):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """A value that occurs twice is written twice."""
        return True

    def represent_text(self, data: str) -> ScalarNode:
        """Text, quoted where some reader would parse it as something else."""
        if "\n" in data:
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="|")
        doubtful = data.lower() in _WORDS or data.startswith(_NUMERIC)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if doubtful else None)


_Representer.add_representer(str, _Representer.represent_text)


def _writer() -> YAML:
    writer = YAML(typ="rt", pure=True)
    writer.Representer = _Representer
    writer.default_flow_style = False
    writer.width = 110
    return writer
