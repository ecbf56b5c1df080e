"""A small API server that answers the requests of `hindcast status` and `hindcast logs` from plain objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from http_server import serve_in_thread

Raw = dict[str, Any]

NAMESPACE = "rl"
_RESOURCE_PATH = re.compile(r"/apis/hindcast\.dev/v1alpha1/namespaces/(\w+)/(offline\w+)(?:/(.+))?$")
_PODS_PATH = re.compile(r"/api/v1/namespaces/(\w+)/pods$")
_LOG_PATH = re.compile(r"/api/v1/namespaces/(\w+)/pods/([^/]+)/log$")


class FakeCluster:
    """The content of the API server.

    Attributes:
        resources: resources by (plural, name).
        pods: all pods.
        logs: text of the logs by (pod, container).
        refusals: path pattern -> HTTP status with which matching requests are refused.
        has_crds: True if the CRDs exist.
        before_read: called before each read of a resource, with the number of earlier reads.
        requests: paths and queries of all requests so far.
    """

    def __init__(self) -> None:
        self.resources: dict[tuple[str, str], Raw] = {}
        self.pods: list[Raw] = []
        self.logs: dict[tuple[str, str], str] = {}
        self.refusals: dict[str, int] = {}
        self.has_crds = True
        self.before_read: Callable[[int], None] = lambda reads: None
        self.requests: list[str] = []
        self._num_reads = 0

    def add(self, resource: Raw) -> Raw:
        """Add a resource, or replace the one with its name; return it."""
        plural = f"{resource['kind'].lower()}s"
        self.resources[plural, resource["metadata"]["name"]] = resource
        return resource

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """Return HTTP status and content of the answer: a log's text, or a document."""
        self.requests.append(path + "".join(f" {name}={value}" for name, value in query.items()))
        for pattern, status in self.refusals.items():
            if re.search(pattern, path):
                return status, {"message": f"refused with {status}"}
        if match := _RESOURCE_PATH.match(path):
            return self._answer_resource(*match.groups())
        if match := _PODS_PATH.match(path):
            return 200, {
                "items": [pod for pod in self.pods if _matches_selector(pod, query["labelSelector"])]
            }
        if match := _LOG_PATH.match(path):
            log = self.logs.get((match[2], query["container"]))
            return (404, {"message": f'pods "{match[2]}" not found'}) if log is None else (200, log)
        return 404, {"message": "the server could not find the requested resource"}

    def _answer_resource(self, namespace: str, plural: str, name: str | None) -> tuple[int, Any]:
        is_known_namespace = namespace == NAMESPACE
        if not self.has_crds:
            return 404, {"message": "the server could not find the requested resource"}
        if name is None:
            items = [
                entry for (kind, _), entry in self.resources.items() if kind == plural and is_known_namespace
            ]
            return 200, {"items": items}
        self.before_read(self._num_reads)
        self._num_reads += 1
        resource = self.resources.get((plural, name)) if is_known_namespace else None
        return (404, {"message": f'"{name}" not found'}) if resource is None else (200, resource)


def _matches_selector(pod: Raw, selector: str) -> bool:
    labels = pod["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in (term.split("=") for term in selector.split(",")))


@contextmanager
def serve_cluster(cluster: FakeCluster, kubeconfig: Path) -> Iterator[str]:
    """Run an API server with the cluster's content and write a kubeconfig for it; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            status, content = cluster.answer(url.path, query)
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serve_in_thread(Handler) as port:
        address = f"http://127.0.0.1:{port}"
        kubeconfig.write_text(json.dumps(make_kubeconfig(address)))
        yield address


def make_kubeconfig(address: str) -> Raw:
    """Return a kubeconfig with two contexts: `here` with this address, and `there`, where no server listens."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [
            {"name": "here", "cluster": {"server": address}},
            {"name": "there", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "me", "user": {}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE}},
            {"name": "there", "context": {"cluster": "there", "user": "me"}},
        ],
    }
