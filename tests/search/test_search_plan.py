"""The settings that a search tries, and errors that it raises before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hindcast import PPOConfig
from hindcast.api import OfflineTraining
from hindcast.errors import SpecError
from hindcast.search import Range, Run, Trial, loguniform, search, uniform
from hindcast.search.results import choose_best_run, rank_trials
from hindcast.search.space import SearchSpace, choose_settings, parse_search_space
from hindcast.search.trials import plan_search
from support import training

EVALUATION = {"heldOut": 0.4, "estimates": ["wis", "dr"], "explore": True}


def make_training(**fields: Any) -> OfflineTraining:
    return training("runs", "data", **{"evaluation": {"offline": EVALUATION}, **fields})


def refusal_message(
    search_space: SearchSpace, resource: OfflineTraining | None = None, **options: Any
) -> str:
    """Return the error with which a search is refused."""
    arguments = {"trials": None, "seeds": 1, "by": None, "confirm": None, **options}
    with pytest.raises(SpecError) as error:
        plan_search(resource or make_training(), search_space, **arguments).trainings("runs")
    return str(error.value)


def test_options_are_yaml_values_or_ranges() -> None:
    texts = [
        "config.lr=1e-4, 1e-3",
        "model.fcnetHiddens=[64],[256,256]",
        "algorithm=BC",
        "a.b=loguniform(1e-5,1e-2)",
    ]
    assert parse_search_space(texts) == {
        "config.lr": [1e-4, 1e-3],
        "model.fcnetHiddens": [[64], [256, 256]],
        "algorithm": ["BC"],
        "a.b": loguniform(1e-5, 1e-2),
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["config.lr"], "--over config.lr: expected PATH=VALUE,VALUE,…"),
        (["=1"], "--over =1: expected PATH=VALUE,VALUE,…"),
        (["a=1", "a=2"], "--over a is repeated"),
        (["a=[1"], r"--over a=\[1: the values must be YAML"),
        (["a=uniform(x,1)"], "the bounds of a range must be numbers"),
        (["a=uniform(2,1)"], r"uniform\(2, 1\): the first bound must be below the second"),
        (["a=loguniform(0,1)"], r"loguniform\(0, 1\): a logarithmic range needs bounds above 0"),
    ],
)
def test_unparsable_options_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_search_space(texts)


def test_values_are_combined_in_order() -> None:
    assert choose_settings({"a": [1, 2], "b": ["x", "y"]}, None, seed=0) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_draws_are_seeded_and_more_draws_extend_fewer() -> None:
    search_space: dict[str, list[Any] | Range] = {"a": list(range(3)), "b": list(range(3))}
    all_settings = choose_settings(search_space, 9, seed=1)
    assert sorted(all_settings, key=str) == sorted(choose_settings(search_space, None, seed=1), key=str)
    assert (
        choose_settings(search_space, 4, seed=1)
        == all_settings[:4]
        != choose_settings(search_space, 4, seed=2)
    )


def test_ranges_are_drawn_within_bounds() -> None:
    settings = choose_settings({"a": uniform(1, 3), "b": loguniform(1e-5, 1e-2)}, 200, seed=0)
    assert all(1 <= setting["a"] <= 3 and 1e-5 <= setting["b"] <= 1e-2 for setting in settings)
    assert max(len(f"{setting['a']:g}") for setting in settings) == len("2.345")
    assert np.median([setting["a"] for setting in settings]) == pytest.approx(2, abs=0.2)
    assert np.log10(np.median([setting["b"] for setting in settings])) == pytest.approx(-3.5, abs=0.3)


def test_trials_are_trainings_named_by_number_and_seed() -> None:
    plan = plan_search(
        make_training(seed=5), {"config.lr": [0.1, 0.2]}, trials=None, seeds=2, by="dr", confirm=0.2
    )
    trainings = plan.trainings("there")
    assert list(trainings) == [(1, 5), (1, 6), (2, 5), (2, 6)]
    last_training = trainings[2, 6]
    assert last_training.metadata.name == "trial-002-seed-6"
    assert (last_training.spec.checkpoint.path, last_training.spec.seed, last_training.spec.config["lr"]) == (
        "there",
        6,
        0.2,
    )
    assert last_training.spec.offline is not None
    assert (last_training.spec.offline.estimates, last_training.spec.offline.set_aside) == (
        ["dr", "wis"],
        0.2,
    )


def test_list_entry_can_be_varied() -> None:
    evaluation = {"offline": {"input": ["others"], "estimates": ["dr"], "explore": True}}
    plan = plan_search(
        make_training(evaluation=evaluation),
        {"input[0].top": [0.1, 0.5]},
        trials=None,
        seeds=1,
        by=None,
        confirm=None,
    )
    assert [trial_training.spec.input[0].top for trial_training in plan.trainings("there").values()] == [
        0.1,
        0.5,
    ]


BY_LOSS = {"by": "validationLoss"}
SAMPLER = {"algorithm": "DQN", "environment": {"id": "CartPole-v1"}, "input": [{"sampler": {}}]}


@pytest.mark.parametrize(
    ("over", "fields", "message"),
    [
        ({"confg.lr": [1]}, {}, "trial 1 (confg.lr=1): spec.confg"),
        ({"config.rate": [1]}, {}, "trial 1 (config.rate=1): spec.config.rate"),
        ({"config.lr.x": [1]}, {}, "spec.config.lr.x: the resource has no field 'x' there"),
        (
            {"input[3].top": [1]},
            {"evaluation": {"offline": {"input": ["o"]}}},
            "the resource has no field '3' there",
        ),
        (
            {"config.lr": [0.1, "fast"]},
            {},
            "trial 2 (config.lr=fast): spec.config.lr is 'fast' (text), expected",
        ),
        ({"config.lr": []}, {}, "config.lr has no values to try: add at least one"),
        ({"config.lr": 0.1}, {}, "config.lr is 0.1: expected a list of values, uniform(…) or loguniform(…)"),
        ({}, {}, "the search has nothing to vary"),
        (
            {"config.lr": [0.1, 0.1]},
            {},
            "trial 1 (config.lr=0.1) and trial 2 (config.lr=0.1) are the same training",
        ),
        ({"learners.device": ["cpu", "auto"]}, {}, "are the same training"),
        ({"seed": [1, 2]}, {}, "seed cannot be searched over: set the number of seeds instead (--seeds)"),
        ({"evaluation.offline.heldOut": [0.1]}, {}, "all trials are evaluated in the same way"),
        ({"checkpoint.path": ["a"]}, {}, "the search stores its trials in its own folder (--output)"),
        ({"input[0].top": [0.1]}, {}, "trials would be evaluated on different episodes"),
        (
            {"config.lr": uniform(0, 1)},
            {},
            "config.lr is uniform(0, 1): set the number of trials to draw (--trials)",
        ),
        ({"a": list(range(101)), "b": list(range(100))}, {}, "the values have 10,100 combinations"),
        ({"config.lr": [1]}, {"evaluation": None}, "add evaluation.offline to the resource"),
        ({"config.lr": [1]}, SAMPLER, "spec.input has a sampler, which plays in an environment"),
        (
            {"config.lr": [1]},
            {"environment": {"id": "CartPole-v1", "clipActions": True}},
            "spec.environment sets normalizeActions or clipActions",
        ),
    ],
)
def test_invalid_search_is_refused(over: SearchSpace, fields: dict[str, Any], message: str) -> None:
    # Without an input of its own, an evaluation would need held-out episodes of the recorded inputs; SAMPLER has none.
    evaluation = {"offline": {"input": ["o"]}} if fields is SAMPLER else {"offline": EVALUATION}
    assert message in refusal_message(over, make_training(**{"evaluation": evaluation, **fields}))


@pytest.mark.parametrize(
    ("options", "fields", "message"),
    [
        ({"trials": 3}, {}, "--trials is 3, but the values have only 2 combinations"),
        ({"by": "return"}, {}, "--by is 'return', expected one of is, wis"),
        ({"confirm": 1.0}, {}, "--confirm is 1, expected a share of the episodes below 1"),
        ({"seeds": 0}, {}, "--seeds is 0, expected at least 1"),
        (
            BY_LOSS,
            {"over": {"algorithm": ["BC", "MARWIL"]}},
            "losses of different algorithms cannot be compared",
        ),
        (
            BY_LOSS,
            {"stop": {"validationLoss": 1}, "evaluation": {"offline": {**EVALUATION, "interval": 1}}},
            "spec.stop.validationLoss cannot stop trials that are compared by their last loss",
        ),
        (
            {},
            {
                "stop": {"episodeReturnMean": 5},
                "environment": {"id": "a"},
                "evaluation": {"interval": 1, "offline": EVALUATION},
            },
            "spec.stop.episodeReturnMean needs an environment, but a search uses none",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    over = fields.get("over", {"config.lr": [0.1, 0.2]})
    resource = make_training(**{name: value for name, value in fields.items() if name != "over"})
    assert message in refusal_message(over, resource, **options)


RECORDING = """
apiVersion: hindcast.dev/v1alpha1
kind: OfflineRecording
metadata: {name: played}
spec: {environment: {id: a}, policy: {random: {}}, duration: {episodes: 9}, output: {path: there}}
---
"""


def test_search_requires_exactly_one_training(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="stop applies to a config only"):
        search(make_training(), {"config.lr": [0.1]}, stop={"updates": 5})
    (tmp_path / "none.yaml").write_text(RECORDING)
    with pytest.raises(SpecError, match=r"none.yaml has 0 OfflineTrainings: a search needs exactly one"):
        search(tmp_path / "none.yaml", {"config.lr": [0.1]})
    recorder = PPOConfig().environment("CartPole-v1").offline_data(output="out")
    with pytest.raises(SpecError, match="a search needs an OfflineTraining"):
        search(recorder, {"config.lr": [0.1]})


def make_trial(number: int, *values: float | None) -> Trial:
    """Make a trial with a run for each value."""
    return Trial(number, {"a": number}, tuple(Run(seed, "there", value) for seed, value in enumerate(values)))


def test_best_mean_wins_and_trial_without_value_never_does() -> None:
    trials = [
        make_trial(1, 9.0, None),
        make_trial(2, 1.0, 5.0),
        make_trial(3, 4.0, 2.0),
        make_trial(4, 2.0, 2.0),
    ]
    assert [trial.number for trial in rank_trials(trials, "dr")] == [2, 3, 4, 1]
    assert [trial.number for trial in rank_trials(trials, "validationLoss")] == [4, 2, 3, 1]
    assert choose_best_run(trials[1], "dr").seed == 1
    assert choose_best_run(trials[1], "validationLoss").seed == 0
