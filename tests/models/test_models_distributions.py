from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from hindcast.errors import SpecError
from hindcast.models.distributions import (
    BELOW_ONE,
    Bernoulli,
    BoundedGaussian,
    Categorical,
    Deterministic,
    DiagGaussian,
    MultiCategorical,
    Product,
    SquashedGaussian,
)

INF = float("inf")


@pytest.fixture(autouse=True)
def _seed_torch() -> None:
    torch.manual_seed(0)


def _make_multi_categorical(
    inputs: Tensor, sizes: tuple[int, ...], starts: tuple[int, ...] | None = None
) -> MultiCategorical:
    return MultiCategorical(inputs, sizes, torch.tensor(starts or [0] * len(sizes)), (len(sizes),))


def _make_squashed_gaussian(inputs: Tensor, low: float = -1.0, high: float = 1.0) -> SquashedGaussian:
    size = inputs.shape[-1] // 2
    return SquashedGaussian(inputs, (size,), torch.full((size,), low), torch.full((size,), high))


def _independent_normal(mean: Tensor, log_std: Tensor) -> distributions.Independent:
    return distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)


class TestCategorical:
    def test_agrees_with_torch(self) -> None:
        logits, actions = torch.randn(50, 7), torch.randint(7, (50,))
        distribution, reference = Categorical(logits), distributions.Categorical(logits=logits)
        torch.testing.assert_close(distribution.logp(actions), reference.log_prob(actions))
        torch.testing.assert_close(distribution.entropy(), reference.entropy())
        other_logits = torch.randn(50, 7)
        torch.testing.assert_close(
            distribution.kl(Categorical(other_logits)),
            distributions.kl_divergence(reference, distributions.Categorical(logits=other_logits)),
        )

    def test_sample_takes_each_action_in_proportion_to_its_probability(self) -> None:
        probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
        noise = ((torch.arange(10_000) + 0.5) / 10_000).unsqueeze(-1)
        actions = Categorical(probabilities.log().expand(10_000, 4)).sample(noise)
        torch.testing.assert_close(actions.bincount(minlength=4) / 10_000, probabilities, atol=2e-4, rtol=0)

    @pytest.mark.parametrize("noise", [0.0, BELOW_ONE, 1.0])
    def test_impossible_action_is_never_sampled(self, noise: float) -> None:
        logits = torch.randn(500, 6)
        logits[:, 0] = logits[:, -1] = -INF
        distribution = Categorical(logits)
        actions = distribution.sample(torch.full((500, 1), noise))
        assert actions.min() >= 1
        assert actions.max() <= 4
        assert torch.isfinite(distribution.logp(actions)).all()
        assert torch.isfinite(distribution.entropy()).all()

    def test_actions_include_the_start_of_the_space(self) -> None:
        distribution = Categorical(torch.tensor([[0.0, 9.0, 0.0]]), start=-4)
        assert distribution.mode().tolist() == [-3]
        assert distribution.sample(torch.tensor([[0.5]])).tolist() == [-3]
        assert distribution.logp(torch.tensor([-3])).item() > math.log(0.99)

    def test_extreme_logits_stay_finite(self) -> None:
        distribution = Categorical(torch.tensor([[1e4, -1e4]]))
        assert distribution.logp(torch.tensor([1])).item() == pytest.approx(-2e4)
        assert distribution.entropy().item() == 0.0

    def test_imitation_loss_is_the_negative_log_likelihood(self) -> None:
        distribution = Categorical(torch.randn(5, 3))
        actions = torch.tensor([0, 1, 2, 0, 1])
        assert torch.equal(distribution.imitation_loss(actions), -distribution.logp(actions))


class TestMultiCategorical:
    def test_logp_and_entropy_are_sums_over_categoricals_and_kl_is_not_negative(self) -> None:
        sizes, inputs = (2, 5, 3), torch.randn(20, 10)
        distribution = _make_multi_categorical(inputs, sizes)
        categoricals = [distributions.Categorical(logits=logits) for logits in inputs.split(sizes, -1)]
        actions = torch.stack([torch.randint(size, (20,)) for size in sizes], -1)
        expected = sum(map(distributions.Categorical.log_prob, categoricals, actions.unbind(-1)))
        torch.testing.assert_close(distribution.logp(actions), expected)
        torch.testing.assert_close(distribution.entropy(), sum(c.entropy() for c in categoricals))
        assert distribution.kl(_make_multi_categorical(inputs.flip(0), sizes)).min() >= 0

    def test_samples_lie_in_the_space_and_follow_the_noise(self) -> None:
        sizes, starts = (2, 5, 3), (0, 10, -1)
        distribution = _make_multi_categorical(torch.zeros(1, 10), sizes, starts)
        assert distribution.sample(torch.full((1, 3), 0.0)).tolist() == [[0, 10, -1]]
        assert distribution.sample(torch.full((1, 3), BELOW_ONE)).tolist() == [[1, 14, 1]]

    def test_actions_of_any_shape_are_accepted(self) -> None:
        distribution = MultiCategorical(torch.randn(4, 12), (3, 3, 3, 3), torch.zeros(4).long(), (2, 2))
        assert distribution.mode().shape == (4, 2, 2)
        assert distribution.logp(distribution.mode()).shape == (4,)


class TestBernoulli:
    def test_agrees_with_torch(self) -> None:
        logits = torch.randn(30, 4)
        distribution = Bernoulli(logits, (4,))
        reference = distributions.Independent(distributions.Bernoulli(logits=logits), 1)
        bits = reference.sample()
        torch.testing.assert_close(distribution.logp(bits.to(torch.int8)), reference.log_prob(bits))
        torch.testing.assert_close(distribution.entropy(), reference.entropy())
        other_logits = torch.randn(30, 4)
        other_reference = distributions.Independent(distributions.Bernoulli(logits=other_logits), 1)
        expected = distributions.kl_divergence(reference, other_reference)
        kl = distribution.kl(Bernoulli(other_logits, (4,)))
        torch.testing.assert_close(kl, expected, atol=1e-6, rtol=1e-4)

    def test_sample_sets_a_bit_in_proportion_to_its_probability(self) -> None:
        noise = ((torch.arange(1000) + 0.5) / 1000).unsqueeze(-1)
        bits = Bernoulli(torch.full((1000, 1), math.log(0.2 / 0.8)), (1,)).sample(noise)
        assert bits.dtype == torch.int8
        assert bits.float().mean().item() == pytest.approx(0.2)


class TestDiagGaussian:
    def test_agrees_with_torch(self) -> None:
        inputs, other_inputs = torch.randn(30, 6), torch.randn(30, 6)
        distribution, reference = DiagGaussian(inputs, (3,)), _independent_normal(*inputs.chunk(2, -1))
        actions, tolerance = torch.randn(30, 3), {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(distribution.logp(actions), reference.log_prob(actions), **tolerance)
        torch.testing.assert_close(distribution.entropy(), reference.entropy())
        expected = distributions.kl_divergence(reference, _independent_normal(*other_inputs.chunk(2, -1)))
        torch.testing.assert_close(distribution.kl(DiagGaussian(other_inputs, (3,))), expected, **tolerance)

    def test_sample_is_reparameterised(self) -> None:
        inputs = torch.tensor([[1.0, 2.0, 0.5, -0.5]], requires_grad=True)
        sample = DiagGaussian(inputs, (2,)).sample(torch.tensor([[1.0, -2.0]]))
        expected = [[1.0 + math.exp(0.5), 2.0 - 2.0 * math.exp(-0.5)]]
        torch.testing.assert_close(sample.detach(), torch.tensor(expected))
        sample.sum().backward()
        assert inputs.grad is not None
        assert (inputs.grad != 0).all()

    def test_log_std_is_clipped(self) -> None:
        distribution = DiagGaussian(torch.tensor([[0.0, 50.0]]), (1,), log_std_range=(-2.0, 2.0))
        assert distribution.entropy().item() == pytest.approx(2.0 + 0.5 * math.log(2 * math.pi * math.e))

    def test_scalar_box_has_scalar_actions(self) -> None:
        distribution = DiagGaussian(torch.zeros(5, 2), ())
        assert distribution.mode().shape == (5,)
        assert distribution.logp(torch.zeros(5)).shape == (5,)

    def test_float64_actions_of_any_shape_are_accepted(self) -> None:
        distribution = DiagGaussian(torch.zeros(5, 12), (2, 3))
        assert distribution.logp(torch.zeros(5, 2, 3, dtype=torch.float64)).dtype == torch.float32
        assert distribution.sample(torch.randn(5, 6)).shape == (5, 2, 3)


class TestBoundedGaussian:
    def test_is_a_gaussian_around_a_mean_within_the_bounds(self) -> None:
        inputs = torch.randn(30, 4) * 3
        low, high = torch.tensor([-2.0, 0.0]), torch.tensor([4.0, 1.0])
        distribution = BoundedGaussian(inputs, (2,), low, high, log_std_range=(-5.0, 2.0))
        mean = torch.tensor([1.0, 0.5]) + torch.tensor([3.0, 0.5]) * torch.tanh(inputs[:, :2])
        reference = _independent_normal(mean, inputs[:, 2:].clamp(-5.0, 2.0))
        torch.testing.assert_close(distribution.mode(), mean)
        actions, noise = mean + torch.randn(30, 2), torch.randn(30, 2)
        expected = reference.log_prob(actions)
        torch.testing.assert_close(distribution.logp(actions), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(distribution.sample(noise), mean + reference.base_dist.stddev * noise)


class TestSquashedGaussian:
    def test_agrees_with_torch_within_the_bounds(self) -> None:
        mean, log_std = torch.randn(40, 2), torch.randn(40, 2) * 0.3
        reference = distributions.Independent(
            distributions.TransformedDistribution(
                distributions.Normal(mean, log_std.exp()),
                [distributions.TanhTransform(), distributions.AffineTransform(1.0, 3.0)],
            ),
            1,
        )
        actions = 1.0 + 3.0 * torch.tanh(torch.randn(40, 2))
        distribution = _make_squashed_gaussian(torch.cat([mean, log_std], -1), low=-2.0, high=4.0)
        expected = reference.log_prob(actions)
        torch.testing.assert_close(distribution.logp(actions), expected, rtol=1e-4, atol=1e-4)

    def test_the_density_integrates_to_one(self) -> None:
        grid = torch.linspace(-1.9999, 1.9999, 200_001)
        inputs = torch.tensor([0.4, -0.5]).expand(len(grid), 2)
        density = _make_squashed_gaussian(inputs, low=-2.0, high=2.0).logp(grid.unsqueeze(-1)).exp()
        assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-3)

    @pytest.mark.parametrize("action", [-1.0, 1.0, 1.0 - 1e-9, 1.5])
    def test_logp_at_and_beyond_a_bound_has_finite_gradients(self, action: float) -> None:
        inputs = torch.tensor([[0.3, -1.0]], requires_grad=True)
        logp = _make_squashed_gaussian(inputs).logp(torch.tensor([[action]]))
        logp.sum().backward()
        assert torch.isfinite(logp).all()
        assert inputs.grad is not None
        assert torch.isfinite(inputs.grad).all()

    def test_samples_stay_within_the_bounds(self) -> None:
        inputs = torch.tensor([[0.0, 3.0]]).expand(1000, 2)
        sample = _make_squashed_gaussian(inputs, low=-0.4, high=0.4).sample(torch.randn(1000, 1))
        assert sample.abs().max() <= 0.4

    @pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -2.0), (-0.7, 0.7)])
    def test_entropy_is_the_mean_of_minus_logp(self, mean: float, log_std: float) -> None:
        inputs = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(400_000, 2)
        distribution = _make_squashed_gaussian(inputs, high=3.0)
        logp = distribution.logp(distribution.sample(torch.randn(400_000, 1, dtype=torch.float64)))
        assert distribution.entropy()[0].item() == pytest.approx(-logp.mean().item(), abs=0.01)

    def test_mode_is_the_squashed_mean(self) -> None:
        mode = _make_squashed_gaussian(torch.tensor([[0.5, 0.0]])).mode()
        assert mode.item() == pytest.approx(math.tanh(0.5))


class TestDeterministic:
    def test_imitation_loss_is_the_squared_error_per_element(self) -> None:
        distribution = Deterministic(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), (2,))
        assert distribution.imitation_loss(torch.tensor([[0.0, 0.0], [0.0, 2.0]])).tolist() == [2.5, 2.0]

    def test_has_no_log_probability(self) -> None:
        distribution = Deterministic(torch.zeros(1, 2), (2,))
        with pytest.raises(SpecError, match="use 'Gaussian'"):
            distribution.logp(torch.zeros(1, 2))

    def test_samples_its_mode_without_noise(self) -> None:
        distribution = Deterministic(torch.tensor([[1.0, 2.0]]), (2,))
        assert torch.equal(distribution.sample(torch.zeros(1, 0)), distribution.mode())


class TestProduct:
    @staticmethod
    def _make_product(inputs: Tensor) -> Product:
        leaf_distributions = {
            "actions/a": Categorical(inputs[:, :3], start=2),
            "actions/b": DiagGaussian(inputs[:, 3:], (2,)),
        }
        columns = {"actions/a": slice(0, 1), "actions/b": slice(1, 3)}
        return Product(leaf_distributions, columns, frozenset({"actions/a"}))

    def test_logp_entropy_and_kl_of_product_are_sums_over_leaves(self) -> None:
        inputs = torch.randn(6, 7)
        product = self._make_product(inputs)
        actions = {"actions/a": torch.randint(2, 5, (6,)), "actions/b": torch.randn(6, 2)}
        discrete, continuous = Categorical(inputs[:, :3], start=2), DiagGaussian(inputs[:, 3:], (2,))
        expected = discrete.logp(actions["actions/a"]) + continuous.logp(actions["actions/b"])
        torch.testing.assert_close(product.logp(actions), expected)
        torch.testing.assert_close(product.imitation_loss(actions), -expected)
        torch.testing.assert_close(product.entropy(), discrete.entropy() + continuous.entropy())
        other_inputs = torch.randn(6, 7)
        other_continuous = DiagGaussian(other_inputs[:, 3:], (2,))
        expected = discrete.kl(Categorical(other_inputs[:, :3])) + continuous.kl(other_continuous)
        torch.testing.assert_close(product.kl(self._make_product(other_inputs)), expected)

    def test_normal_noise_becomes_uniform_for_discrete_leaves(self) -> None:
        logits = torch.tensor([0.2, 0.3, 0.5]).log()
        inputs = torch.cat([logits, torch.zeros(4)]).expand(20_000, 7)
        noise = torch.from_numpy(np.random.default_rng(0).standard_normal((20_000, 3), dtype=np.float32))
        sample = self._make_product(inputs).sample(noise)
        shares = torch.bincount(sample["actions/a"] - 2, minlength=3) / 20_000
        torch.testing.assert_close(shares, torch.tensor([0.2, 0.3, 0.5]), atol=0.015, rtol=0.0)
        torch.testing.assert_close(sample["actions/b"], noise[:, 1:])

    def test_samples_at_the_ends_of_the_noise_are_valid(self) -> None:
        noise = torch.tensor([[-9.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
        assert self._make_product(torch.zeros(2, 7)).sample(noise)["actions/a"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("factory", "inputs_size", "noise_size"),
    [
        (Categorical, 5, 1),
        (lambda x: _make_multi_categorical(x, (2, 3)), 5, 2),
        (lambda x: Bernoulli(x, (4,)), 4, 4),
        (lambda x: DiagGaussian(x, (3,)), 6, 3),
        (_make_squashed_gaussian, 6, 3),
    ],
)
def test_sample_of_a_row_depends_only_on_its_own_noise(factory, inputs_size: int, noise_size: int) -> None:  # type: ignore[no-untyped-def]
    inputs, noise = torch.randn(8, inputs_size), torch.rand(8, noise_size)
    other_noise = torch.rand(8, noise_size)
    other_noise[3] = noise[3]
    assert torch.equal(factory(inputs).sample(noise)[3], factory(inputs).sample(other_noise)[3])


@pytest.mark.parametrize(
    "factory", [Categorical, lambda x: DiagGaussian(x, (3,)), lambda x: _make_multi_categorical(x, (2, 4))]
)
def test_any_leading_dimensions_are_accepted(factory) -> None:  # type: ignore[no-untyped-def]
    inputs = torch.randn(4, 5, 6)
    distribution, flat_distribution = factory(inputs), factory(inputs.reshape(20, 6))
    assert distribution.entropy().shape == (4, 5)
    torch.testing.assert_close(
        distribution.logp(distribution.mode()).reshape(20), flat_distribution.logp(flat_distribution.mode())
    )
