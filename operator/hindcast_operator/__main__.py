"""`hindcast-operator`: run the operator."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hindcast.errors import UserError
from hindcast_operator.control import logs
from hindcast_operator.control.lease import LeaseOptions
from hindcast_operator.control.service import OperatorOptions, run
from hindcast_operator.defaults import Defaults, load_defaults


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM."""
    given = _parser().parse_args(arguments)
    logs.configure(given.log_level)
    try:
        options = _options(given)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    # Not asyncio.run: it waits for all tasks, and kopf's may ignore their cancellation.
    asyncio.new_event_loop().run_until_complete(run(options))
    os._exit(0)


def _options(given: argparse.Namespace) -> OperatorOptions:
    host, _, port = given.listen.rpartition(":")
    lease = None
    if given.lease_namespace:
        lease = LeaseOptions(given.lease_namespace, given.lease_name, given.lease_seconds)
    return OperatorOptions(
        defaults=load_defaults(given.defaults) if given.defaults else Defaults(),
        namespaces=tuple(given.namespace),
        lease=lease,
        host=host,
        port=int(port),
        kubeconfig=os.environ.get("KUBECONFIG") or None,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hindcast-operator",
        description="Runs OfflineRecordings and OfflineTrainings on the cluster that KUBECONFIG names, else on the "
        "one that it is a pod of.",
    )
    add = parser.add_argument
    add(
        "--defaults",
        type=Path,
        help="the platform's defaults: the chart's values, or their defaults: section",
    )
    add("--namespace", action="append", default=[], help="serve this namespace (repeatable; default: all)")
    add("--lease-namespace", help="elect a leader by a Lease in this namespace (default: no leader election)")
    add("--lease-name", default="hindcast-operator", help="name of the Lease")
    add("--lease-seconds", type=float, default=15.0, help="seconds that a lease is valid without renewal")
    add("--listen", default="0.0.0.0:8080", help="address of /healthz and /metrics")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


if __name__ == "__main__":
    main()
