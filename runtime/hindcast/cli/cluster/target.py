"""Parses `KIND/NAME`: `training/clone`, `otr/clone`, `offlinetrainings/clone`."""

from dataclasses import dataclass
from typing import Final

from hindcast.api.base import GROUP
from hindcast.api.crd import KINDS
from hindcast.api.sentences import similar
from hindcast.errors import SpecError


@dataclass(frozen=True)
class ClusterResource:
    """A resource on a cluster.

    Attributes:
        kind: `OfflineRecording` or `OfflineTraining`.
        plural: plural of the kind in the API server's paths.
        name: metadata.name.
    """

    kind: str
    plural: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def _words() -> dict[str, tuple[str, str]]:
    """Return every word for a kind, in lower case -> (kind, plural)."""
    words = {}
    for model, (plural, short) in KINDS.items():
        kind = model.__name__
        singular = kind.lower()
        plain = singular.removeprefix("offline")
        for word in (singular, plural, short, plain, f"{plain}s", f"{plural}.{GROUP}", f"{singular}.{GROUP}"):
            words[word] = (kind, plural)
    return words


WORDS: Final = _words()


def is_target(text: str) -> bool:
    """Return whether a text starts with a kind, unlike paths."""
    return text.partition("/")[0].lower() in WORDS


def parse_target(text: str) -> ClusterResource:
    """Parse the resource that a text names.

    Raises:
        SpecError: the text has no known kind, or no name.
    """
    kind, _, name = text.partition("/")
    if not is_target(text):
        kinds = " or ".join(f"{model.__name__.lower().removeprefix('offline')}/NAME" for model in KINDS)
        hint = similar(kind, [word for word in WORDS if "." not in word])
        raise SpecError(f"{text} does not name a resource: expected {kinds}{hint}")
    if not name or "/" in name:
        raise SpecError(f"{text} does not name a resource: expected {kind}/NAME")
    kind_name, plural = WORDS[kind.lower()]
    return ClusterResource(kind_name, plural, name)
