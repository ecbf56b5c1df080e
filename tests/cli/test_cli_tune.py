"""`hindcast tune`: the search as a command."""

import json

import pytest

from hindcast.models.policy import Policy

TUNED = """
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: tuned}
spec:
  algorithm: BC
  config: {trainBatchSizePerLearner: 64}
  model: {fcnetHiddens: [8]}
  input: [{path: WALKS}]
  evaluation: {offline: {heldOut: 0.5, estimates: [wis], explore: true}}
  stop: {updates: 2}
"""


@pytest.fixture
def tuned(walks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.yaml").write_text(TUNED.replace("WALKS", str(walks)))
    return tmp_path


@pytest.mark.slow
def test_a_search_prints_its_table_and_the_winner(hindcast, tuned):
    asked = ["tune", "tuned.yaml", "--over", "config.lr=1e-4,1e-3", "--confirm", "0.3"]
    called = hindcast(*asked, "--take", "best")
    assert called.code == 0, called.err
    table, chosen = called.out.split("chosen: trial ")
    assert "config.lr" in table
    assert {"0.0001", "0.001"} <= set(table.split())
    assert "on 12 episodes that no trial has seen: " in chosen
    assert "report: runs/tuned-search/search.html" in chosen
    assert "trial 2 (config.lr=0.001) of 2, seed 0: wis " in called.err
    again = hindcast(*asked, "--json", "--retrain", "again")
    document = json.loads(again.out)
    assert Policy.load("best").digest == Policy.load(document["best"]["checkpoint"]).digest
    assert [trial["number"] for trial in document["trials"]] in ([1, 2], [2, 1])
    assert document["retrained"] == "again/winner/r1"
    asked = [
        "evaluate",
        document["best"]["folder"],
        "--set-aside",
        "--explore",
        "--model-updates",
        "0",
        "--json",
    ]
    aside = json.loads(hindcast(*asked).out)
    assert aside["estimates"]["wis"]["value"] == document["confirmed"]["figure"]
    refused = hindcast("evaluate", document["retrained"], "--set-aside")
    assert "again/winner/r1 is not in the folder of a run with evaluation.offline.setAside" in refused.err


def test_mistakes_end_it_before_anything_is_trained(hindcast, tuned):
    for over, said in {
        "config.lr=1e-3,fast": "error: trial 2 (config.lr=fast): spec.config.lr is 'fast' (text)",
        "config.lr=1": "trial 1 (config.lr=1): spec.evaluation.offline.setAside (--confirm) gives 4 ep",
        "model.fcnetHiddens=[8],[-8]": "error: trial 2 (model.fcnetHiddens=[-8]): spec.model",
    }.items():
        called = hindcast("tune", "tuned.yaml", "--over", over)
        assert called.code == 2
        assert said in called.err
    assert not (tuned / "runs").exists()
