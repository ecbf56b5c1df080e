"""The names of learner connectors that `spec.pipeline.connectors` may contain without a module.

`generated/connectors.json` has them, written by `make crds`, so that a resource is checked without RLlib's connectors.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import AfterValidator

from hindcast.api.environment import NamedCall, NameOrCall
from hindcast.api.sentences import nearest


@cache
def _library_connectors() -> dict[str, str | None]:
    """Return name -> the reason why no training needs the connector; None if the name may be used."""
    text = files("hindcast.api").joinpath("generated/connectors.json").read_text(encoding="utf-8")
    connectors: dict[str, str | None] = json.loads(text)
    return connectors


def connector_problem(name: str) -> str | None:
    """Describe why a resource cannot name a connector, or return None."""
    connectors = _library_connectors()
    if ":" in name or connectors.get(name, "") is None:
        return None
    if name in connectors:
        return f"is {name}, which is not needed here. Leave it out: {connectors[name]}"
    usable_names = [usable_name for usable_name, reason in connectors.items() if reason is None]
    similar_names = nearest(name, usable_names)
    return f'is {name!r}, which is neither a library connector nor a "package.module:Class"{similar_names}'


def _check_connector(connector: NamedCall) -> NamedCall:
    if problem := connector_problem(connector.name):
        raise ValueError(problem)
    return connector


Connector = Annotated[NameOrCall, AfterValidator(_check_connector)]
