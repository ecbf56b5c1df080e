"""Hypothesis strategies for spaces and for episodes in them, to test that layouts read what they write."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from hindcast.episodes import batched, nested
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec

_DTYPES = [
    "float16",
    "float32",
    "float64",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
]
_INFOS = ["", '{"lives":3}', '{"x":[1.5,2.0],"name":"ä✓"}', '{"deep":{"a":null}}']


def _box(dtype: str, shape: tuple[int, ...]) -> spaces.Space:
    bounds = (-3, 3) if np.dtype(dtype).kind != "u" else (0, 7)
    return spaces.Box(*bounds, shape=shape, dtype=np.dtype(dtype).type)


def leaf_spaces() -> st.SearchStrategy[spaces.Space]:
    shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    return st.one_of(
        st.builds(_box, st.sampled_from(_DTYPES), shapes),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 300), st.integers(-2, 2)),
        st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
        st.one_of(st.integers(1, 4), st.just((2, 3))).map(spaces.MultiBinary),
        st.just(spaces.Text(8, min_length=0, charset="abcäö✓ {")),
    )


def any_space() -> st.SearchStrategy[spaces.Space]:
    def composite(children: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Space]:
        names = st.sampled_from(["a", "camera", "0", "b c"])
        return st.one_of(
            st.dictionaries(names, children, min_size=1, max_size=3).map(spaces.Dict),
            st.lists(children, min_size=1, max_size=3).map(spaces.Tuple),
        )

    return st.recursive(leaf_spaces(), composite, max_leaves=4)


episode_lengths_strategy = st.one_of(
    st.lists(st.integers(1, 8), min_size=1, max_size=6), st.just([1]), st.just([40, 1, 25])
)


def columns_of(space: spaces.Space, root: str, num_rows: int, seed: int) -> dict[str, Any]:
    """Return samples of a space: leaf name -> array `[num_rows, ...]`."""
    space.seed(seed)
    samples = batched.stack([space.sample() for _ in range(num_rows)])
    return {name: batched.text_as_objects(leaf) for name, leaf in nested.flatten(samples, root).items()}


@st.composite
def recordings(draw: st.DrawFn, with_outputs: bool = True) -> tuple[Block, DataSpec]:
    """Draw episodes in random spaces, and their spec."""
    observation_space, action_space = draw(any_space()), draw(any_space())
    episode_lengths, seed = draw(episode_lengths_strategy), draw(st.integers(0, 9))
    num_steps, num_episodes = sum(episode_lengths), len(episode_lengths)
    rng = np.random.default_rng(seed)
    columns = {
        **columns_of(observation_space, "obs", num_steps + num_episodes, seed),
        **columns_of(action_space, "actions", num_steps, seed + 1),
        "rewards": rng.standard_normal(num_steps).astype(draw(st.sampled_from(["float32", "float64"]))),
    }
    if with_outputs and draw(st.booleans()):
        columns["action_logp"] = rng.standard_normal(num_steps).astype(np.float32)
        columns["vf_preds"] = rng.standard_normal(num_steps)
        columns["weights_seq_no"] = rng.integers(-5, 2**40, num_steps)
        columns["state_out/h"] = rng.standard_normal((num_steps, 2)).astype(np.float32)
        columns["is_greedy"] = rng.random(num_steps) < 0.5
    if draw(st.booleans()):
        columns["infos"] = np.array(
            [_INFOS[i] for i in rng.integers(0, 4, num_steps + num_episodes)], dtype=object
        )
    ends = rng.integers(0, 3, num_episodes)
    block = Block(
        columns=columns,
        length=np.array(episode_lengths, dtype=np.int64),
        eps_id=np.array([f"é{seed}-{i}" for i in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=ends == 0,
        truncated=ends == 1,
    )
    return block, DataSpec.from_block(block, observation_space, action_space, "Random-v0")
