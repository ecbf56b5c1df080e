"""What the rivals of updates.py share: for each line "<algorithm> <updates>" read, so many updates, and their rate.

It is imported in the rivals' environments, and needs NumPy and torch alone.
"""

import sys
import time

import numpy as np
import torch


def answer(learner_of, batches_of):
    """Read lines until there are no more; batches and device are the command's arguments.

    Args:
        learner_of: called once for each algorithm with its name, the columns and the device; gives `update(batch)`.
        batches_of: called with the same; gives the batches.
    """
    torch.set_num_threads(1)
    columns, device = dict(np.load(sys.argv[1])), sys.argv[2]
    clock = time.process_time if device == "cpu" else time.perf_counter
    made = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, updates = line.split()
        if name not in made:
            made[name] = learner_of(name, columns, device), batches_of(name, columns, device)
        update, batches = made[name]
        begun = clock()
        for number in range(int(updates)):
            update(batches[number % len(batches)])
        if device != "cpu":
            torch.cuda.synchronize()
        print(int(updates) / (clock() - begun), flush=True)
