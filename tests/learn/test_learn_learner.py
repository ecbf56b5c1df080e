import copy

import pytest
import torch
from learn_toys import INPUTS, ActorCritic, Regression, ToyOptions, batch, networks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hindcast.errors import DataError, UserCodeError
from hindcast.learn.algorithm import Losses, Step, new_networks
from hindcast.learn.group import Group
from hindcast.learn.learner import Learner, LearnerState
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.pipeline.shard import Shard


def learner(kind=Regression, seed=0, **options):
    algorithm = kind(ToyOptions(**options))
    return Learner(algorithm, networks(algorithm, seed), seed=seed)


def test_an_update_is_what_torch_does_by_hand():
    ours = learner(lr=0.05)
    nets = copy.deepcopy(ours.nets)
    adam = torch.optim.Adam(nets.parameters(), lr=0.05, fused=True)
    for number in range(5):
        ours.update(batch(number))
        loss = (nets["policy"](batch(number)["obs"]).squeeze(-1) - batch(number)["y"]).square().mean()
        loss.backward()
        adam.step()
        adam.zero_grad()
    assert torch.equal(ours.nets["policy"].weight, nets["policy"].weight)


def test_it_learns():
    ours = learner()
    for number in range(300):
        ours.update(batch(number))
    ours.metrics()
    ours.update(batch(300))
    assert ours.metrics()["total_loss"] < 1e-3


def test_counters():
    ours = learner()
    ours.update(batch(0, size=32))
    ours.update(batch(1, size=16))
    assert (ours.updates, ours.timesteps) == (2, 48)


def test_metrics_are_means_over_the_updates_since_the_last_call():
    ours, twin = learner(lr=0.0), learner(lr=0.0)
    losses = []
    for number in range(4):
        ours.update(batch(number))
        twin.update(batch(number))
        losses.append(twin.metrics()["total_loss"])
    assert ours.metrics()["total_loss"] == pytest.approx(sum(losses) / 4)
    ours.update(batch(3))
    assert ours.metrics()["total_loss"] == pytest.approx(losses[3])
    assert ours.metrics().keys() == {"learning_rate"}


def test_metrics_have_loss_error_norm_and_rate():
    ours = learner()
    ours.update(batch(0))
    assert ours.metrics().keys() == {"total_loss", "error", "gradient_norm", "learning_rate"}


def test_metrics_that_only_some_updates_have_are_means_over_those():
    class Sometimes(Regression):
        def losses(self, nets, batch, step):
            found = super().losses(nets, batch, step)
            return (
                found
                if step.updates % 2
                else Losses(found.losses, {"rare": torch.tensor(4.0 + step.updates)})
            )

    ours = learner(Sometimes)
    for number in range(4):
        ours.update(batch(number))
    assert ours.metrics()["rare"] == 5.0


def test_the_schedule_follows_trained_timesteps():
    ours = learner(lr=[[0, 0.1], [64, 0.0]])
    rates = []
    for number in range(3):
        ours.update(batch(number, size=32))
        rates.append(ours.metrics()["learning_rate"])
    assert rates == pytest.approx([0.1, 0.05, 0.0])


def test_each_optimiser_gets_the_gradients_of_its_own_loss():
    """Both losses share a graph; the norms are those of separate backward passes."""
    ours = learner(ActorCritic)
    before = copy.deepcopy(ours.nets)
    step = Step(0, 0, ours.generator.clone_state())
    state = torch.get_rng_state()
    ours.update(batch(0))
    torch.set_rng_state(state)
    losses = ours.algorithm.losses(before, batch(0), step).losses
    metrics = ours.metrics()
    for name, net in (("actor", "policy"), ("critic", "critic")):
        gradients = torch.autograd.grad(losses[name], list(before[net].parameters()), retain_graph=True)
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        assert metrics[f"gradient_norm/{name}"] == pytest.approx(float(norm), rel=1e-5)


def test_targets_move_after_every_update():
    ours = learner(ActorCritic)
    target = ours.nets["target"].weight.clone()
    for number in range(3):
        before = ours.nets["target"].weight.clone()
        ours.update(batch(number))
        expected = before + 0.005 * (ours.nets["critic"].weight - before)
        torch.testing.assert_close(ours.nets["target"].weight, expected)
    assert not torch.equal(target, ours.nets["target"].weight)


def test_a_generator_of_losses_sees_the_weights_that_its_earlier_stage_moved():
    class Staged(Regression):
        def optimisers(self, nets):
            return {
                "weight": OptimiserSpec([nets["policy"].weight], 0.1),
                "bias": OptimiserSpec([nets["policy"].bias], 0.1),
            }

        def losses(self, nets, batch, step):
            seen.append(nets["policy"].weight.detach().clone())
            yield Losses({"weight": super().losses(nets, batch, step).losses["policy"]})
            seen.append(nets["policy"].weight.detach().clone())
            yield Losses({"bias": super().losses(nets, batch, step).losses["policy"]})

    seen = []
    learner(Staged).update(batch(0))
    assert len(seen) == 2 and not torch.equal(seen[0], seen[1])


def test_an_optimiser_that_is_not_named_rests():
    class Delayed(ActorCritic):
        def losses(self, nets, batch, step):
            found = super().losses(nets, batch, step)
            return found if step.updates % 2 else Losses({"critic": found.losses["critic"]})

    ours = learner(Delayed)
    before = copy.deepcopy(ours.nets["policy"].state_dict())
    ours.update(batch(0))
    assert all(torch.equal(before[name], value) for name, value in ours.nets["policy"].state_dict().items())
    ours.update(batch(1))
    assert any(
        not torch.equal(before[name], value) for name, value in ours.nets["policy"].state_dict().items()
    )


class Peer(Group):
    """The first of two learners; the other one's part of every sum makes it 7."""

    shard = Shard(0, 2)

    def weighted_sum(self, tensors, weight=1.0):
        for tensor in tensors:
            tensor.fill_(7.0)


@pytest.mark.parametrize("assigned", [True, False])
def test_a_buffer_that_an_update_changed_is_averaged(assigned):
    class Moving(Regression):
        def networks(self, inputs):
            nets = super().networks(inputs)
            for name in ("moved", "rested"):
                nets["policy"].register_buffer(name, torch.zeros(()))
            return nets

        def losses(self, nets, batch, step):
            if assigned:
                nets["policy"].moved = batch["y"].mean()
            else:
                nets["policy"].moved.lerp_(batch["y"].mean(), 0.1)
            return super().losses(nets, batch, step)

    ours = Learner(Moving(ToyOptions()), networks(Moving(ToyOptions())), group=Peer())
    ours.update(batch(0), 64)
    policy = ours.nets["policy"]
    assert (policy.moved, policy.rested) == (7.0, 0.0)


def test_targets_stay_in_evaluation_mode():
    """Dropout in a target would make it noise."""
    ours = learner(ActorCritic)
    modes = {name: {module.training for module in net.modules()} for name, net in ours.nets.items()}
    assert modes == {"policy": {True}, "critic": {True}, "target": {False}, "dropout": {True}}


def test_two_optimisers_may_not_share_parameters():
    class Shared(Regression):
        def optimisers(self, nets):
            return {name: OptimiserSpec(list(nets.parameters()), 0.1) for name in ("one", "two")}

    with pytest.raises(UserCodeError, match=r"'one' and 'two' a parameter that they share"):
        learner(Shared)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("collect", ["metrics", "state"])
def test_a_loss_that_is_not_finite_is_found_with_the_update(value, collect):
    ours = learner()
    for number in range(3):
        ours.update(batch(number))
    ours.metrics()
    ours.update(batch(3))
    ours.update({**batch(4), "y": torch.full((32,), value)})
    with pytest.raises(DataError, match=r"became .* in update 5 in algorithm Regression at .*: lower lr"):
        getattr(ours, collect)()


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    def trained(seed):
        ours = learner(ActorCritic, seed=seed)
        for number in range(3):
            ours.update(batch(number))
        return ours.nets["critic"].weight

    assert torch.equal(trained(3), trained(3))
    assert not torch.equal(trained(3), trained(4))


def test_the_noise_of_losses_is_not_the_numbers_that_the_weights_were_drawn_from():
    class Drawn(Regression):
        def networks(self, inputs):
            weight, policy = torch.rand(1, 3), nn.Linear(3, 1)
            policy.weight = nn.Parameter(weight)
            return nn.ModuleDict({"policy": policy})

    ours = learner(Drawn, seed=3)
    assert not torch.equal(torch.rand(1, 3, generator=ours.generator), ours.nets["policy"].weight)


def test_a_state_is_a_copy():
    ours = learner()
    ours.update(batch(0))
    state = ours.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    ours.update(batch(1))
    assert all(torch.equal(before[name], tensor) for name, tensor in state.tensors.items())


def test_loading_does_not_tie_the_learner_to_the_state():
    first, second = learner(), learner(seed=1)
    first.update(batch(0))
    state = first.state()
    second.load(state)
    second.update(batch(1))
    first.load(state)
    first.update(batch(1))
    assert torch.equal(first.nets["policy"].weight, second.nets["policy"].weight)


def test_a_state_of_other_networks_is_refused_by_name():
    ours, other = learner(), learner(ActorCritic)
    with pytest.raises(DataError, match=r"no weights 'policy\.weight'"):
        ours.load(other.state())

    class Wide(Regression):
        def networks(self, inputs):
            return nn.ModuleDict({"policy": nn.Linear(3, 2)})

    with pytest.raises(DataError, match=r"'policy.weight' are \[2, 3\], this model's are \[1, 3\]"):
        ours.load(learner(Wide).state())

    class More(Regression):
        def networks(self, inputs):
            return nn.ModuleDict({"policy": nn.Linear(3, 1), "extra": nn.Linear(1, 1)})

    with pytest.raises(DataError, match="which this model does not have"):
        ours.load(learner(More).state())


def test_a_state_of_other_optimisers_is_refused():
    ours = learner()
    state = ours.state()
    groups = {"renamed": state.meta["paramGroups"]["policy"]}
    with pytest.raises(DataError, match=r"optimisers \['renamed'\], this algorithm has \['policy'\]"):
        ours.load(LearnerState(state.tensors, {**state.meta, "paramGroups": groups}))


def test_new_networks_follow_from_the_seed():
    algorithm = Regression(ToyOptions())
    first, again, other = (new_networks(algorithm, INPUTS, seed)["policy"].weight for seed in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_state_taken_within_an_iteration_brings_its_metrics_so_far():
    first, second = learner(), learner(seed=1)
    first.update(batch(0))
    second.load(first.state())
    for ours in (first, second):
        ours.update(batch(1))
    assert first.metrics() == second.metrics()


class Separate(Regression):
    """Two networks, whose losses share nothing but the batch."""

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


class Joint(Separate):
    joint = True


def test_a_joint_pass_gives_the_gradients_of_separate_ones():
    ours, theirs = learner(Joint), learner(Separate)
    for number in range(5):
        ours.update(batch(number))
        theirs.update(batch(number))
    assert same(ours.state().tensors, theirs.state().tensors)


def test_losses_that_share_parameters_have_no_joint_pass():
    class Mixed(Joint):
        def losses(self, nets, batch, step):
            found = super().losses(nets, batch, step).losses
            return Losses({**found, "other": found["other"] + found["policy"]}, joint=True)

    with pytest.raises(
        UserCodeError, match=r"'other' that reaches parameters of 'policy', so that .* drop joint"
    ):
        learner(Mixed).update(batch(0))


class Seen(TorchDispatchMode):
    """Operations with their numbers; asking a tensor for its value is none that a GPU could run ahead of."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert "local_scalar" not in str(function), "an update waits for the device"
        numbers = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, int | float)]
        self.operations.append((str(function), numbers))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Regression, ActorCritic, Joint])
def test_updates_are_the_same_operations_with_the_same_numbers_and_wait_for_nothing(kind):
    """So that they can be captured in a graph: what changes from one to the next are tensors."""
    ours = learner(kind, lr=[[0, 0.1], [64, 0.05, "cosine"], [640, 0.0]], grad_clip=0.5)
    move, recorded = ours._moved, []

    def moved(*arguments):
        with Seen() as seen:
            found = move(*arguments)
        recorded.append(seen.operations)
        return found

    ours._moved = moved
    for number in range(4):
        ours.update(batch(number))
    assert recorded[1] == recorded[2] == recorded[3] != []


def test_the_clock_of_losses_is_the_timesteps_trained_also_after_loading():
    class Clocked(Regression):
        def losses(self, nets, batch, step):
            assert step.clock == step.timesteps
            clocks.append(float(step.clock))
            return super().losses(nets, batch, step)

    clocks = []
    ours, other = learner(Clocked), learner(Clocked)
    ours.update(batch(0, size=32))
    ours.update(batch(1, size=16))
    other.load(ours.state())
    other.update(batch(2))
    assert clocks == [0.0, 32.0, 48.0]


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
