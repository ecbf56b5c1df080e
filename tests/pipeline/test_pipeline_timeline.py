"""When the threads of each stage were busy."""

from __future__ import annotations

import time

import pytest

from hindcast.pipeline.timeline import NUM_BINS, Timeline


def test_spans_are_counted_in_the_parts_that_they_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    timeline = Timeline()
    now = 20.0
    timeline.add({"read": 10.0, "copy": 5.0})
    timeline.add({"read": 15.0})
    now = 60.0
    busy = timeline.busy_threads()
    assert busy.pop("seconds") == [60.0]
    assert NUM_BINS == 60
    assert busy == {
        "read": [0.0] * 5 + [2.0] * 10 + [1.0] * 5 + [0.0] * 40,
        "copy": [0.0] * 15 + [1.0] * 5 + [0.0] * 40,
    }
