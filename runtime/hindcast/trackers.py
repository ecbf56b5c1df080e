"""Callbacks that send each result to an experiment tracker, through the tracker's own package.

`callbacks: ["hindcast.trackers:WandB"]` in a resource, or `MLflow` or `TensorBoard`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hindcast.api.differences import FREE_FORM_FIELDS
from hindcast.errors import SpecError
from hindcast.record.callbacks import Callbacks
from hindcast.report.results import ITERATION, flatten_numbers

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_PROJECT: Final = "hindcast"
_MAX_PARAM_LENGTH: Final = 500
"""Length of the longest value that every MLflow server accepts."""


class _Tracker(Callbacks):
    """Base class of trackers: a run of the tracker per run folder, which a resumed training continues.

    Attributes:
        package: the tracker's package, and the extra that installs it.
    """

    package: ClassVar[str]

    def __init__(self) -> None:
        try:
            self._client = importlib.import_module(self.package)
        except ModuleNotFoundError:
            raise SpecError(
                f"spec.callbacks names hindcast.trackers:{type(self).__name__}, which requires the package "
                f"{self.package}: pip install 'hindcast-rl[{self.package}]'."
            ) from None

    def on_algorithm_init(self, *, resource: dict[str, Any], folder: str | None, **_: Any) -> None:
        name = resource["metadata"]["name"]
        key = None
        if folder is not None:
            absolute_folder = folder if "://" in folder else str(Path(folder).resolve())
            key = hashlib.sha256(absolute_folder.encode()).hexdigest()[:16]
        self.start(name, key, dict(_settings(resource["spec"])))

    def on_train_result(self, *, result: dict[str, Any], **_: Any) -> None:
        self.log(dict(flatten_numbers(result)), result[ITERATION])

    def start(self, name: str, key: str | None, settings: dict[str, Any]) -> None:
        """Start a run of the tracker, or continue the one with this key.

        Args:
            name: name of the resource.
            key: identifier of the run folder, 16 hex digits; None for a new run.
            settings: dotted path below `spec` -> value.
        """
        raise NotImplementedError

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send the metrics of one training iteration."""
        raise NotImplementedError


class WandB(_Tracker):
    """Weights & Biases. Its environment variables apply: WANDB_API_KEY, WANDB_PROJECT, WANDB_MODE and others.

    The project is `hindcast` unless WANDB_PROJECT is set. W&B ignores iterations that a resumed training repeats.
    """

    package = "wandb"

    def start(self, name: str, key: str | None, settings: dict[str, Any]) -> None:
        project = os.environ.get("WANDB_PROJECT", _PROJECT)
        self._client.init(project=project, name=name, id=key, resume="allow", config=settings)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._client.log(metrics, step=step)


class MLflow(_Tracker):
    """MLflow. Its environment variables apply: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and others.

    The experiment is `hindcast` unless MLFLOW_EXPERIMENT_NAME is set.
    """

    package = "mlflow"

    def start(self, name: str, key: str | None, settings: dict[str, Any]) -> None:
        self._client.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
        run_id = None
        if key is not None:
            runs = self._client.search_runs(
                filter_string=f"tags.hindcast_key = '{key}'", output_format="list", max_results=1
            )
            run_id = runs[0].info.run_id if runs else None
        tags = None if key is None else {"hindcast_key": key}
        self._client.start_run(run_id=run_id, run_name=name, tags=tags)
        if run_id is None:  # a run's parameters cannot change, but the `stop` of a resumed training can
            self._client.log_params(
                {path: str(value)[:_MAX_PARAM_LENGTH] for path, value in settings.items()}
            )

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._client.log_metrics(metrics, step=step)


class TensorBoard(_Tracker):
    """TensorBoard. All runs are in one folder, TENSORBOARD_LOGDIR or else `tensorboard`, for `tensorboard --logdir`.

    Every run folder has the results for TensorBoard without this callback; it adds the settings (the tab HParams), and
    a place that the TensorBoard of a team can watch.
    """

    package = "tensorboard"

    def start(self, name: str, key: str | None, settings: dict[str, Any]) -> None:
        folder = os.environ.get("TENSORBOARD_LOGDIR", "tensorboard")
        self._folder = f"{folder}/{name}-{(key or uuid.uuid4().hex)[:8]}"
        self._settings = settings
        self._writer: SummaryWriter | None = None

    def log(self, metrics: dict[str, float], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        if self._writer is None:
            # TensorBoard hides what an earlier process wrote about the steps from here on.
            self._writer = SummaryWriter(self._folder, purge_step=step)
            values = {
                path: value if isinstance(value, bool | int | float | str) else str(value)
                for path, value in self._settings.items()
            }
            assert self._writer.file_writer is not None
            for summary in hparams(values, {}):
                self._writer.file_writer.add_summary(summary)
        for metric, value in metrics.items():
            self._writer.add_scalar(metric, value, step)
        self._writer.flush()


def _settings(value: Any, path: str = "") -> Any:
    """Yield (dotted path, value) of a spec, without arguments of the user's code, which may contain secrets."""
    if isinstance(value, dict):
        for name, child in value.items():
            if name not in FREE_FORM_FIELDS:
                yield from _settings(child, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(child, dict) for child in value):
        for index, child in enumerate(value):
            yield from _settings(child, f"{path}.{index}")
    else:
        yield path, value
