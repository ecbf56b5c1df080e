"""Names and labels of everything that the operator creates, and the names that a resource refers to."""

from collections.abc import Mapping
from typing import Any, Final

from hindcast.api import OfflineRecording, OfflineTraining
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

_LETTER: Final = {"OfflineRecording": "r", "OfflineTraining": "t"}
_WORD: Final = {"OfflineRecording": "recording", "OfflineTraining": "training"}


def child_name(kind: str, name: str, revision: int, attempt: int) -> str:
    """Name of an attempt's RayJob and ConfigMap: `<name>-r<revision>-<attempt>`, `-t…` for trainings."""
    return f"{name}-{_LETTER[kind]}{revision}-{attempt}"


def account_name(kind: str, name: str) -> str:
    """Name of a resource's ServiceAccount, Role and RoleBinding."""
    return f"{name}-{_WORD[kind]}"


def labels(
    resource: OfflineRecording | OfflineTraining, revision: int | None = None, attempt: int | None = None
) -> dict[str, str]:
    """Labels of a child of the resource; of an attempt's own objects and pods where that is given."""
    found = {
        MANAGED_BY: MANAGER,
        "app.kubernetes.io/part-of": "hindcast",
        KIND_LABEL: resource.kind,
        NAME_LABEL: resource.metadata.name,
    }
    if revision is not None and attempt is not None:
        found |= {REVISION_LABEL: str(revision), ATTEMPT_LABEL: str(attempt)}
    return found


def references(kind: str, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Kind and name of what a spec refers to: the recordings of a training, the training of a recording's policy."""
    if kind == "OfflineTraining":
        target = "OfflineRecording"
        named = [source.get("recordingRef") for source in spec.get("input") or () if isinstance(source, dict)]
    else:
        target = "OfflineTraining"
        named = [(spec.get("policy") or {}).get("trainingRef")]
    found = ((target, str(ref["name"])) for ref in named if isinstance(ref, dict) and "name" in ref)
    return list(dict.fromkeys(found))
