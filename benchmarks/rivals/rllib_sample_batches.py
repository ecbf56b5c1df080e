"""Read SampleBatch JSON with RLlib 2.60's reader: answer each line with the timesteps per second.

    python rllib_sample_batches.py FILE.json

Run by tables.py in a separate Python environment.
"""

import sys
import time

from ray.rllib.offline.json_reader import JsonReader


def main() -> None:
    reader = JsonReader([sys.argv[1]])
    print("ready", flush=True)
    for _ in sys.stdin:
        start_time = time.process_time()
        num_steps = sum(batch.count for batch in reader.read_all_files())
        print(num_steps / (time.process_time() - start_time), flush=True)


if __name__ == "__main__":
    main()
