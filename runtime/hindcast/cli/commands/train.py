"""`hindcast train`: accept the options of RLlib's `rllib train` and run an equivalent YAML file."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import command
from hindcast.cli.commands.run import run_files, write_yaml
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.api import OfflineTraining
    from hindcast.rllib.builder.config import AlgorithmConfig


@command
def train(
    *,
    screen: Screen,
    run: Annotated[str, typer.Option(help="Algorithm, such as DQN.")],
    env: Annotated[str | None, typer.Option(help="Gymnasium id, or package.module:Class.")] = None,
    config: Annotated[str, typer.Option(help="Options under their RLlib names, as JSON or YAML.")] = "{}",
    stop: Annotated[str, typer.Option(help='Stop criteria, such as {"timesteps_total": 100000}.')] = "{}",
    experiment_name: Annotated[
        str | None, typer.Option(help="Name of the resource. Default: the algorithm's name in lower case.")
    ] = None,
    local_dir: Annotated[Path, typer.Option(help="Folder for the YAML file and the run.")] = Path("runs"),
    checkpoint_freq: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Iterations between checkpoints. The last state is always saved."
        ),
    ] = None,
    keep_checkpoints_num: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of recent checkpoints to keep in addition to the best."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the YAML without running it.")] = False,
) -> None:
    """Train on recorded experience, or record the experience of a training, from RLlib's command line.

    Without an output it writes a YAML file to --local-dir and runs it as `hindcast run` does.
    """
    from hindcast.api import OfflineTraining, document_of
    from hindcast.errors import SpecError
    from hindcast.report.text import resource_yaml
    from hindcast.rllib.train_2019 import make_config, make_stop

    algorithm_config = make_config(run, env, _parse_mapping("--config", config))
    stop_fields = make_stop(_parse_mapping("--stop", stop))
    if algorithm_config.get("output"):
        if dry_run or keep_checkpoints_num is not None:
            option = "--dry-run" if dry_run else "--keep-checkpoints-num"
            raise SpecError(
                f"{option} does not apply with an output: the episodes of the training are recorded in this process, "
                "with one checkpoint, and without a YAML file."
            )
        folder = local_dir / (experiment_name or run.rpartition(":")[2].lower())
        _train_and_record(algorithm_config, stop_fields, folder, checkpoint_freq, screen)
        return
    resource = algorithm_config.to_resource(experiment_name, stop=stop_fields)
    assert isinstance(resource, OfflineTraining)
    checkpoint_fields = {"every": checkpoint_freq, "keep": keep_checkpoints_num, "path": str(local_dir)}
    resource = _with_checkpoints(
        resource, {name: value for name, value in checkpoint_fields.items() if value is not None}
    )
    for line in algorithm_config.replaced_options:
        screen.note(line)
    text = resource_yaml(resource)
    if dry_run:
        screen.show_result(document_of(resource), text.rstrip())
        return
    file = local_dir / f"{resource.metadata.name}.yaml"
    write_yaml(file, text, "--local-dir")
    screen.note(f"running {file}")
    run_files([file], screen)


def _train_and_record(
    config: "AlgorithmConfig",
    stop: Mapping[str, Any],
    folder: Path,
    checkpoint_every: int | None,
    screen: Screen,
) -> None:
    from hindcast.log_levels import errors_only
    from hindcast.rllib.train_2019 import train_and_record

    def report(result: Mapping[str, Any]) -> None:
        played = result.get("env_runners", {})
        mean = played.get("episode_return_mean")
        screen.note(
            f"iteration {result['training_iteration']}: {played.get('num_episodes', 0)} episodes"
            + ("" if mean is None else f", mean return {mean:.1f}")
        )

    with errors_only("hindcast") if screen.flags.quiet else nullcontext():  # notes are warnings
        result = train_and_record(
            config, stop, folder, checkpoint_every=checkpoint_every or 10, report=report
        )
    document = {"output": str(config["output"]), "checkpoint": str(folder), "result": result}
    text = (
        f"finished after iteration {result['training_iteration']}: episodes in {config['output']}, "
        f"checkpoint in {folder}"
    )
    screen.show_result(document, text)


def _parse_mapping(option: str, text: str) -> Mapping[str, Any]:
    from hindcast.api.documents import documents_of
    from hindcast.errors import SpecError

    documents = list(documents_of(text))
    problems = [problem for document in documents for problem in document.problems]
    if problems:
        # The first one is enough. A problem within the value names its field after the option.
        field, section = (problems[0].field, option) if problems[0].field else ((option,), "")
        raise SpecError.of([replace(problems[0], field=field, resource=section, line=None)])
    values = [document.value for document in documents]
    if len(values) > 1 or not all(isinstance(value, dict) for value in values):
        raise SpecError(f'{option} is {text!r}, expected a mapping such as {{"lr": 0.001}}.')
    return values[0] if values else {}


def _with_checkpoints(resource: "OfflineTraining", checkpoint_fields: Mapping[str, Any]) -> "OfflineTraining":
    """Return the training with these checkpoint fields."""
    from hindcast.api.training import CheckpointSpec

    checkpoint = CheckpointSpec(**checkpoint_fields)
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"checkpoint": checkpoint})})
