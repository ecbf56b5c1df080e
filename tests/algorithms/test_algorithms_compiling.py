"""Losses compiled by torch.compile as one graph, mostly with a backend that needs no C++ compiler."""

import shutil

import pytest
import torch
from algorithm_kit import WIDE, build_algorithm, make_transitions
from gymnasium.spaces import Discrete

from hindcast.algorithms import REGISTRY
from hindcast.algorithms.bc import BC
from hindcast.errors import SpecError
from hindcast.learn.compiling import compile_losses
from hindcast.learn.learner import Learner
from support import trainable_space
from user_errors import raises_user_error

CHOICES = Discrete(3, start=1)
OPTIONS = {"DQN": {"numQuantiles": 3}, "CQL": {"numActions": 3, "bcIters": 10, "lagrangian": True}}
CASES = {
    name: (name, OPTIONS.get(name, {}), trainable_space(name, WIDE, CHOICES))
    for name, algorithm_class in REGISTRY.items()
    if algorithm_class.compiled_methods
}


@pytest.fixture(autouse=True)
def _reset_dynamo(request):
    """Forget compiled functions. Tests without the mark `slow` compile none, and need not import the compiler."""
    if request.node.get_closest_marker("slow") is None:
        yield
        return
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make_learner(name, backend=None):
    algorithm, nets = build_algorithm(*CASES[name])
    if backend is not None:
        compile_losses(algorithm, backend)
    return Learner(algorithm, nets)


def train_on_seeds(learner, seeds, space):
    for seed in seeds:
        batch = make_transitions(space, seed=seed)
        learner.update(batch)
    return learner.state().tensors


def assert_close(actual, expected, **tolerance):
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        with_name = lambda text, name=name: f"{name}: {text}"  # noqa: E731
        torch.testing.assert_close(tensor, expected[name], msg=with_name, **tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_compiled_losses_equal_eager_losses(name):
    space = CASES[name][2]
    eager_weights = train_on_seeds(make_learner(name), range(30), space)
    compiled_weights = train_on_seeds(make_learner(name, "aot_eager"), range(30), space)
    assert_close(compiled_weights, eager_weights, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductor_equals_eager():
    eager_weights = train_on_seeds(make_learner("DQN"), range(30), CHOICES)
    compiled_weights, repeated_weights = (
        train_on_seeds(make_learner("DQN", "inductor"), range(30), CHOICES) for _ in range(2)
    )
    assert_close(compiled_weights, eager_weights, rtol=1e-3, atol=1e-5)
    assert_close(repeated_weights, compiled_weights, rtol=0, atol=0)


def test_algorithm_without_compiled_methods_is_refused():
    algorithm, _ = build_algorithm("FQL")
    with raises_user_error(SpecError, "does not support the losses of FQL", field="spec.learners.compile"):
        compile_losses(algorithm)


def test_missing_compiler_is_reported(monkeypatch):
    algorithm, _ = build_algorithm("BC")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SpecError, match="needs a C\\+\\+ compiler, and none is installed here"):
        compile_losses(algorithm)


class NoisyBC(BC):
    def losses(self, nets, batch, step):
        noise = torch.randn(32, 3, generator=step.generator)
        return super().losses(nets, {**batch, "obs": batch["obs"] + noise}, step)


class CountingBC(BC):
    def losses(self, nets, batch, step):
        nets["policy"].encoder.seen += 1
        return super().losses(nets, batch, step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm_class", "problem"),
    [
        (NoisyBC, r"torch.compile cannot compile NoisyBC.losses: .+; leave it at false"),
        (CountingBC, r"CountingBC.losses changes the buffer 'policy.encoder.seen'"),
    ],
)
def test_losses_that_are_not_one_graph_are_refused(algorithm_class, problem):
    algorithm, nets = algorithm_class(BC.Options()), build_algorithm("BC")[1]
    nets["policy"].encoder.register_buffer("seen", torch.zeros(()))
    compile_losses(algorithm, "aot_eager")
    with pytest.raises(SpecError, match=problem):
        Learner(algorithm, nets).update(make_transitions())
