"""The attempt's ConfigMap: the operator's intent is read from it, the attempt's report is written to it.

The service account of the head's pod may get and patch this one ConfigMap and nothing else. When a later attempt
starts, the operator revokes that permission or deletes the ConfigMap.
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

_TIMEOUT_SECONDS = (5.0, 15.0)
"""Timeouts of a request: to connect, and between bytes of the answer."""
_REFUSAL_STATUSES = (403, 404)


class ReportError(Exception):
    """The API server did not accept the report; the next one may succeed."""


class ReportRefused(ReportError):
    """The permission or the ConfigMap is missing.

    Either the attempt is superseded, or the operator has not restored them yet, or the API server has just restarted:
    it answers 403 for some minutes, until it has listed the RoleBindings (kubernetes/kubernetes#121635).
    """


class Channel(Protocol):
    """A connection to the operator."""

    def send(self, report: Report) -> str:
        """Send the report; return the operator's intent: `CHECKPOINT`, or an empty string to continue.

        Raises:
            ReportError: the report was not accepted and should be sent again.
        """


@dataclass(frozen=True)
class ConfigMapName:
    """Namespace and name of an attempt's ConfigMap."""

    namespace: str
    name: str

    @classmethod
    def from_environment(cls) -> ConfigMapName:
        """Read both from the environment variables of a run's pod.

        Raises:
            SpecError: a variable is not set, so this is not a pod of a run.
        """
        namespace, name = os.environ.get(NAMESPACE_VARIABLE), os.environ.get(ATTEMPT_VARIABLE)
        if not namespace or not name:
            missing_variable = ATTEMPT_VARIABLE if namespace else NAMESPACE_VARIABLE
            raise SpecError(
                f"{missing_variable} is not set: hindcast.cluster is started by the operator in the pods of a run; on "
                "this machine use hindcast run FILE."
            )
        return cls(namespace, name)


class ConfigMapChannel:
    """A channel that patches the ConfigMap through the API server.

    Args:
        api_client: a `kubernetes.client.ApiClient`.
        config_map: the attempt's ConfigMap.
    """

    def __init__(self, api_client: Any, config_map: ConfigMapName) -> None:
        from kubernetes.client import CoreV1Api

        self._api = CoreV1Api(api_client)
        self._config_map = config_map

    def send(self, report: Report) -> str:
        """Merge the report into the ConfigMap; return the intent from the response (see `Channel`)."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        body = {"data": {REPORT_KEY: report.model_dump_json(by_alias=True, exclude_none=True)}}
        try:
            response = self._api.patch_namespaced_config_map(
                self._config_map.name,
                self._config_map.namespace,
                body,
                _content_type="application/merge-patch+json",
                _preload_content=False,
                _request_timeout=_TIMEOUT_SECONDS,
            )
            status, content = response.status, response.read()
        except ApiException as error:
            status, content = error.status, b""
        except (HTTPError, OSError) as error:
            raise ReportError(f"{type(error).__name__}: {error}") from error
        if status != 200:
            error_class = ReportRefused if status in _REFUSAL_STATUSES else ReportError
            raise error_class(f"the API server answered the report with status {status}")
        intent: str = (json.loads(content).get("data") or {}).get(INTENT_KEY, "")
        return intent


def open_channel(config_map: ConfigMapName) -> ConfigMapChannel:
    """Open a channel from this pod, with the service account that is mounted in it.

    Raises:
        SpecError: no service account is mounted.
    """
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException as error:
        raise SpecError(
            f"the head's pod has no service account to report with ({error}): remove what spec.cluster.volumes or "
            "spec.cluster.podOverrides mount at /var/run/secrets/kubernetes.io/serviceaccount.",
            mentions=("spec.cluster.volumes", "spec.cluster.podOverrides"),
        ) from error
    configuration.retries = False  # urllib3 would repeat the old report; `ReportSender` sends the latest one
    return ConfigMapChannel(client.ApiClient(configuration), config_map)
