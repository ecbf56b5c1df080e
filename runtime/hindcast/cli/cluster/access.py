"""Selects a cluster and reads it with the user's permissions. Every error is one sentence with a remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hindcast.api.base import GROUP, VERSION
from hindcast.api.sentences import nearest
from hindcast.cli.cluster.target import ClusterResource
from hindcast.errors import SpecError, UserError

if TYPE_CHECKING:
    from kubernetes import client

Raw = dict[str, Any]
"""A Kubernetes object as parsed JSON."""

TIMEOUT_SECONDS: Final = 10
"""Timeout of a request, except for reading a followed log."""
FOLLOW_TIMEOUT_SECONDS: Final = 24 * 3600
"""Read timeout of a followed log: the driver may print nothing for hours, but the client requires a limit."""


class ClusterError(UserError):
    """The cluster cannot be read."""


class Forbidden(ClusterError):
    """The user lacks the permission to read something."""


class NotFound(ClusterError):
    """The object to read does not exist, or no longer exists."""


class Cluster:
    """A cluster, with the user and namespace of a kubeconfig's context.

    Attributes:
        namespace: namespace of the resources.
        context: name of the context, if the user chose one.
    """

    def __init__(self, api: client.ApiClient, namespace: str, context: str | None) -> None:
        from kubernetes import client

        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)
        self._host = api.configuration.host
        self.namespace = namespace
        self.context = context

    def read_resource(self, target: ClusterResource) -> Raw:
        """Read a resource.

        Raises:
            SpecError: the resource does not exist.
            ClusterError: the resource cannot be read.
        """
        try:
            with self._translate_errors(str(target)):
                document: Raw = self._custom.get_namespaced_custom_object(
                    GROUP,
                    VERSION,
                    self.namespace,
                    target.plural,
                    target.name,
                    _request_timeout=TIMEOUT_SECONDS,
                )
                return document
        except NotFound:
            raise self._unknown_resource_error(target) from None

    def list_pods(self, selector: str) -> list[Raw]:
        """Read the pods that a label selector matches, sorted by name.

        Raises:
            ClusterError: the pods cannot be read.
        """
        with self._translate_errors("pods"):
            # Parsed below, because the client's models rename fields (nodeName -> node_name).
            response = self._core.list_namespaced_pod(
                self.namespace,
                label_selector=selector,
                _preload_content=False,
                _request_timeout=TIMEOUT_SECONDS,
            )
            pods: list[Raw] = json.loads(response.read())["items"]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def stream_log(self, pod: str, container: str, follow: bool) -> Iterator[bytes]:
        """Yield a container's output in chunks; with `follow`, until the container ends.

        Raises:
            NotFound: the pod does not exist.
            ClusterError: the log cannot be read, for example because the container has not started.
        """
        with self._translate_errors(f"the log of pod {pod}"):
            response = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                follow=follow,
                _preload_content=False,
                _request_timeout=(TIMEOUT_SECONDS, FOLLOW_TIMEOUT_SECONDS) if follow else TIMEOUT_SECONDS,
            )
            try:
                yield from response.stream(decode_content=True)
            finally:
                response.release_conn()  # otherwise the connection stays busy if the reader stops early

    def _unknown_resource_error(self, target: ClusterResource) -> UserError:
        """Return the error for a missing resource: a ClusterError if the CRDs are missing too, else a SpecError."""
        from kubernetes.client import ApiException

        with self._translate_errors(target.plural):
            try:
                listing = self._custom.list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, target.plural, _request_timeout=TIMEOUT_SECONDS
                )
            except ApiException as error:
                if error.status == 404:
                    return ClusterError(
                        f"the cluster at {self._host} does not know {target.kind} resources: install Hindcast there "
                        "(docs/install-cluster.md), or choose another cluster with --context"
                    )
                raise
        names = [entry["metadata"]["name"] for entry in listing["items"]]
        suggestion = nearest(target.name, names) or f"; the namespace has no {target.kind}"
        return SpecError(
            f"{target} does not exist in namespace {self.namespace}{suggestion} (choose another namespace with "
            "-n NAMESPACE)"
        )

    @contextmanager
    def _translate_errors(self, object_name: str) -> Iterator[None]:
        """Raise the client's exceptions as ClusterErrors.

        Args:
            object_name: what is read, for the messages: a resource, `pods`, `the log of pod NAME`.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            raise _api_error(error, object_name, self.namespace, self._host) from error
        except (HTTPError, OSError) as error:
            raise _unreachable_error(self._host, str(getattr(error, "reason", None) or error)) from error


def _api_error(error: Any, object_name: str, namespace: str, host: str) -> ClusterError:
    if not error.status:  # TLS failed, so there was no response
        return _unreachable_error(host, str(error.reason))
    if error.status == 404:
        return NotFound(f"{object_name} does not exist in namespace {namespace}")
    if error.status == 403:
        return Forbidden(
            f"you lack the permission to read {object_name} in namespace {namespace}: ask its administrator for the "
            "role view, or choose another user with --context"
        )
    if error.status == 401:
        return ClusterError(
            f"the API server at {host} rejected your credentials: log in again, or choose another context with "
            "--context"
        )
    return ClusterError(f"the API server refused to show {object_name}: {_api_message(error)}")


def _unreachable_error(host: str, reason: str) -> ClusterError:
    # The client's error is a chain of exception names and messages; only the last of them says what happened.
    text = " ".join(reason.split()).rpartition(": ")[2].rstrip(".")
    return ClusterError(
        f"the API server at {host} cannot be reached: {text}; check the cluster and KUBECONFIG, "
        "or choose another context with --context"
    )


def _api_message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def connect(namespace: str | None, context: str | None) -> Cluster:
    """Connect to the selected cluster.

    Args:
        namespace: namespace of the resources. Default: the context's, else `default`.
        context: context of the kubeconfig. Default: the current one.

    Raises:
        ClusterError: the kubeconfig does not exist, is invalid or does not have the context.
    """
    from kubernetes import client

    settings = client.Configuration()
    default_namespace = _load_kubeconfig(settings, context)
    settings.retries = False  # urllib3 would repeat each failed connection before the error is shown
    return Cluster(client.ApiClient(settings), namespace or default_namespace or "default", context)


def _load_kubeconfig(settings: client.Configuration, context: str | None) -> str | None:
    """Load the connection settings into `settings`, and return the context's namespace; None if it has none.

    In a pod without a kubeconfig, the settings are those of the pod's service account, and the result is None.
    """
    import yaml
    from kubernetes import config

    file = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        entries, current = config.list_kube_config_contexts(config_file=file)
        contexts = {entry["name"]: entry["context"] for entry in entries}
        if context is not None and context not in contexts:
            raise ClusterError(
                f"--context is {context}, which is not in the kubeconfig{nearest(context, contexts)}"
            )
        config.load_kube_config(config_file=file, context=context, client_configuration=settings)
    except (config.ConfigException, yaml.YAMLError) as error:
        if context is None and _load_pod_credentials(settings):
            return None
        raise ClusterError(_describe_config_error(error)) from error
    namespace: str | None = contexts[context or current["name"]].get("namespace")
    return namespace


def _load_pod_credentials(settings: client.Configuration) -> bool:
    """Load the service account of this process's pod into `settings`; return False outside a pod."""
    from kubernetes import config

    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        return False
    return True


def _describe_config_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "No configuration found" in text:
        return "no cluster is configured: set KUBECONFIG to a kubeconfig file, or save one as ~/.kube/config"
    return f"the kubeconfig cannot be used: {text}"
