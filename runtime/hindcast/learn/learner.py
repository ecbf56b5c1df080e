"""`Learner`: turns batches into weight updates, for any algorithm and any number of optimisers.

No update waits for the device: metrics and norms stay tensors until `metrics()` is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formatting import describe_type
from hindcast.learn.algorithm import Algorithm, Losses, Step
from hindcast.learn.algorithm_monitor import AlgorithmMonitor
from hindcast.learn.batches import num_timesteps
from hindcast.learn.group import Group
from hindcast.learn.metrics import TOTAL_LOSS, Metrics, MetricSums, stack_metrics
from hindcast.learn.optimisers import Optimiser, backward, check_disjoint, with_adam_options
from hindcast.learn.streams import run_parallel
from hindcast.learn.target_networks import is_frozen
from hindcast.learn.update_graphs import UpdateGraphs, is_capturable
from hindcast.memory import keep_freed_memory
from hindcast.pipeline.rng import GLOBAL_GENERATORS, derive_seed
from hindcast.pipeline.window import select_prefix
from hindcast.user_code import Misuse, calling, definition_location, is_user_code, raise_user_code_error

_BufferVersions = dict[str, tuple[Tensor, int]]
"""Name -> buffer and its version: changing it in place changes the version, assigning replaces the tensor."""

_UpdateResult = tuple[Metrics, Tensor | None]
"""Metrics of an update, and the priorities of its items or None."""

_NETS, _OPTIMISERS, _RANDOM, _METRICS = "nets", "optimisers", "random", "metrics"


@dataclass(frozen=True)
class LearnerState:
    """Everything that the next update depends on, except its batch; on the CPU.

    Attributes:
        tensors: `nets/<network>.<parameter>`, `optimisers/<name>/<index>/<key>`, `metrics/<group>`,
            `random/<generator>` of the leader, `random/<rank>/<generator>` of the other learners.
        meta: JSON: counters, parameter groups, names and counts of the metrics.
    """

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Learner:
    """Trains an algorithm's networks.

    Args:
        algorithm: defines losses and optimisers.
        nets: the algorithm's networks; moved to `device`. Frozen networks (targets) stay in evaluation mode.
        device: "cpu", "cuda", "cuda:1".
        seed: the run's seed; the losses' generator has its own stream derived from it.
        group: the learners of the training; each process has one `Learner` with the same networks.

    Attributes:
        updates: number of updates made.
        timesteps: number of timesteps trained.
        algorithm, group: the arguments.
        device: device of the networks.
        nets: the networks.
        generator: generator of the losses' noise.
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
        self._trained_nets = [net for net in self.nets.values() if not is_frozen(net)]
        self._restore_train_mode()
        self.updates = 0
        self.timesteps = 0
        self.generator = torch.Generator(self.device).manual_seed(derive_seed(seed, "losses"))
        self._name = f"algorithm {type(algorithm).__name__}"
        with calling(self._name, algorithm.optimisers):
            self._optimisers = _build_optimisers(algorithm, self.nets)
        self._monitor = AlgorithmMonitor(self.nets, self._optimisers)
        self._graphs: UpdateGraphs[_UpdateResult] | None = None
        if is_capturable(algorithm, self.nets, self._optimisers.values(), self.device):
            self._graphs = UpdateGraphs(self._compute_update, self.generator)
        # A reading thread may run a user's pre-learner, which draws from the same global generators as dropout: without
        # a lock, the numbers of both would depend on timing.
        draws_globally = self.device.type == "cpu" and _draws_globally(algorithm, self.nets)
        self._generators: AbstractContextManager[Any] = GLOBAL_GENERATORS if draws_globally else nullcontext()
        self._clock = torch.zeros((), dtype=torch.float64, device=self.device)
        self._weight: float | Tensor = 1.0  # this learner's fraction of the batch of the current update
        self._disjoint_losses: set[tuple[str, ...]] = set()
        self._metrics = self._new_metric_sums()
        self.group = group or Group()
        self._seed = seed
        self._other_generator_states: dict[str, Tensor] = {}
        self._seed_by_rank()

    def update(self, batch: Mapping[str, Tensor], timesteps: int | None = None) -> Tensor | None:
        """Run one update of all optimisers.

        Args:
            batch: leaf -> `[batch, ...]` on the learner's device.
            timesteps: number of timesteps in the whole batch; None if `batch` is the whole batch.

        Returns:
            The priorities from the losses, `[items of the whole batch]`, or None if the losses have none.

        Raises:
            UserCodeError: the algorithm's code raised, or its losses are invalid.
        """
        shard_timesteps = num_timesteps(batch)
        timesteps = timesteps or shard_timesteps
        weight = self._batch_fraction(batch, shard_timesteps / timesteps)
        try:
            with self._generators:
                metrics, priorities = self._update(batch, weight, timesteps)
            self._metrics.add(metrics, self.updates + 1, weight)
        except Exception as error:
            raise_user_code_error(error, self._name, self.algorithm.losses)
        self.updates += 1
        self.timesteps += timesteps
        if priorities is None:
            return None
        # All items have the same number of timesteps, which gives the number of items in the whole batch.
        return self.group.gather(priorities, len(priorities) * timesteps // shard_timesteps)

    def metrics(self, *, keep: bool = False) -> dict[str, float]:
        """Return the means of all metrics since the last call, and reset them.

        They are the algorithm's metrics, `total_loss` (the sum of an update's losses), `gradient_norm` (before
        clipping) and `learning_rate` (the current one, not a mean). With several optimisers there is also
        `total_loss/<name>`, and the last two are named `gradient_norm/<name>` and `learning_rate/<name>`.

        Args:
            keep: do not reset the metrics. Use it if no update follows in this process: a run that resumes from the
                checkpoint adds to them.

        Raises:
            DataError: a loss or a gradient was NaN or infinite in one of these updates.
            UserCodeError: the algorithm trains a network that its losses do not use.
        """
        with calling(self._name, type(self.algorithm)):
            self._monitor.check(self.updates)
        self.synchronise()
        means = self._metrics.means()
        if not keep:
            self._metrics = self._new_metric_sums()
        for name, optimiser in self._optimisers.items():
            means[self._metric_name("learning_rate", name)] = optimiser.lr
        return means

    def synchronise(self) -> None:
        """Sum the metrics over all learners and collect their generators' states, for `metrics` and `state`.

        All learners call it after their last update. A second call before the metrics are reset would multiply them by
        the number of learners.
        """
        if self.group.shard.size == 1:
            return
        self.group.all_reduce(self._metrics.tensors())
        self._other_generator_states = self._gather_generator_states()

    def state(self) -> LearnerState:
        """Return a copy of networks, optimisers, generators, counters, and the metrics since the last reset.

        Raises:
            DataError: see `metrics`; a checkpoint of NaN weights is useless.
        """
        self._metrics.means()  # raises if a loss was NaN
        tensors = {f"{_NETS}/{name}": tensor for name, tensor in self.nets.state_dict().items()}
        groups: dict[str, Any] = {}
        for name, optimiser in self._optimisers.items():
            slots, groups[name] = optimiser.state()
            tensors |= {f"{_OPTIMISERS}/{name}/{slot}": tensor for slot, tensor in slots.items()}
        random = self._generator_states() | self._other_generator_states
        tensors |= {f"{_RANDOM}/{name}": tensor for name, tensor in random.items()}
        sums, counts = self._metrics.state()
        tensors |= {f"{_METRICS}/{name}": tensor for name, tensor in sums.items()}
        meta = {
            "updates": self.updates,
            "timesteps": self.timesteps,
            "paramGroups": groups,
            "metrics": counts,
        }
        return LearnerState({name: _copy_to_cpu(tensor) for name, tensor in tensors.items()}, meta)

    def load(self, state: LearnerState) -> None:
        """Restore a state.

        If the state has no generators for this rank, because it was saved by fewer learners, the learner seeds
        new ones from the seed, its rank and the number of updates.

        Raises:
            DataError: the state has other networks or optimisers.
        """
        self._load_nets(state.tensors)
        self._load_optimisers(state)
        if self._graphs is not None:
            # load_state_dict replaces the optimisers' tensors, which the graphs read at their old addresses.
            self._graphs.clear()
        self.updates = int(state.meta["updates"])
        self.timesteps = int(state.meta["timesteps"])
        self._clock.fill_(self.timesteps)
        metrics_weight = float(self.group.is_leader)  # saved sums are over all learners and must count once
        self._metrics.load(
            select_prefix(f"{_METRICS}/", state.tensors), state.meta["metrics"], metrics_weight
        )
        self._seed_by_rank()
        rank = self.group.shard.rank
        prefix = f"{_RANDOM}/{rank}/" if rank else f"{_RANDOM}/"
        # The leader's prefix also selects the other learners' generators, whose names `_set_generator_state` ignores.
        for name, value in select_prefix(prefix, state.tensors).items():
            self._set_generator_state(name, value)

    def reset_target_networks(self, network: str) -> None:
        """Copy a network's weights into its target networks, after its weights were loaded from elsewhere."""
        for target, source in self.algorithm.target_networks.items():
            if source.partition(".")[0] == network:
                self.nets[target].load_state_dict(self.nets.get_submodule(source).state_dict())

    def _update(self, batch: Mapping[str, Tensor], weight: float | Tensor, timesteps: int) -> _UpdateResult:
        """Run one update, replaying its CUDA graph if there is one."""
        self._restore_train_mode()
        for optimiser in self._optimisers.values():
            optimiser.set_learning_rates(self.timesteps)
        self._weight = weight
        if self._graphs is None:
            return self._compute_update(batch, timesteps)
        kind = self.algorithm.update_kind(self.updates)
        metrics, priorities = self._graphs.run(kind, batch, timesteps)
        # The next launch overwrites these tensors. Until then the caller has added up the metrics, but not yet used the
        # priorities.
        return metrics, None if priorities is None else priorities.clone()

    def _compute_update(self, batch: Mapping[str, Tensor], timesteps: int) -> _UpdateResult:
        """Compute one update: losses, gradients, steps and target networks. CUDA graphs can record it."""
        versions_before = self._buffer_versions()
        step = Step(self.updates, self.timesteps, self.generator, self._clock)
        metrics: dict[str, Tensor] = {}
        losses: list[Tensor] = []
        priorities: Tensor | None = None
        for stage in loss_stages(self.algorithm.losses(self.nets, batch, step)):
            if not isinstance(stage, Losses):
                raise Misuse(
                    f"returned {type(stage).__name__} instead of Losses: return Losses({{name: loss}})"
                )
            metrics.update(stage.metrics)
            metrics.update(self._step_stage(stage))
            losses += [loss.detach() for loss in stage.losses.values()]
            if stage.priorities is not None:
                priorities = _check_priorities(stage.priorities, batch).detach()
        if losses:
            metrics[TOTAL_LOSS] = reduce(torch.add, losses)
        self.algorithm.after_update(self.nets, step)
        self._average_changed_buffers(versions_before)
        self._clock += timesteps
        return stack_metrics(metrics), priorities

    def _restore_train_mode(self) -> None:
        """Put trained networks back into training mode: acting in this process puts the policy into evaluation mode."""
        for net in self._trained_nets:
            if not net.training:
                net.train()

    def _step_stage(self, stage: Losses) -> dict[str, Tensor]:
        """Compute the gradients of a stage's losses, then step its optimisers; return their metrics."""
        losses = stage.losses
        # All gradients before any step: a step changes weights that the graph of a later loss still needs.
        self._backward(stage)
        self._monitor.after_backward(losses)
        if self.group.shard.size > 1:
            gradients = [self._optimisers[name].gradients for name in losses]
            self._average([gradient for group in gradients for gradient in group])
        optimisers = [self._optimisers[name] for name in losses]
        norms = _clip_and_step(optimisers)
        for optimiser in optimisers:
            optimiser.zero_grad()
        metrics = {
            self._metric_name("gradient_norm", name): norm for name, norm in zip(losses, norms, strict=True)
        }
        if len(self._optimisers) > 1:
            metrics |= {f"{TOTAL_LOSS}/{name}": loss for name, loss in losses.items()}
        return metrics

    def _batch_fraction(self, batch: Mapping[str, Tensor], timestep_fraction: float) -> float | Tensor:
        """Return the fraction of the whole batch that this learner's losses are means over.

        For sequences it is the fraction of the steps that the loss mask selects, or of the sequences; see
        `Algorithm.averages_sequences`.
        """
        if self.group.shard.size == 1 or self.algorithm.averages_sequences or Columns.LOSS_MASK not in batch:
            return timestep_fraction
        num_steps = batch[Columns.LOSS_MASK].sum().double()
        total = num_steps.clone()
        self.group.all_reduce([total])
        return num_steps / total

    def _backward(self, stage: Losses) -> None:
        """Compute the gradients of each optimiser from its own loss."""
        for name, loss in stage.losses.items():
            self._check_loss(name, loss)
        if stage.joint:
            self._check_disjoint(stage.losses)
            backward(list(stage.losses.values()), [self._optimisers[name] for name in stage.losses])
            return
        names = list(stage.losses)
        for name, loss in stage.losses.items():
            # Losses may share parts of their graphs, so only the last backward pass frees them.
            backward([loss], [self._optimisers[name]], keep_graph=name != names[-1])

    def _check_loss(self, name: str, loss: Tensor) -> None:
        if name not in self._optimisers:
            raise Misuse(
                f"returned a loss of optimiser {name!r}; its optimisers are {sorted(self._optimisers)}"
            )
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            raise Misuse(
                f"returned a loss of optimiser {name!r} that {_loss_problem(loss)}: a loss is a scalar, a mean over "
                "the batch"
            )

    def _check_disjoint(self, losses: Mapping[str, Tensor]) -> None:
        """Check each combination of losses once, rather than walk their graphs in every update."""
        if tuple(losses) in self._disjoint_losses:
            return
        check_disjoint(losses, self._optimisers)
        self._disjoint_losses.add(tuple(losses))

    def _seed_by_rank(self) -> None:
        """Seed dropout and loss noise by rank, since ranks train on different timesteps."""
        rank = self.group.shard.rank
        if rank:
            self.generator.manual_seed(derive_seed(self._seed, "losses", rank, self.updates))
            torch.manual_seed(derive_seed(self._seed, "learner", rank, self.updates))

    def _buffer_versions(self) -> _BufferVersions:
        if self.group.shard.size == 1:
            return {}
        buffers = self.nets.named_buffers()
        return {name: (buffer, buffer._version) for name, buffer in buffers if buffer.is_floating_point()}

    def _average_changed_buffers(self, versions_before: _BufferVersions) -> None:
        """Average buffers that an update changed over the learners, as if one learner had seen the whole batch."""
        changed_buffers = []
        for name, (buffer, version) in self._buffer_versions().items():
            old_buffer, old_version = versions_before.get(name, (None, 0))
            # Such as a moving norm, which each learner updated with its shard only.
            if buffer is not old_buffer or version != old_version:
                changed_buffers.append(buffer)
        if changed_buffers:
            self._average(changed_buffers)

    def _average(self, tensors: list[Tensor]) -> None:
        """Replace tensors by their mean over the learners, weighted by the learners' shards of the batch."""

        def exchange() -> None:
            self.group.all_reduce(tensors, self._weight)

        if self._graphs is None:
            exchange()
        else:
            self._graphs.exchange(exchange)

    def _new_metric_sums(self) -> MetricSums:
        losses = self.algorithm.losses
        source = f" in {self._name} at {definition_location(losses)}" if is_user_code(losses) else ""
        return MetricSums(self.device, self.updates, source)

    def _metric_name(self, metric: str, optimiser: str) -> str:
        return metric if len(self._optimisers) == 1 else f"{metric}/{optimiser}"

    def _load_nets(self, tensors: Mapping[str, Tensor]) -> None:
        weights, expected = select_prefix(f"{_NETS}/", tensors), self.nets.state_dict()
        for name, tensor in expected.items():
            if name not in weights:
                raise DataError(f"the checkpoint has no weights {name!r}, but this model has them")
            if weights[name].shape != tensor.shape:
                raise DataError(
                    f"the checkpoint's weights {name!r} have shape {list(weights[name].shape)}, but this model's have "
                    f"shape {list(tensor.shape)}; use the same model section"
                )
        if unknown_names := sorted(weights.keys() - expected.keys()):
            raise DataError(
                f"the checkpoint has weights {unknown_names[0]!r}, but this model does not have them"
            )
        self.nets.load_state_dict(weights)

    def _load_optimisers(self, state: LearnerState) -> None:
        groups = state.meta["paramGroups"]
        if groups.keys() != self._optimisers.keys():
            raise DataError(
                f"the checkpoint has optimisers {sorted(groups)}, but this algorithm has "
                f"{sorted(self._optimisers)}"
            )
        for name, optimiser in self._optimisers.items():
            optimiser.load(select_prefix(f"{_OPTIMISERS}/{name}/", state.tensors), groups[name])

    def _generator_states(self) -> dict[str, Tensor]:
        """Return the states of this learner's generators by name."""
        states = {f"losses_{self.device.type}": self.generator.get_state(), "cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _gather_generator_states(self) -> dict[str, Tensor]:
        """Return `<rank>/<generator>` -> state of the other learners' generators."""
        world_size = self.group.shard.size
        # States are bytes. Groups sum floats on the device, and float32 represents every byte exactly.
        states_by_name: dict[str, Tensor] = {}
        for name, state in self._generator_states().items():
            states = self.group.gather(state.to(self.device, torch.float32)[None], world_size).to(
                "cpu", torch.uint8
            )
            states_by_name |= {f"{rank}/{name}": states[rank] for rank in range(1, world_size)}
        return states_by_name

    def _set_generator_state(self, name: str, value: Tensor) -> None:
        # States of generators of another device type are ignored: a checkpoint of a GPU resumes on a CPU.
        if name == f"losses_{self.device.type}":
            self.generator.set_state(value)
        elif name == "cpu":
            torch.set_rng_state(value)
        elif name == "cuda" and self.device.type == "cuda":
            torch.cuda.set_rng_state(value, self.device)


def loss_stages(losses: Losses | Iterator[Losses]) -> Iterator[Losses]:
    """Iterate over the stages of an algorithm's losses.

    The caller checks that each stage is a `Losses`: a result of another type is passed on as a single stage.
    """
    return iter((losses,)) if isinstance(losses, Losses) or not isinstance(losses, Iterator) else losses


def _clip_and_step(optimisers: Sequence[Optimiser]) -> list[Tensor]:
    """Clip and step all optimisers; return the norms of their gradients before clipping."""
    norms, steps = (
        (optimiser.gradient_norm for optimiser in optimisers),
        (optimiser.step for optimiser in optimisers),
    )
    if all(optimiser.is_gradient_preserving for optimiser in optimisers):
        # Norms and steps then only read the gradients, so all of them can run at the same time.
        results: list[Any] = run_parallel(*norms, *steps)
        return results[: len(optimisers)]
    results = run_parallel(*norms)
    for optimiser, norm in zip(optimisers, results, strict=True):
        optimiser.clip(norm)
    run_parallel(*steps)
    return results


def _loss_problem(loss: Any) -> str:
    """Describe why a loss is invalid."""
    if not isinstance(loss, Tensor):
        return f"is {describe_type(loss)}"
    return f"has shape {[*loss.shape]}" if loss.dim() else "depends on no parameter"


def _check_priorities(priorities: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    num_items = len(next(iter(batch.values())))
    if not isinstance(priorities, Tensor):
        raise Misuse(
            f"returned priorities as {describe_type(priorities)}: return a tensor with one for each item"
        )
    if priorities.shape != (num_items,):
        raise Misuse(
            f"returned priorities of shape {[*priorities.shape]} for a batch of {num_items} items: "
            "return one for each item"
        )
    return priorities


def _copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _draws_globally(algorithm: Algorithm, nets: nn.ModuleDict) -> bool:
    """Return True if updates may draw from torch's global generator: for dropout, or in a user's code."""
    packages = {type(part).__module__.partition(".")[0] for part in (algorithm, *nets.modules())}
    return not packages <= {"hindcast", "torch"} or any(
        isinstance(part, nn.Dropout) for part in nets.modules()
    )


def _build_optimisers(algorithm: Algorithm, nets: nn.ModuleDict) -> dict[str, Optimiser]:
    options = algorithm.options
    specs = {
        name: with_adam_options(spec, options.adam_epsilon, options.weight_decay, name)
        for name, spec in algorithm.optimisers(nets).items()
    }
    optimisers = {
        name: Optimiser(spec, options.grad_clip, options.grad_clip_by, name) for name, spec in specs.items()
    }
    owners: dict[int, str] = {}
    for name, optimiser in optimisers.items():
        for parameter in optimiser.parameters:
            owner_name = owners.setdefault(id(parameter), name)
            if owner_name != name:
                raise Misuse(
                    f"gives optimisers {owner_name!r} and {name!r} the same parameter: give each parameter to one"
                )
    return optimisers
