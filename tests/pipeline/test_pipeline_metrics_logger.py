"""`MetricsLogger`: what a result holds, and options that would have no effect."""

from __future__ import annotations

from typing import Any

import pytest

from hindcast.pipeline.metrics_logger import MetricsLogger


def test_a_result_holds_what_was_logged_since_the_one_before() -> None:
    logger = MetricsLogger()
    for value in (1, 2, 3):
        logger.log_value("windowed", value, window=2)
        logger.log_dict({"of": {"sum": value}}, reduce="sum", clear_on_reduce=True, with_throughput=False)
    assert logger.reduce() == {"windowed": 2.5, "of": {"sum": 6}}
    logger.log_value("windowed", 7, window=2)
    assert logger.reduce() == {"windowed": 7}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"reduce": "lifetime_sum"},
            r"no result holds a sum over the whole training: log with reduce=\"sum\"",
        ),
        ({"reduce": "sum", "clear_on_reduce": False}, "no result holds a sum over the whole training"),
        ({"ema_coeff": 0.1}, "'x': ema_coeff is 0.1, but nothing is smoothed over iterations; leave it out"),
        ({"percentiles": [0.5]}, "percentiles is .*, but there are no percentiles"),
        ({"with_throughput": True}, "with_throughput is True, but there are no throughputs"),
        ({"windw": 3}, "windw is not an option; did you mean 'window'"),
        ({"reduce": "median"}, "reduce is 'median', expected mean"),
    ],
)
def test_what_would_have_no_effect_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MetricsLogger().log_value("x", 1, **options)
