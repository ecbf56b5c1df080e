"""Calls of the API server: raw JSON over one connection pool.

The client library's models are not used, because converting JSON to them took most of the CPU time.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config

from hindcast_operator import names
from hindcast_operator.control import faults, metrics
from hindcast_operator.control.kinds import ObjectKind

Object = dict[str, Any]

JSON_PATCH: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
METADATA_ONLY: Final = (
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;q=0.9"
)
"""`Accept` header for a list without spec and status."""

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, sock_connect=5)
_MAX_CONNECTIONS: Final = 32
_TRANSIENT_CODES: Final = frozenset({0, 429, 500, 502, 503, 504})
_RETRY_PAUSES_SECONDS: Final = (0.1, 0.5, 1.0)


class ApiError(Exception):
    """An answer other than 2xx, or no answer.

    Attributes:
        code: the HTTP status; 0 if there was no answer.
        reason: one word, such as `AlreadyExists`, `Forbidden` or `Invalid`; the code if the answer has no reason.
        message: the API server's message, or why there was no answer.
        retry_after: seconds to wait, if the API server asked for that; else None.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class Api:
    """A client of the API server. Create it with `connect`."""

    def __init__(self, api_client: Any) -> None:
        self._client = api_client
        self.last_answer_time = asyncio.get_running_loop().time()
        """When the API server last answered, by the event loop's clock; initially the time of creation."""
        self._clock_offset = timedelta()

    def server_time(self) -> datetime:
        """Return the time by the API server's clock, right to a second; by this machine's before the first answer."""
        return datetime.now(UTC) + self._clock_offset

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Object:
        """Call the API server, with a few immediate retries after transient errors.

        Use it only for calls that may be executed twice: if the answer to a write was lost, the retry may find that
        the object already exists or has another version.

        Args:
            method: the HTTP method.
            path: path on the API server, such as that of an object or a collection.
            body: sent as JSON; None for no body.
            **options: the keyword arguments of `call_once`.

        Raises:
            ApiError: a permanent error, an error for which the API server asks to wait longer than a second, or a
                transient error after all retries.
        """
        for pause in _RETRY_PAUSES_SECONDS:
            try:
                return await self.call_once(method, path, body, **options)
            except ApiError as error:
                if not _is_transient(method, error) or (error.retry_after or 0.0) > 1.0:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        return await self.call_once(method, path, body, **options)

    async def call_once(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: aiohttp.ClientTimeout = _TIMEOUT,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Call the API server once, without retries. Raises ApiError."""
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": names.MANAGER}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + quote(path) + ("?" + urlencode(query) if query else "")
        try:
            response = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
            self._update_clock_offset(response.headers)
            text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            metrics.API_ERRORS.labels("none").inc()
            raise ApiError(0, "Unreachable", f"the API server did not answer: {error!r}") from error
        self.last_answer_time = asyncio.get_running_loop().time()
        if 200 <= response.status < 300:
            return json.loads(text) if text else {}
        metrics.API_ERRORS.labels(str(response.status)).inc()
        raise _make_error(response.status, text, response.headers)

    def _update_clock_offset(self, headers: Mapping[str, str]) -> None:
        try:
            date = parsedate_to_datetime(headers["Date"]).astimezone(UTC)
        except (KeyError, ValueError):
            return
        # The header has whole seconds, rounded down.
        self._clock_offset = date + timedelta(seconds=0.5) - datetime.now(UTC)

    async def get(self, kind: ObjectKind, namespace: str | None, name: str) -> Object | None:
        """Get an object, or None if it does not exist."""
        try:
            return await self.call("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.reason == "NotFound":  # a kind that the API server does not serve now is another 404
                return None
            raise

    async def list_all(
        self,
        kind: ObjectKind,
        namespace: str | None,
        metadata_only: bool = False,
        selector: str | None = None,
    ) -> AsyncIterator[Object]:
        """Yield all objects of a kind that match a selector. They are read in pages of 200.

        Args:
            kind: the kind of objects.
            namespace: None lists the whole cluster.
            metadata_only: list only apiVersion, kind and metadata of each object.
            selector: the label selector; None for that of the kind.
        """
        selector = kind.selector if selector is None else selector
        query = {"limit": "200"} | ({"labelSelector": selector} if selector else {})
        accept = METADATA_ONLY if metadata_only else "application/json"
        while True:
            page = await self.call("GET", kind.path(namespace), accept=accept, query=query)
            for item in page.get("items") or ():
                yield item
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def create(self, kind: ObjectKind, namespace: str, manifest: Object) -> Object:
        """Create an object. The API server rejects unknown fields."""
        query = {"fieldManager": names.MANAGER, "fieldValidation": "Strict"}
        with _write_operation(f"create-{kind.name.lower()}"):
            return await self.call("POST", kind.path(namespace), manifest, query=query)

    async def write_status(
        self, kind: ObjectKind, namespace: str, name: str, version: int, status: Mapping[str, Any]
    ) -> Object:
        """Replace the status of an object, unless it has another resourceVersion by now.

        Fields that an older CRD does not have are left out. Server-side apply would refuse the whole status for them.
        """
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": str(version)},
            {"op": "add", "path": "/status", "value": status},
        ]
        path, query = kind.path(namespace, name) + "/status", {"fieldManager": names.MANAGER}
        with _write_operation("write-status"):
            return await self.call("PATCH", path, patch, content_type=JSON_PATCH, query=query)

    async def merge(
        self, operation: str, kind: ObjectKind, namespace: str, name: str, patch: Object
    ) -> Object:
        """Apply a merge patch. `operation` is one of `faults.WRITES`. A uid in its metadata is a precondition."""
        with _write_operation(operation):
            return await self.call("PATCH", kind.path(namespace, name), patch, content_type=MERGE)

    async def delete(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid, and its dependents in the background. No error if the object is gone."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            with _write_operation(f"delete-{kind.name.lower()}"):
                await self.call("DELETE", kind.path(namespace, name), body)
        except ApiError as error:
            if error.code not in {404, 409}:  # 409: another object has the name by now
                raise


@contextmanager
def _write_operation(operation: str) -> Iterator[None]:
    """Run the write in the block between its two fault points, and count it if it succeeds."""
    faults.reach(f"before:{operation}")
    yield
    metrics.WRITES.labels(operation).inc()
    faults.reach(f"after:{operation}")


@asynccontextmanager
async def connect(kubeconfig: str | None = None) -> AsyncIterator[Api]:
    """Connect to the API server of a kubeconfig; None connects to the cluster in which this pod runs."""
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = _MAX_CONNECTIONS
    if kubeconfig:
        await config.load_kube_config(kubeconfig, client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    async with client.ApiClient(configuration) as api_client:
        yield Api(api_client)


def _is_transient(method: str, error: ApiError) -> bool:
    """Return True if the same call may soon get another answer."""
    # While another client changes a quota, a POST is refused with `Conflict`.
    return error.code in _TRANSIENT_CODES or (method == "POST" and error.reason == "Conflict")


def _make_error(code: int, text: bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        status: Any = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        status = {"message": text.decode(errors="replace")[:500]}
    retry_after = headers.get("Retry-After")
    return ApiError(
        code,
        str(status.get("reason") or code),
        str(status.get("message") or "no message"),
        float(retry_after) if retry_after and retry_after.isdigit() else None,
    )
