"""Options shared by several commands."""

from typing import Annotated

import typer

Checkpoint = Annotated[
    str, typer.Argument(help="Checkpoint, run folder (its best checkpoint) or dataset (its policy).")
]
ModuleClass = Annotated[
    str | None, typer.Option(help="package.module:Class of the policy's network, if custom.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")
]
KubeContext = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current one.")
]
