"""`hindcast evaluate CHECKPOINT`: how well a trained policy plays."""

from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.screen import Screen


@command
def evaluate(
    checkpoint: Annotated[
        str,
        typer.Argument(help="Checkpoint, run folder (its best checkpoint) or dataset (its policy)."),
    ],
    *,
    screen: Screen,
    env: Annotated[
        str | None, typer.Option(help="Environment id or package.module:EnvClass. Default: the run's own.")
    ] = None,
    module_class: Annotated[
        str | None,
        typer.Option(help="package.module:Class of the policy's network, where it is one of your own."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes to play.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes.")] = 0,
    explore: Annotated[
        bool, typer.Option("--explore", help="Sample actions instead of taking the likeliest.")
    ] = False,
) -> None:
    """Play whole episodes with a checkpoint's policy and report their returns."""
    from hindcast import formatting
    from hindcast.run.evaluation import evaluate_checkpoint

    done = evaluate_checkpoint(
        checkpoint,
        environment=env,
        module_class=module_class,
        episodes=episodes,
        seed=seed,
        explore=explore,
    )
    summary = done.report.summary()
    document = {
        "checkpoint": done.policy,
        "environment": done.environment.id,
        "seed": seed,
        "explore": explore,
        **summary,
        "returns": done.report.returns,
        "lengths": done.report.lengths,
    }
    shown = {name: formatting.significant(value) for name, value in summary.items()}
    screen.result(
        document,
        f"{done.environment.id}, {formatting.plural(summary['num_episodes'], 'episode')}: "
        f"return {shown['episode_return_mean']} ± {shown['episode_return_std']} "
        f"(least {shown['episode_return_min']}, most {shown['episode_return_max']}), "
        f"mean length {shown['episode_len_mean']}\n"
        f"checkpoint: {done.policy}",
    )
