"""RLlib's classes of 2019 write and read batches, trainings use them, and unsupported uses raise one sentence."""

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


def build_batch(episode: int, num_steps: int = 3) -> SampleBatch:
    """Build an episode as RLlib's example `saving_experiences` does."""
    builder = SampleBatchBuilder()
    for t in range(num_steps):
        builder.add_values(
            t=t,
            eps_id=episode,
            agent_index=0,
            obs=np.float32([episode, t, 0, 0]),
            actions=t % 3,
            action_logp=-1.0,
            rewards=1.0,
            prev_rewards=0,
            dones=t == num_steps - 1,
            infos={"t": t} if t else {},
            new_obs=np.float32([episode, t + 1, 0, 0]),
        )
    return builder.build_and_reset()


def assert_equal_batches(actual: SampleBatch, expected: SampleBatch) -> None:
    assert actual.keys() - {"type"} == expected.keys() - {"type"}
    for name in actual:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def bc_config() -> BCConfig:
    return (
        BCConfig()
        .environment(observation_space=Walk.observation_space, action_space=Walk.action_space)
        .training(train_batch_size_per_learner=4)
        .rl_module(model_config={"fcnet_hiddens": [8]})
    )


class Reader(InputReader):
    """Returns three episodes."""

    def __init__(self, ioctx: Any) -> None:
        assert ioctx.worker_index == 0
        assert ioctx.config["train_batch_size_per_learner"] == 4
        self._remaining_batches = [build_batch(episode) for episode in range(3)]

    def next(self) -> SampleBatch:
        if not self._remaining_batches:
            raise StopIteration
        return self._remaining_batches.pop()


class EndlessReader(Reader):
    def next(self) -> SampleBatch:
        return build_batch(0)


class NumberReader(Reader):
    def next(self) -> Any:
        return 3


class RaisingReader(Reader):
    def next(self) -> Any:
        raise KeyError("obs")


def test_sample_batches_are_built_split_and_concatenated_or_refused() -> None:
    builder = SampleBatchBuilder()
    builder.add_batch(build_batch(0))
    batch = builder.build_and_reset()
    assert (batch.count, len(batch), batch["unroll_id"].tolist()) == (3, 3, [0, 0, 0])
    assert builder.build_and_reset().count == 0
    assert [row["t"] for row in batch.rows()] == [0, 1, 2]
    assert batch.columns(["eps_id", SampleBatch.T])[1].tolist() == [0, 1, 2]
    joined_batch = SampleBatch.concat_samples([build_batch(4), build_batch(5, num_steps=1)])
    steps = [episode_batch["t"].tolist() for episode_batch in joined_batch.split_by_episode()]
    assert steps == [[0, 1, 2], [0]]
    assert_equal_batches(joined_batch, build_batch(4).concat(build_batch(5, num_steps=1)))
    assert joined_batch["infos"] == [{}, {"t": 1}, {"t": 2}, {}]
    nested_batch = SampleBatch(obs=[{"a": np.ones(2), "b": 1}] * 2)
    assert nested_batch["obs"]["a"].shape == (2, 2)
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
    for _ in range(2):  # after the last batch, the reader starts again
        for batch in batches:
            assert_equal_batches(reader.next(), batch)
    data = open_data([str(tmp_path / "out")])
    assert (data.num_episodes, data.num_steps) == (4, 12)
    config = bc_config().offline_data(input_=str(tmp_path / "out"), dataset_num_iters_per_learner=2)
    with config.build_algo() as algo:
        assert algo.train()["num_env_steps_trained_lifetime"] == 8


def test_writers_limit_file_size_and_share_no_file(tmp_path: Path, memory_path: str) -> None:
    for _ in range(2):
        writer = JsonWriter(tmp_path, max_file_size=2000)
        for episode in range(4):
            writer.write(build_batch(episode))
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) > 2
    assert max(sizes) <= 2000
    assert len(list(JsonReader([str(tmp_path)]))) == 8
    writer = JsonWriter(memory_path)
    for episode in range(3):
        writer.write(build_batch(episode))
    assert [batch["eps_id"][0] for batch in JsonReader(memory_path)] == [0, 1, 2]


def test_dataset_reader_reads_any_dataset(tmp_path: Path) -> None:
    record(recording(tmp_path / "walks", duration={"episodes": 4}))
    batches = list(DatasetReader(str(tmp_path / "walks")))
    assert len(batches) == 4
    for batch in batches:
        assert np.array_equal(batch["obs"][1:], batch["new_obs"][:-1])
        assert batch["terminateds"].tolist() == [*[False] * (len(batch) - 1), True]
    with pytest.raises(DataError, match="data is an int, expected a path"):
        DatasetReader(3)


@pytest.mark.parametrize("name", ["custom-reader", None])
def test_custom_reader_is_trained_on_through_a_temporary_folder(name: str | None) -> None:
    reader_input: Any = Reader
    if name is not None:
        register_input(name, reader_input)
        reader_input = name
    with bc_config().offline_data(input_=reader_input, dataset_num_iters_per_learner=2).build_algo() as algo:
        assert any("returned 9 timesteps" in note for note in algo.notes)
        assert algo.train()["num_env_steps_trained_lifetime"] == 8
        folder = Path(algo.config.input_)
        assert folder.exists()
    assert not folder.exists()


def test_custom_reader_with_a_weight_is_trained_on(tmp_path: Path) -> None:
    JsonWriter(tmp_path / "out").write(build_batch(7))
    weights = {Reader: 0.25, str(tmp_path / "out"): 0.75}
    with bc_config().offline_data(input_=weights, dataset_num_iters_per_learner=4).build_algo() as algo:
        algo.train()


class RepeatingReader(InputReader):
    """Repeats batches endlessly; the first two of them are equal."""

    def __init__(self, ioctx: Any) -> None:
        self.count = 0

    def next(self) -> SampleBatch:
        self.count += 1
        return build_batch((0, 0, 1, 2)[(self.count - 1) % 4])


class GrowingReader(InputReader):
    """Seems to repeat its first batch, and ends."""

    def __init__(self, ioctx: Any) -> None:
        self.numbers = iter((0, 0, *range(1, 30)))

    def next(self) -> SampleBatch:
        return build_batch(next(self.numbers))


def test_reader_that_repeats_its_batches_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "FIRST_CHECK", 40)
    with bc_config().offline_data(input_=RepeatingReader).build_algo() as algo:
        num_steps = sum(build_batch(number).count for number in (0, 0, 1, 2))
        assert any(
            f"returned {num_steps} timesteps, which it repeats endlessly" in note for note in algo.notes
        )
        assert len(list(JsonReader(algo.config.input_).read_all_files())) == 4
    with bc_config().offline_data(input_=GrowingReader).build_algo() as algo:
        num_steps = sum(build_batch(number).count for number in (0, *range(30)))
        assert any(f"returned {num_steps} timesteps" in note and "endless" not in note for note in algo.notes)


@pytest.mark.parametrize(
    ("reader", "error", "message"),
    [
        (EndlessReader, SpecError, "did not stop after 100 timesteps: let next() raise StopIteration"),
        (NumberReader, UserCodeError, "NumberReader.next() returned an int, expected a SampleBatch"),
        (RaisingReader, UserCodeError, "the reader of input_ in next()"),
        (lambda ioctx: 3, SpecError, "input_: the function returned an int, expected an InputReader"),
        (lambda ioctx: 1 / 0, UserCodeError, "the reader of input_ raised ZeroDivisionError"),
    ],
)
def test_invalid_reader_raises(
    reader: Callable[[Any], Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_TIMESTEPS", 100)
    with pytest.raises(error) as error_info:
        bc_config().offline_data(input_=reader).build_algo()
    assert message in str(error_info.value)
    assert "\n" not in str(error_info.value)


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


def output_config(output: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(Walk)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_duration=3)
        .offline_data(output=output)
    )


@pytest.mark.parametrize("output", [Writer, lambda context: Writer(ioctx=context)])
def test_custom_writer_receives_each_episode_once(output: Any) -> None:
    with output_config(output).build_algo() as algo:
        folder = Path(algo.config.output)
        returns = sum(algo.evaluate()["env_runners"]["episode_return_mean"] * 3 for _ in range(2))
        assert folder.exists()
    assert not folder.exists()
    assert len({batch["eps_id"][0] for batch in Writer.written_batches}) == len(Writer.written_batches) == 6
    assert sum(batch["rewards"].sum() for batch in Writer.written_batches) == pytest.approx(returns)
    algo.stop()
    assert len(Writer.written_batches) == 6


def test_custom_writer_without_episodes_receives_nothing() -> None:
    output_config(Writer).build_algo().stop()
    assert Writer.written_batches == []


def test_invalid_writer_raises() -> None:
    with pytest.raises(UserCodeError, match="output: the function returned an int, expected an OutputWriter"):
        output_config(lambda ioctx: 3).build_algo()
    with pytest.raises(UserCodeError, match=r"the writer of output raised AssertionError at .*batch_io"):
        output_config(Writer).evaluation(evaluation_duration=4).build_algo()
    algo = output_config(RaisingWriter).build_algo()
    folder = Path(algo.config.output)
    algo.evaluate()
    with pytest.raises(UserCodeError, match=r"the writer of output in write\(\) raised KeyError at .*bucket"):
        algo.stop()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_": Reader}, "only build_algo() accepts functions that make an InputReader"),
        ({"output": Writer}, "for batch in DatasetReader(folder): writer.write(batch)"),
        ({"output": [Writer]}, "expected one path: a recording writes to one folder"),
        ({"output": "logdir"}, "name the folder of the dataset"),
        ({"input_config": {"a": 1}}, "pass it to the reader"),
    ],
)
def test_unsupported_options_name_a_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error_info:
        bc_config().environment(Walk).offline_data(**options).to_resource()
    assert message in str(error_info.value)


def test_json_reader_without_files_or_with_another_type_raises(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no JSON files in"):
        JsonReader(str(tmp_path / "empty"))
    (tmp_path / "a.json").write_text('{"type": "Other"}\n')
    with pytest.raises(DataError, match=r"a\.json, line 1: its type is 'Other'"):
        JsonReader(str(tmp_path / "a.json")).next()


def test_rllibs_example_saving_experiences_writes_episodes_of_cartpole(tmp_path: Path) -> None:
    builder, writer = SampleBatchBuilder(), JsonWriter(str(tmp_path / "demo-out"))
    environment = gym.make("CartPole-v1")
    for episode in range(2):
        observation, _ = environment.reset(seed=episode)
        environment.action_space.seed(episode)
        previous_action, is_done, t = np.zeros_like(environment.action_space.sample()), False, 0
        while not is_done:
            action = environment.action_space.sample()
            new_obs, reward, terminated, truncated, info = environment.step(action)
            is_done = terminated or truncated
            builder.add_values(
                t=t,
                eps_id=episode,
                agent_index=0,
                obs=observation,
                actions=action,
                action_prob=1.0,
                rewards=reward,
                prev_actions=previous_action,
                prev_rewards=0,
                dones=is_done,
                infos=info,
                new_obs=new_obs,
            )
            observation, previous_action, t = new_obs, action, t + 1
        writer.write(builder.build_and_reset())
    assert open_data([str(tmp_path / "demo-out")]).num_episodes == 2
