"""Structured logs, also of libraries: one JSON object per line, on stderr."""

import logging
import sys
from typing import Final

import structlog
from structlog.typing import EventDict

_SHARED_PROCESSORS: Final = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure(level_name: str) -> None:
    """Configure logging. `level_name` is debug, info, warning or error; libraries log errors only."""
    structlog.configure(
        processors=[
            *_SHARED_PROCESSORS,
            _format_resource,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level_name.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    stderr_handler = logging.StreamHandler(sys.stderr)
    stderr_handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED_PROCESSORS, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.ERROR, handlers=[stderr_handler])


def _format_resource(_: object, __: str, event: EventDict) -> EventDict:
    if isinstance(key := event.get("resource"), tuple):
        event["resource"] = "/".join(key)
    return event
