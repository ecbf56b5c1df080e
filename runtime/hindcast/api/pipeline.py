"""The data pipeline: data workers, windows, data in device memory or streamed, custom steps."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from hindcast.api.base import OPERATIONAL, ClassPath, FreeForm, Model, NonNegative, Positive
from hindcast.api.connectors import Connector
from hindcast.api.quantity import Cpus, Quantity
from hindcast.api.rules import Rule, comparison, is_set

_HAS_MIN: Final = is_set("minReplicas")
_HAS_MAX: Final = is_set("maxReplicas")


def index_bytes(num_units: int, num_episodes: int) -> int:
    """Return the memory of a dataset's index, which each learner holds.

    Measured with a file for each unit and a part of the episodes held out.
    """
    return 2304 * num_units + 36 * num_episodes


class DataWorkersSpec(Model):
    """The pool that reads data and runs the pre-learner. Batches do not depend on its size."""

    rules: ClassVar = (
        Rule(
            is_set("replicas").implies(~_HAS_MIN & ~_HAS_MAX),
            "excludes minReplicas and maxReplicas; set replicas only, or the other two",
            field="replicas",
        ),
        Rule(_HAS_MIN.implies(_HAS_MAX), "requires maxReplicas; set both", field="minReplicas"),
        Rule(_HAS_MAX.implies(_HAS_MIN), "requires minReplicas; set both", field="maxReplicas"),
        comparison("minReplicas", "at most", "maxReplicas"),
    )

    replicas: NonNegative | None = None
    """Number of data workers; 0 reads in the learner's process. Default: 2, unless minReplicas and maxReplicas are
    set."""
    min_replicas: Positive | None = None
    """Minimum number of data workers of a pool that scales with the load."""
    max_replicas: Positive | None = None
    """Maximum number of data workers of a pool that scales with the load."""
    cpus: Cpus = 1.0
    """CPUs per data worker."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs per data worker."""
    memory: Quantity | None = None
    """Memory per data worker. Default: computed."""

    @property
    def interval(self) -> tuple[int, int]:
        """The minimum and maximum number of data workers."""
        if self.min_replicas is not None and self.max_replicas is not None:
            return self.min_replicas, self.max_replicas
        count = 2 if self.replicas is None else self.replicas
        return count, count


class PreLearnerBufferSpec(Model):
    """A replay buffer of the pre-learner, in RLlib's form: items drawn from it are trained on."""

    name: ClassPath = "hindcast:EpisodeReplayBuffer"
    """A class with the methods `add` and `sample` of EpisodeReplayBuffer, "package.module:Class"."""
    kwargs: FreeForm = {}
    """Keyword arguments of the class. Default `capacity`: 10 batches, `batch_size_B`: a batch."""


class PipelineSpec(Model):
    """The data pipeline: data workers read, the pre-learner transforms, the learner trains."""

    data_workers: Annotated[DataWorkersSpec, OPERATIONAL] = DataWorkersSpec()
    """The pool that reads data and runs the pre-learner."""
    prefetch_batches: Annotated[NonNegative, OPERATIONAL] = 2
    """Has no effect, and a note says so: the next windows are always prefetched; windowSteps sets their size."""
    window_steps: Positive = 2**20
    """Timesteps of all lanes' windows together, at least a unit in each. It also affects the order of the data."""
    window_bytes: Quantity = "1Gi"
    """Maximum bytes of all lanes' windows in memory, with all columns decoded; larger units are cut, and read for each
    piece."""
    residency: Annotated[Literal["Auto", "Resident", "Streaming"], OPERATIONAL] = "Auto"
    """`Resident` keeps a learner's data on its device, `Streaming` windows of them; the batches are the same.
    `Auto`: resident if the data fit the budget."""
    resident_budget: Annotated[Quantity | None, OPERATIONAL] = None
    """Bytes that resident data may take. Default: part of the device's free memory."""
    disk_cache: Annotated[Quantity | None, OPERATIONAL] = None
    """Bytes of a machine's or pod's disk that keep what was read from an object store, for later epochs: in `$TMPDIR`,
    until the process ends. Default: none."""
    sampling: Literal["Epochs", "WithReplacement"] = "Epochs"
    """`Epochs`: each timestep once per pass, shuffled. `WithReplacement`: uniform draws from each window."""
    dataset_num_iters_per_learner: Positive | None = None
    """Gradient updates of one training iteration. Default: one pass over the data."""
    pre_learner: ClassPath | None = None
    """A subclass of OfflinePreLearner, "package.module:Class"."""
    pre_learner_kwargs: FreeForm = {}
    """Keyword arguments of the pre-learner."""
    pre_learner_buffer: PreLearnerBufferSpec | None = None
    """Before training, add complete episodes to this buffer and draw a batch of timesteps for each batch of rows, with
    replacement, as RLlib does. Default: each timestep is trained on once per pass."""
    offline_data: ClassPath | None = None
    """A subclass of OfflineData, "package.module:Class"."""
    connectors: Annotated[list[Connector], Field(max_length=32)] = []
    """Learner connectors that run before the default ones, each a name or `{name, kwargs}`."""
    validate_data: bool = True
    """Check shapes, dtypes, NaN and bounds before training."""
