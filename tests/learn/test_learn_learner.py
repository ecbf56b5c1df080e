import copy
import threading

import pytest
import torch
from learn_toys import ActorCritic, Regression, ToyOptions, make_batch, make_networks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hindcast.errors import DataError, UserCodeError
from hindcast.learn.algorithm import Losses, Step
from hindcast.learn.group import Group
from hindcast.learn.learner import Learner, LearnerState
from hindcast.learn.metrics import Metrics, MetricSums
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.pipeline.rng import seeded_generators
from hindcast.pipeline.shard import Shard


def make_learner(algorithm_class=Regression, seed=0, **options):
    algorithm = algorithm_class(ToyOptions(**options))
    return Learner(algorithm, make_networks(algorithm, seed), seed=seed)


def test_update_equals_a_torch_step():
    learner = make_learner(lr=0.05)
    nets = copy.deepcopy(learner.nets)
    adam = torch.optim.Adam(nets.parameters(), lr=0.05, fused=True)
    for index in range(5):
        learner.update(make_batch(index))
        loss = (nets["policy"](make_batch(index)["obs"]).squeeze(-1) - make_batch(index)["y"]).square().mean()
        loss.backward()
        adam.step()
        adam.zero_grad()
    assert torch.equal(learner.nets["policy"].weight, nets["policy"].weight)


def test_learner_fits_a_regression():
    learner = make_learner()
    for index in range(300):
        learner.update(make_batch(index))
    learner.metrics()  # so that the loss below is that of the last update only
    learner.update(make_batch(300))
    assert learner.metrics()["total_loss"] < 1e-3


def test_update_that_draws_waits_for_code_of_the_pipeline_that_draws():
    """Otherwise both would depend on which thread draws first."""

    class NoisyRegression(Regression):
        def losses(self, nets, batch, step):
            draws.append(torch.rand(()).item())
            return super().losses(nets, batch, step)

    draws, learner = [], make_learner(NoisyRegression)
    torch.manual_seed(3)
    expected = torch.rand(3).tolist()
    torch.manual_seed(3)
    draws.append(torch.rand(()).item())
    with seeded_generators(0, "pre-learner"):
        update = threading.Thread(target=learner.update, args=(make_batch(0),))
        update.start()
        update.join(0.1)
        own_draws = torch.rand(2).tolist()
    update.join()
    assert draws == expected[:2]
    with seeded_generators(0, "pre-learner"):
        assert torch.rand(2).tolist() == own_draws


def test_update_counts_updates_and_timesteps():
    learner = make_learner()
    learner.update(make_batch(0, size=32))
    learner.update(make_batch(1, size=16))
    assert (learner.updates, learner.timesteps) == (2, 48)


def test_metrics_are_means_since_the_last_call():
    learner, single_update_learner = make_learner(lr=0.0), make_learner(lr=0.0)
    losses = []
    for index in range(4):
        learner.update(make_batch(index))
        single_update_learner.update(make_batch(index))
        losses.append(single_update_learner.metrics()["total_loss"])
    assert learner.metrics()["total_loss"] == pytest.approx(sum(losses) / 4)
    learner.update(make_batch(3))
    assert learner.metrics()["total_loss"] == pytest.approx(losses[3])
    assert learner.metrics().keys() == {"learning_rate"}


def test_metrics_include_loss_gradient_norm_and_learning_rate():
    learner = make_learner()
    learner.update(make_batch(0))
    assert learner.metrics().keys() == {"total_loss", "error", "gradient_norm", "learning_rate"}


def test_metrics_of_some_updates_are_means_over_those_updates():
    class LogsRareMetric(Regression):
        def losses(self, nets, batch, step):
            losses = super().losses(nets, batch, step)
            metrics = {} if step.updates % 2 else {"rare": torch.tensor(4.0 + step.updates)}
            return Losses(losses.losses, metrics)

    learner = make_learner(LogsRareMetric)
    for index in range(4):
        learner.update(make_batch(index))
    assert learner.metrics()["rare"] == 5.0


def test_metrics_weighted_by_tensor_are_added_without_reading_it():
    """A meta tensor has no value to read."""
    value, weight = torch.ones(1, device="meta"), torch.ones((), device="meta")
    MetricSums(value.device).add(Metrics(("loss",), value), update=1, weight=weight)


def test_learning_rate_follows_trained_timesteps():
    learner = make_learner(lr=[[0, 0.1], [64, 0.0]])
    rates = []
    for index in range(3):
        learner.update(make_batch(index, size=32))
        rates.append(learner.metrics()["learning_rate"])
    assert rates == pytest.approx([0.1, 0.05, 0.0])


def test_each_optimiser_gets_gradients_of_its_own_loss_only():
    """Both losses share a graph, but each gradient norm equals that of a separate backward pass."""
    learner = make_learner(ActorCritic)
    nets_before = copy.deepcopy(learner.nets)
    step = Step(updates=0, timesteps=0, generator=learner.generator.clone_state())
    rng_state = torch.get_rng_state()
    learner.update(make_batch(0))
    torch.set_rng_state(rng_state)
    losses = learner.algorithm.losses(nets_before, make_batch(0), step).losses
    metrics = learner.metrics()
    for name, net in (("actor", "policy"), ("critic", "critic")):
        gradients = torch.autograd.grad(losses[name], list(nets_before[net].parameters()), retain_graph=True)
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        assert metrics[f"gradient_norm/{name}"] == pytest.approx(float(norm), rel=1e-5)


def test_target_network_moves_after_every_update():
    learner = make_learner(ActorCritic)
    initial_weight = learner.nets["target"].weight.clone()
    for index in range(3):
        weight_before = learner.nets["target"].weight.clone()
        learner.update(make_batch(index))
        expected = weight_before + 0.005 * (learner.nets["critic"].weight - weight_before)
        torch.testing.assert_close(learner.nets["target"].weight, expected)
    assert not torch.equal(initial_weight, learner.nets["target"].weight)


def test_later_loss_stage_sees_the_weights_moved_by_the_earlier_stage():
    class TwoStages(Regression):
        def optimisers(self, nets):
            return {
                "weight": OptimiserSpec([nets["policy"].weight], 0.1),
                "bias": OptimiserSpec([nets["policy"].bias], 0.1),
            }

        def losses(self, nets, batch, step):
            weights.append(nets["policy"].weight.detach().clone())
            yield Losses({"weight": super().losses(nets, batch, step).losses["policy"]})
            weights.append(nets["policy"].weight.detach().clone())
            yield Losses({"bias": super().losses(nets, batch, step).losses["policy"]})

    weights = []
    make_learner(TwoStages).update(make_batch(0))
    assert len(weights) == 2 and not torch.equal(weights[0], weights[1])


def test_optimiser_without_loss_does_not_step():
    class DelayedActor(ActorCritic):
        def losses(self, nets, batch, step):
            losses = super().losses(nets, batch, step)
            return losses if step.updates % 2 else Losses({"critic": losses.losses["critic"]})

    learner = make_learner(DelayedActor)
    state_before = copy.deepcopy(learner.nets["policy"].state_dict())
    learner.update(make_batch(0))
    assert is_same_state(learner.nets["policy"].state_dict(), state_before)
    learner.update(make_batch(1))
    assert not is_same_state(learner.nets["policy"].state_dict(), state_before)


class LeaderOfTwo(Group):
    """The leader of two learners; every sum over both is 7."""

    shard = Shard(0, 2)

    def all_reduce(self, tensors, weight=1.0):
        for tensor in tensors:
            tensor.fill_(7.0)


@pytest.mark.parametrize("is_assigned", [True, False])
def test_changed_buffers_are_averaged_over_learners(is_assigned):
    class ChangesBuffer(Regression):
        def networks(self, inputs):
            nets = super().networks(inputs)
            for name in ("changed", "unchanged"):
                nets["policy"].register_buffer(name, torch.zeros(()))
            return nets

        def losses(self, nets, batch, step):
            if is_assigned:
                nets["policy"].changed = batch["y"].mean()
            else:
                nets["policy"].changed.lerp_(batch["y"].mean(), 0.1)
            return super().losses(nets, batch, step)

    algorithm = ChangesBuffer(ToyOptions())
    learner = Learner(algorithm, make_networks(algorithm), group=LeaderOfTwo())
    learner.update(make_batch(0), 64)
    policy = learner.nets["policy"]
    assert (policy.changed, policy.unchanged) == (7.0, 0.0)


def test_target_networks_stay_in_evaluation_mode():
    """Dropout in a target network would make targets noisy."""
    learner = make_learner(ActorCritic)
    modes = {name: {module.training for module in net.modules()} for name, net in learner.nets.items()}
    assert modes == {"policy": {True}, "critic": {True}, "target": {False}, "dropout": {True}}


def test_optimisers_that_share_parameters_are_refused():
    class SharedParameters(Regression):
        def optimisers(self, nets):
            return {name: OptimiserSpec(list(nets.parameters()), 0.1) for name in ("one", "two")}

    with pytest.raises(UserCodeError, match=r"'one' and 'two' the same parameter"):
        make_learner(SharedParameters)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("collect", ["metrics", "state"])
def test_non_finite_loss_is_reported_with_its_update(value, collect):
    learner = make_learner()
    for index in range(3):
        learner.update(make_batch(index))
    learner.metrics()  # so that the message is about later updates only
    learner.update(make_batch(3))
    learner.update({**make_batch(4), "y": torch.full((32,), value)})
    with pytest.raises(DataError, match=r"became .* in update 5 in algorithm Regression at .*: lower lr"):
        getattr(learner, collect)()


def test_weights_after_training_follow_from_the_seed():
    def train(seed):
        learner = make_learner(ActorCritic, seed=seed)
        for index in range(3):
            learner.update(make_batch(index))
        return learner.nets["critic"].weight

    assert torch.equal(train(3), train(3))
    assert not torch.equal(train(3), train(4))


def test_loss_noise_differs_from_the_draws_of_the_initial_weights():
    class RandomWeights(Regression):
        def networks(self, inputs):
            weight, policy = torch.rand(1, 3), nn.Linear(3, 1)
            policy.weight = nn.Parameter(weight)
            return nn.ModuleDict({"policy": policy})

    learner = make_learner(RandomWeights, seed=3)
    assert not torch.equal(torch.rand(1, 3, generator=learner.generator), learner.nets["policy"].weight)


def test_learner_state_is_a_copy():
    learner = make_learner()
    learner.update(make_batch(0))
    state = learner.state()
    tensors_before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    learner.update(make_batch(1))
    assert is_same_state(state.tensors, tensors_before)


def test_loaded_state_is_not_changed_by_later_updates():
    first, second = make_learner(), make_learner(seed=1)
    first.update(make_batch(0))
    state = first.state()
    second.load(state)
    second.update(make_batch(1))
    first.load(state)
    first.update(make_batch(1))
    assert torch.equal(first.nets["policy"].weight, second.nets["policy"].weight)


def test_state_with_missing_other_or_unknown_weights_is_named_in_the_error():
    learner, other_learner = make_learner(), make_learner(ActorCritic)
    with pytest.raises(DataError, match=r"no weights 'policy\.weight'"):
        learner.load(other_learner.state())

    class WideNetwork(Regression):
        def networks(self, inputs):
            return nn.ModuleDict({"policy": nn.Linear(3, 2)})

    with pytest.raises(DataError, match=r"'policy.weight' have shape \[2, 3\], but this model's .* \[1, 3\]"):
        learner.load(make_learner(WideNetwork).state())

    class ExtraNetwork(Regression):
        def networks(self, inputs):
            return nn.ModuleDict({"policy": nn.Linear(3, 1), "extra": nn.Linear(1, 1)})

    with pytest.raises(DataError, match="but this model does not have"):
        learner.load(make_learner(ExtraNetwork).state())


def test_state_of_other_optimisers_is_refused():
    learner = make_learner()
    state = learner.state()
    groups = {"renamed": state.meta["paramGroups"]["policy"]}
    with pytest.raises(DataError, match=r"optimisers \['renamed'\], but this algorithm has \['policy'\]"):
        learner.load(LearnerState(state.tensors, {**state.meta, "paramGroups": groups}))


def test_new_networks_follow_from_the_seed():
    algorithm = Regression(ToyOptions())
    first, repeated, other_seed = (make_networks(algorithm, seed)["policy"].weight for seed in (5, 5, 6))
    assert torch.equal(first, repeated) and not torch.equal(first, other_seed)


def test_loaded_state_continues_the_metrics_since_the_last_call():
    first, second = make_learner(), make_learner(seed=1)
    first.update(make_batch(0))
    second.load(first.state())
    for learner in (first, second):
        learner.update(make_batch(1))
    assert first.metrics() == second.metrics()


class SeparateLosses(Regression):
    """Two networks with losses that share only the batch."""

    joint = False

    def networks(self, inputs):
        return nn.ModuleDict({"policy": nn.Linear(3, 1), "other": nn.Linear(3, 1)})

    def optimisers(self, nets):
        return {
            "policy": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr),
            "other": OptimiserSpec(list(nets["other"].parameters()), 0.01, "sgd", {"momentum": 0.9}),
        }

    def losses(self, nets, batch, step):
        errors = {name: (net(batch["obs"]).squeeze(-1) - batch["y"]).square() for name, net in nets.items()}
        return Losses({name: error.mean() for name, error in errors.items()}, joint=self.joint)


class JointLosses(SeparateLosses):
    joint = True


def test_joint_pass_equals_separate_passes():
    joint_learner, separate_learner = make_learner(JointLosses), make_learner(SeparateLosses)
    for index in range(5):
        joint_learner.update(make_batch(index))
        separate_learner.update(make_batch(index))
    assert is_same_state(joint_learner.state().tensors, separate_learner.state().tensors)


def test_joint_losses_that_share_parameters_are_refused():
    class OverlappingLosses(JointLosses):
        def losses(self, nets, batch, step):
            losses = super().losses(nets, batch, step).losses
            return Losses({**losses, "other": losses["other"] + losses["policy"]}, joint=True)

    with pytest.raises(UserCodeError, match=r"'other' that reaches parameters of 'policy', .* drop joint"):
        make_learner(OverlappingLosses).update(make_batch(0))


class OperationRecorder(TorchDispatchMode):
    """Records operations with their Python numbers; fails if a tensor's value is read, which would wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert "local_scalar" not in str(function), "an update waits for the device"
        arguments = (*args, *(kwargs or {}).values())
        numbers = [argument for argument in arguments if isinstance(argument, int | float)]
        self.operations.append((str(function), numbers))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("algorithm_class", [Regression, ActorCritic, JointLosses])
def test_updates_repeat_the_same_operations_without_waiting_for_the_device(algorithm_class):
    """CUDA graphs can capture such updates: only tensors change between them."""
    learner = make_learner(algorithm_class, lr=[[0, 0.1], [64, 0.05, "cosine"], [640, 0.0]], grad_clip=0.5)
    compute_update, recordings = learner._compute_update, []

    def record_update(*arguments):
        with OperationRecorder() as operations:
            result = compute_update(*arguments)
        recordings.append(operations.operations)
        return result

    learner._compute_update = record_update
    for index in range(4):
        learner.update(make_batch(index))
    assert recordings[1] == recordings[2] == recordings[3] != []


def test_clock_equals_trained_timesteps_after_load():
    class ClockedLoss(Regression):
        def losses(self, nets, batch, step):
            assert step.clock == step.timesteps
            clocks.append(float(step.clock))
            return super().losses(nets, batch, step)

    clocks = []
    learner, restored_learner = make_learner(ClockedLoss), make_learner(ClockedLoss)
    learner.update(make_batch(0, size=32))
    learner.update(make_batch(1, size=16))
    restored_learner.load(learner.state())
    restored_learner.update(make_batch(2))
    assert clocks == [0.0, 32.0, 48.0]


def is_same_state(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
