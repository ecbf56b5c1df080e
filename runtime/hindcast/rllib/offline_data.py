"""`RLlibOfflineData`: the class that users subclass to read a training's data, in Hindcast's form or in RLlib's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from hindcast.errors import SpecError
from hindcast.pipeline.offline_data import OfflineData
from hindcast.rllib.training_config import TrainingConfig
from hindcast.user_code import is_user_code


class RLlibOfflineData(OfflineData):
    """The source of a training's batches. Users know this class as `hindcast.OfflineData`.

    A subclass may be in Hindcast's form, see the base class, or in RLlib's.

    In RLlib's form `__init__(config)` gets a `TrainingConfig` and sets `data`, a dataset of Ray Data, whose rows a
    pre-learner maps; it is read once, before training.
    """

    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        "default_map_batches_kwargs": "pipeline.dataWorkers (map_batches_kwargs in Python) sets the data workers",
        "default_iter_batches_kwargs": "pipeline.prefetchBatches (iter_batches_kwargs in Python) limits reading ahead",
    }

    @classmethod
    def reads_rows(cls) -> bool:
        return "config" in inspect.signature(cls).parameters and is_user_code(cls.__init__)

    @classmethod
    def feed_class(cls) -> type[OfflineData]:
        if not cls.reads_rows():
            return cls
        if is_user_code(cls.sample):
            raise SpecError(
                f"{cls.__name__} takes a config and overrides sample, but its data are converted to episodes "
                "once, before training. Move sample into the pre-learner's __call__(batch), or remove __init__(config)."
            )
        return OfflineData

    @classmethod
    def read_rows(cls, document: Mapping[str, Any]) -> Any:
        """Construct a subclass in RLlib's form, and return its `data`.

        Args:
            document: the argument of `TrainingConfig`.
        """
        constructor: Any = cls
        return constructor(TrainingConfig(document)).data
