"""A policy served over HTTP, with server and applications killed at random: every answered step is logged."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import Script

from hindcast import EpisodeWriter
from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block
from hindcast.evaluate.offline import OfflineOptions
from hindcast.run.checkpoint_evaluation import evaluate_checkpoint_offline
from layers import repeats
from support import WALK, make_policy, train, training

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

DECISIONS = repeats(2_000, soak=100_000)
DECISIONS_BETWEEN_KILLS = repeats(300, soak=3_000)
"""Average number of decisions between kills."""
APPLICATIONS, THREADS = 2, 2
TOKEN = "a token"


class Application(Script):
    """A process whose lines a thread collects while it runs."""

    def __init__(self, name: str, *arguments: object) -> None:
        super().__init__(name, *arguments)
        # No line starts so: the thread reads until the process ends.
        self._reader = threading.Thread(target=self.listen, args=("\0",))
        self._reader.start()

    def end(self) -> list[str]:
        """Kill the process and return the complete lines that it printed."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        return self.lines


def serve(folder: Path, port: int = 0) -> tuple[Script, str]:
    """Start `hindcast serve` and return it with its address."""
    options = ("--log", folder / "log", "--token-file", folder / "token", "--port", port)
    server = Script("hindcast_command.py", "serve", folder / "policy", "--explore", "--json", *options)
    assert server.listen("{"), server.lines
    return server, json.loads(server.lines[-1])["address"]


def play_with_kills(folder: Path, rng: random.Random) -> list[str]:
    """Run applications, killing them and the server many times, and return the answers that they received."""
    answers: list[str] = []
    server, address = serve(folder)
    port = int(address.rpartition(":")[2])
    num_started = 0

    def start_application() -> Application:
        nonlocal num_started
        num_started += 1
        return Application(
            "serving_application.py", address, TOKEN, num_started, THREADS, num_started * THREADS
        )

    applications = [start_application() for _ in range(APPLICATIONS)]
    num_kills = 0
    while len(answers) < DECISIONS:
        num_lines = sum(len(app.lines) for app in applications) + rng.randint(1, 2 * DECISIONS_BETWEEN_KILLS)
        while sum(len(app.lines) for app in applications) < num_lines:
            time.sleep(0.002)
        num_kills += 1
        if num_kills % 2:
            victim = applications.pop(rng.randrange(len(applications)))
            answers += victim.end()
        else:
            server.kill()
            server, _ = serve(folder, port)
        applications += [start_application() for _ in range(APPLICATIONS - len(applications))]
    server.kill()
    for app in applications:
        answers += app.end()
    return answers


def read_log(folder: Path) -> Block:
    """Read the log after a writer has recovered the journals of killed ones."""
    EpisodeWriter(folder).close()
    data = open_dataset(str(folder))
    block = Block.concat([data.read(unit) for unit in data.units])
    assert len(set(block.eps_id)) == block.num_episodes  # no episode occurs twice
    return block


def test_application_killed_while_writing_files_loses_no_flushed_episode(tmp_path: Path) -> None:
    rng, answers = random.Random(0), set()
    for index in range(repeats(3, soak=100)):
        application = Application("logging_application.py", tmp_path / "log", index)
        num_lines = rng.randint(1, 600)
        while len(application.lines) < num_lines:
            time.sleep(0.002)
        answers |= set(application.end())
    block = read_log(tmp_path / "log")
    steps = zip(block.eps_id, block.length, strict=True)
    logged_steps = {f"{episode} {t}" for episode, length in steps for t in range(length)}
    assert answers <= logged_steps
    # Each process may be killed between logging a step and printing it.
    assert len(logged_steps - answers) <= index + 1


def test_answered_episodes_are_logged_exactly_once(tmp_path: Path) -> None:
    policy = make_policy(WALK)
    policy.save(tmp_path / "policy")
    (tmp_path / "token").write_text(TOKEN)
    answers = play_with_kills(tmp_path, random.Random(0))
    block = read_log(tmp_path / "log")
    lengths = dict(zip(block.eps_id.tolist(), block.length.tolist(), strict=True))
    is_terminated = dict(zip(block.eps_id.tolist(), block.terminated.tolist(), strict=True))
    num_answered: dict[str, int] = defaultdict(int)
    for line in answers:
        episode, *fields = line.split()
        if fields[0] == "end":
            assert (lengths[episode], is_terminated[episode]) == (int(fields[1]), True)
        else:
            assert int(fields[0]) == num_answered[episode]
            num_answered[episode] += 1
    assert sum(num_answered.values()) > DECISIONS / 2
    for episode, steps in num_answered.items():
        # The last action may have been logged although its answer was lost.
        assert steps <= lengths[episode] <= steps + 1, episode
    # An application sends the second action of an episode after the answer to the first.
    assert all(lengths[episode] == 1 for episode in lengths.keys() - num_answered.keys())

    logp = policy.module.distribution(torch.from_numpy(block.columns["action_dist_inputs"])).logp(
        torch.from_numpy(block.columns["actions"])
    )
    np.testing.assert_allclose(block.columns["action_logp"], logp.numpy(), rtol=1e-4, atol=1e-6)

    assert train(training(tmp_path / "run", tmp_path / "log", stop={"updates": 20})).state == "Succeeded"
    evaluation = evaluate_checkpoint_offline(
        tmp_path / "policy", [str(tmp_path / "log")], options=OfflineOptions(explore=True, fit=None)
    )
    assert (evaluation.report.episodes, evaluation.report.calibration) == (block.num_episodes, None)
    assert evaluation.report.effective_episodes > 0.9 * block.num_episodes  # the policy itself played
