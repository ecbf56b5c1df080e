"""Draws by priority, compared with a slow, simple reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hindcast.pipeline.priorities import Priorities
from hindcast.pipeline.rng import Uniforms, generator
from layers import examples


class LinearPriorities:
    """Priorities to the power of alpha in an array, searched from the first slot on."""

    def __init__(self, size, alpha):
        self.priority = np.zeros(size, np.float32)
        self.alpha = alpha

    def set(self, slots, priorities):
        for slot in slots:
            self.priority[slot] = 0
        for slot, priority in zip(slots, priorities, strict=True):
            value = np.float32((abs(priority) + 1e-6) ** self.alpha)
            self.priority[slot] = max(self.priority[slot], value)

    def draw(self, uniform):
        """Return the drawn slot, and its priority relative to the smallest one."""
        remaining = uniform * self.priority.sum(dtype=np.float64)
        minimum = self.priority[self.priority > 0].min()
        for slot, priority in enumerate(self.priority.tolist()):
            if remaining < priority:
                return slot, priority / float(minimum)
            remaining -= priority
        raise AssertionError("no slot has a priority")


@examples(40)
@given(
    size=st.sampled_from([1, 5, 64, 65, 300, 5000]),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    seed=st.integers(0, 1000),
)
def test_draws_equal_linear_search(size, alpha, seed):
    rng = np.random.default_rng(seed)
    tree, reference = Priorities(size, alpha), LinearPriorities(size, alpha)
    num_filled = int(rng.integers(0, size))
    tree.fill(torch.full((num_filled,), tree.to_power(2.0)))
    reference.set(range(num_filled), [2.0] * num_filled)
    for _ in range(5):
        set_slots, priorities = rng.integers(0, size, 20), rng.normal(size=20) * 3
        tree.set(torch.from_numpy(set_slots), torch.from_numpy(priorities))
        reference.set(set_slots.tolist(), priorities.tolist())
        uniform = rng.random(8)
        slots, relative_odds = tree.draw(torch.from_numpy(uniform))
        expected = [reference.draw(number) for number in uniform.tolist()]
        assert slots.tolist() == [slot for slot, _ in expected]
        assert relative_odds.tolist() == pytest.approx([ratio for _, ratio in expected])


def test_draw_frequency_is_proportional_to_priority():
    tree = Priorities(200, alpha=0.5)
    powers = np.sqrt(np.arange(200.0) + 1e-6)
    tree.set(torch.arange(200), torch.arange(200.0, dtype=torch.float64))
    slots, _ = tree.draw(torch.from_numpy(np.random.default_rng(0).random(200_000)))
    counts = np.bincount(slots.numpy(), minlength=200)
    expected = 200_000 * powers / powers.sum()
    np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(expected.max()))


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-53])
def test_empty_slot_is_never_drawn(uniform):
    tree = Priorities(1000, alpha=1.0)
    tree.set(torch.tensor([3, 700]), torch.tensor([1e-3, 1e6]))
    slots, _ = tree.draw(torch.tensor([uniform], dtype=torch.float64))
    assert slots.item() == (3 if uniform == 0.0 else 700)


@pytest.mark.parametrize("priority", [torch.nan, torch.inf])
def test_invalid_priority_is_reported(priority):
    tree = Priorities(100, alpha=0.6)
    assert not tree.set(torch.arange(100), torch.ones(100))
    assert tree.set(torch.tensor([4]), torch.tensor([priority]))
    slots, _ = tree.draw(torch.rand(50, dtype=torch.float64))
    assert ((slots >= 0) & (slots < 100)).all()


def test_uniforms_depend_only_on_their_index():
    numbers = Uniforms(3, "draw").take(0, 10_000)
    assert (numbers[:4096] == generator(3, "draw", 0).random(4096)).all()
    uniforms = Uniforms(3, "draw")
    for first, count in [(9000, 1000), (0, 1), (4090, 10), (8191, 2)]:
        assert (uniforms.take(first, count) == numbers[first : first + count]).all()
