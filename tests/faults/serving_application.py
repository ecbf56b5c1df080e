"""An application whose threads request actions from a server and print the acknowledged ones.

    python serving_application.py ADDRESS TOKEN NAME THREADS SEED

It prints `<episode> <t>` for each answered action, and `<episode> end <steps>` for each end.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from hindcast import PolicyClient, UnknownEpisode
from hindcast.serve.client import Unreachable

_PRINT_LOCK = threading.Lock()


def print_line(line: str) -> None:
    """Print a line in one write, so that a kill does not cut it."""
    with _PRINT_LOCK:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def play_episode(client: PolicyClient, name: str, rng: np.random.Generator) -> None:
    episode = client.start_episode(name)
    num_steps = int(rng.integers(1, 40))
    observations = rng.normal(size=(num_steps + 1, 4))
    for t in range(num_steps):
        client.get_action(episode, observations[t])
        print_line(f"{episode} {t}")
        client.log_returns(episode, 1.0)
    client.end_episode(episode, observations[num_steps])
    print_line(f"{episode} end {num_steps}")


def play(address: str, token: str, name: str, seed: int) -> None:
    rng, num_episodes = np.random.default_rng(seed), 0
    with PolicyClient(address, token, timeout_s=5) as client:
        while True:
            num_episodes += 1
            try:
                play_episode(client, f"{name}-{num_episodes}", rng)
            except UnknownEpisode:  # the server was restarted
                continue
            except Unreachable:
                time.sleep(0.05)


def main() -> None:
    address, token, name, num_threads, seed = sys.argv[1:]
    sys.setswitchinterval(0.0005)
    for index in range(int(num_threads)):
        thread_name = f"{name}-{index}"
        threading.Thread(target=play, args=(address, token, thread_name, int(seed) + index)).start()


if __name__ == "__main__":
    main()
