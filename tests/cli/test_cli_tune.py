"""`hindcast tune`: the search on the command line."""

import json

import pytest

from hindcast.models.policy import Policy

TRAINING = """
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
def training_folder(walks, tmp_path, monkeypatch):
    """Return an empty current folder with `tuned.yaml`, a training on `walks`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.yaml").write_text(TRAINING.replace("WALKS", str(walks)))
    return tmp_path


@pytest.mark.slow
def test_tune_prints_trials_and_winner_and_takes_or_retrains_winner(hindcast, training_folder):
    command = "tune tuned.yaml --over config.lr=1e-4,1e-3 --confirm 0.3"
    result = hindcast(f"{command} --take best")
    assert result.code == 0, result.err
    table, sentence = result.out.split("chosen: trial ")
    assert "config.lr" in table
    assert {"0.0001", "0.001"} <= set(table.split())
    assert "on 12 episodes that no trial has seen: " in sentence
    assert "report: runs/tuned-search/search.html" in sentence
    assert "trial 2 (config.lr=0.001) of 2, seed 0: wis " in result.err
    document = json.loads(hindcast(f"{command} --json --retrain again").out)
    assert Policy.load("best").digest == Policy.load(document["best"]["checkpoint"]).digest
    assert [trial["number"] for trial in document["trials"]] in ([1, 2], [2, 1])
    assert document["retrained"] == "again/winner/r1"
    options = "--set-aside --explore --model-updates 0 --json"
    evaluation = json.loads(hindcast(f"evaluate {document['best']['folder']} {options}").out)
    assert evaluation["estimates"]["wis"]["value"] == document["confirmation"]["value"]
    refusal = hindcast("evaluate", document["retrained"], "--set-aside")
    assert "again/winner/r1 is not in the folder of a run with evaluation.offline.setAside" in refusal.err


def test_tune_with_invalid_options_trains_nothing(hindcast, training_folder):
    for option, message in {
        "config.lr=1e-3,fast": "error: trial 2 (config.lr=fast): spec.config.lr is 'fast' (text)",
        "config.lr=1": "trial 1 (config.lr=1): spec.evaluation.offline.setAside (--confirm) provides 4 ep",
        "model.fcnetHiddens=[8],[-8]": "error: trial 2 (model.fcnetHiddens=[-8]): spec.model",
    }.items():
        result = hindcast("tune", "tuned.yaml", "--over", option)
        assert result.code == 2
        assert message in result.err
    assert not (training_folder / "runs").exists()
