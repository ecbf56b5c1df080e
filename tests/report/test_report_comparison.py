"""`hindcast compare`: grouping runs by setting, and their means over seeds."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from hindcast.api import validate_resource
from hindcast.errors import DataError, SpecError
from hindcast.report.comparison import compare, comparison_tables, write_comparison
from hindcast.run.claim import claim
from hindcast.storage.location import resolve
from resource_examples import changed_spec, make_document


def write_run(
    folder: Path, name: str, returns: list[float], *, seed: int = 0, losses=(), **spec_fields
) -> None:
    """Write a run folder whose evaluation after each iteration of 10 updates has the given mean return."""
    folder.mkdir(parents=True)
    spec = changed_spec("OfflineTraining", {"seed": seed, "checkpoint": {"path": str(folder)}}) | spec_fields
    claim(resolve(str(folder)), validate_resource(make_document("OfflineTraining", spec, name)), False)
    lines = []
    for index, mean_return in enumerate(returns):
        result = {
            "training_iteration": index + 1,
            "num_updates_lifetime": 10 * (index + 1),
            "time_total_s": 2.0,
        }
        result["evaluation"] = {"env_runners": {"episode_return_mean": mean_return, "num_episodes": 5}}
        if losses:
            result["learners"] = {"default_policy": {"total_loss": losses[index]}}
        lines.append(orjson.dumps(result) + b"\n")
    (folder / "results.jsonl").write_bytes(b"".join(lines))


def _damage(folder: Path) -> None:
    write_run(folder, "a", [1])
    (folder / "spec.json").write_text("{")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Write runs of two settings with three seeds each, and make their folder the current one; return its name."""
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        write_run(
            tmp_path / f"runs/fast-{seed}/r1",
            f"fast-{seed}",
            [1, 10 + seed],
            seed=seed,
            config={"lr": 1e-3},
            losses=[9, 5],
        )
        write_run(
            tmp_path / f"runs/slow-{seed}/r2",
            f"slow-{seed}",
            [0, 20 * seed, 1 + seed],
            seed=seed,
            config={"lr": 1e-4},
            losses=[3, 2, 1],
        )
    return "runs"


def test_runs_that_differ_in_seed_form_one_group_by_setting(runs):
    comparison = compare([runs])
    assert [(group.label, group.setting, len(group.runs)) for group in comparison.groups] == [
        ("fast", {"config.lr": 1e-3}, 3),
        ("slow", {"config.lr": 1e-4}, 3),
    ]
    assert [(group.mean, group.deviation) for group in comparison.groups] == [(11, 1), (2, 1)]
    assert comparison.sentence == "best mean return in evaluation: fast, 11 ± 1"


def test_lower_loss_is_better(runs):
    comparison = compare([runs], "total_loss")
    assert [(group.label, group.mean) for group in comparison.groups] == [("slow", 1), ("fast", 5)]


def test_losses_on_different_data_rank_no_training(tmp_path):
    for name in "ab":
        write_run(tmp_path / f"{name}/r1", name, [1], losses=[5], input=[{"path": name}])
    assert compare([str(tmp_path)]).sentence.startswith("best mean return in evaluation: a, 1")
    assert compare([str(tmp_path)], "total_loss").sentence == (
        "total loss says nothing about which training is better, because they differ in input"
    )


def test_band_covers_updates_that_all_runs_reach(tmp_path):
    write_run(tmp_path / "a/r1", "bc-a", [1, 2, 3], seed=0)
    write_run(tmp_path / "b/r1", "bc-b", [5, 4], seed=1)
    (group,) = compare([str(tmp_path)]).groups
    mean, low, high = group.band()
    np.testing.assert_array_equal(mean.x, [10, 20])
    np.testing.assert_array_equal([mean.y, low.y, high.y], [[3, 3], [1, 2], [5, 4]])


def test_latest_revision_counts_unless_another_is_named(tmp_path):
    write_run(tmp_path / "a/r9", "a", [1])
    write_run(tmp_path / "a/r10", "a", [2])
    assert compare([str(tmp_path)]).groups[0].last_values == [2]
    assert compare([str(tmp_path / "a/r9"), str(tmp_path / "a/r9")]).groups[0].last_values == [1]


@pytest.mark.parametrize(
    ("second_returns", "remark"),
    [
        ([[4], [6]], "; the range of its seeds overlaps that of b"),
        ([[1], [2]], ""),
        ([[1]], "; a training with one seed says little about chance, so run each with several"),
    ],
)
def test_sentence_claims_no_difference_that_the_seeds_do_not_show(tmp_path, second_returns, remark):
    for name, seeds in {"a": [[5], [7]], "b": second_returns}.items():
        for seed, returns in enumerate(seeds):
            config = {"lr": 0.1 if name == "a" else 0.2}
            write_run(tmp_path / f"{name}{seed}/r1", name, returns, seed=seed, config=config)
    assert compare([str(tmp_path)]).sentence == f"best mean return in evaluation: a, 6 ± 1.41{remark}"


def test_many_differing_settings_get_a_table_of_their_own(tmp_path):
    write_run(tmp_path / "a/r1", "a", [1], config={"lr": 0.1}, model={"fcnetHiddens": [1, 2]})
    inputs = [{"path": "q", "weight": 2}, {"path": "r", "weight": 1, "top": 0.5}]
    write_run(tmp_path / "b/r1", "b", [2], config={}, model={"fcnetHiddens": [1]}, input=inputs)
    values, settings = comparison_tables(compare([str(tmp_path)]))
    assert values.columns[0] == "training" and [row[0] for row in values.rows] == ["b", "a"]
    assert settings.columns == ("setting", "b", "a")
    assert sorted(settings.rows) == [
        ("config.lr", "0.0001", "0.1"),
        ("input.0.path", "q", "s3://bucket/data"),
        ("input.0.weight", "2.0", "none"),
        ("input.1.path", "r", "none"),
        ("input.1.top", "0.5", "none"),
        ("input.1.weight", "1.0", "none"),
        ("model.fcnetHiddens", "[1]", "[1, 2]"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "paths"),
    [
        ({"config": {"lr": 1e-4, "gradClip": None}}, {"config": {}}, []),
        (
            {"input": [{"path": "p", "prepare": {"gaps": "Refuse"}, "filter": []}]},
            {"input": [{"path": "p"}]},
            [],
        ),
        (
            {"input": [{"path": "p"}]},
            {"input": [{"recordingRef": {"name": "p"}}]},
            ["input.0.path", "input.0.recordingRef.name"],
        ),
        ({"evaluation": {"interval": 1}}, {"evaluation": {}}, ["evaluation.interval"]),
        (
            {
                "cluster": {"rayVersion": "2.60.0"},
                "runPolicy": {"backoffLimit": 1},
                "checkpoint": {"every": 1},
            },
            {},
            [],
        ),
        ({"learners": {"replicas": 2}}, {"learners": {"replicas": 1}}, ["learners.replicas"]),
    ],
)
def test_settings_differ_in_chosen_values_only(tmp_path, first, second, paths):
    for name, fields in {"a": first, "b": second}.items():
        write_run(tmp_path / name, name, [1], **fields)
    assert sorted(compare([str(tmp_path)]).groups[0].setting) == paths


def test_page_shows_each_run(runs):
    comparison = compare([runs])
    page = Path(write_comparison(comparison, "page.html")).read_text()
    assert "runs/slow-2/r2" in page and "config.lr" in page and "11 ± 1" in page
    values = [group["runs"][0]["value"] for group in comparison.to_json()["groups"]]
    assert values == [10, 1]


@pytest.mark.parametrize(
    ("make_folder", "metric", "error", "message"),
    [
        (lambda folder: folder.mkdir(), None, DataError, "contains no run of a training"),
        (lambda folder: None, None, DataError, "does not exist"),
        (_damage, None, DataError, "does not describe a training"),
        (lambda folder: write_run(folder, "a", []), None, DataError, "has no results yet"),
        (
            lambda folder: write_run(folder, "a", [1]),
            "nope",
            SpecError,
            "no values of nope; compare by one of episodeReturnMean",
        ),
    ],
)
def test_folder_that_cannot_be_compared_is_refused(tmp_path, make_folder, metric, error, message):
    make_folder(tmp_path / "run")
    with pytest.raises(error, match=message):
        compare([str(tmp_path / "run")], metric)


def test_single_run_is_summarised(tmp_path):
    write_run(tmp_path / "a/r1", "a", [1, 2])
    assert compare([str(tmp_path)]).sentence == "mean return in evaluation 2 over 1 run"
