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


def _kinds_by_alias() -> dict[str, tuple[str, str]]:
    """Return each name of a kind, in lower case (singular, plural, short, with the API group) -> (kind, plural)."""
    kinds_by_alias = {}
    for model, (plural, short) in KINDS.items():
        kind = model.__name__
        singular = kind.lower()
        short_kind = singular.removeprefix("offline")
        for alias in (
            singular,
            plural,
            short,
            short_kind,
            f"{short_kind}s",
            f"{plural}.{GROUP}",
            f"{singular}.{GROUP}",
        ):
            kinds_by_alias[alias] = (kind, plural)
    return kinds_by_alias


KINDS_BY_ALIAS: Final = _kinds_by_alias()


def is_target(text: str) -> bool:
    """Return True if a text begins with a kind, as in `training/clone`, and is therefore not taken as a path."""
    return text.partition("/")[0].lower() in KINDS_BY_ALIAS


def parse_target(text: str) -> ClusterResource:
    """Parse `KIND/NAME`.

    Raises:
        SpecError: the text has no known kind, no name, or a second slash.
    """
    kind, _, name = text.partition("/")
    if not is_target(text):
        kinds = " or ".join(f"{model.__name__.lower().removeprefix('offline')}/NAME" for model in KINDS)
        hint = similar(kind, [alias for alias in KINDS_BY_ALIAS if "." not in alias])
        raise SpecError(f"{text} does not name a resource: expected {kinds}{hint}")
    if not name or "/" in name:
        raise SpecError(f"{text} does not name a resource: expected {kind}/NAME")
    kind_name, plural = KINDS_BY_ALIAS[kind.lower()]
    return ClusterResource(kind_name, plural, name)
