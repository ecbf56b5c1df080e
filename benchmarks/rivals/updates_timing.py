"""Shared parts of the rivals of updates.py and whole_training.py: answer lines "<algorithm> <updates>" with rates.

It is imported in the rivals' environments, and needs only NumPy and torch.
"""

import sys
import time

import numpy as np
import torch


def answer_lines(make_turn):
    """Answer each line of the input with the updates per second.

    Args:
        make_turn: called once for each algorithm with its name and the number of updates; returns a function that makes
            one turn, and returns updates per second.
    """
    torch.set_num_threads(1)
    turns = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, updates = line.split()
        if name not in turns:
            turns[name] = make_turn(name, int(updates))
        print(turns[name](), flush=True)


def answer_updates(make_update, make_batches):
    """Answer with the rate of updates with prepared batches; batches and device are the script's arguments.

    Args:
        make_update: called with an algorithm's name, the columns and the device; returns `update(batch)`.
        make_batches: called with the same arguments; returns the batches.
    """
    columns, device = dict(np.load(sys.argv[1])), sys.argv[2]
    clock = time.process_time if device == "cpu" else time.perf_counter

    def make_turn(name, updates):
        update, batches = make_update(name, columns, device), make_batches(name, columns, device)

        def turn():
            start_time = clock()
            for index in range(updates):
                update(batches[index % len(batches)])
            if device != "cpu":
                torch.cuda.synchronize()
            return updates / (clock() - start_time)

        return turn

    answer_lines(make_turn)
