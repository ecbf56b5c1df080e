"""What the clients of object stores report, in plain words, and whether it may pass by waiting."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Failure(NamedTuple):
    """What went wrong, and what to do; `passes` where trying again can help."""

    words: str
    passes: bool = False


_LOOK = "check the credentials in the environment and what they allow"
_KNOWN: Final = (
    (
        r"bucket is located in '(?P<region>[^']+)'",
        "the bucket is in the region {region}: set AWS_REGION={region}",
        False,
    ),
    (
        r"NO_SUCH_BUCKET|NoSuchBucket|ContainerNotFound|bucket does not exist",
        "there is no such bucket or container: make it, or correct its name",
        False,
    ),
    (
        r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId",
        "the store does not know the access key: check it, and the endpoint",
        False,
    ),
    (
        r"SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|AuthenticationFailed|failed to authenticate the request",
        "the secret key is not that of the account: check the credentials in the environment",
        False,
    ),
    (r"EXPIRED_TOKEN|ExpiredToken", "the credentials have expired: renew them", False),
    (
        r"AuthenticationException|DefaultAzureCredential|[Dd]efault credentials|NoCredentials|Unable to locate cred",
        "no credentials were found: give them by environment variables",
        False,
    ),
    (
        r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|UNAUTHENTICATED|Authorization\w*Failure|AuthorizationPermission"
        r"|(?:status|status_code=|\]) ?40[13]\b",
        f"access is denied: {_LOOK}",
        False,
    ),
    (
        r"status 301|PermanentRedirect|AuthorizationHeaderMalformed",
        "the bucket is in another region: set AWS_REGION",
        False,
    ),
    (
        r"status 400 during Head",
        "the store refused the request: check AWS_REGION, the endpoint and the credentials",
        False,
    ),
    (
        r"[Cc]ould not resolve host|curlCode: 6\b",
        "its host cannot be found: check the endpoint and the network",
        True,
    ),
    (
        r"[Cc]ould not connect|Failed to connect|Fail to get a new connection|curlCode: 7\b|Connection refused",
        "nothing answers at the endpoint: see whether the store runs, and check the endpoint",
        True,
    ),
    (
        r"curlCode: 28|[Tt]imed? ?out|DEADLINE_EXCEEDED|REQUEST_TIMEOUT|stalled",
        "the store is too slow: try again later",
        True,
    ),
    (
        r"SLOW_DOWN|SlowDown|THROTTL|SERVICE_UNAVAILABLE|ServerBusy|RESOURCE_EXHAUSTED|UNAVAILABLE|INTERNAL|ABORTED"
        r"|InternalError|(?:status|\]) ?(?:408|429|5\d\d)\b|NO_SUCH_UPLOAD|NoSuchUpload|Content-Range",
        "the store is busy or failing: try again later",
        True,
    ),
    (
        r"NETWORK_CONNECTION|curlCode|[Cc]onnection (?:reset|closed|aborted)|[Bb]roken pipe|disconnected",
        "the connection broke: try again later",
        True,
    ),
)
_PATTERNS: Final = tuple((re.compile(pattern), words, passes) for pattern, words, passes in _KNOWN)
_PASSING_STATUS: Final = frozenset({408, 429, *range(500, 600)})


def failure_of(error: BaseException) -> Failure | None:
    """What an exception of a store's client means; None where it is not known."""
    text = f"{type(error).__name__}: {error}"
    for pattern, words, passes in _PATTERNS:
        if found := pattern.search(text):
            return Failure(words.format(**found.groupdict()), passes)
    status = getattr(error, "status_code", getattr(error, "code", None))
    if status in _PASSING_STATUS:
        return Failure(f"the store is busy or failing (status {status}): try again later", True)
    if isinstance(error, ConnectionError | TimeoutError):
        return Failure(f"the connection broke ({type(error).__name__}): try again later", True)
    if isinstance(error, PermissionError) and error.errno is None:
        return Failure(f"access is denied: {_LOOK}")
    return None
