"""Object stores by URI; credentials, endpoints and regions come from the environment, by the clouds' own names.

Everything after the bucket's name is taken as it stands: names of objects may hold `?`, `#`, `%` and spaces.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import pyarrow.fs as pafs

from hindcast.errors import StorageError
from hindcast.store.remote import AzureStore, GcsStore, S3Store, remote
from hindcast.store.retrying import patience

_ANONYMOUS: Final = "anonymous@"
_ATTEMPTS: Final = 4
_SLOWEST_ANSWER_S: Final = 20.0
_CONNECT_S: Final = 5.0
_OWN_RETRIES_S: Final = 4.0  # of a client's; what it gives up is tried again by us, sooner than it would
_AZURE_HOST: Final = re.compile(r"^(?:(?P<container>[^@/]+)@)(?P<account>[^./]+)(?P<suffix>\.[^/]+)?$")
_CONNECTION_STRING: Final = "AZURE_STORAGE_CONNECTION_STRING"


class Opened(NamedTuple):
    """A file system, and the path of a URI in it."""

    filesystem: pafs.FileSystem
    path: str


def open_uri(scheme: str, uri: str) -> Opened | None:
    """The store that a URI names; None where its scheme is not of one of the clouds.

    Raises:
        StorageError: a URI or an environment that cannot be.
    """
    opener = _OPENERS.get(scheme)
    return opener(uri.partition("://")[2]) if opener else None


def _open_s3(rest: str) -> Opened:
    is_anonymous, path = _anonymous(rest)
    return Opened(s3(is_anonymous), path)


def _open_gcs(rest: str) -> Opened:
    is_anonymous, path = _anonymous(rest)
    return Opened(gcs(is_anonymous), path)


def _open_azure(rest: str) -> Opened:
    host, _, path = rest.partition("/")
    found = _AZURE_HOST.match(host)
    if found is None:
        return Opened(azure(None, None), rest.rstrip("/"))
    container = f"{found['container']}/{path}".rstrip("/")
    return Opened(azure(found["account"], found["suffix"]), container)


_OPENERS: Final[dict[str, Callable[[str], Opened]]] = {
    "s3": _open_s3,
    "gs": _open_gcs,
    "gcs": _open_gcs,
    "abfs": _open_azure,
    "abfss": _open_azure,
    "az": _open_azure,
}


def s3(is_anonymous: bool = False) -> pafs.FileSystem:
    """S3 and what speaks its language, such as MinIO: `AWS_*` as everywhere."""
    endpoint = _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    region = _first("AWS_REGION", "AWS_DEFAULT_REGION")
    return _s3(
        is_anonymous, endpoint, region, os.environ.get("AWS_CA_BUNDLE"), patience(), _credentials("AWS_")
    )


def gcs(is_anonymous: bool = False) -> pafs.FileSystem:
    """Google Cloud Storage: `GOOGLE_APPLICATION_CREDENTIALS`, the machine's account, or `STORAGE_EMULATOR_HOST`."""
    return _gcs(is_anonymous, os.environ.get("STORAGE_EMULATOR_HOST"), patience(), _credentials("GOOGLE_"))


def azure(account: str | None, suffix: str | None) -> pafs.FileSystem:
    """Azure Blob Storage: `AZURE_STORAGE_*`, or whatever identity the machine has.

    Args:
        account: that the URI names; that of the environment by default.
        suffix: rest of its host name.

    Raises:
        StorageError: no account is named anywhere.
    """
    return _azure(account, suffix, _credentials("AZURE_"))


def s3_of(client: pafs.S3FileSystem) -> pafs.FileSystem:
    """S3 through a client of the user's; where its credentials may change, only through that very one."""
    options = client.__reduce__()[1][0]
    small = client
    if not options["session_token"]:
        small = pafs.S3FileSystem._reconstruct({**options, "allow_delayed_open": True})
    return remote(S3Store(client, small, "s3://", partial(s3_of, client), limits_itself=False))


@lru_cache(maxsize=16)
def _s3(  # noqa: PLR0917
    is_anonymous: bool,
    endpoint: str | None,
    region: str | None,
    certificates: str | None,
    seconds: float,
    environment: tuple[tuple[str, str], ...],  # noqa: ARG001  (part of the key)
) -> pafs.FileSystem:
    options: dict[str, Any] = {
        "anonymous": is_anonymous,
        "request_timeout": min(_SLOWEST_ANSWER_S, seconds),
        "connect_timeout": min(_CONNECT_S, seconds),
        "retry_strategy": pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        "tls_ca_file_path": certificates,
        "region": region or ("us-east-1" if endpoint else None),
    }
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        options |= {"scheme": scheme or "https", "endpoint_override": host.rstrip("/")}
    inner = pafs.S3FileSystem(**options)
    small = pafs.S3FileSystem(**options, allow_delayed_open=True)
    return remote(S3Store(inner, small, "s3://", partial(s3, is_anonymous)))


@lru_cache(maxsize=16)
def _gcs(
    is_anonymous: bool,
    emulator: str | None,
    seconds: float,
    environment: tuple[tuple[str, str], ...],  # noqa: ARG001
) -> pafs.FileSystem:
    options: dict[str, Any] = {
        "anonymous": is_anonymous or emulator is not None,
        "retry_time_limit": datetime.timedelta(seconds=min(_OWN_RETRIES_S, seconds / 4)),
    }
    if emulator:
        scheme, _, host = emulator.rpartition("://")
        options |= {"scheme": scheme or "http", "endpoint_override": host.rstrip("/")}
    return remote(GcsStore(pafs.GcsFileSystem(**options), "gs://", partial(gcs, is_anonymous)))


@lru_cache(maxsize=16)
def _azure(
    account: str | None, suffix: str | None, environment: tuple[tuple[str, str], ...]
) -> pafs.FileSystem:
    given = dict(environment)
    parts = _connection_parts(given.get(_CONNECTION_STRING, ""))
    own = (
        parts.get("AccountName")
        or given.get("AZURE_STORAGE_ACCOUNT_NAME")
        or given.get("AZURE_STORAGE_ACCOUNT")
    )
    name = account or own
    if not name:
        raise StorageError(
            "no Azure account is named: write abfss://container@account.dfs.core.windows.net/path, or set "
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
    options: dict[str, Any] = {}
    if own in (None, name):
        options["account_key"] = parts.get("AccountKey") or given.get(
            "AZURE_STORAGE_ACCOUNT_KEY", given.get("AZURE_STORAGE_KEY")
        )
        if not options["account_key"]:
            options["sas_token"] = parts.get("SharedAccessSignature") or given.get("AZURE_STORAGE_SAS_TOKEN")
        options |= _azure_endpoint(
            parts.get("BlobEndpoint") or given.get("AZURE_STORAGE_SERVICE_ENDPOINT"), name
        )
    if suffix and "blob_storage_authority" not in options:
        ending = suffix.partition(".dfs.")[2] or suffix.partition(".blob.")[2]
        if ending:
            options |= {
                "blob_storage_authority": f".blob.{ending}",
                "dfs_storage_authority": f".dfs.{ending}",
            }
    filesystem = pafs.AzureFileSystem(name, **{key: value for key, value in options.items() if value})
    return remote(AzureStore(filesystem, "abfss://", partial(azure, account, suffix)))


def _azure_endpoint(endpoint: str | None, account: str) -> dict[str, str]:
    if not endpoint:
        return {}
    scheme, _, rest = endpoint.rpartition("://")
    host = rest.strip("/").removesuffix(f"/{account}").removeprefix(f"{account}.")
    authority = host if host[0].isdigit() or ":" in host else f".{host}"
    scheme = scheme or "https"
    return {
        "blob_storage_scheme": scheme,
        "dfs_storage_scheme": scheme,
        "blob_storage_authority": authority,
        "dfs_storage_authority": authority.replace(".blob.", ".dfs.", 1),
    }


def _connection_parts(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part)
    return {name.strip(): value for name, _, value in pairs}


def _anonymous(rest: str) -> tuple[bool, str]:
    return rest.startswith(_ANONYMOUS), rest.removeprefix(_ANONYMOUS).rstrip("/")


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _credentials(prefix: str) -> tuple[tuple[str, str], ...]:
    """The variables of a cloud: a file system is made anew when one of them changes."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(prefix)))
