"""The attempt's ConfigMap, over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client

from hindcast.api.attempt import CHECKPOINT, REPORT_KEY, Report
from hindcast.cluster.channel import ConfigMapChannel, ConfigMapName, ReportError, ReportRefused, open_channel
from hindcast.errors import SpecError

CONFIG_MAP = ConfigMapName("tests", "walk-r1-1")
PATH = "/api/v1/namespaces/tests/configmaps/walk-r1-1"
REPORT = Report(
    number=1, report_time="2026-01-01T00:00:00Z", last_progress_time="2026-01-01T00:00:00Z", stage="Starting"
)


class FakeApiServer(ThreadingHTTPServer):
    """The part of an API server that a channel uses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data = {"intent": ""}
        self.status = 200
        self.requests: list[tuple[str, str, Any]] = []

    def channel(self) -> ConfigMapChannel:
        configuration = client.Configuration(host=f"http://127.0.0.1:{self.server_port}")
        configuration.api_key["BearerToken"] = "bearer token-of-the-head"
        configuration.retries = False
        return ConfigMapChannel(client.ApiClient(configuration), CONFIG_MAP)


class _Handler(BaseHTTPRequestHandler):
    server: FakeApiServer

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Content-Type"], self.headers["Authorization"]))
        self.server.data |= body["data"] if self.server.status == 200 else {}
        answer = json.dumps({"kind": "ConfigMap", "data": self.server.data}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_send_merges_report_and_returns_intent(api: FakeApiServer) -> None:
    channel = api.channel()
    assert channel.send(REPORT) == ""
    assert Report.model_validate_json(api.data[REPORT_KEY]) == REPORT
    api.data["intent"] = CHECKPOINT
    assert channel.send(REPORT) == CHECKPOINT
    assert api.requests == [(PATH, "application/merge-patch+json", "bearer token-of-the-head")] * 2


@pytest.mark.parametrize("status", [403, 404])
def test_status_403_or_404_is_refusal(api: FakeApiServer, status: int) -> None:
    api.status = status
    with pytest.raises(ReportRefused, match=str(status)):
        api.channel().send(REPORT)


@pytest.mark.parametrize("status", [401, 409, 422, 429, 500, 503])
def test_other_status_raises_report_error_without_retry(api: FakeApiServer, status: int) -> None:
    api.status = status
    with pytest.raises(ReportError, match=str(status)):
        api.channel().send(REPORT)
    assert len(api.requests) == 1  # `ReportSender` decides when to retry


def test_unreachable_server_raises_report_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    configuration = client.Configuration(host=f"http://127.0.0.1:{port}")
    configuration.retries = False
    with pytest.raises(ReportError):
        ConfigMapChannel(client.ApiClient(configuration), CONFIG_MAP).send(REPORT)


def test_config_map_name_requires_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HINDCAST_NAMESPACE", raising=False)
    with pytest.raises(SpecError, match=r"HINDCAST_NAMESPACE is not set: .* use hindcast run FILE"):
        ConfigMapName.from_environment()
    monkeypatch.setenv("HINDCAST_NAMESPACE", "tests")
    monkeypatch.setenv("HINDCAST_ATTEMPT", "walk-r1-1")
    assert ConfigMapName.from_environment() == CONFIG_MAP


def test_pod_without_service_account_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SpecError, match="no service account to report with"):
        open_channel(CONFIG_MAP)
