from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from hindcast.api.model import ModelSpec
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import space_struct
from hindcast.errors import SpecError
from hindcast.models.action_head import build_action_head

AUTO = ModelSpec()
SPACES = [
    Discrete(4),
    Discrete(3, start=-1),
    MultiDiscrete([2, 3]),
    MultiDiscrete([[2, 3], [4, 2]]),
    MultiBinary(5),
    MultiBinary((2, 2)),
    Box(-1.0, 1.0, (3,)),
    Box(-1.0, 1.0, ()),
    Box(-2, 5, (2, 2), dtype=np.int64),
    Dict(a=Discrete(2), b=Dict(c=Box(-1.0, 1.0, (2,)), d=MultiBinary(2))),
    Tuple((Discrete(2, start=1), MultiDiscrete([3, 3]))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_sampled_and_greedy_actions_lie_in_the_space(space: Space) -> None:
    torch.manual_seed(0)
    # Samples of an unsquashed Gaussian may lie outside the bounds.
    model = ModelSpec(distribution="squashedGaussian") if "Box(-1" in str(space) else AUTO
    head = build_action_head(space, model)
    distribution = head.from_inputs(torch.randn(16, head.inputs_size))
    for actions in (distribution.sample(torch.rand(16, head.noise_size)), distribution.mode()):
        leaves = {"actions": actions} if isinstance(actions, torch.Tensor) else actions
        assert torch.isfinite(distribution.logp(actions)).all()
        for row in range(16):
            action_leaves = {leaf: rows[row].numpy() for leaf, rows in leaves.items()}
            action = unflatten(action_leaves, "actions", space_struct(space))
            assert space.contains(_cast_to_space(action, space))


def _cast_to_space(value, space: Space):  # type: ignore[no-untyped-def]
    """Return the action with the dtypes of the space."""
    if isinstance(space, Dict):
        return {key: _cast_to_space(value[key], subspace) for key, subspace in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(map(_cast_to_space, value, space.spaces))
    return value.astype(space.dtype)


@pytest.mark.parametrize(
    ("space", "inputs_size", "noise_size", "noise_kind", "is_discrete"),
    [
        (Discrete(4), 4, 1, "uniform", True),
        (MultiDiscrete([2, 3]), 5, 2, "uniform", True),
        (MultiBinary(5), 5, 5, "uniform", True),
        (Box(-1.0, 1.0, (2, 3)), 12, 6, "normal", False),
        (Box(0, 3, (2,), dtype=np.int32), 8, 2, "uniform", True),
        (Tuple((Discrete(2), Box(-1.0, 1.0, (3,)))), 8, 4, "normal", False),
        (Dict(x=Box(-1.0, 1.0, (1,)), y=Box(-1.0, 1.0, (2,))), 6, 3, "normal", False),
    ],
    ids=str,
)
def test_action_head_has_the_sizes_and_noise_of_the_space(
    space: Space, inputs_size: int, noise_size: int, noise_kind: str, is_discrete: bool
) -> None:
    head = build_action_head(space, AUTO)
    assert (head.inputs_size, head.noise_size, head.noise_kind) == (inputs_size, noise_size, noise_kind)
    assert (head.is_discrete, head.is_stochastic) == (is_discrete, True)


def test_deterministic_head_needs_no_noise_and_is_not_stochastic() -> None:
    head = build_action_head(Box(-1.0, 1.0, (3,)), ModelSpec(distribution="deterministic"))
    assert (head.inputs_size, head.noise_size, head.is_stochastic) == (3, 0, False)


def test_log_std_columns_of_a_composite_space() -> None:
    head = build_action_head(Tuple((Box(-1.0, 1.0, (1,)), Discrete(2), Box(-1.0, 1.0, (2,)))), AUTO)
    assert head.log_std_columns == (1, 6, 7)


@pytest.mark.parametrize(
    ("space", "distribution", "message"),
    [
        (Discrete(2), "gaussian", "'Gaussian' is for continuous actions"),
        (Discrete(2), "deterministic", "'Deterministic' is for continuous actions"),
        (Box(-1.0, 1.0, (2,)), "categorical", "'Categorical' is for discrete actions"),
        (Box(-np.inf, 1.0, (2,)), "squashedGaussian", "'SquashedGaussian' requires bounds"),
        (Box(-np.inf, 1.0, (2,)), "boundedGaussian", "'BoundedGaussian' requires bounds.* use 'Gaussian'"),
        (Text(5), "auto", "is a Text space"),
        (Dict(a=Text(5)), "auto", "'actions/a' is a Text space"),
        (Box(0, 10**6, (2,), dtype=np.int64), "auto", "1000001 values"),
    ],
    ids=str,
)
def test_unsuitable_space_or_distribution_is_refused(space: Space, distribution: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build_action_head(space, ModelSpec(distribution=distribution))
