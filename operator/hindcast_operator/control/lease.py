"""Leader election: the holder of the Lease leads. One that cannot renew it exits before another takes over.

The client library has an election too: it trusts wall clocks, never releases the lease, and does not stop at once when
another replica took it.
"""

import asyncio
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
import structlog

from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.kinds import LEASE

log = structlog.get_logger()

_RETRIES: Final = 7
"""Tries to renew within the duration of the lease."""


class LeaseLost(Exception):
    """Another replica is the leader, or may be by now."""


@dataclass(frozen=True)
class LeaseOptions:
    """Which Lease, and how long it is valid without renewal."""

    namespace: str
    name: str
    seconds: float = 15.0


class LeaderLease:
    """A Lease of coordination.k8s.io. Clocks of other replicas are not trusted: only changes count."""

    def __init__(self, api: Api, options: LeaseOptions) -> None:
        self._api = api
        self._options = options
        self.identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._seen: tuple[Any, Any] | None = None
        self._seen_at = 0.0
        self._held: dict[str, Any] | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this replica holds it."""
        return self._held is not None

    async def acquire(self) -> None:
        """Returns once this replica is the leader."""
        while True:
            try:
                if await self._try_to_take():
                    log.info("became the leader", lease=self._options.name, identity=self.identity)
                    return
            except ApiError as error:
                log.warning("cannot acquire the lease; will retry", error=str(error)[:300])
            await asyncio.sleep(self._options.seconds / _RETRIES)

    async def renew_forever(self) -> None:
        """Renews it until cancelled. Raises LeaseLost."""
        renewed = _now()
        while True:
            await asyncio.sleep(self._options.seconds / _RETRIES)
            began = _now()
            try:
                await self._renew()
                renewed = began
            except ApiError as error:
                log.warning("cannot renew the lease; will retry", error=str(error)[:300])
                if error.code in {404, 409}:
                    raise LeaseLost(
                        f"another replica took the lease {self._options.name}: {error}"
                    ) from error
            # Two thirds: work in progress must end before another replica may take over.
            if _now() - renewed > self._options.seconds * 2 / 3:
                raise LeaseLost(f"the lease {self._options.name} could not be renewed in time")

    async def release(self) -> None:
        """Let another replica take over at once."""
        if self._held is None:
            return
        self._held["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._replace(self._held)
        except ApiError as error:
            log.warning("cannot release the lease", error=str(error)[:300])
        self._held = None

    async def _try_to_take(self) -> bool:
        found = await self._api.get(LEASE, self._options.namespace, self._options.name)
        if found is None:
            metadata = {"name": self._options.name, "namespace": self._options.namespace}
            manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata}
            path = LEASE.path(self._options.namespace)
            self._held = await self._api.call_once("POST", path, manifest | {"spec": self._spec(0)})
            return True
        spec = found.get("spec") or {}
        if spec.get("holderIdentity") and not self._expired(spec):
            return False
        found["spec"] = self._spec(int(spec.get("leaseTransitions") or 0) + 1)
        try:
            self._held = await self._replace(found)
        except ApiError as error:
            if error.code == 409:
                return False
            raise
        return True

    def _expired(self, spec: dict[str, Any]) -> bool:
        """Whether the holder has renewed nothing for the lease's duration, as seen from here."""
        state = (spec.get("holderIdentity"), spec.get("renewTime"))
        if state != self._seen:
            self._seen, self._seen_at = state, _now()
        return _now() - self._seen_at > float(spec.get("leaseDurationSeconds") or self._options.seconds)

    async def _renew(self) -> None:
        assert self._held is not None
        self._held["spec"]["renewTime"] = _timestamp()
        self._held = await self._replace(self._held)

    async def _replace(self, lease: dict[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=max(self._options.seconds / 3, 1.0))
        path = LEASE.path(self._options.namespace, self._options.name)
        return await self._api.call_once("PUT", path, lease, timeout=timeout)

    def _spec(self, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(round(self._options.seconds), 1),
            "acquireTime": _timestamp(),
            "renewTime": _timestamp(),
            "leaseTransitions": transitions,
        }


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _now() -> float:
    return asyncio.get_running_loop().time()
