"""Structured logs: one JSON object a line, on stderr."""

import logging
import sys

import structlog


def configure(level: str) -> None:
    """`level`: debug, info, warning or error."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _resource_name,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr)


def _resource_name(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if isinstance(key := event.get("resource"), tuple):
        event["resource"] = "/".join(key)
    return event
