"""`hindcast gate RUN`: promote a trained policy once a log shows that it is better than the recorded policy."""

from typing import Annotated

import typer

from hindcast.cli.command import Checkpoint, ModuleClass, command
from hindcast.cli.failures import EXIT_KEPT, EXIT_UNDECIDED
from hindcast.cli.screen import Screen

_EXIT_CODES = {"promoted": 0, "kept": EXIT_KEPT, "undecided": EXIT_UNDECIDED}


@command
def gate(
    checkpoint: Checkpoint,
    *,
    screen: Screen,
    data: Annotated[
        list[str],
        typer.Option(metavar="LOG", help="Episodes of the recorded policy; the log may grow. Repeatable."),
    ],
    module_class: ModuleClass = None,
) -> None:
    """Decide by a growing log whether a trained policy replaces the recorded one.

    The conditions are the run's evaluation.gate. Looking more often does not raise the probability of an error. Exits
    with 0 if the policy is promoted, 8 if the recorded policy is kept, and 9 while undecided.
    """
    from hindcast.cli.progress import progress_bar
    from hindcast.run.gate import look

    with progress_bar(screen, "preparing the log") as hooks:
        result = look(checkpoint, data, module_class=module_class, hooks=hooks)
    page = [] if result.page is None else [f"page: {result.page}"]
    screen.show_result(result.to_json(), result.sentence, *page)
    if code := _EXIT_CODES[result.test.decision]:
        raise typer.Exit(code)
