"""`RLlibOfflineData`, the data of a training that users subclass: in Hindcast's form or in RLlib's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from hindcast.errors import SpecError
from hindcast.pipeline.offline_data import OfflineData
from hindcast.rllib.training_config import TrainingConfig
from hindcast.user_code import is_user_code


class RLlibOfflineData(OfflineData):
    """The data of a training, whose subclass may also be in RLlib's form. Its public name is `hindcast.OfflineData`.

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
    def read_rows(cls, training: Mapping[str, Any]) -> Any:
        """Return the `data` of a subclass in RLlib's form.

        Args:
            training: see `document` of `TrainingConfig`.
        """
        constructor: Any = cls
        return constructor(TrainingConfig(training)).data
