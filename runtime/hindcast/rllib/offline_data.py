"""`RLlibOfflineData`: the class that users subclass to read a training's data, in Hindcast's form or in RLlib's."""

from __future__ import annotations

import inspect
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import make_dataset
from hindcast.datasets.sources import find_files
from hindcast.episodes import nested
from hindcast.episodes.columns import root
from hindcast.errors import SpecError
from hindcast.formats.parquet.opening import UnknownLayoutError
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.window import Batch
from hindcast.ray_session import connect
from hindcast.rllib.connectors.module_batches import MultiAgentBatch, module_columns
from hindcast.rllib.row_mapping import EpisodeRows, accepted_arguments
from hindcast.rllib.training_config import TrainingConfig
from hindcast.storage.location import resolve
from hindcast.user_code import calling, is_user_code, register_object

if TYPE_CHECKING:
    from hindcast.rllib.builder.config import AlgorithmConfig

_READ_METHOD = "read_parquet"
_CLASS_FIELD = "spec.pipeline.offlineData"


class RLlibOfflineData(OfflineData):
    """The source of a training's batches. Users know this class as `hindcast.OfflineData`.

    A subclass may be in Hindcast's form, see the base class, or in RLlib's. `OfflineData(config)` may also be used
    without a training.

    In RLlib's form `__init__(config)` gets a `TrainingConfig` (without a training, the `AlgorithmConfig`) and may call
    `super().__init__(config)`; `data` is then a dataset of Ray Data of the input's rows, which it may replace. A
    training reads it once, before the first update, and a pre-learner maps its rows. `sample(num_samples,
    return_iterator, num_shards)` returns batches.

    Args:
        sources: see `OfflineData`; in RLlib's form, the config.
        needs: see `OfflineData`; None in RLlib's form.
        kwargs: the other arguments of `OfflineData`.
    """

    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        "default_map_batches_kwargs": "pipeline.dataWorkers (map_batches_kwargs in Python) sets the data workers",
        "default_iter_batches_kwargs": "pipeline.prefetchBatches (iter_batches_kwargs in Python) limits reading ahead",
    }
    _feed_of_batches: OfflineData | None = None
    """Source of the batches of an object in RLlib's form, once it is open."""
    _data: Any = None

    def __init__(
        self,
        sources: Sequence[Source] | TrainingConfig | AlgorithmConfig,
        needs: Needs | None = None,
        **kwargs: Any,
    ) -> None:
        if needs is not None:
            super().__init__(cast(Sequence[Source], sources), needs, **kwargs)
            return
        config: Any = sources
        self.config = config
        self.is_multi_agent = False
        self.path = config.input_
        self.data_read_method = config.get("input_read_method") or _READ_METHOD
        self.data_read_method_kwargs = dict(config.get("input_read_method_kwargs") or {})
        self.data_read_batch_size = config.get("input_read_batch_size")
        self.prelearner_class = config.get("prelearner_class")
        self.map_batches_kwargs = dict(config.get("map_batches_kwargs") or {})
        self.iter_batches_kwargs = dict(config.get("iter_batches_kwargs") or {})
        self.data_is_mapped = False

    @property
    def data(self) -> Any:
        """The rows of the input, a dataset of Ray Data, which is made on first use.

        Files are read by `data_read_method` with `data_read_method_kwargs`. Complete episodes, as in recordings, become
        rows of timesteps.
        """
        if self._data is None:
            if not hasattr(self, "path"):
                name = type(self).__name__
                raise SpecError(
                    f"is {name}, whose __init__ neither calls super().__init__(config) nor sets self.data.",
                    field=_CLASS_FIELD,
                )
            connect()
            self._data = _make_ray_dataset(self.path, self.data_read_method, self.data_read_method_kwargs)
        return self._data

    @data.setter
    def data(self, data: Any) -> None:
        self._data = data

    @classmethod
    def reads_rows(cls) -> bool:
        return "config" in inspect.signature(cls).parameters and is_user_code(cls.__init__)

    @classmethod
    def feed_class(cls) -> type[OfflineData]:
        if not cls.reads_rows():
            return cls
        if not is_user_code(cls.sample):
            return OfflineData
        return type(cls.__name__, (_ReaderFeed,), {"reader_class": cls})

    @classmethod
    def read_rows(cls, document: Mapping[str, Any]) -> Any:
        """Construct a subclass in RLlib's form, and return its `data`.

        Args:
            document: the argument of `TrainingConfig`.
        """
        constructor: Any = cls
        with calling(cls.__name__, cls, _CLASS_FIELD):
            return constructor(TrainingConfig(document)).data

    def sample(
        self,
        num_samples: int,
        return_iterator: bool = False,
        num_shards: int = 1,
        module_state: Any = None,  # noqa: ARG002
    ) -> Any:
        """Return the next batch, or iterators over one pass of the data.

        Args:
            num_samples: number of items in a batch.
            return_iterator: return a list of `BatchIterator`.
            num_shards: number of iterators, each over other items; 0 is 1.
            module_state: not used: pre-learners have weights of their own.

        Returns:
            In Hindcast's form a dictionary of tensors; in RLlib's a `MultiAgentBatch` of arrays, or a list.
        """
        feed = self._feed_of_batches or (self._open_feed() if hasattr(self, "config") else None)
        take: Callable[[int], Batch] = super().sample if feed is None else feed.sample
        if return_iterator:
            epoch_size = (feed or self).epoch_size
            return BatchIterator.make_shards(take, epoch_size, num_samples, max(1, num_shards))
        batch = take(num_samples)
        return to_module_batch(batch) if feed is not None or _has_rllib_sample(type(self)) else batch

    def call_sample(self, count: int) -> Batch:
        if not _has_rllib_sample(type(self)):
            return super().call_sample(count)
        return _call_sample(self, count, self._settings.device)

    def _open_feed(self) -> OfflineData:
        """Open the source of the config's batches, as a training does; rows come from `data` if it was set."""
        from hindcast.run.execute import FileReferences
        from hindcast.run.inputs import make_sources, open_inputs, resolve_inputs
        from hindcast.run.training.offline_trainer import make_offline_trainer

        config = self.config.copy(copy_frozen=False).offline_data(offline_data_class=OfflineData)
        cache = None
        if self._data is not None:
            # Data that were changed in this process must not be found by another one.
            self._cache_folder = tempfile.TemporaryDirectory(prefix="hindcast-")
            cache = self._cache_folder.name
            config.offline_data(input_read_method=register_object(lambda _path, **_: self._data))
        training = config.plan().training
        inputs = open_inputs(training, resolve_inputs(training, FileReferences({})), cache=cache)
        feed = make_offline_trainer(training, make_sources(inputs)).experience
        assert isinstance(feed, OfflineData)
        self._feed_of_batches = feed
        return feed


class _ReaderFeed(OfflineData):
    """A source whose batches come from the `sample` of an object in RLlib's form, which read the data.

    Attributes:
        reader_class: class of the object.
    """

    reader_class: ClassVar[type[RLlibOfflineData]]
    _reader: RLlibOfflineData | None = None

    def open_reader(self, document: Callable[[], Mapping[str, Any]]) -> None:
        connect()  # the class may open its data, as when it read them
        constructor: Any = self.reader_class
        reader = constructor(TrainingConfig(document()))
        reader._feed_of_batches = self
        self._reader = reader

    def call_sample(self, count: int) -> Batch:
        assert self._reader is not None
        return _call_sample(self._reader, count, self._settings.device)

    @property
    def has_custom_sample(self) -> bool:
        return True


class BatchIterator:
    """An iterator over one pass of the data, one of several that share it. Each loop over it begins another pass.

    Args:
        batches: yields the batches of this iterator, given the number of items in a batch; called for each pass.
        num_samples: number of items in a batch.
    """

    def __init__(self, batches: Callable[[int], Iterator[Batch]], num_samples: int) -> None:
        self._batches = batches
        self._num_samples = num_samples

    @classmethod
    def make_shards(
        cls, take: Callable[[int], Batch], epoch_size: int, num_samples: int, num_shards: int
    ) -> list[BatchIterator]:
        """Make the iterators of `num_shards` shards, which have the same number of items.

        Args:
            take: returns the next items.
            epoch_size: number of items in a pass.
            num_samples: number of items in a batch of a shard.
            num_shards: number of shards.
        """
        queues: list[deque[Batch]] = [deque() for _ in range(num_shards)]

        def iterate(shard: int, batch_size: int) -> Iterator[Batch]:
            remaining = epoch_size // num_shards
            while remaining > 0:
                count = min(batch_size, remaining)
                if not queues[shard]:
                    batch = take(count * num_shards)
                    for index, queue in enumerate(queues):
                        rows = slice(index * count, (index + 1) * count)
                        queue.append({leaf: tensor[rows] for leaf, tensor in batch.items()})
                yield queues[shard].popleft()
                remaining -= count

        return [
            cls(lambda batch_size, shard=shard: iterate(shard, batch_size), num_samples)  # type: ignore[misc]
            for shard in range(num_shards)
        ]

    def __iter__(self) -> Iterator[MultiAgentBatch]:
        return (to_module_batch(batch) for batch in self._batches(self._num_samples))

    def iter_batches(self, *, batch_size: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield batches in RLlib's flat form: `{"default_policy/obs": [items, …]}`.

        Args:
            batch_size: number of items in a batch; the same for all iterators of a list. None takes `num_samples`.
        """
        for batch in self._batches(batch_size or self._num_samples):
            yield {f"{DEFAULT_MODULE_ID}/{leaf}": tensor.cpu().numpy() for leaf, tensor in batch.items()}


def to_module_batch(batch: Batch) -> MultiAgentBatch:
    """Return a batch of tensors in RLlib's form, with arrays."""
    arrays = {leaf: tensor.cpu().numpy() for leaf, tensor in batch.items()}
    columns = {name: nested.unflatten(arrays, name) for name in dict.fromkeys(map(root, arrays))}
    return MultiAgentBatch({DEFAULT_MODULE_ID: columns}, len(next(iter(arrays.values()))))


def _call_sample(data: RLlibOfflineData, count: int, device: torch.device) -> Batch:
    """Return the batch of a `sample` in RLlib's form as tensors."""
    arguments = {"num_samples": count, "return_iterator": False, "num_shards": 1}
    columns = module_columns(data.sample(**accepted_arguments(data.sample, arguments)))
    return {
        leaf: torch.from_numpy(np.ascontiguousarray(column)).to(device) for leaf, column in columns.items()
    }


def _has_rllib_sample(cls: type) -> bool:
    """Return True if the class overrides `sample` in RLlib's form, with `return_iterator` or `**kwargs`."""
    function: Any = cls.sample  # type: ignore[attr-defined]
    parameters = inspect.signature(function).parameters
    return is_user_code(function) and (
        "return_iterator" in parameters
        or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    )


def _make_ray_dataset(path: Any, method: str, kwargs: Mapping[str, Any]) -> Any:
    """Make the dataset of Ray Data of the rows at a path or at several paths."""
    import ray.data

    paths = [path] if isinstance(path, str) or not isinstance(path, Sequence) else list(path)
    if method == _READ_METHOD:
        locations = [resolve(item) for item in paths]
        try:
            dataset = make_dataset(find_files(locations, False).indexed_files, str(path))
        except UnknownLayoutError:
            pass
        else:
            units = ray.data.from_items(list(range(len(dataset.units))), override_num_blocks=1)
            return units.map_batches(_EpisodeReader(dataset), batch_size=1)
    return getattr(ray.data, method)(path if isinstance(path, str) else list(map(str, paths)), **kwargs)


class _EpisodeReader:
    """Reads a unit of complete episodes as rows of timesteps; Ray pickles it for its tasks."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __call__(self, units: Mapping[str, Any]) -> dict[str, Any]:
        (index,) = units["item"]
        spec = self._dataset.spec
        block = self._dataset.read(self._dataset.units[int(index)])
        return dict(EpisodeRows(block, spec.observation_space, spec.action_space))
