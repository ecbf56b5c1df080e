"""Several learners compute the updates of one learner on the whole batch."""

import numpy as np
import pytest
from learn_ranks import (
    count_updates_until_stop,
    draw_noise,
    exchange_messages,
    run_in_ranks,
    train_on_sequences,
    train_on_shards,
    train_recorded,
    train_with_interruptions,
)

from fake_cuda_graph import TapeGraph

pytestmark = pytest.mark.slow

NUM_UPDATES, BATCH_SIZE = 25, 32


@pytest.fixture(scope="module")
def two_ranks():
    """Results of each job in two learners: name of the job -> results by rank."""
    return run_in_ranks(
        2,
        shards=(train_on_shards, NUM_UPDATES, BATCH_SIZE),
        interruptions=(train_with_interruptions, NUM_UPDATES),
        noise=(draw_noise,),
        stop_at_once=(count_updates_until_stop, 0),
        stop=(count_updates_until_stop, 7),
        messages=(exchange_messages,),
        sequences=(train_on_sequences, NUM_UPDATES),
        recorded=(train_recorded, NUM_UPDATES, TapeGraph),
        unrecorded=(train_recorded, NUM_UPDATES, None),
    )


@pytest.fixture(scope="module")
def three_ranks():
    """Results of each job in three learners, which have 10, 11 and 11 of 32 timesteps or 2, 3 and 3 of 8 sequences."""
    return run_in_ranks(
        3, shards=(train_on_shards, NUM_UPDATES, BATCH_SIZE), sequences=(train_on_sequences, NUM_UPDATES)
    )


def assert_trained_as_one(ranks):
    weights, metrics, timesteps = train_on_shards(None, NUM_UPDATES, BATCH_SIZE)
    for weights_of_rank, metrics_of_rank, num_timesteps in ranks:
        assert weights_of_rank.keys() == weights.keys()
        for name, expected in weights.items():
            np.testing.assert_allclose(weights_of_rank[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)
            np.testing.assert_array_equal(weights_of_rank[name], ranks[0][0][name], err_msg=name)
        assert metrics_of_rank == pytest.approx(metrics, rel=1e-3)
        assert metrics_of_rank == ranks[0][1]
        assert num_timesteps == timesteps == NUM_UPDATES * BATCH_SIZE
    assert abs(weights["norm.mean"]) > 0.01


def test_two_learners_equal_one_on_the_whole_batch(two_ranks):
    assert_trained_as_one(two_ranks["shards"])


def test_shards_of_different_sizes_are_weighted_by_size(three_ranks):
    assert_trained_as_one(three_ranks["shards"])


def test_sequences_are_weighted_by_their_unmasked_steps(two_ranks, three_ranks):
    expected, loss, _ = train_on_sequences(None, NUM_UPDATES)
    for weights, loss_of_rank, timesteps in two_ranks["sequences"] + three_ranks["sequences"]:
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=2e-4, atol=2e-6, err_msg=name)
        assert loss_of_rank == pytest.approx(loss, rel=1e-4)
        assert timesteps == NUM_UPDATES * 32


def test_recorded_updates_equal_unrecorded_updates(two_ranks):
    """With a stand-in for CUDA graphs; the learners record, replay and run eagerly at different updates."""
    for rank, (weights, metrics, num_steps) in enumerate(two_ranks["recorded"]):
        expected_weights, expected_metrics, _ = two_ranks["unrecorded"][rank]
        # Gradients of critic and actor and the moving mean are exchanged, each between two graphs.
        assert num_steps == [7] * (1 + rank)
        assert metrics == expected_metrics
        for name, expected in expected_weights.items():
            np.testing.assert_array_equal(weights[name], expected, err_msg=name)


def test_metrics_count_each_update_once_weighted_by_shard(two_ranks):
    expected = train_with_interruptions(None, NUM_UPDATES)
    for metrics in two_ranks["interruptions"]:
        assert metrics == pytest.approx(expected, rel=1e-3)


def test_each_learner_draws_its_own_noise(two_ranks):
    single_draws, single_draws_after_load = draw_noise(None)
    (leader_draws, leader_draws_after_load), (follower_draws, follower_draws_after_load) = two_ranks["noise"]
    assert (leader_draws, leader_draws_after_load) == (single_draws, single_draws_after_load)
    assert follower_draws != leader_draws
    assert follower_draws_after_load != leader_draws_after_load


def test_loss_noise_and_dropout_of_a_learner_differ(two_ranks):
    for first_draws, draws_after_load in two_ranks["noise"]:
        assert first_draws[0] != first_draws[1]
        assert draws_after_load[0] != draws_after_load[1]


@pytest.mark.parametrize(("job", "stop_after"), [("stop_at_once", 0), ("stop", 7)])
def test_all_learners_stop_at_the_same_update(two_ranks, job, stop_after):
    leader_updates, follower_updates = two_ranks[job]
    assert leader_updates == follower_updates >= stop_after


def test_followers_receive_what_the_leader_broadcasts(two_ranks):
    leader_messages, follower_messages = two_ranks["messages"]
    assert leader_messages == follower_messages == [["open"], ["load", "a/b"], ["end"]]
