"""Read YAML 1.2 files as plain values with their line numbers.

Documents are composed to nodes and turned into values here rather than by a constructor, so that all
problems of a file, including duplicate keys, are found together, with their lines, and no content is executed.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node, ScalarNode, SequenceNode

from hindcast.api.sentences import similar_file
from hindcast.errors import FieldPath, Problem

_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_MAX_NODES: Final = 100_000


@dataclass(frozen=True)
class Document:
    """A YAML document.

    Attributes:
        value: plain value; None if the document could not be read.
        line: line of its beginning, from 1.
        lines: path -> line of the key or list entry, from 1.
        problems: problems that were found while reading it.
    """

    value: Any
    line: int
    lines: dict[FieldPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, steps: FieldPath) -> int:
        """Return the line of a path, or of its nearest parent that exists, from 1."""
        while steps and steps not in self.lines:
            steps = steps[:-1]
        return self.lines.get(steps, self.line)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a file in order, without empty ones.

    If the file or one of its documents cannot be read (no such file, invalid YAML), the last Document has the problem
    and no value. The documents before it can still be checked.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        yield _unreadable_document(f"there is no such file{similar_file(str(path))}")
    except IsADirectoryError:
        yield _unreadable_document("is a folder; name the YAML files in it")
    except UnicodeDecodeError as error:
        yield _unreadable_document(f"is not a text file in UTF-8 (byte {error.start})")
    except OSError as error:
        yield _unreadable_document(f"cannot be read: {error.strerror}")
    else:
        yield from documents_of(text)


def documents_of(text: str) -> Iterator[Document]:
    """Yield the documents of a text; see `read_documents`."""
    try:
        for node in YAML(typ="rt", pure=True).compose_all(text):
            if not (isinstance(node, ScalarNode) and node.tag == f"{_TAG_PREFIX}null"):
                yield _Reader().read_document(node)
    except MarkedYAMLError as error:
        yield _invalid_yaml(error, text)
    except YAMLError as error:
        yield _unreadable_document(f"is not YAML: {' '.join(str(error).split())}")


def _unreadable_document(text: str, line: int = 0) -> Document:
    return Document(None, line, problems=[Problem((), text, line)])


def _invalid_yaml(error: MarkedYAMLError, text: str) -> Document:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    source = text.splitlines()[line] if line < len(text.splitlines()) else ""
    if "\t" in source[: len(source) - len(source.lstrip())]:
        return _unreadable_document(
            "is not valid YAML: the line begins with a tab; indent with spaces", line + 1
        )
    context = f" {error.context}" if error.context else ""
    if error.context_mark and error.context_mark.line != line:
        context += f" that begins on line {error.context_mark.line + 1}"
    return _unreadable_document(
        f"is not valid YAML: {error.problem}{context} (column {column + 1})", line + 1
    )


class _Reader:
    """A reader that turns the nodes of one document into values.

    Attributes:
        lines, problems: see `Document`.
        open_nodes: ids of the nodes that contain the node that is being read.
        is_unreadable: whether the document has no value.
        num_nodes: number of nodes that were read, each as often as aliases repeat it.
    """

    def __init__(self) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.problems: list[Problem] = []
        self.open_nodes: set[int] = set()
        self.is_unreadable = False
        self.num_nodes = 0

    def read_document(self, root: Node) -> Document:
        value = self.read_value(root, ())
        return Document(
            None if self.is_unreadable else value, root.start_mark.line + 1, self.lines, self.problems
        )

    def read_value(self, node: Node, steps: FieldPath) -> Any:
        self.num_nodes += 1
        if id(node) in self.open_nodes or self.num_nodes > _MAX_NODES:
            # Only aliases can nest a node in itself, or expand a few lines to millions of values.
            return self.add_unreadable(
                node,
                steps,
                "contains itself, or expands to too many values, through YAML aliases; replace them by "
                "their values",
            )
        self.lines.setdefault(steps, node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return self.read_scalar(node, steps)
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.read_value(entry, (*steps, index)) for index, entry in enumerate(node.value)]
            return self.read_mapping(node.value, steps)
        finally:
            self.open_nodes.discard(id(node))

    def read_mapping(self, pairs: list[tuple[Node, Node]], steps: FieldPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged_values: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key, entry in pairs:
            if key.tag == f"{_TAG_PREFIX}merge":
                merged_values = self.read_merge(entry, steps) | merged_values
                continue
            name, line = _join_surrogates(str(key.value)), key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                self.add_problem(key, steps, "has a key that is not a plain word")
            elif name in first_lines:
                self.add_problem(
                    key, (*steps, name), f"is given twice, first on line {first_lines[name]}; keep one"
                )
            else:
                first_lines[name] = line
                self.lines[*steps, name] = line
                values[name] = self.read_value(entry, (*steps, name))
        return merged_values | values

    def read_merge(self, node: Node, steps: FieldPath) -> dict[str, Any]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        merged_values: dict[str, Any] = {}
        for source in sources:
            value = self.read_value(source, steps)
            if not isinstance(value, dict):
                self.add_problem(source, steps, "merges (<<) something that is not a mapping")
                continue
            merged_values = value | merged_values
        return merged_values

    def read_scalar(self, node: ScalarNode, steps: FieldPath) -> Any:
        parse = _SCALAR_PARSERS.get(str(node.tag).removeprefix(_TAG_PREFIX))
        if parse is None:
            return self.add_unreadable(node, steps, f"has the YAML tag {node.tag}, which is not supported")
        try:
            return parse(node.value)
        except ValueError:
            # The text contradicts an explicit tag, such as `!!int x`; validation reports the text.
            return node.value

    def add_unreadable(self, node: Node, steps: FieldPath, text: str) -> None:
        """Add the problem of a value that cannot be read; the document then has no value."""
        if not self.is_unreadable:
            self.add_problem(node, steps, text)
        self.is_unreadable = True

    def add_problem(self, node: Node, steps: FieldPath, text: str) -> None:
        self.problems.append(Problem(steps, text, node.start_mark.line + 1))


def _join_surrogates(text: str) -> str:
    """Join surrogate pairs into characters."""
    # JSON escapes a character above U+FFFF as two surrogates, which YAML reads as two characters.
    if any("\ud800" <= character <= "\udfff" for character in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _parse_integer(text: str) -> int:
    digits = text.replace("_", "")
    if digits.lstrip("+-").lower().startswith(("0x", "0o", "0b")):
        return int(digits, 0)
    return int(digits)


def _parse_float(text: str) -> float:
    digits = text.replace("_", "").lower()
    if digits.lstrip("+-") == ".inf":
        return -math.inf if digits.startswith("-") else math.inf
    return math.nan if digits == ".nan" else float(digits)


_SCALAR_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "bool": lambda text: text.lower() in ("true", "yes", "on"),
    "float": _parse_float,
    "int": _parse_integer,
    "null": lambda _: None,
    "str": _join_surrogates,
    "timestamp": str,
}
