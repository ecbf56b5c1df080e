"""Open buckets by URI, with credentials, endpoints and regions from the clouds' own environment variables.

The URI is not decoded after the bucket's name: names of objects may contain `?`, `#`, `%` and spaces.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from hindcast.errors import StorageError
from hindcast.storage.backend import is_from_obstore
from hindcast.storage.retry_timeout import INITIAL_BACKOFF_SECONDS, retry_timeout_seconds

if TYPE_CHECKING:  # obstore is slow to import, and local runs do not need it
    from hindcast.storage.object_files import ObjectFiles

_MAX_READ_SECONDS: Final = 20.0
"""Maximum time in which no byte of an answer arrives."""
_CONNECT_SECONDS: Final = 5.0
_MAX_BACKOFF_SECONDS: Final = 5.0
_MAX_RETRIES: Final = 1000  # so high that the retries always end by the timeout
_ANONYMOUS: Final = "anonymous@"
"""Beginning of a bucket's name in a URI for requests without credentials: `s3://anonymous@bucket/path`."""
_AZURE_HOST: Final = re.compile(r"^([^@/]+)@([^./]+)(\.[^/]+)?$")  # container, account, suffix
_CONNECTION_STRING: Final = "AZURE_STORAGE_CONNECTION_STRING"
_AWS_IDENTITIES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables from which obstore takes credentials itself."""
_VARIABLE_PREFIXES: Final = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")

Opener = Callable[..., tuple[Any, str]]
"""Opens a bucket; returns obstore's store, and the root of the bucket's URIs, such as `s3://bucket`."""


def open_bucket(scheme: str, bucket_and_path: str) -> tuple[ObjectFiles, str] | None:
    """Open the bucket of a URI.

    Args:
        scheme: scheme of the URI.
        bucket_and_path: the URI after `://`.

    Returns:
        The bucket, and the path in it; None if the scheme belongs to no cloud.

    Raises:
        StorageError: the URI or an environment variable is invalid.
    """
    if scheme in ("s3", "gs", "gcs"):
        opener = _open_s3 if scheme == "s3" else _open_gcs
        is_anonymous = bucket_and_path.startswith(_ANONYMOUS)
        name, _, path = bucket_and_path.removeprefix(_ANONYMOUS).partition("/")
        return _open_bucket(opener, _require_name(scheme, name), is_anonymous), path.strip("/")
    if scheme in ("abfs", "abfss", "az"):
        host, _, path = bucket_and_path.partition("/")
        match = _AZURE_HOST.match(host)
        container_account_suffix = (
            (_require_name(scheme, host), None, None) if match is None else match.groups()
        )
        return _open_bucket(_open_azure, *container_account_suffix), path.strip("/")
    return None


def wrap_store(store: object) -> ObjectFiles | None:
    """Wrap an obstore store of the user; None for other objects."""
    if not is_from_obstore(store):
        return None
    from hindcast.storage.object_files import ObjectFiles

    config = getattr(store, "config", {})
    name = config.get("bucket") or config.get("container_name") or f"{id(store):x}"
    return ObjectFiles(store, f"{type(store).__name__}://{name}/{getattr(store, 'prefix', None) or ''}")


def _require_name(scheme: str, name: str) -> str:
    if not name:
        raise StorageError(f"{scheme}:// names no bucket: write {scheme}://bucket/folder")
    return name


def _open_bucket(opener: Opener, *arguments: Any) -> ObjectFiles:
    """Open a bucket with an opener, or return it from the cache."""
    # The clouds' variables are part of the cache's key, so that a bucket is opened again if one of them changes.
    variables = [(name, value) for name, value in os.environ.items() if name.startswith(_VARIABLE_PREFIXES)]
    return _open_cached(opener, arguments, retry_timeout_seconds(), tuple(sorted(variables)))


@lru_cache(maxsize=64)
def _open_cached(
    opener: Opener, arguments: tuple[Any, ...], timeout_seconds: float, variables: tuple[tuple[str, str], ...]
) -> ObjectFiles:
    from hindcast.storage.object_files import ObjectFiles

    store, root = opener(*arguments, timeout_seconds, dict(variables))
    return ObjectFiles(store, root, partial(_open_bucket, opener, *arguments))


def _open_s3(
    bucket: str, is_anonymous: bool, timeout_seconds: float, environment: dict[str, str]
) -> tuple[Any, str]:
    """Open a bucket of S3 or a compatible store, such as MinIO, by the usual `AWS_*` variables."""
    from obstore.store import S3Store

    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    config: Any = {} if is_anonymous else _read_aws_profile(environment)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or config.get("region")
    if endpoint:
        config["endpoint"] = endpoint if "://" in endpoint else f"https://{endpoint}"
        config["region"] = region or "us-east-1"
    if is_anonymous:
        config["skip_signature"] = True
    request_options = _request_options(timeout_seconds, config.get("endpoint"))
    if certificates := environment.get("AWS_CA_BUNDLE"):
        request_options["client_options"]["root_certificate"] = _read_certificates(certificates)
    return S3Store(bucket, config=config, **request_options), f"s3://{bucket}"


def _open_gcs(
    bucket: str, is_anonymous: bool, timeout_seconds: float, environment: dict[str, str]
) -> tuple[Any, str]:
    """Open a bucket of Google Cloud Storage.

    Credentials come from `GOOGLE_APPLICATION_CREDENTIALS` or the machine's account. If `STORAGE_EMULATOR_HOST` is set,
    it is the endpoint.
    """
    from obstore.store import GCSStore

    config: Any = {"skip_signature": True} if is_anonymous else {}
    endpoint = None
    if emulator := environment.get("STORAGE_EMULATOR_HOST"):
        endpoint = emulator if "://" in emulator else f"http://{emulator}"
        account = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        config["service_account_key"] = orjson.dumps({**account, "private_key_id": ""}).decode()
    elif credentials := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        config["application_credentials"] = credentials
    return GCSStore(bucket, config=config, **_request_options(timeout_seconds, endpoint)), f"gs://{bucket}"


def _open_azure(
    container: str,
    account: str | None,
    suffix: str | None,
    timeout_seconds: float,
    environment: dict[str, str],
) -> tuple[Any, str]:
    """Open a container of Azure Blob Storage, with credentials from `AZURE_STORAGE_*` or the machine's identity.

    Args:
        container: name of the container.
        account: name of the account in the URI; by default the account in the environment.
        suffix: end of the host name in the URI, such as `.dfs.core.windows.net`.
        timeout_seconds: time after which a request is no longer retried.
        environment: environment variables of the clouds.

    Raises:
        StorageError: neither the URI nor the environment names an account.
    """
    from obstore.store import AzureStore

    connection_fields = _parse_connection_string(environment.get(_CONNECTION_STRING, ""))
    variable_account = environment.get("AZURE_STORAGE_ACCOUNT_NAME") or environment.get(
        "AZURE_STORAGE_ACCOUNT"
    )
    environment_account = connection_fields.get("AccountName") or variable_account
    account_name = account or environment_account
    if not account_name:
        raise StorageError(
            "no Azure account is named: write abfss://container@account.dfs.core.windows.net/path, or set "
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
    config: Any = {"account_name": account_name}
    # Key, token and endpoint in the environment belong to the environment's account; no other account may get them.
    if environment_account in (None, account_name):
        key = (
            connection_fields.get("AccountKey")
            or environment.get("AZURE_STORAGE_ACCOUNT_KEY")
            or environment.get("AZURE_STORAGE_KEY")
        )
        token = connection_fields.get("SharedAccessSignature") or environment.get("AZURE_STORAGE_SAS_TOKEN")
        config |= {"account_key": key} if key else {"sas_token": token}
        config["endpoint"] = _azure_endpoint(
            connection_fields.get("BlobEndpoint") or environment.get("AZURE_STORAGE_SERVICE_ENDPOINT"),
            account_name,
        )
    cloud_suffix = suffix and (suffix.partition(".dfs.")[2] or suffix.partition(".blob.")[2])
    if cloud_suffix and not config.get("endpoint"):
        config["endpoint"] = f"https://{account_name}.blob.{cloud_suffix}"
    config = {option: value for option, value in config.items() if value}
    store = AzureStore(container, config=config, **_request_options(timeout_seconds, config.get("endpoint")))
    return store, f"abfss://{container}@{account_name}"


def _request_options(timeout_seconds: float, endpoint: str | None) -> Any:
    """Return the keyword arguments for obstore's stores that set timeouts and retries."""
    return {
        "client_options": {
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, timeout_seconds)),
            "read_timeout": timedelta(seconds=min(_MAX_READ_SECONDS, timeout_seconds)),
            # Long enough for large objects; `read_timeout` limits the time in which no byte arrives.
            "timeout": timedelta(hours=1),
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
        },
        "retry_config": {
            "max_retries": _MAX_RETRIES,
            "retry_timeout": timedelta(seconds=timeout_seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=INITIAL_BACKOFF_SECONDS),
                "max_backoff": timedelta(seconds=_MAX_BACKOFF_SECONDS),
                "base": 2,
            },
        },
    }


def _read_aws_profile(environment: dict[str, str]) -> dict[str, Any]:
    """Read the user's profile in `~/.aws`; empty if the environment has credentials.

    Raises:
        StorageError: AWS_PROFILE names a profile without an access key.
    """
    if any(environment.get(name) for name in _AWS_IDENTITIES):
        return {}
    # obstore does not read these files.
    parser = configparser.ConfigParser(interpolation=None)
    home = Path.home() / ".aws"
    parser.read(
        [
            environment.get("AWS_CONFIG_FILE", home / "config"),
            environment.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"),
        ]
    )
    profile = environment.get("AWS_PROFILE", "default")
    keys = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key"}
    keys |= {"aws_session_token": "session_token", "region": "region"}
    credentials = {
        key: value
        for section in (f"profile {profile}", profile)
        if parser.has_section(section)
        for name, key in keys.items()
        if (value := parser.get(section, name, fallback=None))
    }
    if environment.get("AWS_PROFILE") and "access_key_id" not in credentials:
        raise StorageError(
            f"the profile {profile!r} of AWS_PROFILE has no access key in ~/.aws: set the variables that "
            "`aws configure export-credentials --format env` prints"
        )
    return credentials


def _azure_endpoint(endpoint: str | None, account: str) -> str | None:
    """Add the account to an endpoint: to the path of an emulator, or to the host name of the cloud."""
    if not endpoint:
        return None
    scheme, _, host_and_path = endpoint.rpartition("://")
    host = host_and_path.strip("/").removesuffix(f"/{account}").removeprefix(f"{account}.")
    is_emulator = host[0].isdigit() or ":" in host
    return f"{scheme or 'https'}://" + (f"{host}/{account}" if is_emulator else f"{account}.{host}")


def _parse_connection_string(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part)
    return {name.strip(): value for name, _, value in pairs}


def _read_certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StorageError(f"AWS_CA_BUNDLE names {path}, which cannot be read: {error.strerror}") from error
