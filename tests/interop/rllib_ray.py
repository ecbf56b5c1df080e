"""Start Ray for RLlib's side of these tests."""

import ray


def start(num_cpus=2, mebibytes=300):
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=mebibytes * 2**20,
    )
