"""A clinic whose records are a table of irregular visits, and whose truth is known.

Patients have a hidden severity. At each visit twelve vitals are taken, some of which are missing, and a doctor chooses
a dose. A dose near the severity heals; each visit costs, and patients who do not get better may leave early, which cuts
their episode off. The true value of a policy can be computed by playing it (`Clinic.play`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

VITALS: Final = (
    "heart_rate",
    "systolic_bp",
    "diastolic_bp",
    "temperature",
    "spo2",
    "respiratory_rate",
    "weight",
    "glucose",
    "creatinine",
    "haemoglobin",
    "lactate",
    "pain",
)
_MEAN: Final = np.array([80, 125, 80, 37.0, 96, 16, 75, 110, 1.0, 13, 1.5, 3.0])
_PER_SEVERITY: Final = np.array([8, -6, -4, 0.35, -1.2, 1.5, 0, 14, 0.15, -0.3, 0.5, 0.9])
_NOISE: Final = np.array([5, 7, 5, 0.2, 0.8, 1.2, 12, 12, 0.1, 0.9, 0.2, 0.8])
_MISSING_SHARE: Final = np.array([0.03, 0.05, 0.05, 0.1, 0.04, 0.2, 0.3, 0.35, 0.5, 0.45, 0.6, 0.15])
_MAX_VISITS: Final = 60
"""Number of visits that the successor of a doctor makes at most."""

Doctor = Callable[[Mapping[str, float], np.random.Generator], float]
"""Chooses a dose from the vitals of a visit, in which missing ones are NaN."""


@dataclass(frozen=True)
class Clinic:
    """A seeded clinic.

    Attributes:
        seed: seed of the patients.
        leaving: chance, at each visit after which a patient is not better, to leave for good.
        max_visits: number of visits after which a patient's episode is cut off.
    """

    seed: int = 0
    leaving: float = 0.12
    max_visits: int = 8

    def visits(
        self, num_patients: int, doctor: Doctor | None = None, successor: Doctor | None = None
    ) -> list[dict[str, Any]]:
        """Return a row for each visit, patient after patient, as the clinic's database has them.

        Args:
            num_patients: number of patients.
            doctor: the recorded doctor; None for the cautious one.
            successor: doctor who treats a patient from the visit with which an episode would be cut off, to the end.
                With None, it is cut off.
        """
        generator = np.random.default_rng(self.seed)
        rows: list[dict[str, Any]] = []
        for patient in range(num_patients):
            self._treat(patient, doctor or cautious_doctor, generator, rows, successor)
        return rows

    def table(self, num_patients: int, doctor: Doctor | None = None) -> pa.Table:
        """Return the visits as a table with null for what is missing: `[rows]`, a column for each name."""
        rows = self.visits(num_patients, doctor)
        return pa.table(
            {
                name: pa.array([None if row[name] != row[name] else row[name] for row in rows])
                for name in rows[0]
            }
        )

    def play(self, doctor: Doctor, num_patients: int) -> NDArray[np.float64]:
        """Return the true return of each of `num_patients` new patients under a doctor, `[num_patients]`."""
        rows = replace(self, seed=self.seed + 1_000_003).visits(num_patients, doctor)
        patients = np.array([row["patient_id"] for row in rows])
        return np.bincount(patients, weights=[row["outcome"] for row in rows], minlength=num_patients)

    def _treat(
        self,
        patient: int,
        doctor: Doctor,
        generator: np.random.Generator,
        rows: list[dict[str, Any]],
        successor: Doctor | None,
    ) -> None:
        severity = generator.uniform(1.0, 4.0)
        weight_offset = generator.normal(0.0, 10.0)
        time = np.datetime64("2025-01-01T08:00") + np.timedelta64(int(generator.integers(0, 500_000)), "m")
        leaving, last_visit = self.leaving, self.max_visits - 1
        for visit in itertools.count():
            values = _MEAN + _PER_SEVERITY * severity + _NOISE * generator.normal(size=len(VITALS))
            values[VITALS.index("weight")] += weight_offset
            values[generator.random(len(VITALS)) < _MISSING_SHARE] = np.nan
            vitals = dict(zip(VITALS, values.round(2).tolist(), strict=True))
            dose = float(doctor(vitals, generator))
            change = 0.9 - 0.6 * abs(dose - severity) + 0.2 * generator.normal()
            next_severity = float(np.clip(severity - change, 0.0, 5.0))
            is_healed, is_dead = next_severity < 0.5, next_severity >= 5.0
            has_left = not (is_healed or is_dead) and change < 0 and generator.random() < leaving
            is_cut_off = has_left or (visit == last_visit and not (is_healed or is_dead))
            if is_cut_off and successor is not None:
                doctor, successor, leaving, last_visit = successor, None, 0.0, _MAX_VISITS - 1
                continue
            severity = next_severity
            outcome = float(10.0 * is_healed - 10.0 * is_dead - 1.0)
            rows.append(
                {
                    "patient_id": patient,
                    "visit_time": str(time),
                    **vitals,
                    "dose": dose,
                    "outcome": outcome,
                    "discharged": bool(is_healed or is_dead),
                    "left": bool(is_cut_off),
                }
            )
            if is_healed or is_dead or is_cut_off:
                return
            time += np.timedelta64(int(generator.exponential(10_000)) + 60, "m")


def estimate_severity(vitals: Mapping[str, float]) -> float:
    """Return the severity that the present vitals suggest; the middle of its range without any."""
    values = np.array([vitals[name] for name in VITALS])
    weights = (_PER_SEVERITY / _NOISE) ** 2
    is_present = ~np.isnan(values) & (_PER_SEVERITY != 0)
    if not is_present.any():
        return 2.5
    estimates = (values - _MEAN)[is_present] / _PER_SEVERITY[is_present]
    return float(np.average(estimates, weights=weights[is_present]))


def cautious_doctor(vitals: Mapping[str, float], generator: np.random.Generator) -> float:
    """Choose the dose one below the best one, give or take one."""
    return float(np.clip(round(estimate_severity(vitals) - 1.0 + 0.8 * generator.normal()), 0, 4))
