"""RLlib 2.60 reads SampleBatch JSON with its own reader: for each line read, one round's rate.

    python rllib_sample_batches.py FILE.json

Run by tables.py in an environment of its own.
"""

import sys
import time

from ray.rllib.offline.json_reader import JsonReader


def main() -> None:
    reader = JsonReader([sys.argv[1]])
    print("ready", flush=True)
    for _ in sys.stdin:
        start_time = time.process_time()
        steps = sum(batch.count for batch in reader.read_all_files())
        print(steps / (time.process_time() - start_time), flush=True)


if __name__ == "__main__":
    main()
