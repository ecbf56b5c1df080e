"""The operator in a separate process, as the chart runs it: with its own account, the chart's rights, and flags."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from api_server import ApiServer, RefusalError, collection, wait_for

RULES = Path(__file__).parents[2] / "charts" / "hindcast" / "templates" / "_rules.tpl"
ACCOUNT = "hindcast-operator"
_LEASE_RULE = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "verbs": ["create", "get", "update"],
}
_PROGRAM = """
from importlib import reload
from hindcast_operator.__main__ import main
from hindcast_operator.control import faults
reload(faults)  # reads the fault point from the environment
{setup}
main()
"""


def load_chart_rules() -> list[dict[str, Any]]:
    """Load the rules of the operator's role from the chart."""
    text = re.sub(r"(?m)^\{\{.*$", "", RULES.read_text())
    return [*YAML(typ="safe", pure=True).load(text), _LEASE_RULE]


def create_account(api: ApiServer, namespace: str, folder: Path, server: str | None = None) -> Path:
    """Create a service account with the chart's rights in the whole cluster. Return its kubeconfig.

    `server` is another address of the API server, such as a proxy's.
    """
    rbac = "rbac.authorization.k8s.io"
    name = f"{ACCOUNT}-{namespace}"
    role = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": load_chart_rules(),
    }
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    for document, namespace_or_none in ((account, namespace), (role, None), (binding, None)):
        try:
            api.create(document, namespace_or_none)
        except RefusalError as error:
            if error.status != 409:
                raise
    return write_kubeconfig(
        api, create_token(api, namespace, ACCOUNT), folder / "operator.kubeconfig", server
    )


def delete_account(api: ApiServer, namespace: str) -> None:
    """Delete the cluster-wide objects of `create_account`."""
    for plural in ("clusterroles", "clusterrolebindings"):
        try:
            api.delete(f"/apis/rbac.authorization.k8s.io/v1/{plural}/{ACCOUNT}-{namespace}")
        except RefusalError as error:
            if error.status != 404:
                raise


def create_token(api: ApiServer, namespace: str, account: str) -> str:
    """Request a real token of a service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    return str(api.request("POST", path, request)["status"]["token"])


def is_permitted(api: ApiServer, user: str, **attributes: str) -> bool:
    """Ask the API server for a SubjectAccessReview; return True if it allows the request."""
    attributes["resource"], _, attributes["subresource"] = attributes["resource"].partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": attributes},
    }
    answer = api.request("POST", collection("authorization.k8s.io/v1", "subjectaccessreviews"), review)
    return bool(answer["status"]["allowed"])


def write_kubeconfig(api: ApiServer, token: str, file: Path, server: str | None = None) -> Path:
    """Write a kubeconfig with a token for the API server of the tests."""
    configuration = api.client.configuration
    cluster = {"server": server or configuration.host}
    if configuration.ssl_ca_cert:
        cluster["certificate-authority"] = configuration.ssl_ca_cert
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(json.dumps(content))
    return file


class OperatorProcess:
    """A running operator. Leaving the block stops the operator, and fails if a reconciliation has raised an exception.

    Args:
        kubeconfig: kubeconfig of the operator's account.
        log: the file to which the operator's log is appended.
        flags: flags of the operator's command.
        fault: the fault point at which the operator exits; empty for none.
        setup: Python code that runs before the operator, for example to change a constant.
        python: the interpreter; `warm_python` provides one that has already imported the operator.
    """

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *flags: str,
        fault: str = "",
        setup: str = "",
        python: str = sys.executable,
    ) -> None:
        self.log = log
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "HINDCAST_FAULT": fault}
        program = _PROGRAM.format(setup=setup)
        command = [python, "-c", program, "--listen", "127.0.0.1:0", "--log-level", "debug"]
        with log.open("ab") as output:
            self.process = subprocess.Popen([*command, *flags], env=environment, stderr=output, stdout=output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        defects = [
            line for line in self.log_entries() if line.get("event") == "reconciliation failed; will retry"
        ]
        assert not defects, "\n".join(str(line.get("exception", line)) for line in defects)

    def log_entries(self) -> list[dict[str, Any]]:
        """Read the entries of the log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def has_logged(self, event: str) -> bool:
        """Return True if the operator has logged an event of this name."""
        return any(line["event"] == event for line in self.log_entries())

    def wait_for_port(self) -> int:
        """Wait for the port of /healthz and /metrics."""
        wait_for(
            lambda: self.has_logged("listening"), f"the operator listens: {self.log.read_text()[-2000:]}"
        )
        return int(next(line["port"] for line in self.log_entries() if line["event"] == "listening"))

    def exit_code(self) -> int | None:
        """Return the operator's exit code, or None while it is running."""
        return self.process.poll()

    def kill(self) -> None:
        """Kill the operator with SIGKILL."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """Stop the operator with SIGTERM, as the kubelet does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def read_num_writes(self) -> float:
        """Return how many writes the operator has counted."""
        return sum(self.read_samples("hindcast_writes_total").values())

    def read_samples(self, name: str) -> dict[str, float]:
        """Read a metric: labels, as `{kind="…"}` or empty -> value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.wait_for_port()}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if re.match(rf"{name}(\{{| )", line))
        return {labels.removeprefix(name): float(value) for labels, value in samples}


RunOperator = Callable[..., OperatorProcess]
