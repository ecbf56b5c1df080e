"""Shared parts of the rivals of updates.py and whole_training.py: the line "<algorithm> <updates>" gets a rate.

It is imported in the rivals' environments, and needs NumPy and torch alone.
"""

import sys
import time

import numpy as np
import torch


def answer(turn_of):
    """Read lines until there are no more.

    Args:
        turn_of: called once for each algorithm with its name and the updates; gives what makes one turn, and returns
            updates a second.
    """
    torch.set_num_threads(1)
    made = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, updates = line.split()
        if name not in made:
            made[name] = turn_of(name, int(updates))
        print(made[name](), flush=True)


def answer_updates(learner_of, batches_of):
    """Answer with the rate of updates of ready batches; batches and device are the command's arguments.

    Args:
        learner_of: called with an algorithm's name, the columns and the device; gives `update(batch)`.
        batches_of: called with the same; gives the batches.
    """
    columns, device = dict(np.load(sys.argv[1])), sys.argv[2]
    clock = time.process_time if device == "cpu" else time.perf_counter

    def turn_of(name, updates):
        update, batches = learner_of(name, columns, device), batches_of(name, columns, device)

        def turn():
            start_time = clock()
            for number in range(updates):
                update(batches[number % len(batches)])
            if device != "cpu":
                torch.cuda.synchronize()
            return updates / (clock() - start_time)

        return turn

    answer(turn_of)
