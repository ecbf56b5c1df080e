"""Let RLlib 2.60's JsonWriter write batches (OUT/<case>/….json), and its JsonReader read them (OUT/<case>.npz).

Runs in RLlib's environment: `python rllib_sample_batches.py OUT`.
"""

import pathlib
import sys

import numpy as np
from ray.rllib.offline.json_reader import JsonReader
from ray.rllib.offline.json_writer import JsonWriter
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

CASES = {
    "packed": {"columns": None},
    "unpacked": {"columns": []},
    "all-packed": {"columns": ["obs", "new_obs", "actions", "rewards", "action_logp"]},
    "multi-packed": {"columns": None, "policies": ("left", "right")},
    "multi-unpacked": {"columns": [], "policies": ("left", "right")},
}
LENGTHS, CHUNK = (5, 9, 7), 4


def make_fragment(rng, eps_id, length, start, stop):
    """Return a fragment of an episode like the old stack's batch builder."""
    num_steps = stop - start
    obs = rng.random((length + 1, 3), dtype=np.float32)[start : stop + 1]
    is_last = np.arange(start, stop) == length - 1
    return SampleBatch(
        {
            "t": np.arange(start, stop),
            "eps_id": np.full(num_steps, eps_id),
            "agent_index": np.zeros(num_steps, dtype=np.int64),
            "unroll_id": np.full(num_steps, start // CHUNK),
            "obs": obs[:-1],
            "new_obs": obs[1:],
            "actions": rng.integers(0, 3, num_steps),
            "rewards": rng.random(num_steps, dtype=np.float32),
            "terminateds": is_last if eps_id % 2 else np.zeros(num_steps, dtype=bool),
            "truncateds": np.zeros(num_steps, dtype=bool) if eps_id % 2 else is_last,
            "action_logp": -rng.random(num_steps, dtype=np.float32),
            "vf_preds": rng.random((num_steps, 2)),
        }
    )


def write_case(out, case):
    options = {} if case["columns"] is None else {"compress_columns": case["columns"]}
    writer = JsonWriter(str(out), **options)
    rng = np.random.default_rng(0)
    for eps_id, length in enumerate(LENGTHS):
        for start in range(0, length, CHUNK):
            stop = min(start + CHUNK, length)
            batches = [make_fragment(rng, eps_id, length, start, stop) for _ in case.get("policies", ("",))]
            if "policies" in case:
                writer.write(MultiAgentBatch(dict(zip(case["policies"], batches, strict=True)), stop - start))
            else:
                writer.write(batches[0])
    writer.cur_file.close()


def read_case(out):
    """Return every column that RLlib's reader returns, by policy and line."""
    arrays = {}
    for batches in JsonReader([str(path) for path in out.glob("*.json")]).read_all_files():
        policies = batches.policy_batches if isinstance(batches, MultiAgentBatch) else {"": batches}
        for policy, policy_batch in policies.items():
            for name, values in policy_batch.items():
                arrays.setdefault(f"{policy}:{name}", []).append(np.asarray(values))
    return {name: np.concatenate(chunks) for name, chunks in arrays.items()}


def main():
    out = pathlib.Path(sys.argv[1])
    for name, case in CASES.items():
        write_case(out / name, case)
        np.savez(out / f"{name}.npz", **read_case(out / name))
    print("done")


if __name__ == "__main__":
    main()
