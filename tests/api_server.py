"""A thin client of the API server for tests: objects are dictionaries, and refusals raise `RefusalError`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from kubernetes import client, config
from ruamel.yaml import YAML

Object = dict[str, Any]

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class RefusalError(Exception):
    """An answer of the API server with a status other than 2xx.

    Attributes:
        status: the HTTP status.
        message: the error message.
        causes: (field, message) of each problem of an invalid object.
    """

    def __init__(self, status: int, answer: Object) -> None:
        self.status = status
        self.message = str(answer.get("message", ""))
        causes = (answer.get("details") or {}).get("causes") or []
        self.causes = [(str(cause.get("field", "")), str(cause.get("message", ""))) for cause in causes]
        super().__init__(f"{status}: {self.message}")


class ApiServer:
    """The API server that a kubeconfig names. All writes are strict: unknown fields are refused."""

    def __init__(self, api: client.ApiClient) -> None:
        self.client = api

    @classmethod
    def from_kubeconfig(cls, kubeconfig: str) -> Self:
        return cls(config.new_client_from_config(config_file=kubeconfig))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Object:
        """Send one request, and return the answer's document.

        Args:
            method: HTTP method.
            path: path of the object or collection.
            body: an object, or text that is sent unchanged.
            content_type: content type of the body.
            accept: accepted content type.
            query: query parameters.

        Raises:
            RefusalError: the status is not 2xx.
        """
        call = self.client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = self.client.call_api(*call)
        text = answer.read().decode()
        document: Object = json.loads(text) if text.startswith("{") else {"message": text}
        if not 200 <= answer.status < 300:
            raise RefusalError(answer.status, document)
        return document

    def path_of(self, document: Object, namespace: str | None = None) -> str:
        """Return the path of an object's collection; the object's own namespace takes precedence."""
        version, kind = document["apiVersion"], document["kind"]
        object_namespace = document.get("metadata", {}).get("namespace", namespace)
        return collection(version, plural(kind), object_namespace)

    def create(self, document: Object, namespace: str | None = None, **query: str) -> Object:
        path = self.path_of(document, namespace)
        return self.request("POST", path, document, fieldValidation="Strict", **query)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.request("GET", f"{collection(VERSIONS[kind], plural(kind), namespace)}/{name}")

    def merge(self, document: Object, change: Object, subresource: str = "", **query: str) -> Object:
        """Send a merge patch of an existing object (null removes a field)."""
        path = f"{self.path_of(document)}/{document['metadata']['name']}{subresource}"
        return self.request("PATCH", path, change, MERGE, fieldValidation="Strict", **query)

    def apply(self, document: Object, manager: str, subresource: str = "", **query: str) -> Object:
        """Send a forced server-side apply."""
        path = f"{self.path_of(document)}/{document['metadata']['name']}{subresource}"
        options = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"} | query
        return self.request("PATCH", path, json.dumps(document), APPLY, **options)

    def delete(self, path: str) -> None:
        self.request("DELETE", path, {"propagationPolicy": "Background"})

    def apply_crds(self, files: Iterable[Path]) -> None:
        """Apply the CRDs on the server; return when the API server serves their new version."""
        for file in files:
            definition = YAML(typ="safe", pure=True).load(file)
            generation_before = self._generation(definition)
            definition = self.apply(definition, "tests")
            self._wait_until_served(definition)
            if 0 < generation_before < definition["metadata"]["generation"]:
                # The server uses the old schema for another moment, and does not report when it stops to.
                time.sleep(2)

    def _generation(self, definition: Object) -> int:
        """Return the generation of a CRD on the server; 0 if the server does not have it."""
        try:
            document = self.request("GET", f"{self.path_of(definition)}/{definition['metadata']['name']}")
        except RefusalError:
            return 0
        return int(document["metadata"]["generation"])

    def _wait_until_served(self, definition: Object) -> None:
        path = f"{self.path_of(definition)}/{definition['metadata']['name']}"
        wait_for(lambda: _is_established(self.request("GET", path)), f"{path} is established")
        # The API server changes its handlers a moment after it sets the condition.
        spec = definition["spec"]
        collection_path = collection(
            f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["plural"]
        )
        wait_for(lambda: _answers(self, collection_path), f"{collection_path} is served")


VERSIONS = {
    "ConfigMap": "v1",
    "Namespace": "v1",
    "OfflineRecording": "hindcast.dev/v1alpha1",
    "OfflineTraining": "hindcast.dev/v1alpha1",
    "Pod": "v1",
    "RayJob": "ray.io/v1",
}


def plural(kind: str) -> str:
    return f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s"


def collection(version: str, plural_name: str, namespace: str | None = None) -> str:
    """Return the path of a collection: `/api/v1/namespaces/ns/pods`, `/apis/hindcast.dev/v1alpha1/offlinetrainings`."""
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{plural_name}" if namespace else f"{root}/{plural_name}"


def wait_for(condition: Callable[[], bool], expectation: str, seconds: float = 60.0) -> None:
    """Poll a condition until it holds; after `seconds`, fail with the expectation that was not met."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {expectation}"
        time.sleep(0.05)


def _is_established(definition: Object) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or []  # null at first
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _answers(api: ApiServer, path: str) -> bool:
    try:
        api.request("GET", path, limit="1")
    except RefusalError as error:
        if error.status == 404:
            return False
        raise
    return True
