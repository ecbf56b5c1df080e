"""`hindcast evaluate CHECKPOINT`: evaluate a trained policy by playing, or on recorded episodes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hindcast.cli.command import Checkpoint, Explore, ModuleClass, command
from hindcast.cli.data_options import ReadFlags
from hindcast.cli.screen import Screen
from hindcast.errors import SpecError

if TYPE_CHECKING:
    from hindcast.datasets.prepare.reading import Reading
    from hindcast.run.checkpoint_evaluation import OfflineEvaluation

_PANEL = "On recorded episodes, without an environment"


@dataclass(frozen=True)
class RecordedFlags:
    """Options for evaluating a policy without an environment."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATASET",
            help="Recorded episodes to evaluate the policy on; they may come from another policy. Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside",
            help="Use only the episodes that the checkpoint's run set aside (evaluation.offline.setAside). "
            "--data names the run's data; default: the paths of its inputs.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    gamma: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Discount factor. Default: that of the run, or 0.99.", rich_help_panel=_PANEL
        ),
    ] = None
    clip: Annotated[
        float | None,
        typer.Option(
            min=1, help="Upper bound on each step's importance ratio. Default: none.", rich_help_panel=_PANEL
        ),
    ] = None
    html: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Page with the verdict, the estimates and what the policy does differently. Default: verdict.html in "
            "the run folder.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    model_updates: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Updates to fit the value model (for dm, dr, wdr); 0 omits the model. Default: 10,000.",
            rich_help_panel=_PANEL,
        ),
    ] = None


@command
def evaluate(
    checkpoint: Checkpoint,
    recorded: RecordedFlags,
    read: ReadFlags,
    *,
    screen: Screen,
    env: Annotated[
        str | None, typer.Option(help="Environment id or package.module:EnvClass. Default: that of the run.")
    ] = None,
    module_class: ModuleClass = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Episodes to play (default: 10) or, with --data, to draw (default: all)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes.")] = 0,
    explore: Explore = None,
    reference_returns: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="RANDOM EXPERT", help="Mean returns that count as 0 and 100 in a normalised score."
        ),
    ] = None,
) -> None:
    """Play episodes with a checkpoint's policy and report their returns.

    With --data or --set-aside, evaluate the policy on recorded episodes instead, and compare it with the policy that
    recorded them. Data that need a schema or another option are read like the inputs of the checkpoint's run, or as the
    options say.
    """
    from hindcast.run.checkpoint_evaluation import choose_explore

    explore = choose_explore(checkpoint, explore, note=screen.note)
    if recorded.data is None and not recorded.set_aside:
        _refuse_recorded_flags(recorded)
        settings = (episodes or 10, seed, explore, reference_returns)
        _evaluate_in_environment(screen, checkpoint, env, module_class, settings)
        return
    if reference_returns is not None:
        raise SpecError(
            "--reference-returns applies to played episodes only: remove this option, or remove --data and --set-aside."
        )
    if env is not None:
        raise SpecError(
            "--env and --data cannot be combined, because with --data or --set-aside no episodes are played: remove "
            "--env, or remove --data and --set-aside."
        )
    reading = read.make_reading(recorded.data or ()) if read != ReadFlags() else None
    _evaluate_offline(screen, checkpoint, module_class, (recorded, reading), (episodes, seed, explore))


def _refuse_recorded_flags(recorded: RecordedFlags) -> None:
    """Raise SpecError if an option for recorded episodes is set; for commands that play episodes."""
    options = [name for name, value in asdict(recorded).items() if value not in (None, False)]
    if options:
        raise SpecError(
            f"--{options[0].replace('_', '-')} applies to evaluation on recorded episodes only: add --data DATASET "
            "or --set-aside."
        )


def _evaluate_in_environment(
    screen: Screen,
    checkpoint: str,
    env: str | None,
    module_class: str | None,
    settings: tuple[int, int, bool, tuple[float, float] | None],
) -> None:
    """Play episodes and print the result; `settings` are episodes, seed, explore and reference returns."""
    from hindcast import formatting
    from hindcast.api.evaluation import ReferenceReturns
    from hindcast.run.checkpoint_evaluation import evaluate_checkpoint

    episodes, seed, explore, reference_returns = settings
    reference = None
    if reference_returns is not None:
        random, expert = reference_returns
        if random >= expert:
            raise SpecError(
                f"--reference-returns: the random return {random:g} must be below the expert return {expert:g}."
            )
        reference = ReferenceReturns(random=random, expert=expert)
    result = evaluate_checkpoint(
        checkpoint,
        environment=env,
        module_class=module_class,
        episodes=episodes,
        seed=seed,
        explore=explore,
    )
    summary = result.report.summary(reference)
    document = {
        "checkpoint": result.policy,
        "environment": result.environment.id,
        "seed": seed,
        "explore": explore,
        **summary,
        "returns": result.report.returns,
        "lengths": result.report.lengths,
    }
    low, high = map(formatting.significant, summary["episode_return_interval"])
    formatted = {
        name: formatting.significant(value)
        for name, value in summary.items()
        if name != "episode_return_interval"
    }
    score = "" if reference is None else f", normalised score {formatted['normalised_score']}"
    screen.show_result(
        document,
        f"{result.environment.id}, {formatting.plural(summary['num_episodes'], 'episode')}, "
        f"{formatting.acting(explore)}: "
        f"return {formatted['episode_return_mean']} ± {formatted['episode_return_std']} "
        f"(min {formatted['episode_return_min']}, max {formatted['episode_return_max']}), "
        f"mean length {formatted['episode_len_mean']}\n"
        f"90 % confidence interval of the mean {low} to {high}, median {formatted['episode_return_median']}, "
        f"interquartile mean {formatted['episode_return_iqm']}{score}\n"
        f"checkpoint: {result.policy}",
    )


def _evaluate_offline(
    screen: Screen,
    checkpoint: str,
    module_class: str | None,
    source: "tuple[RecordedFlags, Reading | None]",
    settings: tuple[int | None, int, bool],
) -> None:
    """Evaluate on recorded episodes and print the result; `settings` are episodes, seed and explore.

    The second part of the source says how to read the data, if the user did.
    """
    from hindcast.cli.offline_view import render_report
    from hindcast.cli.progress import progress_bar
    from hindcast.evaluate.fitted_q import FittedQOptions
    from hindcast.evaluate.offline import OfflineOptions
    from hindcast.run.checkpoint_evaluation import SET_ASIDE_NAME, evaluate_checkpoint_offline
    from hindcast.run.final_evaluation import load_set_aside

    episodes, seed, explore = settings
    recorded, reading = source
    data: Sequence[str] = recorded.data or (SET_ASIDE_NAME,)
    updates = FittedQOptions.updates if recorded.model_updates is None else recorded.model_updates
    options = OfflineOptions(
        explore=explore,
        clip=recorded.clip,
        seed=seed,
        fit=FittedQOptions(updates=updates) if updates else None,
    )
    with progress_bar(screen, "evaluating the policy") as hooks:
        result = evaluate_checkpoint_offline(
            checkpoint,
            load_set_aside(checkpoint, recorded.data or (), hooks) if recorded.set_aside else reading or data,
            module_class=module_class,
            gamma=recorded.gamma,
            episodes=episodes,
            options=options,
            hooks=hooks,
        )
    page = _write_page(checkpoint, recorded.html, result, ", ".join(data))
    document = {
        "checkpoint": result.policy,
        "data": list(data),
        "seed": seed,
        "explore": explore,
        "gamma": result.gamma,
        "trained_episodes_left_out": result.num_trained,
        **result.report.to_json(),
        "actions": asdict(result.actions),
        "page": page,
    }
    lines = [f"checkpoint: {result.policy}", *([f"page: {page}"] if page is not None else [])]
    screen.show_result(document, *render_report(result, ", ".join(data)), *lines)


def _write_page(checkpoint: str, file: str | None, result: "OfflineEvaluation", data: str) -> str | None:
    """Write the page to a file, or by default into the run folder, and return its path.

    Without a run folder there is no default page; if it cannot be written, a warning is logged.
    """
    from hindcast.report.page import warn_on_failure
    from hindcast.report.verdict_page import VERDICT_FILE, Judgement, write_verdict_page
    from hindcast.run.checkpoint_evaluation import find_run_folder
    from hindcast.storage.location import resolve

    folder = find_run_folder(checkpoint)
    if file is not None:
        location = resolve(file)
    elif folder is not None:
        location = folder.child(VERDICT_FILE)
    else:
        return None
    judgement = Judgement(
        result.report.to_json(), result.actions, result.policy, data, result.gamma, result.num_trained
    )
    write = write_verdict_page if file is not None else warn_on_failure(write_verdict_page)
    return write(location, judgement, None if folder is None else str(folder))
