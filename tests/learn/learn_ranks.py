"""Run several learners, each in its own process, connected by gloo; the processes import this module."""

import multiprocessing
import pickle
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from learn_toys import INPUTS, MaskedRegression, ToyOptions, make_batch, make_sequences
from torch import nn

from hindcast.datasets.opening import open_dataset
from hindcast.errors import Interrupted
from hindcast.learn import learner as learner_module
from hindcast.learn.algorithm import Algorithm, Losses, new_networks
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.learn.learner import Learner
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.ranks import Ranks
from hindcast.learn.target_networks import frozen_copy, polyak_update
from hindcast.learn.update_graphs import GRAPHS
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import Source
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.storage.location import resolve
from support import StopAfter


def run_in_ranks(size, **jobs):
    """Run jobs in `size` processes; return name -> results by rank.

    Each job is name=(function, *args), and runs as `function(group, *args)`.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            context.Process(target=_run_rank, args=(folder, rank, size, jobs)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(600)
            assert process.exitcode == 0
        results = [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(size)]
    return {job: [results[rank][job] for rank in range(size)] for job in jobs}


def _run_rank(folder, rank, size, jobs):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    results = {job: function(Ranks(torch.device("cpu")), *args) for job, (function, *args) in jobs.items()}
    (folder / f"{rank}").write_bytes(pickle.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


class MovingMean(nn.Module):
    """Holds a moving mean of the targets in a buffer, as MARWIL does of advantages."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))


class TwoStages(Algorithm):
    """Two optimisers that step one after the other, a frozen target network, a moving norm, clipped gradients."""

    Options = ToyOptions
    kinds = frozenset({"OfflineTraining"})

    def needs(self):
        return Needs(columns=frozenset({"obs"}))

    def networks(self, inputs):
        critic = nn.Linear(3, 1)
        return nn.ModuleDict(
            {"policy": nn.Linear(3, 1), "critic": critic, "target": frozen_copy(critic), "norm": MovingMean()}
        )

    def optimisers(self, nets):
        return {
            "actor": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr),
            "critic": OptimiserSpec(list(nets["critic"].parameters()), 0.01),
        }

    def losses(self, nets, batch, step):
        value_target = 0.9 * nets["target"](batch["obs"]).squeeze(-1) + batch["y"] - nets["norm"].mean
        nets["norm"].mean.lerp_(batch["y"].mean(), 0.1)
        value = nets["critic"](batch["obs"]).squeeze(-1)
        yield Losses({"critic": (value - value_target).square().mean()}, {"value": value.mean()})
        new_value = nets["critic"](batch["obs"]).squeeze(-1).detach()
        yield Losses({"actor": (nets["policy"](batch["obs"]).squeeze(-1) - new_value).square().mean()})

    def after_update(self, nets, step):
        polyak_update(nets["target"], nets["critic"], 0.05)


def new_learner(group=None):
    algorithm = TwoStages(ToyOptions(lr=0.02, grad_clip=0.5))
    return Learner(algorithm, new_networks(algorithm, INPUTS, 0), group=group)


def train_on_shards(group, num_updates, size):
    """Return (weights, metrics, timesteps) after training on shards of batches of `size`; no group is one learner."""
    learner = new_learner(group)
    for index in range(num_updates):
        whole_batch = make_batch(index, size)
        shard = group.shard.slice_of(size) if group else slice(None)
        learner.update({leaf: tensor[shard] for leaf, tensor in whole_batch.items()}, size)
    return to_arrays(learner.nets), learner.metrics(), learner.timesteps


def train_recorded(group, num_updates, graph_class):
    """Return weights, metrics and the number of steps of each recording, after training on shards.

    Shards have 5 timesteps, but some in learners other than the first have 4.

    Args:
        graph_class: stand-in for CUDA graphs, with which updates are recorded; None if they are not.
    """
    with (
        patch.dict(GRAPHS, cpu=graph_class),
        patch.object(learner_module, "is_capturable", lambda *_: graph_class is not None),
    ):
        learner = new_learner(group)
        for index in range(num_updates):
            start, length = 5 * group.shard.rank, 4 if group.shard.rank and index % 3 == 0 else 5
            batch = make_batch(index, 5 * group.shard.size)
            learner.update({leaf: tensor[start : start + length] for leaf, tensor in batch.items()}, 10)
    recordings = learner._graphs._recordings.values() if learner._graphs else ()
    return to_arrays(learner.nets), learner.metrics(), [len(recording.steps) for recording in recordings]


def train_on_sequences(group, num_updates):
    """Return (weights, loss, timesteps) after training on shards of 8 sequences of unequal length."""
    algorithm = MaskedRegression(ToyOptions(lr=0.02))
    learner = Learner(algorithm, new_networks(algorithm, INPUTS, 0), group=group)
    for index in range(num_updates):
        shard = group.shard.slice_of(8) if group else slice(None)
        learner.update({leaf: tensor[shard] for leaf, tensor in make_sequences(index).items()}, 32)
    return to_arrays(learner.nets), learner.metrics()["total_loss"], learner.timesteps


def run_together(group, action, *args):
    """Run an action in all learners; followers wait until the leader has announced it."""
    if group and not group.is_leader:
        group.receive()
    return action(*args)


def make_trainer(group, resource, data, initial_num_learners=1):
    sources = [Source(str(data), open_dataset(data))]
    return make_offline_trainer(resource, sources, group=group, initial_num_learners=initial_num_learners)


def to_arrays(nets):
    return {name: tensor.numpy() for name, tensor in nets.state_dict().items()}


def train_with_stops(group, resource, data, stops):
    """Return weights after two iterations. After each number of checks in `stops` the leader stops, and all resume."""
    store = CheckpointStore(resolve(resource.spec.checkpoint.path))
    trainer = run_together(group, make_trainer, group, resource, data, 2)
    run_together(group, trainer.begin)
    for num_checks in (*stops, None):
        # `bool` is a check that never stops the training.
        check = fail_if_called if not group.is_leader else StopAfter(num_checks).check if num_checks else bool
        try:
            while trainer.iteration < 2:
                run_together(group, trainer.iterate, check)
        except Interrupted:
            if group.is_leader:
                trainer.save(store)
            dist.barrier()
            trainer.close()
            trainer = run_together(group, make_trainer, group, resource, data, 2)
            run_together(group, trainer.load, store.latest())
    trainer.close()
    return to_arrays(trainer.learner.nets)


def train_with_interruptions(group, num_updates):
    """Return metrics after updates on shards of varying sizes, interrupted twice in a row halfway."""
    learner = new_learner(group)
    for index in range(num_updates):
        if index == num_updates // 2:
            for _ in range(2):
                learner.synchronise()
                state, learner = learner.state(), new_learner(group)
                learner.load(state)
        size = 3 if index % 2 else 32
        shard = group.shard.slice_of(size) if group else slice(None)
        learner.update({leaf: tensor[shard] for leaf, tensor in make_batch(index, size).items()}, size)
    return learner.metrics()


def draw_noise(group):
    """Draw loss noise and dropout noise, before and after loading a state without this rank's generators."""
    learner = new_learner(group)
    first_draws = (torch.rand(2, generator=learner.generator).tolist(), torch.rand(2).tolist())
    learner.load(learner.state())
    return first_draws, (torch.rand(2, generator=learner.generator).tolist(), torch.rand(2).tolist())


def count_updates_until_stop(group, stop_after):
    """Return the number of updates until this learner stops. The leader is asked to stop after `stop_after` updates."""
    num_updates = 0

    def check():
        if num_updates >= stop_after:
            raise Interrupted("asked")

    try:
        while True:
            group.agree(check if group.is_leader else fail_if_called)
            group.all_reduce([torch.ones(3)], 0.5)
            num_updates += 1
    except Interrupted:
        return num_updates


def fail_if_called():
    raise AssertionError("only the first learner is asked")


def exchange_messages(group):
    """Return the messages that the leader broadcasts: as sent in the leader, as received in the other learners."""
    messages = [["open"], ["load", "a/b"], ["end"]]
    if not group.is_leader:
        return [group.receive() for _ in messages]
    for message in messages:
        group.broadcast(message)
    return messages


def train_in_float64(group, resource, data, num_updates):
    """Return the loss of each update of a training, and its final weights.

    They are computed in float64, without dropout, and with constants in place of the noise that losses draw, because
    each learner draws its own.
    """
    trainer = run_together(group, make_trainer, group, resource, data)
    learner, experience = trainer.learner, trainer.experience
    trainer.prepare()
    learner.nets.double()
    for module in learner.nets.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    losses = []
    with (
        patch.object(torch.Tensor, "float", torch.Tensor.double),  # encoders call .float()
        patch.object(torch, "rand", partial(draw_constant, torch.rand, learner.generator, 0.4)),
        patch.object(torch, "randn", partial(draw_constant, torch.randn, learner.generator, 0.7)),
    ):
        for _ in range(num_updates):
            priorities = learner.update(experience.next(), experience.timesteps_per_batch)
            if priorities is not None:
                experience.prioritise(priorities)
            losses.append(learner.metrics()["total_loss"])
    trainer.close()
    return losses, to_arrays(learner.nets)


def draw_constant(draw, loss_generator, constant, *arguments, **options):
    """Draw noise, but replace that of the losses' generator by a constant."""
    noise = draw(*arguments, **options)
    return noise.fill_(constant).double() if options.get("generator") is loss_generator else noise
