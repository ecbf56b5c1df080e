"""Reading a cluster with the user's own rights. Whatever goes wrong is one sentence that says what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hindcast.api.base import GROUP, VERSION
from hindcast.api.sentences import nearest
from hindcast.cli.cluster.target import Target
from hindcast.errors import SpecError, UserError

if TYPE_CHECKING:
    from kubernetes import client

Raw = dict[str, Any]

TIMEOUT_SECONDS: Final = 10


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

    def resource(self, target: Target) -> Raw:
        """The resource as the API server has it.

        Raises:
            SpecError: there is none of that name.
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
                _request_timeout=(TIMEOUT_SECONDS, None) if follow else TIMEOUT_SECONDS,
            )
            try:
                yield from answer.response.stream(decode_content=True)
            finally:
                answer.response.release_conn()

    def _unknown(self, target: Target) -> UserError:
        """Why a resource was not found: another name, another namespace, no CRDs."""
        with self._reading(target.plural):
            try:
                listed = self._custom.list_namespaced_custom_object(
                    *(GROUP, VERSION, self.namespace, target.plural), _request_timeout=TIMEOUT_SECONDS
                )
            except self._api_exception() as error:
                if error.status == 404:
                    return ClusterError(
                        f"the cluster at {self._host} has no {target.kind} resources: install Hindcast there "
                        "(docs/install.md), or choose another cluster by --context"
                    )
                raise
        names = [entry["metadata"]["name"] for entry in listed["items"]]
        there = nearest(target.name, names) or "; there is none at all"
        return SpecError(
            f"there is no {target} in namespace {self.namespace}{there} (another namespace: -n NAMESPACE)"
        )

    @staticmethod
    def _api_exception() -> type[Any]:
        from kubernetes.client import ApiException

        found: type[Any] = ApiException
        return found

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turns what the client raises into sentences."""
        from urllib3.exceptions import HTTPError

        try:
            yield
        except self._api_exception() as error:
            raise _refused(error, what, self.namespace, self._host) from error
        except (HTTPError, OSError) as error:
            raise _unreachable(self._host, str(getattr(error, "reason", None) or error)) from error


def connect(namespace: str | None, context: str | None) -> Cluster:
    """The cluster of the kubeconfig's current or given context, or the one that this process runs in.

    Args:
        namespace: default: the context's, else `default`.
        context: default: the current one.

    Raises:
        ClusterError: there is no kubeconfig, or no such context.
    """
    import yaml
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        config.load_kube_config(context=context, client_configuration=settings)
        own = _context(context).get("namespace")
    except config.ConfigException as error:
        if context is not None or not _in_cluster(settings):
            raise ClusterError(_no_config(error, context)) from error
        own = None
    except yaml.YAMLError as error:
        raise ClusterError(f"the kubeconfig cannot be used: {' '.join(str(error).split())}") from error
    settings.retries = False
    return Cluster(client.ApiClient(settings), namespace or own or "default", context)


def _in_cluster(settings: client.Configuration) -> bool:
    from kubernetes import config

    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        return False
    return True


def _context(name: str | None) -> Mapping[str, Any]:
    from kubernetes import config

    contexts, current = config.list_kube_config_contexts()
    chosen = current if name is None else next(entry for entry in contexts if entry["name"] == name)
    found: Mapping[str, Any] = chosen["context"]
    return found


def _no_config(error: Exception, context: str | None) -> str:
    from kubernetes import config

    try:
        contexts, _ = config.list_kube_config_contexts()
    except config.ConfigException:
        return "no cluster is configured: set KUBECONFIG to a kubeconfig file, or put one at ~/.kube/config"
    names = [entry["name"] for entry in contexts]
    if context is not None and context not in names:
        return f"--context is {context}, which the kubeconfig does not have{nearest(context, names)}"
    return f"the kubeconfig cannot be used: {' '.join(str(error).split())}"


def _refused(error: Any, what: str, namespace: str, host: str) -> ClusterError:
    if not error.status:  # of TLS
        return _unreachable(host, str(error.reason))
    if error.status == 404:
        return Gone(f"{what} is not in namespace {namespace}")
    if error.status == 403:
        return Forbidden(
            f"you may not read {what} in namespace {namespace}: ask for the role view there, or choose "
            "another user by --context"
        )
    if error.status == 401:
        return ClusterError(f"the API server at {host} does not know you: log in again, or choose --context")
    return ClusterError(f"the API server refused to show {what}: {_message(error)}")


def _unreachable(host: str, reason: str) -> ClusterError:
    """A client's error is a chain of names; its last link says what happened."""
    text = " ".join(reason.split()).rpartition(": ")[2].rstrip(".")
    return ClusterError(
        f"the API server at {host} cannot be reached: {text}; check the cluster and KUBECONFIG, "
        "or choose another one by --context"
    )


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
