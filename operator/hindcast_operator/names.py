"""Names and labels of the objects that the operator creates, and the names that a resource refers to."""

from collections.abc import Mapping
from typing import Any, Final

from hindcast.api.base import GROUP

MANAGER: Final = "hindcast-operator"
"""Field manager, and value of the managed-by label."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
KIND_LABEL: Final = f"{GROUP}/kind"
NAME_LABEL: Final = f"{GROUP}/name"
REVISION_LABEL: Final = f"{GROUP}/revision"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
SELECTOR: Final = f"{MANAGED_BY}={MANAGER}"
"""Label selector of all children, their pods included."""

_KIND_LETTERS: Final = {"OfflineRecording": "r", "OfflineTraining": "t"}
_KIND_WORDS: Final = {"OfflineRecording": "recording", "OfflineTraining": "training"}


def child_name(kind: str, name: str, revision: int, attempt: int) -> str:
    """Return the name of an attempt's RayJob and ConfigMap: `<name>-r<revision>-<attempt>`, with `t` for a training."""
    return f"{name}-{_KIND_LETTERS[kind]}{revision}-{attempt}"


def account_name(kind: str, name: str) -> str:
    """Return the name of a resource's ServiceAccount, Role and RoleBinding."""
    return f"{name}-{_KIND_WORDS[kind]}"


def make_labels(
    kind: str, name: str, revision: int | None = None, attempt: int | None = None
) -> dict[str, str]:
    """Return the labels of the resource's children. With revision and attempt: the labels of one attempt's objects."""
    child_labels = {
        MANAGED_BY: MANAGER,
        "app.kubernetes.io/part-of": "hindcast",
        KIND_LABEL: kind,
        NAME_LABEL: name,
    }
    if revision is not None and attempt is not None:
        child_labels |= {REVISION_LABEL: str(revision), ATTEMPT_LABEL: str(attempt)}
    return child_labels


def find_references(kind: str, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return kind and name of each resource to which a spec refers, without duplicates.

    A training refers to recordings, a recording to the training of its policy.
    """
    if kind == "OfflineTraining":
        target_kind = "OfflineRecording"
        refs = [source.get("recordingRef") for source in spec.get("input") or () if isinstance(source, dict)]
    else:
        target_kind = "OfflineTraining"
        refs = [(spec.get("policy") or {}).get("trainingRef")]
    targets = ((target_kind, str(ref["name"])) for ref in refs if isinstance(ref, dict) and "name" in ref)
    return list(dict.fromkeys(targets))
