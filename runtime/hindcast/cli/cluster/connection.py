"""Selects the cluster: the kubeconfig's current context, a named one, or the cluster that this process runs in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hindcast.api.sentences import nearest
from hindcast.cli.cluster.access import Cluster, ClusterError

if TYPE_CHECKING:
    from kubernetes import client

Contexts = dict[str, dict[str, Any]]


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
        contexts, current = _contexts(file)
        if context is not None and context not in contexts:
            raise ClusterError(
                f"--context is {context}, which the kubeconfig does not have{nearest(context, contexts)}"
            )
        config.load_kube_config(config_file=file, context=context, client_configuration=settings)
    except (config.ConfigException, yaml.YAMLError) as error:
        if context is None and _in_cluster(settings):
            return None
        raise ClusterError(_no_config(error)) from error
    namespace: str | None = contexts[context or current].get("namespace")
    return namespace


def _contexts(file: str) -> tuple[Contexts, str]:
    from kubernetes import config

    entries, current = config.list_kube_config_contexts(config_file=file)
    return {entry["name"]: entry["context"] for entry in entries}, current["name"]


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
