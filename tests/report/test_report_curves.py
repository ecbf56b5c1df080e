"""Curves of a run, the titles of plots, and number formats."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from hindcast import formatting
from hindcast.report.canvas import LIGHT, spread_apart
from hindcast.report.curves import UNTIMED_LABEL, Curves, lookup
from hindcast.report.plots import (
    expert_picture,
    loss_picture,
    return_picture,
    running_mean,
    time_picture,
    value_picture,
)


def make_result(iteration, *, loss=0.5, mean_return=None, weights_iteration=None, **other_fields):
    """Return the result of an iteration; with `mean_return`, it includes an evaluation."""
    line = {
        "training_iteration": iteration,
        "num_env_steps_trained_lifetime": 1000 * iteration,
        "time_total_s": 2.0 * iteration,
        "timesteps_per_s": 500.0,
        "learners": {"default_policy": {"total_loss": loss, "gradient_norm": 0.1}},
        "timers": {"data_wait_s": 0.5, "update_s": 1.0, "evaluation_wait_s": 0.0},
    }
    if mean_return is not None:
        line["evaluation"] = {
            "training_iteration": weights_iteration or iteration,
            "env_runners": {
                "episode_return_mean": mean_return,
                "episode_return_min": mean_return - 10,
                "episode_return_max": mean_return + 10,
                "num_episodes": 5,
            },
        }
    return line | other_fields


def test_evaluation_is_at_the_iteration_of_its_weights():
    curves = Curves(
        [
            make_result(1),
            make_result(2, mean_return=20.0, weights_iteration=1),
            make_result(3, mean_return=30.0, weights_iteration=2),
        ]
    )
    assert curves.evaluation.x.tolist() == [1, 2]
    assert curves.evaluation.mean.tolist() == [20, 30]
    assert curves.evaluation.low.tolist() == [10, 20]
    assert curves.evaluation.episodes == 5


def test_last_line_with_only_an_evaluation_counts():
    last_line = {"training_iteration": 2, "evaluation": make_result(2, mean_return=40.0)["evaluation"]}
    curves = Curves([make_result(1), make_result(2, mean_return=20.0, weights_iteration=1), last_line])
    assert curves.evaluation.mean.tolist() == [20, 40]
    assert (curves.iterations, curves.timesteps, curves.seconds) == (2, 2000, 4.0)
    assert curves.losses["total_loss"].x.tolist() == [1, 2]


def test_nan_and_missing_numbers_are_left_out():
    curves = Curves([make_result(1, loss=float("nan")), make_result(2, loss=None), make_result(3, loss=0.25)])
    assert curves.losses["total_loss"].y.tolist() == [0.25]
    assert lookup({"a": {"b": True}}, "a", "b") is None
    assert lookup({"a": 3}, "a", "b") is None


@pytest.mark.parametrize(
    ("name", "continued", "expected"),
    [("dm", 0.0, 0.0), ("wdr", -1.5, -1.5), ("pdwis", 0.0, 3.0), ("dm", None, 3.0)],
)
def test_estimate_is_compared_with_the_recorded_return_of_its_kind(name, continued, expected):
    """Regression: a continued return of exactly 0 was taken as missing."""
    evaluation = {
        "training_iteration": 1,
        "episodes": 5,
        "behaviour": {"value": 3.0, "interval": None},
        "behaviour_continued": None if continued is None else {"value": continued, "interval": None},
        "estimates": {name: {"value": 4.0, "interval": None}},
        "verdict": {"estimate": name, "sentence": "a sentence"},
    }
    assert Curves([make_result(1, evaluation={"offline": evaluation})]).estimate.behaviour == expected


def test_loss_term_equal_to_the_total_is_shown_once():
    lines = [make_result(i) for i in (1, 2)]
    for i, line in enumerate(lines):
        line["learners"]["default_policy"] |= {"policy_loss": 0.5, "vf_loss": float(i), "entropy": 1.0}
    assert list(Curves(lines).losses) == ["total_loss", "vf_loss"]


def test_seconds_by_activity_add_up_to_total():
    seconds = Curves([make_result(1), make_result(2)]).seconds_by_activity
    assert seconds == {"updates": 2.0, "waiting for data": 1.0, UNTIMED_LABEL: 1.0}


def test_time_beyond_the_total_counts():
    line = make_result(1) | {"timers": {"update_s": 1.0, "evaluation_wait_s": 4.0}}
    assert Curves([line]).seconds == 5.0
    assert Curves([line]).seconds_by_activity == {"updates": 1.0, "waiting for evaluation": 4.0}


def test_empty_run_has_no_pictures():
    curves = Curves([])
    assert (
        return_picture(curves)
        is loss_picture(curves)
        is time_picture(curves)
        is expert_picture(curves)
        is None
    )
    assert curves.iterations == 0


@pytest.mark.parametrize(
    ("returns", "stop", "title"),
    [
        ([100, 460, 480], 450, "The trained policy passes a return of 450 at iteration 2"),
        ([100, 300, 200], 450, "The trained policy stays below 450: at best 300 at iteration 2"),
        ([100, 300, 200], None, "The trained policy reaches a best mean return of 300 at iteration 2"),
    ],
)
def test_title_of_return_plot_is_the_finding(returns, stop, title):
    curves = Curves([make_result(i, mean_return=float(value)) for i, value in enumerate(returns, 1)])
    assert return_picture(curves, stop=stop).title == title


def test_time_plot_shows_the_timeline_of_the_learner_that_waited_longest():
    learners = [
        {"wait": [0.1, 0.0], "seconds": [2.0]},
        {"wait": [0.5, 0.0], "read": [2.0, 1.0], "seconds": [2.0]},
    ]
    result = make_result(2)
    result["timers"]["timeline"] = learners
    result_without_data = make_result(3)  # an iteration that trained on what was in memory, or was played
    result_without_data["timers"]["timeline"] = [{"seconds": [2.0]}, {"seconds": [2.0]}]
    curves = Curves([make_result(1), result, result_without_data])
    assert curves.timeline == learners[1]
    assert Curves([result_without_data]).timeline == {}
    picture = time_picture(curves)
    assert "one iteration of the learner that waited longest" in picture.caption
    figure = Figure()
    picture.draw(figure, LIGHT)
    axes = figure.axes
    assert len(axes) == 3
    lines = {line.get_label(): list(line.get_ydata()) for line in axes[2].lines}
    assert lines["waiting for data"] == [0.5, 0.0]
    assert lines["reading"] == [2.0, 1.0]


def test_title_of_time_plot_names_the_largest_share():
    assert (
        time_picture(Curves([make_result(1), make_result(2)])).title == "50 % of the time went into updates"
    )


def test_value_plot_shows_the_critics_values():
    lines = [make_result(1), make_result(2)]
    for value, line in zip((-3.0, 40.0), lines, strict=True):
        line["learners"]["default_policy"]["mean_q"] = value
    plot = value_picture(Curves(lines))
    assert plot.title == "Mean Q rises from -3 to 40"
    assert "held-out" not in plot.caption
    signals = {"critic_initial_value": 12.5}
    offline = {"training_iteration": 2, "signals": signals}
    lines.append({"training_iteration": 2, "evaluation": {"offline": offline}})
    assert Curves(lines).initial_value.y.tolist() == [12.5]
    assert "in the initial states of held-out episodes" in value_picture(Curves(lines)).caption
    assert value_picture(Curves([make_result(1)])) is None


def test_expert_plot_is_over_sampled_timesteps():
    lines = [
        make_result(i, mean_return=100.0 * i, num_env_steps_sampled_lifetime=4096 * i) for i in (1, 2, 3)
    ]
    picture = expert_picture(Curves(lines), stop=300, algorithm="PPO")
    assert picture.title == "The PPO expert passes a return of 300 at 12.3k timesteps"


def test_running_mean_keeps_constants_ends_and_length():
    assert running_mean(np.full(50, 3.0), 9).tolist() == [3.0] * 50
    line = np.arange(100.0)
    assert np.allclose(running_mean(line, 10), line)  # symmetric windows leave a straight line alone


def test_spread_moves_labels_no_further_than_needed():
    assert spread_apart([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    heights = spread_apart([0.5, 0.5, 0.52], 0.1)
    assert np.allclose(np.diff(heights), 0.1)
    assert np.isclose(np.mean(heights), np.mean([0.5, 0.5, 0.52]))
    assert spread_apart([0.97, 0.99], 0.1)[-1] == 1.0
    assert spread_apart([], 0.1) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (7, "7"), (0.01234, "0.0123"), (450.0, "450"), (999.6, "1k"), (12_345, "12.3k"),
        (4_100, "4.1k"), (2.5e6, "2.5M"), (-3e9, "-3G"), (1e-7, "1e-07"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_counts_are_abbreviated(value, text):
    assert formatting.count(value) == text


def test_durations_and_sizes_have_readable_units():
    assert [formatting.duration(s) for s in (0.42, 8.06, 59.96, 124, 11_520)] == [
        "0.42 s", "8.1 s", "1 min 0 s", "2 min 4 s", "3 h 12 min",
    ]  # fmt: skip
    assert [formatting.size(n) for n in (512, 1536, 3 << 20)] == ["512 B", "1.5 KiB", "3.0 MiB"]
    assert [formatting.as_percentage(s) for s in (0, 0.0004, 0.004, 0.512, 1)] == [
        "0 %",
        "< 0.1 %",
        "0.4 %",
        "51 %",
        "100 %",
    ]
    assert formatting.plural(1, "file") == "1 file"
    assert formatting.plural(1024, "update") == "1,024 updates"


def test_spaces_are_abbreviated():
    box = {"type": "Box", "low": -1.0, "high": 1, "shape": [3, 2], "dtype": "float32"}
    camera = box | {"low": "-inf"}
    assert formatting.space(None) == "unknown"
    assert formatting.space(box) == "Box(3, 2) in [-1, 1]"
    dict_space = {
        "type": "Dict",
        "spaces": {"camera": camera, "mode": {"type": "Discrete", "n": 4, "start": 0}},
    }
    assert formatting.space(dict_space) == "Dict(camera: Box(3, 2), mode: Discrete(4))"
    assert (
        formatting.space({"type": "Tuple", "spaces": [{"type": "MultiBinary", "n": 5}]})
        == "Tuple(MultiBinary(5))"
    )


def test_metric_named_offline_is_no_offline_evaluation():
    line = make_result(1, mean_return=20.0)
    line["evaluation"]["offline"] = 0.5
    curves = Curves([line])
    assert curves.estimate is None and not len(curves.validation.y)
    assert curves.evaluation.mean.tolist() == [20]
