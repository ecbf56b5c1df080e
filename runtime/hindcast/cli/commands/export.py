"""`hindcast export CHECKPOINT FOLDER`: a policy for use without Hindcast."""

from typing import Annotated, Literal

import typer

from hindcast.cli.command import command
from hindcast.cli.screen import Screen


@command
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(help="Checkpoint, run folder (its best checkpoint) or dataset (its policy)."),
    ],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to write; a path or a URI.")],
    *,
    screen: Screen,
    form: Annotated[
        Literal["onnx", "torch", "safetensors"],
        typer.Option(
            "--format",
            help="onnx: for any ONNX runtime. torch: a program of torch.export. safetensors: weights and JSON.",
        ),
    ] = "onnx",
    module_class: Annotated[
        str | None,
        typer.Option(help="package.module:Class of the policy's network, where it is one of your own."),
    ] = None,
) -> None:
    """Write a policy that acts without Hindcast, and compare its actions with the policy's own.

    What is written takes raw observations and gives the environment's actions: filters, frame stacks, recurrent states
    and the scaling of actions are part of it.
    """
    from hindcast import formatting
    from hindcast.run.exporting import export_policy

    done = export_policy(checkpoint, folder, form, module_class)
    said = "the policy's own files"
    if done.difference is not None:
        said = f"actions equal the policy's within {done.difference:.1g} over {formatting.plural(done.steps, 'step')}"
    document = {
        "checkpoint": done.policy,
        "files": done.files,
        "difference": done.difference,
        "steps": done.steps,
    }
    screen.result(document, *done.files, said)
