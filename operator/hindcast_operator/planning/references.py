"""The resources that this one refers to: waited for before a revision's first attempt, held fast after it."""

from collections.abc import Mapping, Sequence
from typing import Any

from hindcast.api.status import RunStatus
from hindcast_operator.facts import Facts, ReferenceFacts
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import DEFAULTS_KEY
from hindcast_operator.planning.situation import Check


def data_check(facts: Facts, run: RunStatus | None) -> Check | None:
    """DataReady; None for a resource that refers to no other.

    Args:
        facts: what was observed.
        run: the revision's latest attempt: it was given its inputs, whatever has become of them since.
    """
    if run is not None:
        given = sorted(key for key in run.inputs if key != DEFAULTS_KEY)
        return Check(True, Reason.INPUTS_READY, f"{_list(given)} complete") if given else None
    if not facts.references:
        return None
    worst = min(facts.references, key=lambda entry: (_ORDER.index(entry.state), entry.kind, entry.name))
    if worst.state == "Complete":
        names = sorted(f"{entry.kind}/{entry.name}" for entry in facts.references)
        return Check(True, Reason.INPUTS_READY, f"{_list(names)} complete")
    return Check(False, *_unready(worst))


def inputs_entry(
    facts: Facts, previous: RunStatus | None, used_defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """What a new attempt is given: what the revision's attempt before it had, or the references now."""
    if previous is not None:
        given = {key: value for key, value in previous.inputs.items() if key != DEFAULTS_KEY}
    else:
        given = {
            f"{entry.kind}/{entry.name}": entry.input.model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
            for entry in facts.references
            if entry.input is not None
        }
    return {**given, DEFAULTS_KEY: dict(used_defaults)}


_ORDER = ("Failed", "Missing", "Unfinished", "Complete")


def _unready(reference: ReferenceFacts) -> tuple[Reason, str]:
    name = f"{reference.kind}/{reference.name}"
    if reference.state == "Failed":
        return Reason.DEPENDENCY_FAILED, f"{name} has failed; mend it and raise its spec.revision"
    if reference.state == "Missing":
        return (
            Reason.REFERENCE_MISSING,
            f"{name} does not exist in this namespace; create it or correct the name",
        )
    return Reason.REFERENCE_UNFINISHED, f"Waits until {name} is complete"


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
