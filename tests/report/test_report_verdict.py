"""The pages of a verdict and of a gate: what they say, and that they render."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hindcast.evaluate.action_comparison import ActionComparison, ActionElement, Agreement, StateDifference
from hindcast.evaluate.behaviour_clone import Calibration
from hindcast.evaluate.offline import Estimate, OfflineReport
from hindcast.evaluate.verdict import Difference, Verdict, make_verdict, no_verdict
from hindcast.report.gate_page import write_gate_page
from hindcast.report.verdict_page import Judgement, write_verdict_page
from hindcast.storage.location import resolve

ACTIONS = ActionComparison(
    Agreement(0.62, 0.5),
    (
        ActionElement("dose", True, ("0", "1"), (0.5, 0.5), (0.2, 0.8), 0.5, 0.8),
        ActionElement("rate", False, ("0 to 1", "1 to 2"), (0.5, 0.5), (0.9, 0.1), 1.0, 0.6),
    ),
    (StateDifference("heart_rate above 112", 214, "dose", "1", 0.31, 0.9, 0.59),),
)
BETTER = make_verdict(Difference(2.0, 0.5, 40), "wdr", 0.9, "sampled actions")


def judge(verdict: Verdict, **changes: Any) -> Judgement:
    report = OfflineReport(
        episodes=120,
        timesteps=900,
        is_timed=False,
        explore=True,
        behaviour=Estimate(10.0, (9.0, 11.0)),
        behaviour_continued=Estimate(10.5, (9.5, 11.5)),
        under_recorded={"3": 2},
        estimates={"wdr": Estimate(12.5, (11.0, 14.0)), "dm": Estimate(12.0, None)},
        not_estimated={"is": "too little overlap"},
        calibration=Calibration(0.3, 0.04),
        effective_episodes=57.0,
        signals={},
        verdict=verdict,
    )
    fields: dict[str, Any] = {
        "policy": "runs/a/r1/module",
        "data": "visits",
        "gamma": 0.99,
        "num_trained": 80,
    }
    return Judgement(asdict(report), ACTIONS, **fields | changes)


@pytest.mark.parametrize(
    ("verdict", "claim", "command"),
    [
        (
            BETTER,
            "The policy is probably better than the recorded policy",
            "hindcast gate runs/a/r1 --data LOG",
        ),
        (no_verdict("a reason"), "No verdict is possible", "hindcast tune FILE"),
        (
            make_verdict(Difference(0.1, 0.5, 40), "wdr", 0.9),
            "The policy may be better or worse than the recorded policy",
            "hindcast evaluate runs/a/r1 --data visits --data LOG",
        ),
    ],
)
def test_page_states_verdict_and_next_steps(
    tmp_path: Path, verdict: Verdict, claim: str, command: str
) -> None:
    file = tmp_path / "verdict.html"
    assert write_verdict_page(resolve(file), judge(verdict), "runs/a/r1") == str(file)
    page = file.read_text()
    for text in (
        claim,
        command,
        "heart_rate above 112",
        "Dose 1: 80 % of timesteps by the policy, 50 % by the",
    ):
        assert text in page
    assert "80 more episodes of the data, which are left out" in page
    assert "hidden causes" in page
    assert "3 (2 times)" in page
    assert "a clone of the recorded policy fits well" in page
    assert "--env" not in page


def test_page_warns_if_trained_episodes_are_unknown(tmp_path: Path) -> None:
    file = tmp_path / "verdict.html"
    write_verdict_page(resolve(file), judge(BETTER, num_trained=None))
    assert "the estimates are too high" in file.read_text()


@pytest.mark.parametrize("decision", ["promoted", "kept", "undecided"])
def test_gate_page_shows_decision_and_looks(tmp_path: Path, decision: str) -> None:
    looks = [
        {
            "time": f"2026-01-0{day}",
            "new_episodes": 10,
            "episodes": 10 * day,
            "evidence": 0.0,
            "decision": decision,
        }
        for day in (1, 2)
    ]
    gate = {
        "decision": decision,
        "episodes": 20,
        "evidence": 3.0,
        "threshold": 20.0,
        "looks": looks,
        "condition": {"message": f"{decision}: a sentence"},
    }
    file = tmp_path / "gate.html"
    assert write_gate_page(resolve(file), gate, ACTIONS, run="runs/a/r1", data="log") == str(file)
    page = file.read_text()
    assert f"{decision.capitalize()}: a sentence" in page
    assert "2026-01-02" in page
    assert "heart_rate above 112" in page
