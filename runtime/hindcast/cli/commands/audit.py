"""`hindcast audit create RUN FOLDER`, `hindcast audit verify FOLDER`: all that a decision rests on, checked by data."""

from typing import Annotated

import typer

from hindcast.cli.command import Checkpoint, Explore, ModuleClass, command
from hindcast.cli.screen import Screen

Data = Annotated[
    list[str], typer.Option(metavar="DATASET", help="Recorded episodes that judge the policy. Repeatable.")
]

audit = typer.Typer(help="Write and check all that a decision on a policy rests on.", no_args_is_help=True)


@command
def create(
    checkpoint: Checkpoint,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder; a path or a URI.")],
    *,
    screen: Screen,
    data: Data,
    explore: Explore = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of fits and resamples.")] = 0,
    gamma: Annotated[
        float | None, typer.Option(min=0, max=1, help="Discount factor. Default: that of the run, or 0.99.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(min=1, help="Upper bound on each step's importance ratio. Default: none.")
    ] = None,
    model_updates: Annotated[
        int, typer.Option(min=0, help="Updates to fit the value model; 0 omits the model.")
    ] = 10_000,
    module_class: ModuleClass = None,
) -> None:
    """Evaluate a run's policy on recorded episodes, and write all that the verdict rests on into a folder.

    The folder has the resource, the policy, checksums of the episodes, those that trained it, the estimates, the
    verdict, the gate's history and the versions of the code.
    """
    from hindcast.cli.progress import progress_bar
    from hindcast.evaluate.fitted_q import FittedQOptions
    from hindcast.evaluate.offline import OfflineOptions
    from hindcast.run.audit import create_audit
    from hindcast.run.checkpoint_evaluation import choose_explore

    options = OfflineOptions(
        explore=choose_explore(checkpoint, explore, note=screen.note),
        clip=clip,
        seed=seed,
        fit=FittedQOptions(updates=model_updates) if model_updates else None,
    )
    with progress_bar(screen, "evaluating the policy") as hooks:
        result = create_audit(
            checkpoint, folder, data, options=options, gamma=gamma, module_class=module_class, hooks=hooks
        )
    screen.show_result(
        result.to_json(), result.decision, f"bundle: {result.folder}", f"sha256: {result.digest}"
    )


@command
def verify(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder of hindcast audit create.")],
    *,
    screen: Screen,
    data: Data,
) -> None:
    """Check a folder against the data, offline: files, policy, episodes, estimates, verdict, the gate's history.

    Exits with 3 if anything in it does not agree with the data.
    """
    from hindcast.cli.progress import progress_bar
    from hindcast.run.audit import verify_audit

    with progress_bar(screen, "checking the bundle") as hooks:
        result = verify_audit(folder, data, hooks=hooks)
    lines = [f"checked: {check}" for check in result.checks]
    screen.show_result(result.to_json(), *lines, result.decision, f"sha256: {result.digest}")


audit.command()(create)
audit.command()(verify)
