"""`hindcast export CHECKPOINT FOLDER`: export a policy for use without Hindcast."""

from typing import Annotated, Literal

import typer

from hindcast.cli.command import Explore, KubeContext, ModuleClass, RunNamespace, command
from hindcast.cli.screen import Screen


@command
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="Checkpoint, run folder (its best checkpoint) or dataset (its policy); or training/NAME on a cluster."
        ),
    ],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to write; a path or a URI.")],
    *,
    screen: Screen,
    export_format: Annotated[
        Literal["onnx", "torch", "safetensors"],
        typer.Option(
            "--format",
            help="onnx: for any ONNX runtime. torch: a program of torch.export. safetensors: weights and JSON.",
        ),
    ] = "onnx",
    explore: Explore = None,
    module_class: ModuleClass = None,
    namespace: RunNamespace = None,
    kube_context: KubeContext = None,
) -> None:
    """Export a policy for use without Hindcast, and compare its actions with the original's.

    The exported policy includes filters, frame stacks, recurrent states, action scaling and the sampling of actions.
    """
    from hindcast import formatting
    from hindcast.cli.cluster.run_storage import find_on_cluster, policy_path
    from hindcast.run.checkpoint_evaluation import choose_explore
    from hindcast.run.export.exporting import export_policy

    (checkpoint,) = find_on_cluster([checkpoint], policy_path, namespace, kube_context)
    explore = choose_explore(checkpoint, explore, note=screen.note)
    result = export_policy(checkpoint, folder, export_format, module_class, explore=explore)
    check_text = f"copied: the policy's own weights and JSON files; act with policy(obs, {explore=})"
    if result.max_difference is not None:
        steps = formatting.plural(result.num_actions, "random step")
        actions = (
            f"the actions are within {result.max_difference:.1g} of"
            if result.max_difference
            else "the actions equal"
        )
        check_text = f"checked: {actions} the original's in {steps}; {formatting.acting(explore)}"
    document = {
        "checkpoint": result.policy,
        "files": result.files,
        "difference": result.max_difference,
        "steps": result.num_actions,
        "explore": explore,
    }
    screen.show_result(document, *result.files, check_text)
