"""Kubernetes events on the resources, by our own client."""

import hashlib
import os
import socket
from datetime import UTC, datetime
from typing import Final

import structlog

from hindcast.api.base import API_VERSION
from hindcast_operator import names
from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.cache import Resource
from hindcast_operator.control.kinds import EVENT
from hindcast_operator.decision import Event

_LONGEST_NOTE: Final = 1024
_INSTANCE: Final = f"{socket.gethostname()}-{os.getpid()}"

log = structlog.get_logger()


async def post(api: Api, resource: Resource, event: Event) -> None:
    """Post an event. One that is refused is logged and given up: events explain, they decide nothing."""
    try:
        await api.create(EVENT, resource.key.namespace, _manifest(resource, event))
    except ApiError as error:
        log.warning("event refused", resource=resource.key.name, reason=event.reason, error=str(error))


def _manifest(resource: Resource, event: Event) -> dict[str, object]:
    now = datetime.now(UTC)
    digest = hashlib.sha256(f"{resource.uid} {now.isoformat()} {event}".encode()).hexdigest()[:12]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": f"{resource.key.name}.{digest}", "namespace": resource.key.namespace},
        "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": f"hindcast.dev/{names.MANAGER}",
        "reportingInstance": _INSTANCE[:128],
        "action": "Reconcile",
        "type": event.type,
        "reason": event.reason,
        "note": event.message[:_LONGEST_NOTE],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": resource.key.kind,
            "namespace": resource.key.namespace,
            "name": resource.key.name,
            "uid": resource.uid,
        },
    }
