"""Several learners compute the updates of one learner on the whole batch."""

import numpy as np
import pytest
from learn_ranks import (
    count_updates_until_stop,
    draw_noise,
    exchange_messages,
    in_ranks,
    metrics_after_interruptions,
    train_and_resume,
    train_on_sequences,
    train_on_shards,
)

pytestmark = pytest.mark.slow

UPDATES, SIZE = 25, 32
TOYS = ["LambdaReturns", "NStepQ", "CausalMean", "PrioritisedQ"]


@pytest.fixture(scope="module")
def two():
    """Results of each job in two learners."""
    return in_ranks(
        2,
        shards=(train_on_shards, UPDATES, SIZE),
        interruptions=(metrics_after_interruptions, UPDATES),
        noise=(draw_noise,),
        stop_at_once=(count_updates_until_stop, 0),
        stop=(count_updates_until_stop, 7),
        messages=(exchange_messages,),
        sequences=(train_on_sequences, UPDATES),
    )


@pytest.fixture(scope="module")
def three():
    """Results of each job in three learners, which have 10, 11 and 11 of 32 timesteps or 2, 3 and 3 of 8 sequences."""
    return in_ranks(3, shards=(train_on_shards, UPDATES, SIZE), sequences=(train_on_sequences, UPDATES))


@pytest.fixture(scope="module")
def fits(walks, tmp_path_factory):
    """Results of training each toy algorithm in two learners."""
    folder = tmp_path_factory.mktemp("fits")
    return in_ranks(2, **{toy: (train_and_resume, toy, folder / toy, walks) for toy in TOYS})


def assert_trained_as_one(ranks):
    weights, metrics, timesteps = train_on_shards(None, UPDATES, SIZE)
    for weights_of_rank, metrics_of_rank, count in ranks:
        assert weights_of_rank.keys() == weights.keys()
        for name, expected in weights.items():
            np.testing.assert_allclose(weights_of_rank[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)
            np.testing.assert_array_equal(weights_of_rank[name], ranks[0][0][name], err_msg=name)
        assert metrics_of_rank == pytest.approx(metrics, rel=1e-3)
        assert metrics_of_rank == ranks[0][1]
        assert count == timesteps == UPDATES * SIZE
    assert abs(weights["norm.mean"]) > 0.01


def test_two_learners_equal_one_on_the_whole_batch(two):
    assert_trained_as_one(two["shards"])


def test_shards_of_different_sizes_are_weighted_by_size(three):
    assert_trained_as_one(three["shards"])


def test_sequences_are_weighted_by_their_unmasked_steps(two, three):
    expected, loss, _ = train_on_sequences(None, UPDATES)
    for weights, loss_of_rank, timesteps in two["sequences"] + three["sequences"]:
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=2e-4, atol=2e-6, err_msg=name)
        assert loss_of_rank == pytest.approx(loss, rel=1e-4)
        assert timesteps == UPDATES * 32


def test_metrics_count_each_update_once_weighted_by_shard(two):
    expected = metrics_after_interruptions(None, UPDATES)
    for metrics in two["interruptions"]:
        assert metrics == pytest.approx(expected, rel=1e-3)


def test_each_learner_draws_its_own_noise(two):
    alone, alone_again = draw_noise(None)
    (first, first_again), (second, second_again) = two["noise"]
    assert (first, first_again) == (alone, alone_again)
    assert second != first
    assert second_again != first_again


def test_loss_noise_and_dropout_of_a_learner_differ(two):
    for before, after in two["noise"]:
        assert before[0] != before[1]
        assert after[0] != after[1]


@pytest.mark.parametrize(("job", "at"), [("stop_at_once", 0), ("stop", 7)])
def test_all_learners_stop_at_the_same_update(two, job, at):
    first, second = two[job]
    assert first == second >= at


def test_followers_receive_what_the_leader_broadcasts(two):
    first, second = two["messages"]
    assert first == second == [["open"], ["load", "a/b"], ["end"]]


@pytest.mark.parametrize("toy", TOYS)
def test_two_learners_train_like_one_on_every_kind_of_batch(toy, fits, walks, tmp_path):
    expected, losses = train_and_resume(None, toy, tmp_path, walks)
    for weights, losses_of_rank in fits[toy]:
        assert losses_of_rank == pytest.approx(losses, rel=1e-4)
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
