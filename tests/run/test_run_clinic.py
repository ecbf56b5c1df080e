"""Verdicts on a clinic whose truth is known: cut-off patients, missing values, cloned propensities."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clinic import VITALS, Clinic, Doctor, cautious_doctor, estimate_severity
from hindcast.api import load_resources
from hindcast.evaluate.behaviour_clone import CloneOptions
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.intervals import Interval
from hindcast.evaluate.offline import OfflineOptions
from hindcast.models.policy import Policy
from hindcast.report.events import Reporter
from hindcast.run.checkpoint_evaluation import evaluate_checkpoint_offline
from hindcast.run.execute import execute
from layers import repeats

NUM_SEEDS, NUM_PATIENTS = repeats(4, soak=100), 600
NUM_PLAYED, NUM_RECORDED = repeats(4_000, soak=20_000), 20_000
GAMMA, LEVEL = 0.95, 0.9
NORMAL_90, NORMAL_99 = 1.645, 2.576
"""Half widths of the intervals in standard errors."""
OPTIONS = OfflineOptions(
    explore=True,
    resamples=2,
    fit=FittedQOptions(updates=1_500, members=3, hiddens=(16,), lr=1e-2, batch_size=64, tau=0.2),
    clone=CloneOptions(updates=400, patience=200, hiddens=(16,), lr=1e-2, batch_size=64),
)
"""Smaller models than the defaults, so that 100 seeds take eight minutes of CPU time, with the truth."""


@dataclass(frozen=True)
class Trial:
    """A trained policy, and the truth about it.

    Attributes:
        run: folder of the run.
        gain: true return of the policy minus that of the recorded doctor, both followed by the policy at the visit that
            would cut an episode off: what the verdict estimates.
        gain_error: standard error of the gain, which comes from played patients.
    """

    run: str
    gain: float
    gain_error: float


class PolicyDoctor:
    """A doctor who acts by a policy; begins another patient with `begin`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def begin(self, seed: int) -> None:
        """Begin another patient, with exploration that does not depend on the patient."""
        # With the clinic's own seed, doses would depend on the hidden severity.
        self._state = self._policy.begin(seed + 1_000_000_000)

    def watch(self, doctor: Doctor) -> Doctor:
        """Return the doctor, whose patients the policy observes: it carries missing vitals forward."""

        def act(vitals: Mapping[str, float], generator: np.random.Generator) -> float:
            self(vitals, generator)
            return doctor(vitals, generator)

        return act

    def __call__(self, vitals: Mapping[str, float], generator: np.random.Generator) -> float:
        return float(self._policy.decide(self._state, vitals, explore=True).env_actions[0])


def timid_doctor(vitals: Mapping[str, float], generator: np.random.Generator) -> float:
    """Choose a dose of 1.6 below the best one, give or take one."""
    return float(np.clip(round(estimate_severity(vitals) - 1.6 + 0.8 * generator.normal()), 0, 4))


def train(folder: Path, doctor: Doctor) -> str:
    """Train a policy on the patients of a doctor, and return the run folder."""
    pq.write_table(Clinic(99).table(NUM_PATIENTS, doctor), folder / "trained.parquet")
    schema = {
        "eps_id": "patient_id",
        "t": "visit_time",
        "rewards": "outcome",
        "actions": "dose",
        "terminateds": "discharged",
        "truncateds": "left",
        "obs": list(VITALS),
    }
    prepare = {"cutOffSteps": "Drop", "missing": {"*": "CarryForward"}, "missingIndicators": True}
    spec = {
        "algorithm": "MARWIL",
        "config": {"beta": 3, "lr": 5e-3, "gamma": GAMMA, "trainBatchSizePerLearner": 512},
        "input": [{"path": str(folder / "trained.parquet"), "schema": schema, "prepare": prepare}],
        "observationSpace": {"type": "Box", "low": "-inf", "high": "inf", "shape": [12], "dtype": "float64"},
        "actionSpace": {"type": "Discrete", "n": 5, "start": 0},
        "model": {"fcnetHiddens": [32], "observationFilter": "MeanStd"},
        "stop": {"updates": 60},
        "checkpoint": {"path": str(folder / "runs")},
    }
    document = {"apiVersion": "hindcast.dev/v1alpha1", "kind": "OfflineTraining", "spec": spec}
    file = folder / "clinic.yaml"
    file.write_text(json.dumps({**document, "metadata": {"name": "clinic"}}))
    (outcome,) = execute(load_resources(file), Reporter())
    return outcome.folder


def compute_return(rows: list[dict[str, Any]], *, drop: bool = False) -> float:
    """Return the discounted return of one patient; with `drop`, without a visit that cuts the episode off.

    Returns:
        NaN if the visit to drop is the only one: such an episode is not in the data.
    """
    if drop and rows[-1]["left"]:
        rows = rows[:-1]
    return sum(GAMMA**visit * row["outcome"] for visit, row in enumerate(rows)) if rows else math.nan


def recorded_return() -> float:
    """Return the true return of the recorded doctor, without visits that cut episodes off."""
    rows = Clinic(12_345).visits(NUM_RECORDED)
    patients = [list(visits) for _, visits in itertools.groupby(rows, lambda row: row["patient_id"])]
    return float(np.nanmean([compute_return(visits, drop=True) for visits in patients]))


def try_policy(folder: Path, doctor: Doctor) -> Trial:
    """Train on the patients of a doctor, and play the policy."""
    folder.mkdir()
    run = train(folder, doctor)
    policy = PolicyDoctor(Policy.load(run))
    gains = []
    for patient in range(1_000_000, 1_000_000 + NUM_PLAYED):
        if math.isnan(compute_return(Clinic(patient).visits(1), drop=True)):
            continue
        # Both in the same way: the visit that would cut the episode off is repeated, with the policy's dose.
        policy.begin(patient)
        treated = Clinic(patient).visits(1, policy, policy)
        policy.begin(patient)
        continued = Clinic(patient).visits(1, policy.watch(cautious_doctor), policy)
        gains.append(compute_return(treated) - compute_return(continued))
    return Trial(run, float(np.mean(gains)), float(np.std(gains) / math.sqrt(len(gains))))


def is_inside(value: float, interval: Interval | None, factor: float = 1.0, error: float = 0.0) -> bool:
    """Return True if a value is in an interval whose width is multiplied by a factor.

    Args:
        value: the value.
        interval: a 90 % interval; None contains nothing.
        factor: the factor.
        error: standard error of the value, which widens the interval.
    """
    if interval is None:
        return False
    low, high = interval
    return abs(value - (low + high) / 2) <= factor * math.hypot((high - low) / 2, NORMAL_90 * error)


@pytest.mark.soak
@pytest.mark.minutes
@pytest.mark.timeout(14_400)
def test_verdict_on_cut_off_patients_with_missing_values_and_cloned_propensities_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two policies, one is better and one is worse than the recorded doctor.

    A seed is right if the verdict is, and the truth about the recorded policy and the difference is in their 99 %
    intervals: 90 % intervals alone would leave it out in more than 5 of 100 seeds.
    """
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
    doctors = {"better": cautious_doctor, "worse": timid_doctor}
    trials = {answer: try_policy(tmp_path / answer, doctor) for answer, doctor in doctors.items()}
    recorded = recorded_return()
    assert trials["worse"].gain < 0 < trials["better"].gain
    num_wrong, is_covered, failures = 0, [], {}
    for seed in range(NUM_SEEDS):
        expected = list(trials)[seed % 2]
        file, trial = tmp_path / f"visits-{seed}.parquet", trials[expected]
        pq.write_table(Clinic(seed).table(NUM_PATIENTS), file)
        report = evaluate_checkpoint_offline(trial.run, [str(file)], options=OPTIONS).report
        num_wrong += report.verdict.answer not in (expected, "unknown")
        truths = [
            (recorded, report.behaviour.interval, 0.0),
            (trial.gain, report.verdict.interval, trial.gain_error),
        ]
        is_covered.append([is_inside(truth, interval, 1.0, error) for truth, interval, error in truths])
        is_near = [
            is_inside(truth, interval, NORMAL_99 / NORMAL_90, error) for truth, interval, error in truths
        ]
        if report.verdict.answer != expected or not all(is_near):
            failures[seed] = (expected, report.verdict.sentence, is_near)
    summary = f"{NUM_SEEDS - len(failures)} of {NUM_SEEDS} right; truths {trials}, {recorded:.3f}; others {failures}"
    print(summary)
    assert num_wrong == 0, summary
    assert len(failures) <= 0.05 * NUM_SEEDS, summary
    min_covered = LEVEL * NUM_SEEDS - 2 * math.sqrt(NUM_SEEDS * LEVEL * (1 - LEVEL))
    assert (np.sum(is_covered, axis=0) >= min_covered).all(), summary
