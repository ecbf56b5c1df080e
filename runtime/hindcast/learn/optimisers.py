"""Optimisers of an algorithm: any of torch's over its own parameters, scheduled learning rates, clipping."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from hindcast.api.spelling import YamlWords
from hindcast.errors import DataError, SpecError
from hindcast.learn.fused_kernels import fused_adam, split_into_chunks
from hindcast.learn.schedules import Schedule, curve_of, is_constant, value_at
from hindcast.user_code import Misuse

ClipBy = Annotated[Literal["global_norm", "norm", "value"], YamlWords("GlobalNorm", "Norm", "Value")]
Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

_NEED_MORE = (torch.optim.LBFGS, torch.optim.SparseAdam)
"""Called with a closure, or with sparse gradients only: an update has neither."""
_KINDS: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind not in _NEED_MORE
}
del _KINDS["optimizer"]  # the base class
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)
_FUSED = (*_ADAMS, torch.optim.SGD)
_OTHER_KERNELS = frozenset({"fused", "foreach", "differentiable"})
_WRAPPED = ("step", "add_param_group", "state_dict", "load_state_dict")
"""The methods that `uncompiled` frees."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with their own learning rate or options within an optimiser.

    Attributes:
        parameters: no parameter belongs to two groups.
        lr: as the optimiser's; None takes that.
        options: over the optimiser's.
    """

    parameters: Sequence[nn.Parameter]
    lr: Schedule | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimiserSpec:
    """What one optimiser trains and how.

    Attributes:
        parameters: no parameter belongs to two optimisers.
        lr: constant, or points over trained timesteps.
        kind: a class in torch.optim, in any case: "adam" (arXiv 1412.6980), "AdamW" (arXiv 1711.05101), "sgd", ...
        options: of that class: `betas`, `eps`, `weight_decay`, `momentum`, ...; the rest have torch's defaults,
            but that fused kernels are used where there are any, and on GPUs those that can be captured.
        groups: more parameters, with learning rates or options of their own.
    """

    parameters: Sequence[nn.Parameter]
    lr: Schedule
    kind: str = "adam"
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[ParameterGroup] = ()


def adam_specs(nets: nn.ModuleDict, rates: Mapping[str, Schedule]) -> dict[str, OptimiserSpec]:
    """An Adam for each of the networks named, by its learning rate."""
    return {name: OptimiserSpec(list(nets[name].parameters()), lr) for name, lr in rates.items()}


class Optimiser:
    """One optimiser at work: gradients, clipping, step.

    Args:
        spec: parameters and learning rate.
        grad_clip: clipping threshold; None disables clipping.
        grad_clip_by: what is bounded: the norm of all gradients together, each parameter's, or each value.
        name: the optimiser's, for messages.

    Attributes:
        parameters: all that it trains.
        torch: torch's optimiser.

    Raises:
        SpecError: no such optimiser, or it does not take these options or parameters.
    """

    def __init__(
        self, spec: OptimiserSpec, grad_clip: float | None, grad_clip_by: ClipBy, name: str = "policy"
    ) -> None:
        groups = [ParameterGroup(spec.parameters), *spec.groups] if spec.parameters else list(spec.groups)
        rates = [spec.lr if group.lr is None else group.lr for group in groups]
        self.parameters = [parameter for group in groups for parameter in group.parameters]
        self._name = name
        self._clip, self._clip_by = grad_clip, grad_clip_by
        self.torch_optimiser = _built(spec, groups, rates, f"optimiser {name!r}")
        self._rates = [None if is_constant(rate) else curve_of(rate) for rate in rates]
        self._keep_rates_as_tensors()

    @property
    def lr(self) -> float:
        """The learning rate in force, of several groups the first one's."""
        return float(self.torch_optimiser.param_groups[0]["lr"])

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph can record its steps."""
        return (
            isinstance(self.torch_optimiser, torch.optim.SGD) or "capturable" in self.torch_optimiser.defaults
        )

    @property
    def gradients(self) -> list[Tensor]:
        """Of the parameters that have one."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def set_learning_rates(self, timesteps: int) -> None:
        """Let scheduled learning rates be those after so many trained timesteps."""
        for group, rate in zip(self.torch_optimiser.param_groups, self._rates, strict=True):
            if rate is not None:
                group["lr"].fill_(rate(timesteps))

    @property
    def is_gradient_preserving(self) -> bool:
        """Whether neither clipping nor the step changes the gradients; torch's steps of lists may (Nesterov's does)."""
        return self._clip is None and all(group.get("fused") for group in self.torch_optimiser.param_groups)

    def gradient_norm(self) -> Tensor:
        """L2 norm of all gradients before clipping (scalar tensor; nothing waits for the device).

        Raises:
            Misuse: no parameter has a gradient.
        """
        gradients = self.gradients
        if not gradients:
            raise Misuse(f"gave a loss of optimiser {self._name!r} that depends on none of its parameters")
        (pieces,) = split_into_chunks(gradients)
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(pieces)))

    def step(self) -> None:
        """Move the parameters."""
        self.torch_optimiser.step()

    def zero_grad(self) -> None:
        """As torch's `zero_grad`, which takes longer to say so to a profiler."""
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """Tensors as `<index>/<key>`, and the groups of parameters as JSON."""
        saved = self.torch_optimiser.state_dict()
        tensors = {
            f"{index}/{key}": value
            for index, values in saved["state"].items()
            for key, value in values.items()
        }
        return tensors, [
            {key: _plain(value) for key, value in group.items()} for group in saved["param_groups"]
        ]

    def load(self, tensors: Mapping[str, Tensor], groups: Sequence[Mapping[str, Any]]) -> None:
        """Take over `state()`. Options are this optimiser's own: of groups, only a scheduled rate is taken.

        Raises:
            DataError: the state is of other groups of parameters.
        """
        own = self.torch_optimiser.state_dict()["param_groups"]
        given = [group["params"] for group in groups]
        if given != [group["params"] for group in own]:
            raise DataError(
                f"the checkpoint's optimiser {self._name!r} has groups of {[len(each) for each in given]} "
                f"parameters, this one's are of {[len(group['params']) for group in own]}"
            )
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            index, key = name.split("/")
            slots.setdefault(int(index), {})[key] = tensor.clone()
        for group, saved, rate in zip(own, groups, self._rates, strict=True):
            group["lr"] = group["lr"] if rate is None else float(saved["lr"])
        self.torch_optimiser.load_state_dict({"state": slots, "param_groups": own})
        self._keep_rates_as_tensors()

    def _keep_rates_as_tensors(self) -> None:
        """Those that change: no number of Python's does, and what is compiled or captured stays valid."""
        for group, rate in zip(self.torch_optimiser.param_groups, self._rates, strict=True):
            if rate is not None:
                # CUDA's fused kernels read a float32; on the CPU all digits count, as they do of a number.
                device = self.parameters[0].device
                dtype = torch.float32 if device.type == "cuda" else torch.float64
                group["lr"] = torch.tensor(float(group["lr"]), dtype=dtype, device=device)

    def clip(self, norm: Tensor) -> None:
        """Clip the gradients, whose `norm()` is given."""
        gradients = self.gradients
        if self._clip is None:
            return
        if self._clip_by == "value":
            torch._foreach_clamp_min_(gradients, -self._clip)
            torch._foreach_clamp_max_(gradients, self._clip)
        elif self._clip_by == "global_norm":
            torch._foreach_mul_(gradients, _factor(self._clip, norm))
        else:
            norms = torch._foreach_norm(gradients)
            torch._foreach_mul_(gradients, [_factor(self._clip, each) for each in norms])


def without_compile_wrappers(kind: type[Kind]) -> type[Kind]:
    """An optimiser's class, without what torch wraps around its methods for code that is compiled.

    No step here is, and these wrappers import torch's compiler when they are first called: a second of each process's
    start.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _WRAPPED}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(methods["step"])})


def backward(losses: Sequence[Tensor], optimisers: Sequence[Optimiser], keep_graph: bool = False) -> None:
    """Gradients of the sum of scalar losses for the optimisers' parameters alone, in one pass."""
    parameters = [parameter for optimiser in optimisers for parameter in optimiser.parameters]
    torch.autograd.backward(losses, inputs=parameters, retain_graph=keep_graph)


def check_disjoint(losses: Mapping[str, Tensor], optimisers: Mapping[str, Optimiser]) -> None:
    """Refuse losses whose gradients one pass would mix: each may reach its own optimiser's parameters alone.

    Args:
        losses: by their optimisers' names.
        optimisers: those that move.

    Raises:
        Misuse: a loss reaches a parameter of another one's.
    """
    owners = {id(each): name for name in losses for each in optimisers[name].parameters}
    for name, loss in losses.items():
        reached = {owners[id(each)] for each in _leaves(loss) if id(each) in owners}
        for other in sorted(reached - {name}):
            raise Misuse(
                f"gave a loss of optimiser {name!r} that reaches parameters of {other!r}, so that the two have no "
                "joint backward pass: drop joint=True, or detach the outputs of those parameters"
            )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """The leaves of a loss's graph."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        if hasattr(node, "variable"):
            yield node.variable


def _built(
    spec: OptimiserSpec, groups: Sequence[ParameterGroup], rates: Sequence[Schedule], what: str
) -> torch.optim.Optimizer:
    kind = _KINDS.get(spec.kind.lower())
    if kind is None:
        raise SpecError(f"{what} is of kind {spec.kind!r}; torch.optim has {', '.join(sorted(_KINDS))}")
    if not groups:
        raise SpecError(f"{what} has no parameters")
    described = []
    for group, rate in zip(groups, rates, strict=True):
        options = {**spec.options, **group.options}
        _check(options, kind, what)
        kernels = _kernels(kind, options, group.parameters)
        described.append({"params": list(group.parameters), "lr": value_at(rate, 0), **kernels, **options})
    try:
        for options in described[1:]:  # of groups, torch checks nothing
            kind(**options)
        made = kind if described[0].get("differentiable") else without_compile_wrappers(kind)
        is_fused = all(options.get("fused") for options in described)
        if is_fused and issubclass(kind, _ADAMS):
            made = fused_adam(made)
        return made(described, **{key: value for key, value in described[0].items() if key != "params"})
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SpecError(f"{what} ({kind.__name__}): {reason}") from error


def _check(options: Mapping[str, Any], kind: type[torch.optim.Optimizer], what: str) -> None:
    known = _parameters(kind) - {"params", "lr"}
    for option in options:
        if option not in known:
            raise SpecError(
                f"{what}: torch.optim.{kind.__name__} has no option {option!r}; it has {', '.join(sorted(known))}"
            )


def _kernels(
    kind: type[torch.optim.Optimizer], options: Mapping[str, Any], parameters: Sequence[nn.Parameter]
) -> dict[str, bool]:
    """The fastest kernels, and those that a CUDA graph can capture, where nothing else is asked for."""
    devices = {parameter.device.type for parameter in parameters}
    found = {}
    if kind in _FUSED and not _OTHER_KERNELS & options.keys():
        found["fused"] = devices <= {"cpu", "cuda"}
    if "capturable" in _parameters(kind) and "cuda" in devices:
        found["capturable"] = True
    return found


def _parameters(kind: type[torch.optim.Optimizer]) -> frozenset[str]:
    return frozenset(inspect.signature(kind).parameters)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _factor(bound: float, norm: Tensor) -> Tensor:
    return (bound / (norm + 1e-6)).clamp(max=1.0)
