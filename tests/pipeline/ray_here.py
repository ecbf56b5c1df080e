"""One Ray for the tests of a module; not in conftest, so that other tests need none."""

import os
import sys
import warnings
from pathlib import Path

import pytest

POOL = {"hindcast.dev/pool": "data"}
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ray_here():
    """Ray with 4 CPUs and the label of the pool `data`, whose workers import the test modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        paths = [str(TESTS), str(TESTS / "pipeline"), str(TESTS / "learn"), *sys.path]
        ray.init(
            num_cpus=4,
            labels=POOL,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=200 << 20,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}},
        )
        yield ray
        ray.shutdown()
