"""Train on a table in a bucket that fails requests: data workers prepare it, a custom algorithm learns from it, the run
is stored in the bucket, and its policy is exported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from e2e_kube import Kube, run
from e2e_resources import CODE_CLUSTER, make_code_config_map, make_training
from e2e_store import KEY, SECRET, Bucket, serve_bucket

from faulty_proxy import Fault
from hindcast.onnx_policy import OnnxPolicy

NUM_EPISODES, EPISODE_LENGTH, OBS_SIZE, NUM_FILES = 4_500, 50, 160, 7
USER_MODULE = """\
from hindcast.algorithms.bc import BC


class CustomBC(BC):
    pass
"""


def test_table_in_bucket_is_prepared_and_trained_on(kube: Kube, tmp_path: Path) -> None:
    with serve_bucket(tmp_path, Fault(every=3, status=503)) as lake:
        _write_scrambled_rows(lake)
        lake.create_secret(kube)
        kube.apply(
            make_code_config_map(custom=USER_MODULE),
            make_training(
                "lake",
                f"{lake.uri}/table",
                observationSpace={"type": "Box", "low": -10, "high": 10, "shape": [OBS_SIZE]},
                actionSpace={"type": "Discrete", "n": 2},
                algorithm="custom:CustomBC",
                config=None,
                customConfig={"lr": 1e-3, "trainBatchSizePerLearner": 64},
                cluster={**lake.make_cluster_spec(), **CODE_CLUSTER},
                pipeline={"dataWorkers": {"replicas": 1}, "datasetNumItersPerLearner": 5},
                checkpoint={"path": f"{lake.uri}/runs", "every": 2},
                stop={"iterations": 4},
            ),
        )
        status = kube.wait_for_state("OfflineTraining", "lake", "Succeeded")
        assert status["runs"][0]["attempt"] == 1
        (index,) = [name for name in lake.list_objects("runs/.cache/prepared") if "/_hindcast/index-" in name]
        files = pq.read_table(pa.BufferReader(lake.read_object(index))).to_pylist()
        assert len(files) > 1  # one per partition
        assert sum(file["rows"] for file in files) == NUM_EPISODES
        assert sum(file["timesteps"] for file in files) == NUM_EPISODES * EPISODE_LENGTH
        assert any("/module/" in name for name in lake.list_objects("runs/lake/r1"))
        resource_text = kube.kubectl("get", "otr,rayjobs,rayclusters,pods,events", "--output", "yaml")
        assert SECRET not in resource_text
        assert _export_policy(kube, lake, tmp_path / "exported")(np.zeros(OBS_SIZE, np.float32)) in (0, 1)


def _export_policy(kube: Kube, lake: Bucket, folder: Path) -> OnnxPolicy:
    """Export the run's policy on this machine, by the training's name."""
    run(
        *(sys.executable, "-m", "hindcast.cli.main", "export", "training/lake", str(folder)),
        *("--namespace", kube.namespace),
        variables=lake.variables | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
    )
    return OnnxPolicy(folder)


def _write_scrambled_rows(lake: Bucket) -> None:
    """Write more rows than one process prepares, in random order."""
    rng = np.random.default_rng(7)
    obs = rng.standard_normal((NUM_EPISODES, EPISODE_LENGTH + 1, OBS_SIZE), dtype=np.float32)
    t = np.tile(np.arange(EPISODE_LENGTH), NUM_EPISODES)
    columns = {
        "eps_id": pa.array(np.char.add("e", np.repeat(np.arange(NUM_EPISODES), EPISODE_LENGTH).astype(str))),
        "t": pa.array(t),
        "obs": _to_vectors(obs[:, :-1]),
        "new_obs": _to_vectors(obs[:, 1:]),
        "actions": pa.array(rng.integers(0, 2, NUM_EPISODES * EPISODE_LENGTH)),
        "rewards": pa.array(rng.random(NUM_EPISODES * EPISODE_LENGTH)),
        "terminateds": pa.array(t == EPISODE_LENGTH - 1),
        "truncateds": pa.array(np.zeros(NUM_EPISODES * EPISODE_LENGTH, dtype=bool)),
    }
    rows = pa.table(columns).take(pa.array(rng.permutation(NUM_EPISODES * EPISODE_LENGTH)))
    size = -(-len(rows) // NUM_FILES)
    for number in range(NUM_FILES):
        file_rows = rows.slice(number * size, size)
        pq.write_table(file_rows, f"{lake.name}/table/part-{number}.parquet", filesystem=lake.filesystem)


def _to_vectors(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), OBS_SIZE)
