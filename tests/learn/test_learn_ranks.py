"""Several learners do what one would do on the whole batch."""

import numpy as np
import pytest
from learn_ranks import fitted, in_ranks, interrupted, noise, stopped, told, trained, trained_on_sequences

pytestmark = pytest.mark.slow

UPDATES, SIZE = 25, 32
TOYS = ["LambdaReturns", "NStepQ", "CausalMean", "PrioritisedQ"]


@pytest.fixture(scope="module")
def two():
    """What two learners made of each job."""
    return in_ranks(
        2,
        trained=(trained, UPDATES, SIZE),
        interrupted=(interrupted, UPDATES),
        noise=(noise,),
        stopped_at_once=(stopped, 0),
        stopped=(stopped, 7),
        told=(told,),
        sequences=(trained_on_sequences, UPDATES),
    )


@pytest.fixture(scope="module")
def three():
    """What three learners, with 10, 11 and 11 of 32 timesteps, or 2, 3 and 3 of 8 sequences, made of each job."""
    return in_ranks(3, trained=(trained, UPDATES, SIZE), sequences=(trained_on_sequences, UPDATES))


@pytest.fixture(scope="module")
def fits(walks, tmp_path_factory):
    """What two learners made of each toy."""
    folder = tmp_path_factory.mktemp("fits")
    return in_ranks(2, **{toy: (fitted, toy, folder / toy, walks) for toy in TOYS})


def assert_trained_as_one(ranks):
    weights, metrics, timesteps = trained(None, UPDATES, SIZE)
    for own, said, count in ranks:
        assert own.keys() == weights.keys()
        for name, expected in weights.items():
            np.testing.assert_allclose(own[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)
            np.testing.assert_array_equal(own[name], ranks[0][0][name], err_msg=name)
        assert said == pytest.approx(metrics, rel=1e-3)
        assert said == ranks[0][1]
        assert count == timesteps == UPDATES * SIZE
    assert abs(weights["norm.mean"]) > 0.01


def test_two_learners_do_what_one_does_on_the_whole_batch(two):
    assert_trained_as_one(two["trained"])


def test_parts_of_different_sizes_count_by_their_size(three):
    assert_trained_as_one(three["trained"])


def test_sequences_count_by_the_steps_that_are_learnt_from(two, three):
    expected, loss, _ = trained_on_sequences(None, UPDATES)
    for weights, found, timesteps in two["sequences"] + three["sequences"]:
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=2e-4, atol=2e-6, err_msg=name)
        assert found == pytest.approx(loss, rel=1e-4)
        assert timesteps == UPDATES * 32


def test_metrics_count_each_update_once_and_by_its_own_shares(two):
    expected = interrupted(None, UPDATES)
    for found in two["interrupted"]:
        assert found == pytest.approx(expected, rel=1e-3)


def test_each_learner_draws_its_own_noise(two):
    alone, alone_again = noise(None)
    (first, again), (second, second_again) = two["noise"]
    assert (first, again) == (alone, alone_again)
    assert second != first
    assert second_again != again


def test_no_learner_draws_the_noise_of_losses_from_the_numbers_of_its_dropout(two):
    for before, after in two["noise"]:
        assert before[0] != before[1]
        assert after[0] != after[1]


@pytest.mark.parametrize(("job", "at"), [("stopped_at_once", 0), ("stopped", 7)])
def test_all_learners_stop_at_the_same_update(two, job, at):
    first, second = two[job]
    assert first == second >= at


def test_the_others_hear_what_the_first_tells(two):
    first, second = two["told"]
    assert first == second == [["open"], ["load", "a/b"], ["end"]]


@pytest.mark.parametrize("toy", TOYS)
def test_two_learners_train_on_targets_n_steps_sequences_and_draws_as_one_does(toy, fits, walks, tmp_path):
    expected, losses = fitted(None, toy, tmp_path, walks)
    for weights, found in fits[toy]:
        assert found == pytest.approx(losses, rel=1e-4)
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
