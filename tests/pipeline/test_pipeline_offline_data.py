import json
import pickle
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from pipeline_fakes import ACTION_SPACE, OBSERVATION_SPACE, STEPS, UNITS, FakeDataset, are_equal_batches

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.formats.spec import DataSpec
from hindcast.models.preprocessing import Preprocessing
from hindcast.pipeline.connectors import BatchConnector, BlockConnector
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source, offline_data_class
from hindcast.pipeline.prelearner import detach_dataset, set_extracted
from hindcast.pipeline.targets import Targets
from hindcast.run.inputs import Input, make_sources
from user_errors import raises_user_error

BC = Needs(frozenset({"obs", "actions"}))
WITH_REWARDS = Needs(frozenset({"obs", "actions", "rewards"}))


@pytest.fixture
def make_data():
    """`make_data(dataset, needs, **pipeline)`, or with a list of sources; closed after the test."""
    created = []

    def make(
        dataset,
        needs=WITH_REWARDS,
        *,
        batch_size=10,
        seed=0,
        data_class=OfflineData,
        connector_objects=(),
        preprocessing=None,
        **pipeline,
    ):
        sources = dataset if isinstance(dataset, list) else [Source("data", dataset)]
        options = {"connectors": connector_objects, "preprocessing": preprocessing}
        spec = PipelineSpec.model_validate(pipeline)
        created.append(data_class(sources, needs, batch_size=batch_size, seed=seed, pipeline=spec, **options))
        return created[-1]

    yield make
    for data in created:
        data.close()


def test_recorded_files_become_batches(make_dataset, make_data):
    data = make_data(make_dataset(UNITS), batch_size=STEPS)
    batch = data.next()
    step = batch["rewards"]
    assert sorted(step.tolist()) == list(range(STEPS))
    assert torch.equal(batch["obs"], (step + 0.25)[:, None].expand(-1, 3))
    assert torch.equal(batch["actions"], torch.stack([step, -step], 1))
    assert {tensor.dtype for tensor in batch.values()} == {torch.float32}


def test_residency_does_not_change_batches(make_dataset, make_data):
    dataset = make_dataset(UNITS)
    feeds = [
        make_data(dataset, residency=residency, windowSteps=25)
        for residency in ("Resident", "Streaming", "Auto")
    ]
    for _ in range(25):
        first_batch, *other_batches = [data.next() for data in feeds]
        assert all(are_equal_batches(first_batch, other_batch) for other_batch in other_batches)


def test_only_needed_columns_are_read(make_data):
    dataset = FakeDataset(UNITS)
    read, columns_read = dataset.read, []
    dataset.read = lambda unit, columns=None: columns_read.append(columns) or read(unit, columns)
    make_data(dataset, BC).next()
    assert set(columns_read) == {frozenset({"obs", "actions"})}


def test_missing_column_is_named_before_reading(make_data):
    with pytest.raises(DataError, match=r"data has no column action_logp.*it has actions, obs, rewards"):
        make_data(FakeDataset(UNITS), Needs(frozenset({"obs", "action_logp"})))


def test_spaces_that_do_not_match_raise_before_reading(make_dataset):
    other_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    with pytest.raises(DataError, match=r"'obs' is float64 \[3\]") as error:
        OfflineData([Source("data", make_dataset(UNITS))], BC, batch_size=10, observation_space=other_space)
    (problem,) = error.value.problems
    assert (Path(problem.path).name, problem.row) == ("part-0-000.parquet", 0)


def test_nan_raises_with_its_location_only_in_validated_first_epoch(make_data):
    dataset = FakeDataset([[4], [3, 5]])
    dataset.blocks[1].columns["obs"][6, 1] = np.nan
    data = make_data(dataset, batch_size=12)
    with raises_user_error(DataError, "'obs' has nan", path="file-1.parquet", row=1, step=2):
        data.next()
    second_epoch = make_data(dataset, batch_size=12)
    second_epoch.seek(second_epoch.state() | {"feed": second_epoch.state()["feed"] | {"cursor": 12}})
    assert second_epoch.next()["obs"].isnan().sum() == 1
    assert make_data(dataset, batch_size=12, validateData=False).next()["obs"].isnan().sum() == 1


def test_state_is_json_and_resumes_exactly(make_data):
    options = {"windowSteps": 25, "connectors": ["user_steps:RunningSum"]}
    data, resumed_data = (make_data(FakeDataset(UNITS), **options) for _ in range(2))
    for _ in range(13):
        data.next()
    resumed_data.seek(json.loads(json.dumps(data.state())))
    for _ in range(5):
        assert are_equal_batches(data.next(), resumed_data.next())


# Residency


@pytest.mark.parametrize(
    ("options", "feed", "reason"),
    [
        ({}, "Resident", "fit the budget"),
        ({"residentBudget": "1Ki"}, "Streaming", "exceed the budget of 1.0 KiB"),
        ({"residency": "Streaming"}, "Streaming", "residency is Streaming"),
        ({"residency": "Resident"}, "Resident", "residency is Resident"),
        (
            {"connectors": ["user_steps:Noise"]},
            "Streaming",
            "the results of Noise are random and differ between epochs",
        ),
    ],
)
def test_plan_reports_residency_and_reason(options, feed, reason, make_data):
    data = make_data(FakeDataset(UNITS), windowSteps=25, **options)
    plan = data.plan()
    (source,) = plan["sources"]
    assert source["feed"] == feed
    assert reason in source["reason"]
    assert (source["timesteps"], source["episodes"], source["units"]) == (STEPS, 13, 6)
    order = data._sources[0].order
    assert source["lanes"] == order.num_lanes
    assert source["windows"] == sum(len(order.windows(lane, 0)) for lane in range(order.num_lanes))
    assert source["columns"] == ["actions", "obs", "rewards"]
    assert plan["updatesPerIteration"] == -(-STEPS // 10)
    assert data._feed._is_resident == (feed == "Resident")


def test_plan_reports_bytes_of_the_feed(make_data):
    data = make_data(
        FakeDataset(UNITS), Needs(frozenset({"obs", "new_obs", "actions", "rewards", "terminateds"}))
    )
    data.next()
    window = data._feed._resident.data
    data_bytes = sum(column.nbytes for column in window.columns.values()) + window.obs_row.nbytes
    assert data.plan()["sources"][0]["dataBytes"] == data_bytes


@pytest.mark.parametrize("options", [{"residentBudget": "1Ki"}, {"connectors": ["user_steps:Noise"]}])
def test_impossible_residency_raises(options, make_data):
    with raises_user_error(SpecError, "is Resident, but", field="spec.pipeline.residency"):
        make_data(FakeDataset(UNITS), residency="Resident", **options)


def test_sources_share_one_budget(make_data):
    sources = [Source("a", FakeDataset(UNITS), 1.0), Source("b", FakeDataset(UNITS), 1.0)]
    bytes_of_one = make_data(sources[:1]).plan()["sources"][0]["dataBytes"]
    plan = make_data(sources, residentBudget=bytes_of_one + 10).plan()
    assert [source["feed"] for source in plan["sources"]] == ["Resident", "Streaming"]


# Connectors and pre-learners


def test_block_connectors_run_in_order(make_data):
    entries = [{"name": "user_steps:Scale", "kwargs": {"factor": factor}} for factor in (2, 5)]
    batch = make_data(FakeDataset(UNITS), connectors=entries).next()
    assert torch.equal(batch["obs"], 10 * (batch["rewards"] + 0.25)[:, None].expand(-1, 3))


def test_library_connectors_add_columns_to_batches(make_data):
    names = ["AddNextObservationsFromEpisodesToTrainBatch", "AddColumnsFromEpisodesToTrainBatch"]
    batch = make_data(FakeDataset(UNITS), BC, connectors=names).next()
    assert sorted(batch) == ["actions", "new_obs", "obs", "rewards", "terminateds", "truncateds"]


def test_stochastic_connector_draws_by_unit_and_epoch(make_data):
    dataset = FakeDataset([[6], [7]])
    options = {"connectors": ["user_steps:Noise"], "batch_size": 13}
    data, repeated_data, streamed_data = (
        make_data(dataset, windowSteps=window_steps, **options) for window_steps in (100, 100, 1)
    )
    epochs = [data.next() for _ in range(2)]
    assert are_equal_batches(epochs[0], repeated_data.next())
    by_step = [batch["obs"][batch["rewards"].argsort()] for batch in (*epochs, streamed_data.next())]
    assert torch.equal(by_step[0], by_step[2])
    assert not torch.equal(by_step[0], by_step[1])
    assert not are_equal_batches(make_data(dataset, seed=1, **options).next(), epochs[0])


class BlockDraw(BlockConnector):
    stochastic = True

    def __call__(self, block, context):
        return block.with_columns(
            {**block.columns, "rewards": 0 * block.columns["rewards"] + context.rng.random()}
        )


class BatchDraw(BatchConnector):
    stochastic = True

    def __call__(self, batch, context):
        return {**batch, "draw": torch.full_like(batch["rewards"], context.rng.random())}


def test_first_connectors_over_blocks_and_batches_draw_different_numbers(make_data):
    """The first unit has id 0, and the first batch begins at item 0."""
    batch = make_data(FakeDataset([[5]]), batch_size=5, connector_objects=[BlockDraw(), BatchDraw()]).next()
    assert not torch.equal(batch["rewards"], batch["draw"])


def test_undeclared_randomness_raises(make_data):
    with pytest.raises(UserCodeError, match=r"connector UndeclaredNoise .*stochastic = True"):
        make_data(FakeDataset(UNITS), connectors=["user_steps:UndeclaredNoise"]).next()


def test_connector_error_names_its_line(make_data):
    with pytest.raises(UserCodeError) as error:
        make_data(FakeDataset(UNITS), connectors=["user_steps:Faulty"]).next()
    message = str(error.value)
    assert re.match(r"connector Faulty raised ValueError at .*user_steps\.py:\d+: cannot reshape", message)
    line = int(re.search(r"py:(\d+)", message).group(1))
    source = Path(re.search(r"at (.*py):", message).group(1)).read_text().splitlines()
    assert "np.reshape" in source[line - 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("DropsEpisode", "turned 3 episodes of 13 timesteps into 2 of 6; .* must stay"),
        ("ForgetsFinalObservations", ".*13 rows"),
    ],
)
def test_connector_that_changes_episodes_raises(name, message, make_data):
    with pytest.raises(UserCodeError, match=f"connector {name} at .*user_steps.py:\\d+ {message}"):
        make_data(FakeDataset([[5, 1, 7]]), connectors=[f"user_steps:{name}"]).next()


def test_rewards_that_are_not_numbers_raise(make_data):
    dataset = FakeDataset([[5, 1, 7]])
    (block,) = dataset.blocks
    dataset.blocks = [block.with_columns({**block.columns, "rewards": np.zeros((13, 2))})]
    with pytest.raises(DataError, match="expected a number for each timestep") as error:
        make_data(dataset).next()
    (problem,) = error.value.problems
    assert (problem.path, problem.row) == ("file-0.parquet", 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RewardsInLists", r"row 0: 'rewards' is float64 \[1\]; expected a number for each timestep"),
        ("ActionsPlusOne", r"row 0 \(episode .*, t 1\): 'actions' has 2, expected an integer in \[0, 1\]"),
    ],
)
def test_connector_with_unlearnable_result_raises(name, message, make_data):
    dataset = FakeDataset([[4]])
    (block,) = dataset.blocks
    dataset.blocks = [block.with_columns({**block.columns, "actions": np.array([0, 1, 0, 1])})]
    dataset.spec = DataSpec.from_block(dataset.blocks[0], OBSERVATION_SPACE, gym.spaces.Discrete(2))
    make_data(dataset).next()
    with pytest.raises(UserCodeError, match=f"after the connectors {name}: file-0.parquet, {message}"):
        make_data(dataset, connectors=[f"user_steps:{name}"]).next()


def test_batch_connectors_get_batches(make_data):
    data = make_data(FakeDataset(UNITS), connectors=["user_steps:RunningSum"], batch_size=STEPS)
    for epoch in (1, 2):
        assert data.next()["total"][0] == pytest.approx(epoch * STEPS * (STEPS - 1) / 2)


def test_rllib_connectors_change_episodes(make_data):
    batch = make_data(FakeDataset(UNITS), connectors=["user_steps:NegateRewards"], batch_size=STEPS).next()
    assert sorted((-batch["rewards"]).tolist()) == list(range(STEPS))
    assert torch.equal(batch["obs"], (0.25 - batch["rewards"])[:, None].expand(-1, 3))


def test_rllib_connectors_add_columns(make_data):
    dataset = FakeDataset(UNITS)
    names = ["user_steps:ReturnsToGo", "user_steps:StepNumber"]
    batch = make_data(dataset, connectors=names, batch_size=STEPS).next()
    expected_returns, expected_numbers = {}, {}
    for block in dataset.blocks:
        for episode in range(block.num_episodes):
            rewards = block.columns["rewards"][block.rows_of("rewards", episode)]
            expected_returns |= dict(zip(rewards, rewards[::-1].cumsum()[::-1], strict=True))
            expected_numbers |= dict(zip(rewards, range(len(rewards)), strict=True))
    for step, returns, t in zip(batch["rewards"], batch["returns_to_go"], batch["step_number"], strict=True):
        assert returns == expected_returns[float(step)]
        assert t == expected_numbers[float(step)]


def test_connector_objects_are_accepted(make_data):
    from user_steps import NegateRewards

    batch = make_data(FakeDataset(UNITS), connector_objects=[NegateRewards()]).next()
    assert (batch["rewards"] <= 0).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at:All", "there is no module 'nowhere'"),
        ("user_steps:Nobody", "has no 'Nobody'"),
        ("collections:OrderedDict", "is not a connector"),
    ],
)
def test_invalid_connector_name_raises(name, message, make_data):
    with pytest.raises(SpecError, match=f"spec.pipeline.connectors.*{message}"):
        make_data(FakeDataset(UNITS), connectors=[name])


def test_prelearner_with_options_maps_to_episodes(make_data):
    data = make_data(FakeDataset(UNITS), preLearner="user_steps:Shift", preLearnerKwargs={"by": 100})
    batch = data.next()
    assert torch.equal(batch["obs"][:, 0], batch["rewards"] + 100.25)


def test_prelearner_can_override_call(make_data):
    batch = make_data(FakeDataset(UNITS), preLearner="user_steps:DoubleRewards").next()
    assert torch.equal(batch["obs"][:, 0], batch["rewards"] / 2 + 0.25)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"preLearner": "user_steps:Broken"},
            UserCodeError,
            "pre-learner Broken raised KeyError at .*user_steps.py",
        ),
        ({"preLearner": "user_steps:Scale"}, SpecError, "not a subclass of OfflinePreLearner"),
        (
            {"preLearner": "user_steps:OverridesLearnerConnector"},
            SpecError,
            "^OverridesLearnerConnector overrides build_learner_connector, which is never called: override Algo",
        ),
        (
            {"preLearner": "user_steps:Shift", "preLearnerKwargs": {"bye": 1}},
            UserCodeError,
            "creating the pre-learner Shift raised TypeError.*'bye'",
        ),
    ],
)
def test_invalid_prelearner_raises(options, error, message, make_data):
    with pytest.raises(error, match=message):
        make_data(FakeDataset(UNITS), **options).next()


def test_offline_data_subclass_is_used_and_other_classes_are_refused(make_data):
    data_class = offline_data_class(PipelineSpec(offline_data="user_steps:DoubleSampledRewards"))
    batch = make_data(FakeDataset(UNITS), data_class=data_class).next()
    assert torch.equal(batch["obs"][:, 0], batch["rewards"] / 2 + 0.25)
    with pytest.raises(SpecError, match="not a subclass of OfflineData"):
        offline_data_class(PipelineSpec(offline_data="user_steps:Scale"))
    with pytest.raises(
        SpecError, match="OverridesIterBatches overrides default_iter_batches_kwargs, which is never"
    ):
        offline_data_class(PipelineSpec(offline_data="user_steps:OverridesIterBatches"))


# Preprocessing, targets, sampling


def test_observation_filter_is_fitted_to_the_data(make_data):
    preprocessing = Preprocessing(
        gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
        gym.spaces.Discrete(2),
        observation_filter="meanStd",
    )
    dataset = FakeDataset(UNITS)
    data = make_data(dataset, batch_size=STEPS, preprocessing=preprocessing)
    data.fit_preprocessing()
    observations = np.concatenate([block.columns["obs"][block.obs_row] for block in dataset.blocks])
    assert preprocessing.filters["obs"].mean == pytest.approx(observations.mean(0))
    assert preprocessing.filters["obs"].std == pytest.approx(observations.std(0, ddof=1))
    obs = data.next()["obs"]
    assert obs.mean().item() == pytest.approx(0, abs=0.05)
    assert obs.std().item() == pytest.approx(1, abs=0.05)


def test_targets_require_a_function_and_are_in_batches(make_data):
    data = make_data(FakeDataset(UNITS), Needs(frozenset({"obs"}), targets=True))
    with pytest.raises(RuntimeError, match="targets"):
        data.next()
    data.targets = Targets(lambda window: {"advantages": window.obs_row.float()}, lambda: 0)
    assert data.next()["advantages"].shape == (10,)


def test_sequences_pass_through_the_whole_pipeline(make_data):
    needs = Needs(frozenset({"obs", "rewards"}), seq_len=4, burn_in=1)
    data = make_data(FakeDataset(UNITS), needs, batch_size=6)
    assert data.next()["rewards"].shape == (6, 4)
    assert data.timesteps_per_batch == 24
    for _ in range(data.updates_per_iteration - 1):
        data.next()
    assert data.metrics()["timesteps_seen"] == STEPS


def test_missing_recorded_states_raise(make_data):
    with pytest.raises(DataError, match="state_in or state_out"):
        make_data(FakeDataset(UNITS), Needs(frozenset({"obs"}), seq_len=4, initial_state="recorded"))


def test_sampling_with_replacement_delivers_batches(make_data):
    steps = make_data(FakeDataset(UNITS), sampling="WithReplacement", batch_size=STEPS).next()["rewards"]
    assert len(steps.unique()) < STEPS


def test_updates_per_iteration_follow_the_option(make_data):
    assert make_data(FakeDataset(UNITS), datasetNumItersPerLearner=7).updates_per_iteration == 7


# Several inputs


def test_mixed_sources_keep_weights_order_and_cursors(make_data):
    sources = [Source("few", FakeDataset([[9], [8]]), 1.0), Source("many", FakeDataset(UNITS), 3.0)]
    data, same_seed, other_seed = (make_data(sources, seed=seed, windowSteps=25) for seed in (0, 0, 1))
    batch_sources = [data._feed.source_of(batch) for batch in range(400)]
    assert 0.2 < batch_sources.count(0) / 400 < 0.3
    assert batch_sources == [same_seed._feed.source_of(batch) for batch in range(400)]
    assert batch_sources != [other_seed._feed.source_of(batch) for batch in range(400)]
    assert [source["share"] for source in data.plan()["sources"]] == [0.25, 0.75]
    # Both sources share the window.
    single_sources = [
        make_data([source], windowSteps=steps) for source, steps in zip(sources, (6, 18), strict=True)
    ]
    for index in batch_sources[:40]:
        assert are_equal_batches(data.next(), single_sources[index].next())
    resumed_data = make_data(sources, windowSteps=25)
    resumed_data.seek(data.state())
    assert resumed_data.cursor == data.cursor == 400
    for _ in range(10):
        assert are_equal_batches(data.next(), resumed_data.next())


def test_seek_with_other_inputs_or_batch_size_raises(make_data):
    few, many = Source("few", FakeDataset([[9], [8]])), Source("many", FakeDataset(UNITS))
    state = make_data([few, many]).state()
    with pytest.raises(DataError, match="the data in many, or how Hindcast prepares them, have changed"):
        make_data([many, few]).seek(state)
    heavy = many._replace(weight=3.0)
    for sources, weights in (([many], r"\[1.0\]"), ([few, heavy], r"\[1.0, 3.0\]")):
        with pytest.raises(
            DataError, match=rf"weights of the inputs were \[1.0, 1.0\] when .* and are {weights} now"
        ):
            make_data(sources).seek(state)
    with pytest.raises(DataError, match="items per batch were 10 when the checkpoint was written and are 20"):
        make_data([few, many], batch_size=20).seek(state)


def test_two_inputs_of_one_path_are_two_sources(make_data):
    """An example is a dataset, and as a second input the best episodes of this dataset."""
    best_episodes, all_episodes = (
        Source("data", FakeDataset([[9], [8]]), 1.0),
        Source("data", FakeDataset(UNITS), 3.0),
    )
    data, single_sources = (
        make_data([best_episodes, all_episodes]),
        [
            make_data([source], windowSteps=int(share * 2**20))
            for source, share in ((best_episodes, 0.25), (all_episodes, 0.75))
        ],
    )
    assert data.epoch_size == sum(single.epoch_size for single in single_sources)
    batch_sources = [data._feed.source_of(batch) for batch in range(40)]
    assert set(batch_sources) == {0, 1}
    for index in batch_sources:
        assert are_equal_batches(data.next(), single_sources[index].next())


def open_folder(folder):
    reading = Reading((str(folder),))
    return Input(reading, opened_data=open_reading(reading))


def test_inputs_are_one_dataset_without_weights_and_separate_sources_with_weights(make_dataset, tmp_path):
    make_dataset([[3], [4]], "a"), make_dataset([[5]], "b")
    a, b = open_folder(tmp_path / "a"), open_folder(tmp_path / "b")
    (source,) = make_sources([a, b])
    assert source.dataset.num_steps == 12
    assert source.dataset.digest == open_dataset([a.path, b.path]).digest
    weighted_data = make_sources([a._replace(weight=1.0), b._replace(weight=3.0)])
    assert [(source.name, source.weight) for source in weighted_data] == [(a.path, 1.0), (b.path, 3.0)]
    with pytest.raises(SpecError, match="set a weight for all of them, or for none"):
        make_sources([a._replace(weight=1.0), b])


def test_input_top_selects_best_episodes(make_dataset, tmp_path):
    """Rewards increase from step to step, so the last episode is the best."""
    make_dataset([[3, 2], [4]], "a"), make_dataset([[5, 6]], "b")
    best_input, whole_input = open_folder(tmp_path / "a")._replace(top=0.3), open_folder(tmp_path / "b")
    (source,) = make_sources([best_input, whole_input])
    assert source.dataset.num_steps == 4 + 11
    sources = make_sources([best_input._replace(weight=1.0), whole_input._replace(weight=1.0)])
    assert [source.dataset.num_steps for source in sources] == [4, 11]
    (source,) = make_sources([best_input])
    assert source.dataset.num_steps == 4


def test_rllib_connectors_keep_composite_leaves(make_data):
    dataset = FakeDataset(UNITS)
    space = gym.spaces.Dict({"camera": OBSERVATION_SPACE, "speed": OBSERVATION_SPACE})
    for block in dataset.blocks:
        obs = block.columns.pop("obs")
        block.columns.update({"obs/camera": obs, "obs/speed": -obs})
    dataset.spec = DataSpec.from_block(dataset.blocks[0], space, ACTION_SPACE)
    batch = make_data(dataset, connectors=["user_steps:NegateRewards"]).next()
    assert sorted(batch) == ["actions", "obs/camera", "obs/speed", "rewards"]
    assert torch.equal(batch["obs/camera"], -batch["obs/speed"])
    assert torch.equal(batch["obs/camera"][:, 0], 0.25 - batch["rewards"])


def test_data_workers_receive_a_unit_without_the_index(make_dataset, make_data):
    """Also of a view; the pre-learner is as small for many files as for one."""
    sizes = []
    for units in (UNITS, UNITS * 5):
        dataset = make_dataset(units, f"data-{len(units)}").filter("length > 1")
        prelearn = make_data(dataset, preLearner="user_steps:DoubleRewards")._sources[0]._loader.prelearn
        detached, source = detach_dataset(prelearn)
        pickled = pickle.dumps(detached)
        sizes.append(len(pickled))
        for unit in dataset.units[:6]:
            set_extracted(pickle.loads(pickle.dumps(source.extract(unit))))
            block, expected = pickle.loads(pickled)(unit, 0), prelearn(unit, 0)
            assert block.columns.keys() == expected.columns.keys()
            assert all(np.array_equal(block.columns[leaf], expected.columns[leaf]) for leaf in block.columns)
            assert source.extract(unit).locate(unit, 0) == dataset.locate(unit, 0)
    assert max(sizes) - min(sizes) < 100


def test_prelearner_and_connectors_can_be_pickled(make_dataset, make_data):
    names = [{"name": "user_steps:Scale", "kwargs": {"factor": 2}}, "user_steps:NegateRewards"]
    dataset = make_dataset(UNITS)
    data = make_data(dataset, connectors=names, preLearner="user_steps:DoubleRewards")
    prelearn = data._sources[0]._loader.prelearn
    restored_prelearn = pickle.loads(pickle.dumps(prelearn))
    for unit in dataset.units:
        block, restored_block = prelearn(unit, 0), restored_prelearn(unit, 0)
        assert all(
            np.array_equal(block.columns[leaf], restored_block.columns[leaf]) for leaf in block.columns
        )
