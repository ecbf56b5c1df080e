"""`hindcast train`: RLlib's `rllib train`, by way of the YAML that says the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import command
from hindcast.cli.commands.run import finish_run
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.api import OfflineRecording, OfflineTraining


@command
def train(
    *,
    screen: Screen,
    run: Annotated[str, typer.Option(help="Algorithm, such as DQN.")],
    env: Annotated[str | None, typer.Option(help="Gymnasium id, or package.module:Class.")] = None,
    config: Annotated[str, typer.Option(help="Options by RLlib's names, as JSON or YAML.")] = "{}",
    stop: Annotated[str, typer.Option(help='When it ends: {"timesteps_total": 100000}, and so on.')] = "{}",
    experiment_name: Annotated[
        str | None, typer.Option(help="Name of the resource. [default: the algorithm's, in lower case]")
    ] = None,
    local_dir: Annotated[Path, typer.Option(help="Folder for the YAML file and the run.")] = Path("runs"),
    checkpoint_freq: Annotated[
        int | None,
        typer.Option(min=1, help="Iterations between checkpoints. The last state is always saved."),
    ] = None,
    keep_checkpoints_num: Annotated[
        int | None, typer.Option(min=1, help="Latest checkpoints that are kept, beside the best.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the YAML and do nothing.")] = False,
) -> None:
    """Train on recorded experience, or record an expert, from RLlib's command line.

    It is written as a YAML file into --local-dir and carried out as `hindcast run` does.
    """
    from hindcast.builder.rllib_2019 import config_of, stop_of
    from hindcast.report.text import resource_yaml

    chosen = config_of(run, env, _mapping("--config", config))
    resource = chosen.to_resource(experiment_name, stop=stop_of(_mapping("--stop", stop)))
    kept = {"every": checkpoint_freq, "keep": keep_checkpoints_num, "path": str(local_dir)}
    resource = _with_checkpoints(resource, {name: value for name, value in kept.items() if value is not None})
    for line in chosen.replaced:
        screen.note(line)
    text = resource_yaml(resource)
    if dry_run:
        screen.result(resource.model_dump(mode="json", by_alias=True, exclude_unset=True), text.rstrip())
        return
    file = local_dir / f"{resource.metadata.name}.yaml"
    _write(file, text)
    screen.note(f"carrying out {file}")
    finish_run([file], screen)


def _mapping(option: str, text: str) -> Mapping[str, Any]:
    from hindcast.api.documents import documents_of
    from hindcast.api.sentences import sentence
    from hindcast.errors import SpecError

    documents = list(documents_of(text))
    for problem in (problem for document in documents for problem in document.problems):
        raise SpecError(sentence(problem, f"{option}: " if problem.steps else option))
    values = [document.value for document in documents]
    if len(values) > 1 or not all(isinstance(value, dict) for value in values):
        raise SpecError(f'{option} is {text!r}, expected a mapping: {{"lr": 0.001}}.')
    return values[0] if values else {}


def _with_checkpoints(
    resource: "OfflineTraining | OfflineRecording", kept: Mapping[str, Any]
) -> "OfflineTraining | OfflineRecording":
    """A recording keeps its expert beside the dataset, and has no such section."""
    from hindcast.api import OfflineTraining
    from hindcast.api.training import CheckpointSpec
    from hindcast.errors import SpecError

    if isinstance(resource, OfflineTraining):
        return resource.model_copy(
            update={"spec": resource.spec.model_copy(update={"checkpoint": CheckpointSpec(**kept)})}
        )
    if kept.keys() - {"path"}:
        raise SpecError(
            "--checkpoint-freq and --keep-checkpoints-num are of trainings: a recording keeps its expert's latest "
            "state beside the dataset."
        )
    return resource


def _write(file: Path, text: str) -> None:
    from hindcast.errors import StorageError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}; give another --local-dir") from error
