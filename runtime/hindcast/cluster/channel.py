"""The attempt's ConfigMap: what the operator wants is read from it, what the attempt reports is written to it.

The account of the head's pod may get and patch this one ConfigMap and nothing else. When a later attempt begins the
operator takes that right away, or the ConfigMap with it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Protocol

from hindcast.api.attempt import INTENT_KEY, REPORT_KEY, Report
from hindcast.errors import SpecError

NAMESPACE_VARIABLE = "HINDCAST_NAMESPACE"
ATTEMPT_VARIABLE = "HINDCAST_ATTEMPT"

_TIMEOUT_S = (5.0, 15.0)
_GONE = (403, 404)


class SupersededError(Exception):
    """The attempt may no longer report: another one has started, or the resource is gone."""


class ReportError(Exception):
    """The API server did not take the report; the next one may get through."""


class Channel(Protocol):
    """To the operator."""

    def send(self, report: Report) -> str:
        """Put the report there; what the operator wants: nothing, or `CHECKPOINT`.

        Raises:
            Superseded: another attempt has started, or the resource is gone.
            ReportFailed: try again.
        """


@dataclass(frozen=True)
class ConfigMapName:
    """Which ConfigMap is the attempt's."""

    namespace: str
    name: str

    @classmethod
    def from_environment(cls) -> ConfigMapName:
        """As the pods of a run have it in their environment.

        Raises:
            SpecError: these are not the pods of a run.
        """
        namespace, name = os.environ.get(NAMESPACE_VARIABLE), os.environ.get(ATTEMPT_VARIABLE)
        if not namespace or not name:
            missing = ATTEMPT_VARIABLE if namespace else NAMESPACE_VARIABLE
            raise SpecError(
                f"{missing} is not set: hindcast.cluster is started by the operator in the pods of a run; on "
                "this machine use hindcast run FILE."
            )
        return cls(namespace, name)


class ConfigMapChannel:
    """A channel through the API server."""

    def __init__(self, api: Any, at: ConfigMapName) -> None:
        from kubernetes.client import CoreV1Api

        self._api = CoreV1Api(api)
        self._at = at

    def send(self, report: Report) -> str:
        """Merge the report into the ConfigMap; its answer carries the intent."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        body = {"data": {REPORT_KEY: report.model_dump_json(by_alias=True, exclude_none=True)}}
        try:
            response = self._api.patch_namespaced_config_map(
                self._at.name,
                self._at.namespace,
                body,
                _content_type="application/merge-patch+json",
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            status, text = response.status, response.read()
        except ApiException as error:
            status, text = error.status, b""
        except (HTTPError, OSError) as error:
            raise ReportError(f"{type(error).__name__}: {error}") from error
        if status in _GONE:
            raise SupersededError(f"the API server answered {status} to the report")
        if status != 200:
            raise ReportError(f"the API server answered {status} to the report")
        intent: str = (json.loads(text).get("data") or {}).get(INTENT_KEY, "")
        return intent


def open_channel(at: ConfigMapName) -> ConfigMapChannel:
    """The channel of a pod, by the account that is mounted into it.

    Raises:
        SpecError: no account is mounted.
    """
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException as error:
        raise SpecError(
            f"the pod of the run's head has no service account to report with ({error}): podOverrides must "
            "not turn automountServiceAccountToken off."
        ) from error
    configuration.retries = False
    return ConfigMapChannel(client.ApiClient(configuration), at)
