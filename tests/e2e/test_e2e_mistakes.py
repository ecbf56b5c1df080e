"""What users get wrong, and how soon and how clearly they hear of it."""

from __future__ import annotations

import pytest
from e2e_kube import Kube, KubeError, condition
from e2e_resources import recording, training

BROKEN = """\
import gymnasium as gym


class Broken(gym.Env):
    observation_space = gym.spaces.Box(0.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        raise RuntimeError("the simulator lost its licence")
"""


def test_a_wrong_config_is_refused_at_admission(kube: Kube) -> None:
    with pytest.raises(KubeError, match=r"spec\.config\.beta|config\.beta does not apply to BC"):
        kube.apply(training("wrong", "data", config={"beta": 1.0}))
    assert kube.get("OfflineTraining", "wrong") is None


def test_a_users_exception_in_their_environment(kube: Kube) -> None:
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "code"},
        "data": {"broken.py": BROKEN},
    }
    kube.apply(
        code,
        recording(
            "broken", environment={"id": "broken:Broken"}, cluster={"code": {"configMap": {"name": "code"}}}
        ),
    )
    status = kube.wait_state("OfflineRecording", "broken", "Failed", seconds=240)

    assert "the simulator lost its licence" in status["message"]
    assert "broken.py:13" in status["message"]
    assert "Traceback" not in status["message"]
    assert condition(status, "Failed")["reason"] == "UserCodeFailed"
    assert [run["attempt"] for run in status["runs"]] == [1]
    assert len(kube.list("rayjobs")) == 1
