"""Convert exceptions of storage to errors of one sentence, with the path and the reason."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from hindcast.errors import DataError, StorageError, StorageUnavailable, UserError
from hindcast.storage.backend import LocationLike, is_from_obstore

_REASONS: Final = {
    errno.ENOSPC: "the disk is full: free some space, then run again",
    errno.EDQUOT: "the quota is used up: free some space, then run again",
    errno.EROFS: "the file system is read-only: choose another path",
    errno.EACCES: "permission denied: choose another path or change its permissions",
    errno.EPERM: "the operation is not permitted: choose another path or change its permissions",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
    errno.EEXIST: "a file is in the way: choose another path",
    errno.EISDIR: "it is a folder, expected a file",
    errno.EIO: "the disk reported an input/output error",
}
_NO_BUCKET: Final = "there is no such bucket or container: create it, or correct its name"
_NO_HOST: Final = "the store's host cannot be found: check the endpoint and the network"
_NO_ANSWER: Final = "nothing answers at the endpoint: check the endpoint, and that the store is running"
_SLOW: Final = "the store is too slow: try again later"
_BUSY: Final = "the store is busy or failing: try again later"
_BROKEN_CONNECTION: Final = "the connection broke: try again later"
_TRANSIENT_REASONS: Final = (_NO_HOST, _NO_ANSWER, _SLOW, _BUSY, _BROKEN_CONNECTION)
"""Reasons that may disappear without any change by the user."""
_RETRY_SETTINGS: Final = re.compile(r"\b(?:max_retries|retry_timeout): \S+")
_ACCESS_DENIED: Final = "access is denied: check the credentials in the environment and what they allow"
_STORE_ERROR_PATTERNS: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (
            r"bucket is located in '(?P<region>[^']+)'",
            "the bucket is in the region {region}: set AWS_REGION={region}",
        ),
        (
            r"invalid path|contained empty path segment",
            "it contains an object with an empty part ('//'), '.' or '..' in its name, which cannot be read: rename it",
        ),
        (r"NO_SUCH_BUCKET|NoSuchBucket|ContainerNotFound|bucket does not exist", _NO_BUCKET),
        (
            r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId",
            "the store does not know the access key: check it, and the endpoint",
        ),
        (
            r"SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|AuthenticationFailed|failed to authenticate the request",
            "the secret key does not match the account: check the credentials in the environment",
        ),
        (r"EXPIRED_TOKEN|ExpiredToken", "the credentials have expired: renew them"),
        (
            r"AuthenticationException|DefaultAzureCredential|[Dd]efault credentials|NoCredentials"
            r"|Unable to locate cred|performing token request|latest/(?:api/token|meta-data)|metadata/identity",
            "no credentials were found: set the store's environment variables, such as AWS_ACCESS_KEY_ID, "
            "GOOGLE_APPLICATION_CREDENTIALS or AZURE_STORAGE_ACCOUNT_KEY",
        ),
        (
            r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|UNAUTHENTICATED|Authorization\w*Failure"
            r"|AuthorizationPermission|(?:status|status_code=|status code:|\]) ?40[13]\b",
            _ACCESS_DENIED,
        ),
        (
            r"status (?:code: )?301|PermanentRedirect|AuthorizationHeaderMalformed|redirect without LOCATION",
            "the bucket is in another region: set AWS_REGION",
        ),
        (
            r"status (?:code: )?400\b",
            "the store refused the request: check AWS_REGION, the endpoint and the credentials",
        ),
        (
            r"[Cc]ould not resolve host|curlCode: 6\b|dns error",
            _NO_HOST,
        ),
        (
            r"[Cc]ould not connect|[Ff]ailed to connect|Fail to get a new connection|curlCode: 7\b|Connection refused"
            r"|error trying to connect|tcp connect error",
            _NO_ANSWER,
        ),
        (
            r"curlCode: 28|[Tt]imed? ?out|DEADLINE_EXCEEDED|REQUEST_TIMEOUT|stalled",
            _SLOW,
        ),
        (
            r"SLOW_DOWN|SlowDown|THROTTL|SERVICE_UNAVAILABLE|ServerBusy|RESOURCE_EXHAUSTED|UNAVAILABLE|INTERNAL"
            r"|ABORTED|InternalError|(?:status|status code:|\]) ?(?:408|429|5\d\d)\b|NoSuchUpload",
            _BUSY,
        ),
        (
            r"NETWORK_CONNECTION|curlCode|[Cc]onnection (?:reset|closed|aborted)|[Bb]roken pipe|disconnected"
            r"|IncompleteMessage|body error|error sending request",
            _BROKEN_CONNECTION,
        ),
    )
)
"""(Pattern of the message of a store's client, reason); the first pattern that matches counts."""


@contextmanager
def storage_errors(action: str, location: LocationLike) -> Iterator[None]:
    """Convert exceptions of storage in a `with` block to `StorageError`.

    Other exceptions pass unchanged, unless the backend is foreign: its client may raise any exception.

    Args:
        action: verb for the message, such as "read".
        location: location that is used.

    Raises:
        DataError: the action is "read", and the file does not exist.
        StorageUnavailable: the reason may disappear by itself.
        StorageError: all other reasons.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        if _find_known_reason(error) == _NO_BUCKET:
            raise StorageError(f"cannot {action} {location.uri}: {_NO_BUCKET}") from error
        if action == "read":
            raise DataError(f"cannot read {location.uri}: it does not exist") from error
        raise StorageError(f"cannot {action} {location.uri}: {_missing_message(location)}") from error
    except Exception as error:
        is_storage_error = isinstance(error, OSError | pa.ArrowException) or is_from_obstore(error)
        if not (is_storage_error or location.backend.is_foreign):
            raise
        reason = reason_of(error)
        error_class = StorageUnavailable if reason in _TRANSIENT_REASONS else StorageError
        raise error_class(f"cannot {action} {location.uri}: {reason}") from error


def reason_of(error: BaseException) -> str:
    """Describe the reason for an exception of storage, with a remedy if one is known."""
    # An OSError with a file name comes from a local file. Without a file name, a store's client may have raised it;
    # its text then says more than its number.
    if isinstance(error, OSError) and error.errno in _REASONS and error.filename is not None:
        return _REASONS[error.errno]
    if (known_reason := _find_known_reason(error)) is not None:
        return known_reason
    if isinstance(error, OSError) and error.errno in _REASONS:
        return _REASONS[error.errno]
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _find_known_reason(error: BaseException) -> str | None:
    """Find the reason for an exception of a store's client by its text; None if no pattern matches."""
    # obstore's messages repeat its retry settings, whose words (`retry_timeout`) would match the patterns.
    text = f"{type(error).__name__}: {_RETRY_SETTINGS.sub('', str(error))}"
    for pattern, reason in _STORE_ERROR_PATTERNS:
        if match := pattern.search(text):
            return reason.format(**match.groupdict())
    if isinstance(error, ConnectionError | TimeoutError):
        return _BROKEN_CONNECTION
    if isinstance(error, PermissionError) and error.errno is None:
        return _ACCESS_DENIED
    return None


def _missing_message(location: LocationLike) -> str:
    if location.is_local:
        return "there is no such file or folder"
    return "there is no such bucket, container or folder: create it, or correct its name"
