"""`hindcast-operator`: run the operator."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hindcast.errors import UserError
from hindcast_operator.control import logs
from hindcast_operator.control.lease import LeaseOptions
from hindcast_operator.control.service import OperatorOptions, run
from hindcast_operator.defaults import Defaults, load_defaults


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the operator until SIGTERM or SIGINT. Options that are not valid end the process with an error."""
    args = _make_parser().parse_args(arguments)
    logs.configure(args.log_level)
    try:
        options = _make_options(args)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    # Not asyncio.run: it waits for all tasks, and tasks of kopf may ignore their cancellation.
    asyncio.new_event_loop().run_until_complete(run(options))
    # Not sys.exit either: tasks that still run cannot delay os._exit.
    os._exit(0)


def _make_options(args: argparse.Namespace) -> OperatorOptions:
    host, port = args.listen
    lease = LeaseOptions(args.lease_namespace, args.lease_name, args.lease_seconds)
    return OperatorOptions(
        defaults=load_defaults(args.defaults) if args.defaults else Defaults(),
        namespaces=tuple(args.namespace),
        lease=lease if args.lease_namespace else None,
        host=host,
        port=port,
        kubeconfig=os.environ.get("KUBECONFIG") or None,
    )


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        raise argparse.ArgumentTypeError(f"is {text!r}, expected HOST:PORT such as 0.0.0.0:8080")
    return host, int(port)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hindcast-operator",
        description="Runs OfflineRecordings and OfflineTrainings on the cluster of KUBECONFIG, or of its pod.",
    )
    add = parser.add_argument
    add("--defaults", type=Path, help="YAML file: the chart's values, or only their defaults: section")
    add("--namespace", action="append", default=[], help="namespace to serve (repeatable; default: all)")
    add("--lease-namespace", help="namespace of the Lease that elects a leader (default: no leader election)")
    add("--lease-name", default="hindcast-operator", help="name of the Lease")
    add("--lease-seconds", type=float, default=15.0, help="seconds that the Lease is valid without renewal")
    address: dict[str, Any] = {"metavar": "HOST:PORT", "help": "address of /healthz, /readyz and /metrics"}
    add("--listen", type=_parse_address, default=("0.0.0.0", 8080), **address)
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


if __name__ == "__main__":
    main()
