"""Leader election: the holder of the Lease leads. A holder that cannot renew it exits before another one takes over.

The election of the client library is not used: it trusts wall clocks, never releases the lease, and does not stop at
once when another replica has taken it.
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

_RENEWALS_PER_LEASE: Final = 7
"""Number of renewals, or attempts to renew, within the time for which the lease is valid."""


class LeaseLost(Exception):
    """Another replica is the leader or may soon be, or the Lease was deleted."""


@dataclass(frozen=True)
class LeaseOptions:
    """Namespace and name of the Lease, and for how many seconds it is valid without renewal."""

    namespace: str
    name: str
    seconds: float = 15.0


class LeaderLease:
    """A Lease of coordination.k8s.io. Clocks of other replicas are not trusted; only changes of the Lease count."""

    def __init__(self, api: Api, options: LeaseOptions) -> None:
        self._api = api
        self._options = options
        self.identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        # Holder and time of renewal of the Lease when this replica last saw it.
        self._last_state: tuple[Any, Any] | None = None
        self._last_change_time = 0.0
        self._lease: dict[str, Any] | None = None

    @property
    def is_leader(self) -> bool:
        """True while this replica holds the lease."""
        return self._lease is not None

    async def acquire(self) -> None:
        """Wait until this replica is the leader."""
        while True:
            try:
                if await self._try_acquire():
                    log.info("became the leader", lease=self._options.name, identity=self.identity)
                    return
            except ApiError as error:
                log.warning("cannot acquire the lease; will retry", error=str(error)[:300])
            await asyncio.sleep(self._options.seconds / _RENEWALS_PER_LEASE)

    async def renew_forever(self) -> None:
        """Renew the lease until cancelled. Raises LeaseLost."""
        renewal_time = _now()
        while True:
            await asyncio.sleep(self._options.seconds / _RENEWALS_PER_LEASE)
            start_time = _now()
            try:
                await self._renew()
                renewal_time = start_time
            except ApiError as error:
                log.warning("cannot renew the lease; will retry", error=str(error)[:300])
                if error.code in {404, 409}:
                    raise LeaseLost(
                        f"the lease {self._options.name} was taken by another replica or deleted: {error}"
                    ) from error
            # Give up after two thirds of that time, so that work in progress ends before another replica may take over.
            if _now() - renewal_time > self._options.seconds * 2 / 3:
                raise LeaseLost(f"the lease {self._options.name} could not be renewed in time")

    async def release(self) -> None:
        """Release the lease, so that another replica can take over immediately."""
        if self._lease is None:
            return
        self._lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._call("PUT", self._lease)
        except ApiError as error:
            log.warning("cannot release the lease", error=str(error)[:300])
        self._lease = None

    async def _try_acquire(self) -> bool:
        lease = await self._api.get(LEASE, self._options.namespace, self._options.name)
        if lease is None:
            metadata = {"name": self._options.name, "namespace": self._options.namespace}
            manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata}
            path = LEASE.path(self._options.namespace)
            self._lease = await self._api.call_once("POST", path, manifest | {"spec": self._make_spec(0)})
            return True
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") and not self._is_expired(spec):
            return False
        lease["spec"] = self._make_spec(int(spec.get("leaseTransitions") or 0) + 1)
        try:
            self._lease = await self._call("PUT", lease)
        except ApiError as error:
            if error.code == 409:
                return False
            raise
        return True

    def _is_expired(self, spec: dict[str, Any]) -> bool:
        """Return True if this replica has seen no renewal for the lease's duration. Each call records the state."""
        state = (spec.get("holderIdentity"), spec.get("renewTime"))
        if state != self._last_state:
            self._last_state, self._last_change_time = state, _now()
        return _now() - self._last_change_time > float(
            spec.get("leaseDurationSeconds") or self._options.seconds
        )

    async def _renew(self) -> None:
        assert self._lease is not None
        self._lease["spec"]["renewTime"] = _timestamp()
        try:
            self._lease = await self._call("PUT", self._lease)
        except ApiError as error:
            if error.code != 409:
                raise
            # The answer to the last renewal may have been lost: then the Lease is newer, and still this replica's.
            lease = await self._call("GET")
            if (lease.get("spec") or {}).get("holderIdentity") != self.identity:
                raise
            lease["spec"]["renewTime"] = _timestamp()
            self._lease = await self._call("PUT", lease)

    async def _call(self, method: str, lease: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the API server once, and wait for a third of the lease's duration at most."""
        timeout = aiohttp.ClientTimeout(total=max(self._options.seconds / 3, 1.0))
        path = LEASE.path(self._options.namespace, self._options.name)
        return await self._api.call_once(method, path, lease, timeout=timeout)

    def _make_spec(self, num_transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(round(self._options.seconds), 1),
            "acquireTime": _timestamp(),
            "renewTime": _timestamp(),
            "leaseTransitions": num_transitions,
        }


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _now() -> float:
    return asyncio.get_running_loop().time()
