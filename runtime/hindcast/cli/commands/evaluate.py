"""`hindcast evaluate CHECKPOINT`: how well a trained policy plays, or would play."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from hindcast.cli.command import Checkpoint, ModuleClass, command
from hindcast.cli.screen import Screen
from hindcast.errors import SpecError

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
            help="Only the episodes that the checkpoint's run set aside (evaluation.offline.setAside). "
            "--data says where its data are; default: where its inputs say.",
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
    model_updates: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Updates to fit the value model (for dm, dr, wdr); 0 fits none. Default: 10,000.",
            rich_help_panel=_PANEL,
        ),
    ] = None


@command
def evaluate(
    checkpoint: Checkpoint,
    recorded: RecordedFlags,
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
    explore: Annotated[
        bool, typer.Option("--explore", help="Sample actions instead of taking the most likely ones.")
    ] = False,
    reference_returns: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="RANDOM EXPERT", help="Mean returns that count as 0 and 100 in a normalised score."
        ),
    ] = None,
) -> None:
    """Play episodes with a checkpoint's policy and report their returns.

    With --data, recorded episodes evaluate the policy instead, and compare it with the policy that recorded them.
    """
    if recorded.data is None and not recorded.set_aside:
        _refuse_without_data(recorded)
        how = (episodes or 10, seed, explore, reference_returns)
        _play(screen, checkpoint, env, module_class, how)
        return
    if reference_returns is not None:
        raise SpecError("--reference-returns applies to played episodes only: leave it out with --data.")
    if env is not None:
        raise SpecError("--env and --data exclude each other: with --data no episodes are played.")
    _judge(screen, checkpoint, module_class, recorded, (episodes, seed, explore))


def _refuse_without_data(recorded: RecordedFlags) -> None:
    given = [name for name, value in asdict(recorded).items() if value not in (None, False)]
    if given:
        raise SpecError(
            f"--{given[0].replace('_', '-')} applies to evaluation on recorded episodes only: add --data DATASET."
        )


def _play(
    screen: Screen,
    checkpoint: str,
    env: str | None,
    module_class: str | None,
    how: tuple[int, int, bool, tuple[float, float] | None],
) -> None:
    from hindcast import formatting
    from hindcast.api.evaluation import ReferenceReturns
    from hindcast.run.checkpoint_evaluation import evaluate_checkpoint

    episodes, seed, explore, reference_returns = how
    reference = None
    if reference_returns is not None:
        random, expert = reference_returns
        if random >= expert:
            raise SpecError(
                f"--reference-returns: random is {random:g}, which must be below expert, {expert:g}."
            )
        reference = ReferenceReturns(random=random, expert=expert)
    done = evaluate_checkpoint(
        checkpoint,
        environment=env,
        module_class=module_class,
        episodes=episodes,
        seed=seed,
        explore=explore,
    )
    summary = done.report.summary(reference)
    document = {
        "checkpoint": done.policy,
        "environment": done.environment.id,
        "seed": seed,
        "explore": explore,
        **summary,
        "returns": done.report.returns,
        "lengths": done.report.lengths,
    }
    low, high = map(formatting.significant, summary["episode_return_interval"])
    shown = {
        name: formatting.significant(value)
        for name, value in summary.items()
        if name != "episode_return_interval"
    }
    score = "" if reference is None else f", normalised score {shown['normalised_score']}"
    screen.result(
        document,
        f"{done.environment.id}, {formatting.plural(summary['num_episodes'], 'episode')}: "
        f"return {shown['episode_return_mean']} ± {shown['episode_return_std']} "
        f"(least {shown['episode_return_min']}, most {shown['episode_return_max']}), "
        f"mean length {shown['episode_len_mean']}\n"
        f"mean between {low} and {high} with 90 % confidence, median {shown['episode_return_median']}, "
        f"interquartile mean {shown['episode_return_iqm']}{score}\n"
        f"checkpoint: {done.policy}",
    )


def _judge(
    screen: Screen,
    checkpoint: str,
    module_class: str | None,
    recorded: RecordedFlags,
    how: tuple[int | None, int, bool],
) -> None:
    from hindcast.cli.offline_view import views
    from hindcast.cli.progress import progress_bar
    from hindcast.evaluate.fitted_q import Fit
    from hindcast.evaluate.offline import OfflineOptions
    from hindcast.run.checkpoint_evaluation import SET_ASIDE, evaluate_checkpoint_offline
    from hindcast.run.final_evaluation import load_set_aside

    episodes, seed, explore = how
    data: Sequence[str] = recorded.data or (SET_ASIDE,)
    updates = Fit.updates if recorded.model_updates is None else recorded.model_updates
    options = OfflineOptions(
        explore=explore, clip=recorded.clip, seed=seed, fit=Fit(updates=updates) if updates else None
    )
    with progress_bar(screen, "evaluating the policy") as watch:
        done = evaluate_checkpoint_offline(
            checkpoint,
            load_set_aside(checkpoint, recorded.data or (), watch) if recorded.set_aside else data,
            module_class=module_class,
            gamma=recorded.gamma,
            episodes=episodes,
            options=options,
            hooks=watch,
        )
    document = {
        "checkpoint": done.policy,
        "data": list(data),
        "seed": seed,
        "explore": explore,
        "gamma": done.gamma,
        **done.report.to_json(),
    }
    screen.result(document, *views(done.report, ", ".join(data), done.gamma), f"checkpoint: {done.policy}")
