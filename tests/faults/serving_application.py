"""An application whose threads request actions from a server and print the acknowledged ones.

    python application.py ADDRESS TOKEN NAME THREADS SEED

It prints `<episode> <t>` for each answered action, and `<episode> end <steps>` for each end.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from hindcast import PolicyClient, UnknownEpisode
from hindcast.serve.client import Unreachable

_TELLING = threading.Lock()


def tell(line: str) -> None:
    """Print a line in one write, so that a kill does not cut it."""
    with _TELLING:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def episode_of(client: PolicyClient, name: str, rng: np.random.Generator) -> None:
    episode = client.start_episode(name)
    steps = int(rng.integers(1, 40))
    observations = rng.normal(size=(steps + 1, 4))
    for t in range(steps):
        client.get_action(episode, observations[t])
        tell(f"{episode} {t}")
        client.log_returns(episode, 1.0)
    client.end_episode(episode, observations[steps])
    tell(f"{episode} end {steps}")


def play(address: str, token: str, name: str, seed: int) -> None:
    rng, number = np.random.default_rng(seed), 0
    with PolicyClient(address, token, timeout_s=5) as client:
        while True:
            number += 1
            try:
                episode_of(client, f"{name}-{number}", rng)
            except UnknownEpisode:  # the server was started again
                continue
            except Unreachable:
                time.sleep(0.05)


def main() -> None:
    address, token, name, threads, seed = sys.argv[1:]
    sys.setswitchinterval(0.0005)
    for number in range(int(threads)):
        episode_id = f"{name}-{number}"
        threading.Thread(target=play, args=(address, token, episode_id, int(seed) + number)).start()


if __name__ == "__main__":
    main()
