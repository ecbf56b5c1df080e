"""`Learner`: turns batches into weight updates, for any algorithm and any number of optimisers.

Nothing in an update waits for the device: metrics and norms stay tensors until `metrics()` is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.learn.algorithm import Algorithm, Losses, Step
from hindcast.learn.algorithm_monitor import AlgorithmMonitor
from hindcast.learn.batches import num_timesteps
from hindcast.learn.group import Group, PeerLost
from hindcast.learn.metrics import TOTAL_LOSS, Metrics, MetricSums, stack_metrics
from hindcast.learn.optimisers import Optimiser, backward, check_disjoint
from hindcast.learn.streams import run_parallel
from hindcast.learn.target_networks import is_frozen
from hindcast.learn.update_graphs import UpdateGraphs, is_capturable
from hindcast.memory import keep_freed_memory
from hindcast.pipeline.rng import derive_seed
from hindcast.pipeline.window import select_prefix
from hindcast.user_code import Misuse, calling, definition_location, is_user_code, raise_user_code_error

_Buffers = dict[str, tuple[Tensor, int]]
"""By name, with their versions: a changed one has another version, a replaced one is another tensor."""

_Moved = tuple[Metrics, Tensor | None]
"""Metrics of an update, and priorities of its items."""

_NETS, _OPTIMISERS, _RANDOM, _METRICS = "nets", "optimisers", "random", "metrics"


@dataclass(frozen=True)
class LearnerState:
    """All that the next update depends on, the batch aside; on the CPU.

    Attributes:
        tensors: `nets/<network>.<parameter>`, `optimisers/<name>/<index>/<key>`, `metrics/<group>`,
            `random/<generator>` of the first learner, `random/<rank>/<generator>` of each other one.
        meta: JSON: counters, parameter groups, names and counts of the metrics.
    """

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Learner:
    """Trains an algorithm's networks.

    Args:
        algorithm: gives losses and optimisers.
        nets: the algorithm's networks; moved to `device`. Those that nothing trains (targets) stay in evaluation mode.
        device: "cpu", "cuda", "cuda:1".
        seed: the run's; the losses' generator has a stream of its own under it.
        group: the learners of the training; each has a learner of its own, with the same networks.

    Attributes:
        updates: updates made.
        timesteps: timesteps trained.
        group: see above.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        nets: nn.ModuleDict,
        device: str | torch.device = "cpu",
        seed: int = 0,
        group: Group | None = None,
    ) -> None:
        keep_freed_memory()
        self.algorithm = algorithm
        self.device = torch.device(device)
        self.nets = nets.to(self.device).eval()
        self._trained = [net for net in self.nets.values() if not is_frozen(net)]
        self._train_mode()
        self.updates = 0
        self.timesteps = 0
        self.generator = torch.Generator(self.device).manual_seed(derive_seed(seed, "losses"))
        self._name = f"algorithm {type(algorithm).__name__}"
        with calling(self._name, algorithm.optimisers):
            self._optimisers = _optimisers(algorithm, self.nets)
        self._watch = AlgorithmMonitor(algorithm, self.nets, self._optimisers)
        self._graphs: UpdateGraphs[_Moved] | None = None
        if is_capturable(algorithm, self.nets, self._optimisers.values(), self.device):
            self._graphs = UpdateGraphs(self._moved, self.generator)
        self._clock = torch.zeros((), dtype=torch.float64, device=self.device)
        self._seen_disjoint: set[tuple[str, ...]] = set()
        self._metrics = self._new_sums()
        self.group = group or Group()
        self._seed = seed
        self._others_random: dict[str, Tensor] = {}
        self._part_from_the_first()

    def update(self, batch: Mapping[str, Tensor], timesteps: int | None = None) -> Tensor | None:
        """One update of all optimisers.

        Args:
            batch: leaf -> `[batch, ...]` on the learner's device.
            timesteps: of the whole batch, where this is one learner's part of it.

        Returns:
            The priorities that the losses gave, `[items of the whole batch]`; None where they gave none.

        Raises:
            UserCodeError: the algorithm's own code raised, or its losses cannot be used.
        """
        own = num_timesteps(batch)
        timesteps = timesteps or own
        weight = self._weight_of(batch, own / timesteps)
        try:
            metrics, priorities = self._made(batch, weight, timesteps)
            self._metrics.add(metrics, self.updates + 1, weight)
        except PeerLost:
            raise
        except Exception as error:
            raise_user_code_error(error, self._name, self.algorithm.losses)
        self.updates += 1
        self.timesteps += timesteps
        self._watch.after_update()
        if priorities is None:
            return None
        return self.group.gather(priorities, len(priorities) * timesteps // own)

    def metrics(self, *, keep: bool = False) -> dict[str, float]:
        """Means since the last call; starts again.

        The algorithm's own, and `total_loss`, the sum of an update's losses, `gradient_norm` and `learning_rate`; of
        several optimisers also `total_loss/<name>`, and the other two as `gradient_norm/<name>` and so on.

        Args:
            keep: do not start again: no update follows here, and a run that goes on from the checkpoint adds to them.

        Raises:
            DataError: a loss or a gradient was NaN or infinite in one of these updates.
            UserCodeError: the algorithm trains a network that its losses do not use, or changes itself.
        """
        with calling(self._name, type(self.algorithm)):
            self._watch.check(self.updates)
        self.synchronise()
        means = self._metrics.means()
        if not keep:
            self._metrics = self._new_sums()
        for name, optimiser in self._optimisers.items():
            means[self._label("learning_rate", name)] = optimiser.lr
        return means

    def synchronise(self) -> None:
        """Collect from all learners what a checkpoint holds: metrics, and the states of their generators.

        To be called by all of them after their last update. Then the metrics are collected, or saved: merged again they
        would count once for each learner.
        """
        if self.group.shard.size == 1:
            return
        self.group.weighted_sum(self._metrics.tensors())
        self._others_random = self._random_of_others()

    def state(self) -> LearnerState:
        """A copy of everything: networks, optimisers, randomness, counters, metrics not yet collected.

        Raises:
            DataError: as `metrics`; weights that are NaN are not worth keeping.
        """
        self._metrics.means()
        tensors = {f"{_NETS}/{name}": tensor for name, tensor in self.nets.state_dict().items()}
        groups: dict[str, Any] = {}
        for name, optimiser in self._optimisers.items():
            slots, groups[name] = optimiser.state()
            tensors |= {f"{_OPTIMISERS}/{name}/{slot}": tensor for slot, tensor in slots.items()}
        random = self._random() | self._others_random
        tensors |= {f"{_RANDOM}/{name}": tensor for name, tensor in random.items()}
        sums, counts = self._metrics.state()
        tensors |= {f"{_METRICS}/{name}": tensor for name, tensor in sums.items()}
        meta = {
            "updates": self.updates,
            "timesteps": self.timesteps,
            "paramGroups": groups,
            "metrics": counts,
        }
        return LearnerState({name: _owned(tensor) for name, tensor in tensors.items()}, meta)

    def load(self, state: LearnerState) -> None:
        """Become the learner that `state` was taken from.

        A learner whose generators the state lacks, since there were fewer learners, starts new ones: a function of
        seed, rank and update.

        Raises:
            DataError: the state is of other networks or optimisers.
        """
        self._load_nets(state.tensors)
        self._load_optimisers(state)
        if self._graphs is not None:
            self._graphs.clear()
        self.updates = int(state.meta["updates"])
        self.timesteps = int(state.meta["timesteps"])
        self._clock.fill_(self.timesteps)
        own = float(self.group.is_leader)  # what was saved is of all learners, and is to count once
        self._metrics.load(select_prefix(f"{_METRICS}/", state.tensors), state.meta["metrics"], own)
        self._part_from_the_first()
        rank = self.group.shard.rank
        for name, value in select_prefix(
            f"{_RANDOM}/{rank}/" if rank else f"{_RANDOM}/", state.tensors
        ).items():
            self._set_random(name, value)

    def reset_target_networks(self, network: str) -> None:
        """Let the target networks of a network that was given other weights start as its copies again."""
        for target, source in self.algorithm.target_networks.items():
            if source.partition(".")[0] == network:
                self.nets[target].load_state_dict(self.nets.get_submodule(source).state_dict())

    def _made(self, batch: Mapping[str, Tensor], weight: float | Tensor, timesteps: int) -> _Moved:
        """An update, by a graph where there is one for it."""
        self._train_mode()
        for optimiser in self._optimisers.values():
            optimiser.set_learning_rates(self.timesteps)
        if self._graphs is None or self.group.shard.size > 1:
            return self._moved(batch, weight, timesteps)
        kind = self.algorithm.update_kind(self.updates)
        metrics, priorities = self._graphs.run(kind, batch, weight, timesteps)
        return metrics, None if priorities is None else priorities.clone()

    def _moved(self, batch: Mapping[str, Tensor], weight: float | Tensor, timesteps: int) -> _Moved:
        """All of an update that computes; returns its metrics, and priorities of its items."""
        before = self._buffers()
        step = Step(self.updates, self.timesteps, self.generator, self._clock)
        metrics: dict[str, Tensor] = {}
        losses: list[Tensor] = []
        priorities: Tensor | None = None
        self._watch.before_losses(batch)
        for stage in loss_stages(self.algorithm.losses(self.nets, batch, step)):
            if not isinstance(stage, Losses):
                raise Misuse(
                    f"gave {type(stage).__name__} where its losses belong: return Losses({{name: loss}})"
                )
            metrics.update(stage.metrics)
            metrics.update(self._move(stage, weight))
            losses += [loss.detach() for loss in stage.losses.values()]
            if stage.priorities is not None:
                priorities = _checked_priorities(stage.priorities, batch).detach()
        self._watch.after_losses(batch)
        if losses:
            metrics[TOTAL_LOSS] = reduce(torch.add, losses)
        self.algorithm.after_update(self.nets, step)
        self._average_changed(before, weight)
        self._clock += timesteps
        return stack_metrics(metrics), priorities

    def _train_mode(self) -> None:
        """Networks that are trained back from evaluation mode, in which the policy acts."""
        for net in self._trained:
            if not net.training:
                net.train()

    def _move(self, stage: Losses, weight: float | Tensor) -> dict[str, Tensor]:
        """All gradients, then all steps: a step would spoil the graph of a later loss."""
        losses = stage.losses
        self._backward(stage)
        self._watch.after_backward(losses)
        if self.group.shard.size > 1:
            gradients = [self._optimisers[name].gradients for name in losses]
            self.group.weighted_sum([each for own in gradients for each in own], weight)
        moving = [self._optimisers[name] for name in losses]
        norms = _stepped(moving)
        for optimiser in moving:
            optimiser.zero_grad()
        found = {self._label("gradient_norm", name): norm for name, norm in zip(losses, norms, strict=True)}
        if len(self._optimisers) > 1:
            found |= {f"{TOTAL_LOSS}/{name}": loss for name, loss in losses.items()}
        return found

    def _weight_of(self, batch: Mapping[str, Tensor], share: float) -> float | Tensor:
        """The learner's part of what losses are means over: of sequences, of the steps that are learnt from."""
        if self.group.shard.size == 1 or Columns.LOSS_MASK not in batch:
            return share
        own = batch[Columns.LOSS_MASK].sum().double()
        total = own.clone()
        self.group.weighted_sum([total])
        return own / total

    def _backward(self, stage: Losses) -> None:
        """Each optimiser's gradients are those of its own loss."""
        for name, loss in stage.losses.items():
            self._check_loss(name, loss)
        if stage.joint:
            self._refuse_overlap(stage.losses)
            backward(list(stage.losses.values()), [self._optimisers[name] for name in stage.losses])
            return
        for left, (name, loss) in zip(range(len(stage.losses))[::-1], stage.losses.items(), strict=True):
            backward([loss], [self._optimisers[name]], keep_graph=left > 0)

    def _check_loss(self, name: str, loss: Tensor) -> None:
        if name not in self._optimisers:
            raise Misuse(f"gave a loss of optimiser {name!r}; there are {sorted(self._optimisers)}")
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            raise Misuse(
                f"gave a loss of optimiser {name!r} that {_odd(loss)}: a loss is a scalar, a mean over the batch"
            )

    def _refuse_overlap(self, losses: Mapping[str, Tensor]) -> None:
        """Once for each combination of losses: which parameters they reach is not looked up in every update."""
        if tuple(losses) in self._seen_disjoint:
            return
        check_disjoint(losses, self._optimisers)
        self._seen_disjoint.add(tuple(losses))

    def _part_from_the_first(self) -> None:
        """Let the losses' noise and dropout of the other learners be their own: it is over other timesteps."""
        rank = self.group.shard.rank
        if rank:
            self.generator.manual_seed(derive_seed(self._seed, "losses", rank, self.updates))
            torch.manual_seed(derive_seed(self._seed, "learner", rank, self.updates))

    def _buffers(self) -> _Buffers:
        if self.group.shard.size == 1:
            return {}
        named = self.nets.named_buffers()
        return {name: (buffer, buffer._version) for name, buffer in named if buffer.is_floating_point()}

    def _average_changed(self, before: _Buffers, weight: float | Tensor) -> None:
        """Of moving norms each learner saw its own part: their mean is what the whole batch would have made."""
        changed = []
        for name, (buffer, version) in self._buffers().items():
            old, old_version = before.get(name, (None, 0))
            if buffer is not old or version != old_version:
                changed.append(buffer)
        if changed:
            self.group.weighted_sum(changed, weight)

    def _new_sums(self) -> MetricSums:
        losses = self.algorithm.losses
        whose = f" in {self._name} at {definition_location(losses)}" if is_user_code(losses) else ""
        return MetricSums(self.device, self.updates, whose)

    def _label(self, metric: str, optimiser: str) -> str:
        return metric if len(self._optimisers) == 1 else f"{metric}/{optimiser}"

    def _load_nets(self, tensors: Mapping[str, Tensor]) -> None:
        saved, own = select_prefix(f"{_NETS}/", tensors), self.nets.state_dict()
        for name, tensor in own.items():
            if name not in saved:
                raise DataError(f"the checkpoint has no weights {name!r}, which this model has")
            if saved[name].shape != tensor.shape:
                raise DataError(
                    f"the checkpoint's weights {name!r} are {list(saved[name].shape)}, this model's are "
                    f"{list(tensor.shape)}; the model sections must be the same"
                )
        if extra := sorted(saved.keys() - own.keys()):
            raise DataError(f"the checkpoint has weights {extra[0]!r}, which this model does not have")
        self.nets.load_state_dict(saved)

    def _load_optimisers(self, state: LearnerState) -> None:
        groups = state.meta["paramGroups"]
        if groups.keys() != self._optimisers.keys():
            raise DataError(
                f"the checkpoint has optimisers {sorted(groups)}, this algorithm has "
                f"{sorted(self._optimisers)}"
            )
        for name, optimiser in self._optimisers.items():
            optimiser.load(select_prefix(f"{_OPTIMISERS}/{name}/", state.tensors), groups[name])

    def _random(self) -> dict[str, Tensor]:
        """Generator states by name; those of another kind of device are not taken over."""
        found = {f"losses_{self.device.type}": self.generator.get_state(), "cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            found["cuda"] = torch.cuda.get_rng_state(self.device)
        return found

    def _random_of_others(self) -> dict[str, Tensor]:
        """`<rank>/<generator>`: their states, bytes, as floats on the device, which carry each exactly."""
        size = self.group.shard.size
        found: dict[str, Tensor] = {}
        for name, state in self._random().items():
            states = self.group.gather(state.to(self.device, torch.float32)[None], size).to(
                "cpu", torch.uint8
            )
            found |= {f"{rank}/{name}": states[rank] for rank in range(1, size)}
        return found

    def _set_random(self, name: str, value: Tensor) -> None:
        if name == f"losses_{self.device.type}":
            self.generator.set_state(value)
        elif name == "cpu":
            torch.set_rng_state(value)
        elif name == "cuda" == self.device.type:
            torch.cuda.set_rng_state(value, self.device)


def loss_stages(losses: Losses | Iterator[Losses]) -> Iterator[Losses]:
    """What an algorithm's `losses` gave, one stage after the other."""
    return iter((losses,)) if isinstance(losses, Losses) or not isinstance(losses, Iterator) else losses


def _stepped(optimisers: Sequence[Optimiser]) -> list[Tensor]:
    """The norms of the gradients before they were clipped; computed during the steps where these only read them."""
    norms, steps = (each.gradient_norm for each in optimisers), (each.step for each in optimisers)
    if all(each.is_gradient_preserving for each in optimisers):
        found: list[Any] = run_parallel(*norms, *steps)
        return found[: len(optimisers)]
    found = run_parallel(*norms)
    for optimiser, norm in zip(optimisers, found, strict=True):
        optimiser.clip(norm)
    run_parallel(*steps)
    return found


def _odd(loss: Any) -> str:
    """What is wrong with a loss."""
    if not isinstance(loss, Tensor):
        return f"is a {type(loss).__name__}"
    return f"has shape {[*loss.shape]}" if loss.dim() else "depends on no parameter"


def _checked_priorities(priorities: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    items = len(next(iter(batch.values())))
    if not isinstance(priorities, Tensor):
        raise Misuse(f"gave priorities as a {type(priorities).__name__}: a tensor with one for each item")
    if priorities.shape != (items,):
        raise Misuse(
            f"gave priorities of shape {[*priorities.shape]} for a batch of {items} items: one for each"
        )
    return priorities


def _owned(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _optimisers(algorithm: Algorithm, nets: nn.ModuleDict) -> dict[str, Optimiser]:
    options = algorithm.options
    made = {
        name: Optimiser(spec, options.grad_clip, options.grad_clip_by, name)
        for name, spec in algorithm.optimisers(nets).items()
    }
    owner: dict[int, str] = {}
    for name, optimiser in made.items():
        for parameter in optimiser.parameters:
            other = owner.setdefault(id(parameter), name)
            if other != name:
                raise Misuse(f"gives optimisers {other!r} and {name!r} a parameter that they share")
    return made
