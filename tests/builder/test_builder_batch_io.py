"""RLlib's classes of 2019: batches are written, read, and trained on; what does not apply is a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hindcast import (
    BCConfig,
    DatasetReader,
    InputReader,
    JsonReader,
    JsonWriter,
    OutputWriter,
    PPOConfig,
    SampleBatch,
    SampleBatchBuilder,
    register_input,
)
from hindcast.datasets.prepare.opening import open_data
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.rllib.batch_io import inputs
from support import record, recording
from toy_environments import Walk


def build_batch(episode: int, steps: int = 3) -> SampleBatch:
    """An episode, as RLlib's example `saving_experiences` makes it."""
    builder = SampleBatchBuilder()
    for t in range(steps):
        builder.add_values(
            t=t,
            eps_id=episode,
            agent_index=0,
            obs=np.float32([episode, t, 0, 0]),
            actions=t % 3,
            action_logp=-1.0,
            rewards=1.0,
            prev_rewards=0,
            dones=t == steps - 1,
            infos={"t": t} if t else {},
            new_obs=np.float32([episode, t + 1, 0, 0]),
        )
    return builder.build_and_reset()


def assert_equal_batches(one: SampleBatch, other: SampleBatch) -> None:
    assert one.keys() - {"type"} == other.keys() - {"type"}
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def bc() -> BCConfig:
    return (
        BCConfig()
        .environment(observation_space=Walk.observation_space, action_space=Walk.action_space)
        .training(train_batch_size_per_learner=4)
        .rl_module(model_config={"fcnet_hiddens": [8]})
    )


class Reader(InputReader):
    """Gives three episodes."""

    def __init__(self, ioctx: Any) -> None:
        assert ioctx.worker_index == 0
        assert ioctx.config["train_batch_size_per_learner"] == 4
        self._left = [build_batch(episode) for episode in range(3)]

    def next(self) -> SampleBatch:
        if not self._left:
            raise StopIteration
        return self._left.pop()


class Endless(Reader):
    def next(self) -> SampleBatch:
        return build_batch(0)


class Wrong(Reader):
    def next(self) -> Any:
        return 3


class Raising(Reader):
    def next(self) -> Any:
        raise KeyError("obs")


def test_sample_batch_has_columns_and_rows() -> None:
    builder = SampleBatchBuilder()
    builder.add_batch(build_batch(0))
    batch = builder.build_and_reset()
    assert (batch.count, len(batch), batch["unroll_id"].tolist()) == (3, 3, [0, 0, 0])
    assert builder.build_and_reset().count == 0
    assert [row["t"] for row in batch.rows()] == [0, 1, 2]
    assert batch.columns(["eps_id", SampleBatch.T])[1].tolist() == [0, 1, 2]
    joined_batch = SampleBatch.concat_samples([build_batch(4), build_batch(5, steps=1)])
    assert [part["t"].tolist() for part in joined_batch.split_by_episode()] == [[0, 1, 2], [0]]
    assert_equal_batches(joined_batch, build_batch(4).concat(build_batch(5, steps=1)))
    assert joined_batch["infos"] == [{}, {"t": 1}, {"t": 2}, {}]
    nested = SampleBatch(obs=[{"a": np.ones(2), "b": 1}] * 2)
    assert nested["obs"]["a"].shape == (2, 2)
    with pytest.raises(DataError, match="differ in length: "):
        SampleBatch(obs=[1, 2], t=[0])
    with pytest.raises(DataError, match="batches have different columns"):
        SampleBatch.concat_samples([build_batch(0), SampleBatch(t=[0])])


@pytest.mark.parametrize("packed", [("obs", "new_obs"), (), ("rewards", "obs")])
def test_written_batches_are_read_and_trained_on(tmp_path: Path, packed: tuple[str, ...]) -> None:
    writer = JsonWriter(tmp_path / "out", compress_columns=packed)
    batches = [build_batch(episode) for episode in range(4)]
    for batch in batches:
        writer.write(batch)
    assert [file.name.partition("_worker-")[2] for file in (tmp_path / "out").iterdir()] == ["0_0.json"]
    for read_batch, batch in zip(JsonReader(str(tmp_path / "out")).read_all_files(), batches, strict=True):
        assert_equal_batches(read_batch, batch)
        assert ("obs" in packed) == (read_batch["obs"].dtype == np.float32)
    reader = JsonReader(str(tmp_path / "out"))
    for _ in range(2):  # it begins anew
        for batch in batches:
            assert_equal_batches(reader.next(), batch)
    data = open_data([str(tmp_path / "out")])
    assert (data.num_episodes, data.num_steps) == (4, 12)
    with (
        bc().offline_data(input_=str(tmp_path / "out"), dataset_num_iters_per_learner=2).build_algo() as algo
    ):
        assert algo.train()["num_env_steps_trained_lifetime"] == 8


def test_writer_limits_file_size_and_shares_no_file(tmp_path: Path, memory: str) -> None:
    for _ in range(2):
        writer = JsonWriter(tmp_path, max_file_size=2000)
        for episode in range(4):
            writer.write(build_batch(episode))
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) > 2
    assert max(sizes) <= 2000
    assert len(list(JsonReader([str(tmp_path)]))) == 8
    writer = JsonWriter(memory)
    for episode in range(3):
        writer.write(build_batch(episode))
    assert [batch["eps_id"][0] for batch in JsonReader(memory)] == [0, 1, 2]


def test_dataset_reader_reads_any_dataset(tmp_path: Path) -> None:
    record(recording(tmp_path / "walks", duration={"episodes": 4}))
    batches = list(DatasetReader(str(tmp_path / "walks")))
    assert len(batches) == 4
    for batch in batches:
        assert np.array_equal(batch["obs"][1:], batch["new_obs"][:-1])
        assert batch["terminateds"].tolist() == [*[False] * (len(batch) - 1), True]
    with pytest.raises(DataError, match="data is a int, expected a path"):
        DatasetReader(3)


@pytest.mark.parametrize("name", ["own-reader", None])
def test_custom_reader_is_an_input(name: str | None) -> None:
    reader_input: Any = Reader
    if name is not None:
        register_input(name, reader_input)
        reader_input = name
    with bc().offline_data(input_=reader_input, dataset_num_iters_per_learner=2).build_algo() as algo:
        assert any("returned 9 timesteps" in note for note in algo.notes)
        assert algo.train()["num_env_steps_trained_lifetime"] == 8
        folder = Path(algo.config.input_)
        assert folder.exists()
    assert not folder.exists()


def test_custom_reader_has_its_weight(tmp_path: Path) -> None:
    JsonWriter(tmp_path / "out").write(build_batch(7))
    shares = {Reader: 0.25, str(tmp_path / "out"): 0.75}
    with bc().offline_data(input_=shares, dataset_num_iters_per_learner=4).build_algo() as algo:
        algo.train()


@pytest.mark.parametrize(
    ("reader", "error", "sentence"),
    [
        (Endless, SpecError, "the reader did not stop after 100 timesteps: let next() raise StopIteration"),
        (Wrong, UserCodeError, "Wrong.next() returned a int, expected a SampleBatch"),
        (Raising, UserCodeError, "the reader of input_ in next()"),
        (lambda ioctx: 3, SpecError, "input_ returned a int, expected an InputReader"),
        (lambda ioctx: 1 / 0, UserCodeError, "the reader of input_ raised ZeroDivisionError"),
    ],
)
def test_invalid_reader_raises(
    reader: Callable[[Any], Any], error: type[Exception], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_TIMESTEPS", 100)
    with pytest.raises(error) as caught_error:
        bc().offline_data(input_=reader).build_algo()
    assert sentence in str(caught_error.value)
    assert "\n" not in str(caught_error.value)


class Writer(OutputWriter):
    written_batches: list[SampleBatch] = []

    def __init__(self, ioctx: Any) -> None:
        assert ioctx.config["evaluation_duration"] == 3
        self.written_batches.clear()

    def write(self, sample_batch: SampleBatch) -> None:
        self.written_batches.append(sample_batch)


class RaisingWriter(Writer):
    def write(self, sample_batch: SampleBatch) -> None:
        raise KeyError("bucket")


def config_with_output(output: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(Walk)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_duration=3)
        .offline_data(output=output)
    )


@pytest.mark.parametrize("output", [Writer, lambda given: Writer(ioctx=given)])
def test_custom_writer_receives_each_episode_once(output: Any) -> None:
    with config_with_output(output).build_algo() as algo:
        folder = Path(algo.config.output)
        returns = sum(algo.evaluate()["env_runners"]["episode_return_mean"] * 3 for _ in range(2))
        assert folder.exists()
    assert not folder.exists()
    assert len({batch["eps_id"][0] for batch in Writer.written_batches}) == len(Writer.written_batches) == 6
    assert sum(batch["rewards"].sum() for batch in Writer.written_batches) == pytest.approx(returns)
    algo.stop()
    assert len(Writer.written_batches) == 6


def test_custom_writer_without_episodes_receives_nothing() -> None:
    config_with_output(Writer).build_algo().stop()
    assert Writer.written_batches == []


def test_invalid_writer_raises() -> None:
    with pytest.raises(
        UserCodeError, match="output returned a int, expected an OutputWriter: a class with write"
    ):
        config_with_output(lambda ioctx: 3).build_algo()
    with pytest.raises(UserCodeError, match=r"the writer of output raised AssertionError at .*batch_io"):
        config_with_output(Writer).evaluation(evaluation_duration=4).build_algo()
    algo = config_with_output(RaisingWriter).build_algo()
    folder = Path(algo.config.output)
    algo.evaluate()
    with pytest.raises(UserCodeError, match=r"the writer of output in write\(\) raised KeyError at .*bucket"):
        algo.stop()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"input_": Reader}, "only build_algo() accepts functions that make an InputReader"),
        ({"output": Writer}, "for batch in DatasetReader(folder): writer.write(batch)"),
        ({"output": [Writer]}, "expected one path: a recording writes to one folder"),
        ({"output": "logdir"}, "name the folder of the dataset"),
        ({"input_config": {"a": 1}}, "give it to the reader"),
    ],
)
def test_unsupported_options_name_a_remedy(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as raised:
        bc().environment(Walk).offline_data(**options).to_resource()
    assert sentence in str(raised.value)


def test_json_reader_without_files_raises(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no JSON files in"):
        JsonReader(str(tmp_path / "empty"))
    (tmp_path / "a.json").write_text('{"type": "Other"}\n')
    with pytest.raises(DataError, match=r"a\.json, line 1: its type is 'Other'"):
        JsonReader(str(tmp_path / "a.json")).next()


def test_example_of_the_docs_page_runs(tmp_path: Path) -> None:
    """`saving_experiences`, on CartPole."""
    builder, writer = SampleBatchBuilder(), JsonWriter(str(tmp_path / "demo-out"))
    environment = gym.make("CartPole-v1")
    for episode in range(2):
        observation, _ = environment.reset(seed=episode)
        environment.action_space.seed(episode)
        previous, process, t = np.zeros_like(environment.action_space.sample()), False, 0
        while not process:
            action = environment.action_space.sample()
            new_obs, reward, terminated, truncated, info = environment.step(action)
            process = terminated or truncated
            builder.add_values(
                t=t,
                eps_id=episode,
                agent_index=0,
                obs=observation,
                actions=action,
                action_prob=1.0,
                rewards=reward,
                prev_actions=previous,
                prev_rewards=0,
                dones=process,
                infos=info,
                new_obs=new_obs,
            )
            observation, previous, t = new_obs, action, t + 1
        writer.write(builder.build_and_reset())
    assert open_data([str(tmp_path / "demo-out")]).num_episodes == 2
