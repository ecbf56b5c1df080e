"""Compare random episodes in RLlib's classes and in Hindcast's; results and states must be equal.

Run by hand where RLlib can be imported: `python tests/episodes/parity_with_rllib.py [cases]`. The cases do not cover
deliberate differences: NumPy indices before the lookback (RLlib wraps around), empty slices with `fill` (RLlib returns
fill values), slices beyond both ends, episodes that are lookback only, and the rewards' space (RLlib's slices lose it).
"""

import importlib.util
import random
import sys
import warnings
from collections import Counter

import msgpack
import msgpack_numpy
import numpy as np
from gymnasium import spaces

from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer

SPACES = [
    spaces.Discrete(7),
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.MultiDiscrete([3, 4]),
    spaces.Dict(a=spaces.Discrete(5), b=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3)))),
]


def to_plain(value):
    """Convert arrays to pairs of dtype and list, and tuples to lists, which MessagePack does not distinguish."""
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def get_outcome(function):
    """Return the result of a call, or a marker if it raises."""
    try:
        return to_plain(function())
    except Exception:
        return "refused"


def compare(counts, name, case, function, pair):
    """Compare the results of a function for both objects of a pair, and count the comparison."""
    reference_outcome, hindcast_outcome = (get_outcome(lambda item=item: function(item)) for item in pair)
    counts[name] += 1
    if repr(reference_outcome) != repr(hindcast_outcome):
        raise SystemExit(f"{name}, case {case}:\nreference {reference_outcome}\nhindcast  {hindcast_outcome}")


def make_random_indices(rng, length, lookback, neg_index_as_lookback, fill):
    """Return a random index, list or slice that both classes handle alike."""
    lowest = -lookback if neg_index_as_lookback else -lookback - length
    index = rng.randrange(lowest - 3 * (fill is not None and not neg_index_as_lookback), length + 3)
    if rng.random() < 0.4:
        return index
    if rng.random() < 0.4:
        return [rng.randrange(lowest, length + 2) for _ in range(rng.randrange(1, 4))]
    start, stop = sorted(rng.randrange(0, length + 1) for _ in range(2))
    if start == stop:
        return None
    outer_slice = slice(start - lookback, stop) if neg_index_as_lookback else slice(start, stop + 2)
    return rng.choice([slice(start, stop), slice(None, stop), slice(start, None), outer_slice])


def compare_buffers(counts, case, reference_class):
    """Compare getters and packed state of a random buffer."""
    rng = random.Random(case)
    space = rng.choice(SPACES)
    space.seed(case)
    samples = [space.sample() for _ in range(rng.randrange(2, 9))]
    lookback = rng.randrange(0, len(samples))
    buffers = [
        cls(list(samples), lookback=lookback, space=space)
        for cls in (reference_class, InfiniteLookbackBuffer)
    ]
    if rng.random() < 0.5:
        for buffer in buffers:
            buffer.finalize()
    for _ in range(10):
        neg_index_as_lookback, fill = rng.random() < 0.5, rng.choice([None, 0.0, 2])
        one_hot = rng.random() < 0.2
        indices = make_random_indices(rng, len(samples) - lookback, lookback, neg_index_as_lookback, fill)
        options = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill, "one_hot_discrete": one_hot}
        compare(
            counts,
            "get",
            (case, indices, options),
            lambda buffer, a=indices, o=options: buffer.get(a, **o),
            buffers,
        )


def pack_state(episode):
    """Pack one row of an episode file."""
    return msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)


def get_all_data(episode):
    """Return all public data of an episode."""
    state = msgpack.unpackb(pack_state(episode), object_hook=msgpack_numpy.decode, strict_map_key=False)
    for key in ("_start_time", "_last_step_time"):
        del state[key]
    del state["rewards"]["space"]
    flags = (episode.is_done, episode.is_numpy, episode.is_reset, len(episode), episode.get_return())
    return state, flags, (episode.get_data_dict(), repr(episode)) if len(episode) else None


def get_rewards(episode):
    """Return the rewards in the state of an episode, lookback included."""
    return get_all_data(episode)[0]["rewards"]["data"]


def compare_episodes(counts, case, reference_class):
    """Compare a random episode after it is made, sliced, cut, continued, concatenated, packed and unpacked."""
    rng = random.Random(case)
    space, action_space = rng.choice(SPACES), rng.choice(SPACES)
    space.seed(case)
    action_space.seed(case)
    num_steps = rng.randrange(1, 7)
    names = ["action_logp", "dist"][: rng.randrange(3)]
    outputs = {"action_logp": 0.25, "dist": np.array([1, 2], np.float32)}
    arguments = {
        "id_": "e",
        "observations": [space.sample() for _ in range(num_steps + 1)],
        "actions": [action_space.sample() for _ in range(num_steps)],
        "rewards": [float(rng.randrange(9)) for _ in range(num_steps)],
        "infos": rng.choice([None, [{"i": t} for t in range(num_steps + 1)]]),
        "extra_model_outputs": {name: [outputs[name]] * num_steps for name in names},
        "observation_space": space,
        "action_space": action_space,
        "len_lookback_buffer": rng.randrange(0, num_steps),
        "t_started": rng.choice([None, 3]),
        "terminated": rng.random() < 0.3,
    }
    pair = [cls(**arguments) for cls in (reference_class, SingleAgentEpisode)]
    if is_numpy := rng.random() < 0.5:
        for episode in pair:
            episode.to_numpy()
    compare(counts, "episode", case, get_all_data, pair)
    compare(counts, "bytes", case, pack_state, pair)
    length = len(pair[0])
    start = rng.randrange(0, length)
    stop = rng.randrange(start + 1, length + 1)
    len_lookback_buffer = rng.choice([None, 0, 1, 9])
    if is_numpy and any(isinstance(part, spaces.Dict) for part in (space, action_space)):
        len_lookback_buffer = 0  # slices of nested arrays with lookback fail in RLlib
    sliced_pair = [
        episode.slice(slice(start, stop), len_lookback_buffer=len_lookback_buffer) for episode in pair
    ]
    compare(counts, "slice", (case, start, stop, len_lookback_buffer), get_all_data, sliced_pair)
    row = msgpack.unpackb(pack_state(pair[1]), object_hook=msgpack_numpy.decode, strict_map_key=False)
    restored_pair = [cls.from_state(row) for cls in (reference_class, SingleAgentEpisode)]
    compare(counts, "from_state", case, get_all_data, restored_pair)
    if arguments["terminated"]:
        return
    fragments = [episode.cut(len_lookback_buffer or 0) for episode in pair]
    step = (space.sample(), action_space.sample(), 1.0, {"z": 1})
    for episode in fragments:
        episode.add_env_step(*step, extra_model_outputs={name: outputs[name] for name in names})
        if is_numpy:
            episode.to_numpy()
    compare(counts, "cut and step", (case, len_lookback_buffer), get_rewards, fragments)
    for episode, fragment in zip(pair, fragments, strict=True):
        episode.concat_episode(fragment)
    compare(counts, "concat_episode", case, get_all_data, pair)


def main() -> None:
    """Compare as many random cases as the command line says; 2,000 by default."""
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("tree") is None:
        print("skipped: RLlib is not installed beside Hindcast, nothing was compared")
        return
    warnings.simplefilter("ignore")
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode as ReferenceEpisode
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer as ReferenceBuffer

    counts: Counter[str] = Counter()
    for case in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2000):
        compare_buffers(counts, case, ReferenceBuffer)
        compare_episodes(counts, case, ReferenceEpisode)
    print("equal:", dict(counts))


if __name__ == "__main__":
    main()
