"""Make connectors over blocks and batches from `spec.pipeline.connectors`.

Connectors of other forms, such as RLlib's, are converted by the package that knows the form. It registers a
`ConnectorForm` under the entry point group "hindcast.connector_forms".
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from itertools import groupby
from typing import Any, Final, Protocol

import gymnasium as gym

from hindcast.api.environment import NamedCall
from hindcast.errors import SpecError
from hindcast.pipeline.connectors import BatchConnector, BlockConnector, ConstructionContext
from hindcast.user_code import calling, import_object, refuse_unused_overrides

FIELD: Final = "spec.pipeline.connectors"
_SPACES: Final = ("input_observation_space", "input_action_space")


class ConnectorForm(Protocol):
    """A form of connectors that is neither `BlockConnector` nor `BatchConnector`.

    The names of its connectors that need no module, such as library connectors, are in `hindcast.api.connectors`.
    """

    def factory(self, name: str) -> Callable[..., Any] | None:
        """Return the class of a connector by its name without a module; None if the form does not know the name."""

    def includes(self, candidate: Any) -> bool:
        """Return True if an object is a connector of this form."""

    def expand(self, connector: Any) -> Sequence[Any]:
        """Return the connectors that a connector consists of: of this form, over blocks or over batches.

        Raises:
            SpecError: a training does not need the connector.
        """

    def adapt(self, connectors: Sequence[Any], context: ConstructionContext) -> BlockConnector:
        """Return a connector over blocks that runs adjacent connectors of this form."""


@cache
def connector_forms() -> tuple[ConnectorForm, ...]:
    """Return the forms that installed packages register."""
    # Entry points, since the pipeline must not import the packages above it.
    return tuple(entry.load() for entry in entry_points(group="hindcast.connector_forms"))


def make_connectors(
    entries: Iterable[NamedCall], objects: Sequence[Any], context: ConstructionContext
) -> list[BlockConnector | BatchConnector]:
    """Return the connectors of a resource, in order.

    Args:
        entries: library names or "package.module:Name" of a class or a function, with keyword arguments.
        objects: further connectors, of any form.
        context: properties of the training.

    Raises:
        SpecError: an object is not a connector.
        UserCodeError: importing or constructing one raised.
    """
    connectors = [
        connector
        for entry in entries
        for connector in _expand(construct_connector(entry, context), entry.name)
    ]
    connectors += [connector for entry in objects for connector in _expand(entry, type(entry).__name__)]
    grouped_connectors: list[BlockConnector | BatchConnector] = []
    # Grouped, so that a form converts a block once for adjacent connectors.
    for form, group in groupby(connectors, key=_find_form):
        group_connectors = list(group)
        grouped_connectors += group_connectors if form is None else [form.adapt(group_connectors, context)]
    return grouped_connectors


def construct_connector(entry: NamedCall, context: ConstructionContext) -> Any:
    """Return the connector that an entry of `spec.pipeline.connectors` names, or the list that its function returns.

    Raises:
        SpecError: a name cannot be imported, or the arguments of a library connector are invalid.
        UserCodeError: importing or constructing it raised.
    """
    factory = _find_factory(entry.name)
    if _is_connector(factory):  # registered from Python as an object
        return copy.deepcopy(factory)
    if not callable(factory):  # a list of connectors, or an object that `_expand` refuses
        return factory
    try:
        with calling(f"creating {entry.name!r}", factory, FIELD):
            return _call_factory(factory, entry.kwargs, context)
    except (TypeError, ValueError) as error:
        # Of a library connector: `calling` turns errors of user code into `UserCodeError`s.
        raise SpecError(f"contains {entry.name} with invalid arguments: {error}.", field=FIELD) from error


def parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable by name; empty if Python does not know them, as of some C functions."""
    try:
        return inspect.signature(factory).parameters
    except ValueError:
        return {}


def _expand(entry: Any, name: str) -> Iterator[Any]:
    """Yield the connectors of an entry of `spec.pipeline.connectors`, which may be a nested list.

    Args:
        entry: the constructed object or list.
        name: name of the entry, for messages.

    Raises:
        SpecError: an object is not a connector.
    """
    if isinstance(entry, list | tuple):
        for element in entry:
            yield from _expand(element, name)
        return
    form = _find_form(entry)
    for connector in [entry] if form is None else form.expand(entry):
        if not _is_connector(connector):
            raise SpecError(
                f"{name!r} is not a connector; derive it from BlockConnector, BatchConnector or ConnectorV2, "
                "or pass a function (observation_space, action_space) that returns such connectors.",
                field=FIELD,
            )
        refuse_unused_overrides(type(connector))
        yield connector


def check_connector_classes(entries: Iterable[NamedCall]) -> None:
    """Refuse user classes with methods that nothing calls, before they are constructed.

    Raises:
        SpecError: a name cannot be imported, or its class has such a method.
        UserCodeError: importing it raised.
    """
    for entry in entries:
        if ":" in entry.name:
            connector = import_object(entry.name, FIELD)
            refuse_unused_overrides(connector if isinstance(connector, type) else type(connector))


def _is_connector(candidate: Any) -> bool:
    return isinstance(candidate, BlockConnector | BatchConnector) or _find_form(candidate) is not None


def _find_form(candidate: Any) -> ConnectorForm | None:
    """Return the form of an object; None for connectors over blocks and batches, and for other objects."""
    if isinstance(candidate, BlockConnector | BatchConnector):
        return None
    return next((form for form in connector_forms() if form.includes(candidate)), None)


def _call_factory(factory: Callable[..., Any], kwargs: dict[str, Any], context: ConstructionContext) -> Any:
    """Call a user's class or function with the keyword arguments of its entry and the spaces.

    A class gets each space for which it has a parameter with RLlib's name; a function gets both as its first two
    arguments, if it accepts them.
    """
    spaces: tuple[gym.Space | None, ...] = (context.observation_space, context.action_space)
    if isinstance(factory, type):
        parameters = parameters_of(factory)
        space_kwargs = {
            name: space for name, space in zip(_SPACES, spaces, strict=True) if name in parameters
        }
        return factory(**{**space_kwargs, **kwargs})
    try:
        inspect.signature(factory).bind_partial(*spaces, **kwargs)
    except (TypeError, ValueError):  # does not accept the spaces, or Python does not know the parameters
        spaces = ()
    return factory(*spaces, **kwargs)


def _find_factory(name: str) -> Any:
    if ":" in name:
        return import_object(name, FIELD)
    return next(filter(None, (form.factory(name) for form in connector_forms())))
