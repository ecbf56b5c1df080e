"""Using old API stack SampleBatch recordings

Pages: 2.40, 2026; block 8
"""

import msgpack
import msgpack_numpy as mnp

from ray import data

from hindcast import OfflinePreLearner, PPOConfig

# changed: records some batches of the page's kind; on the page the reader has them.
recorder = PPOConfig().environment("CartPole-v1").evaluation(evaluation_duration=20)
with recorder.offline_data(output="/tmp/sample_batches", output_format="SampleBatch").build() as algo:
    algo.evaluate()

# Set up the data path to your `SampleBatch` expert data.
# changed: the path of those batches.
data_path = "/tmp/sample_batches"
# Set up the write path for the Parquet episode data.
output_data_path = "/tmp/sample_batch_data"

# Load the `SampleBatch` recordings.
ds = data.read_json(data_path)

# Iterate over batches (of `SampleBatch`es) and convert them to episodes.
for i, batch in enumerate(ds.iter_batches(batch_size=100, prefetch_batches=2)):
    # Use the RLlib's `OfflinePreLearner` to convert `SampleBatch`es to episodes.
    episodes = OfflinePreLearner._map_sample_batch_to_episode(False, batch)["episodes"]

    # Create a dataset from the episodes. Note, for storing episodes you need to
    # serialize them through `msgpack-numpy`.
    episode_ds = data.from_items([msgpack.packb(eps.get_state(), default=mnp.encode) for eps in episodes])
    # Write the batch of episodes to local disk.
    episode_ds.write_parquet(output_data_path + f"/file-{i}".zfill(6), compression="gzip")

print("Finished converting `SampleBatch` data to episode data.")
