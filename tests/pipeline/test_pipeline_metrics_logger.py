"""`MetricsLogger`: the values in a result, and options that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from hindcast.metrics_logger import MetricsLogger


def test_result_contains_values_since_previous_result() -> None:
    logger = MetricsLogger()
    for value in (1, 2, 3):
        logger.log_value("windowed", value, window=2)
        logger.log_dict({"nested": {"sum": value}}, reduce="sum", clear_on_reduce=True, with_throughput=False)
    assert logger.reduce() == {"windowed": 2.5, "nested": {"sum": 6}}
    logger.log_value("windowed", 7, window=2)
    assert logger.reduce() == {"windowed": 7}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reduce": "lifetime_sum"},
            r"results contain no sums over the whole training: log with reduce=\"sum\"",
        ),
        ({"reduce": "sum", "clear_on_reduce": False}, "results contain no sums over the whole training"),
        (
            {"ema_coeff": 0.1},
            "'x': ema_coeff is 0.1, but metrics are not smoothed over iterations; leave it out",
        ),
        ({"percentiles": [0.5]}, "percentiles is .*, but percentiles are not supported"),
        ({"with_throughput": True}, "with_throughput is True, but throughputs are not supported"),
        ({"windw": 3}, "windw is not an option; did you mean 'window'"),
        ({"reduce": "median"}, "reduce is 'median', expected mean"),
    ],
)
def test_unsupported_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetricsLogger().log_value("x", 1, **options)
