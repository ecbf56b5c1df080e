"""Selects a cluster and reads it with the user's permissions. Every failure is one sentence that says what to do."""

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

TIMEOUT_SECONDS: Final = 10
LONGEST_PAUSE_SECONDS: Final = 24 * 3600
"""A followed log may pause for long; the client needs a limit."""


class ClusterError(UserError):
    """The cluster cannot be read."""


class Forbidden(ClusterError):
    """The user may not read something."""


class Gone(ClusterError):
    """Something is not there, or not there any more."""


class Cluster:
    """A cluster, as one context of a kubeconfig sees it.

    Attributes:
        namespace: where resources are looked for.
        context: its name, where the user chose one.
    """

    def __init__(self, api: client.ApiClient, namespace: str, context: str | None) -> None:
        from kubernetes import client

        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)
        self._host = api.configuration.host
        self.namespace = namespace
        self.context = context

    def resource(self, target: ClusterResource) -> Raw:
        """The resource as the API server has it.

        Raises:
            SpecError: there is no resource with that name.
            ClusterError: it cannot be read.
        """
        try:
            with self._reading(str(target)):
                found: Raw = self._custom.get_namespaced_custom_object(
                    *(GROUP, VERSION, self.namespace, target.plural, target.name),
                    _request_timeout=TIMEOUT_SECONDS,
                )
                return found
        except Gone:
            raise self._unknown(target) from None

    def pods(self, selector: str) -> list[Raw]:
        """The pods with these labels, by name. Raises ClusterError."""
        with self._reading("pods"):
            answer = self._core.list_namespaced_pod(
                self.namespace,
                label_selector=selector,
                _preload_content=False,
                _request_timeout=TIMEOUT_SECONDS,
            )
            found: list[Raw] = json.loads(answer.read())["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def log(self, pod: str, container: str, follow: bool) -> Iterator[bytes]:
        """What a container has printed, piece by piece; with `follow` until it ends.

        Raises:
            Gone: there is no such pod.
            ClusterError: it cannot be read, as of a container that has not started.
        """
        with self._reading(f"the log of pod {pod}"):
            answer = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                follow=follow,
                _preload_content=False,
                _request_timeout=(TIMEOUT_SECONDS, LONGEST_PAUSE_SECONDS) if follow else TIMEOUT_SECONDS,
            )
            try:
                yield from answer.stream(decode_content=True)
            finally:
                answer.release_conn()

    def _unknown(self, target: ClusterResource) -> UserError:
        """Why a resource was not found: another name, another namespace, no CRDs."""
        from kubernetes.client import ApiException

        with self._reading(target.plural):
            try:
                listed = self._custom.list_namespaced_custom_object(
                    *(GROUP, VERSION, self.namespace, target.plural), _request_timeout=TIMEOUT_SECONDS
                )
            except ApiException as error:
                if error.status == 404:
                    return ClusterError(
                        f"the cluster at {self._host} has no {target.kind} resources: install Hindcast there "
                        "(docs/install.md), or choose another cluster with --context"
                    )
                raise
        names = [entry["metadata"]["name"] for entry in listed["items"]]
        there = nearest(target.name, names) or "; the namespace has none"
        return SpecError(
            f"there is no {target} in namespace {self.namespace}{there} (another namespace: -n NAMESPACE)"
        )

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turns what the client raises into sentences."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            raise _refused(error, what, self.namespace, self._host) from error
        except (HTTPError, OSError) as error:
            raise _unreachable(self._host, str(getattr(error, "reason", None) or error)) from error


def _refused(error: Any, what: str, namespace: str, host: str) -> ClusterError:
    if not error.status:  # of TLS
        return _unreachable(host, str(error.reason))
    if error.status == 404:
        return Gone(f"{what} is not in namespace {namespace}")
    if error.status == 403:
        return Forbidden(
            f"you may not read {what} in namespace {namespace}: ask for the role view there, or choose "
            "another user with --context"
        )
    if error.status == 401:
        return ClusterError(
            f"the API server at {host} rejected your credentials: log in again, or choose another --context"
        )
    return ClusterError(f"the API server refused to show {what}: {_message(error)}")


def _unreachable(host: str, reason: str) -> ClusterError:
    """A client's error is a chain of names; its last link says what happened."""
    text = " ".join(reason.split()).rpartition(": ")[2].rstrip(".")
    return ClusterError(
        f"the API server at {host} cannot be reached: {text}; check the cluster and KUBECONFIG, "
        "or choose another one with --context"
    )


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def connect(namespace: str | None, context: str | None) -> Cluster:
    """The selected cluster.

    Args:
        namespace: default: the context's, else `default`.
        context: of the kubeconfig; default: the current one.

    Raises:
        ClusterError: there is no kubeconfig, it is broken, or it has no such context.
    """
    from kubernetes import client

    settings = client.Configuration()
    own = _load(settings, context)
    settings.retries = False
    return Cluster(client.ApiClient(settings), namespace or own or "default", context)


def _load(settings: client.Configuration, context: str | None) -> str | None:
    """Fill in how to reach it; its default namespace."""
    import yaml
    from kubernetes import config

    file = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        entries, current = config.list_kube_config_contexts(config_file=file)
        contexts = {entry["name"]: entry["context"] for entry in entries}
        if context is not None and context not in contexts:
            raise ClusterError(
                f"--context is {context}, which the kubeconfig does not have{nearest(context, contexts)}"
            )
        config.load_kube_config(config_file=file, context=context, client_configuration=settings)
    except (config.ConfigException, yaml.YAMLError) as error:
        if context is None and _in_cluster(settings):
            return None
        raise ClusterError(_no_config(error)) from error
    namespace: str | None = contexts[context or current["name"]].get("namespace")
    return namespace


def _in_cluster(settings: client.Configuration) -> bool:
    from kubernetes import config

    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        return False
    return True


def _no_config(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "No configuration found" in text:
        return "no cluster is configured: set KUBECONFIG to a kubeconfig file, or put one at ~/.kube/config"
    return f"the kubeconfig cannot be used: {text}"
