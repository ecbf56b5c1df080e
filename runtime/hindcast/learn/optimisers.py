"""Optimisers of an algorithm: any optimiser of torch, with scheduled learning rates and gradient clipping."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeVar

import torch
from torch import Tensor, nn

from hindcast.api.spelling import YamlWords
from hindcast.errors import DataError, SpecError
from hindcast.learn.fused_kernels import fused_adam, split_into_chunks
from hindcast.learn.schedules import Schedule, is_constant, make_curve, value_at
from hindcast.user_code import Misuse

ClipBy = Annotated[Literal["global_norm", "norm", "value"], YamlWords("GlobalNorm", "Norm", "Value")]
Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

ADAM_EPSILON: Final = 1e-8
"""Default ε of Adam, torch's."""
_UNSUPPORTED_OPTIMISERS = (torch.optim.LBFGS, torch.optim.SparseAdam)
"""These need a closure (LBFGS) or sparse gradients; an update has neither."""
_OPTIMISER_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind not in _UNSUPPORTED_OPTIMISERS
}
del _OPTIMISER_CLASSES["optimizer"]  # the base class
_ADAM_CLASSES = (torch.optim.Adam, torch.optim.AdamW)
_FUSED_CLASSES = (*_ADAM_CLASSES, torch.optim.SGD)
_KERNEL_OPTIONS = frozenset({"fused", "foreach", "differentiable"})
"""Options that select a kernel; if the user sets one, the fused kernel is not selected by default."""
_WRAPPED_METHODS = ("step", "add_param_group", "state_dict", "load_state_dict")
"""The methods that `without_compile_wrappers` unwraps."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with their own learning rate or options within an optimiser.

    Attributes:
        parameters: no parameter belongs to two groups.
        lr: learning rate; None uses the optimiser's.
        options: override the optimiser's options.
    """

    parameters: Sequence[nn.Parameter]
    lr: Schedule | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimiserSpec:
    """The parameters, kind and options of one optimiser.

    Attributes:
        parameters: no parameter belongs to two optimisers.
        lr: constant, or points over trained timesteps.
        kind: a class in torch.optim, in upper or lower case: "adam" (arXiv 1412.6980), "AdamW" (arXiv 1711.05101),
            "sgd", ...
        options: of that class: `betas`, `eps`, `weight_decay`, `momentum`, ... Omitted ones have torch's defaults,
            except that fused kernels are used if available, and on GPUs kernels that CUDA graphs can capture.
        groups: more parameters, with their own learning rates or options.
    """

    parameters: Sequence[nn.Parameter]
    lr: Schedule
    kind: str = "adam"
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[ParameterGroup] = ()


def with_adam_options(spec: OptimiserSpec, epsilon: float, weight_decay: float, name: str) -> OptimiserSpec:
    """Return the spec of Adam with the user's options; options of the spec itself prevail.

    Args:
        spec: the algorithm's spec.
        epsilon: ε of Adam.
        weight_decay: decoupled weight decay (AdamW); it does not apply if all parameters are single numbers, such as
            the multiplier of a constraint, which decay would move.
        name: the optimiser's name, for messages.

    Raises:
        SpecError: the optimiser is not Adam, but the user sets one of the options.
    """
    if spec.kind.lower() not in ("adam", "adamw"):
        if epsilon != ADAM_EPSILON or weight_decay:
            option = "weightDecay" if weight_decay else "adamEpsilon"
            raise SpecError(
                f"{option} applies to Adam, but the algorithm's optimiser {name!r} is {spec.kind!r}: leave it out",
            )
        return spec
    options = {"eps": epsilon, **spec.options}
    parameters = [*spec.parameters, *(parameter for group in spec.groups for parameter in group.parameters)]
    if not weight_decay or all(parameter.dim() == 0 for parameter in parameters):
        return replace(spec, options=options)
    return replace(spec, kind="adamw", options={"weight_decay": weight_decay, **options})


def adam_specs(nets: nn.ModuleDict, rates: Mapping[str, Schedule]) -> dict[str, OptimiserSpec]:
    """Return the spec of an Adam optimiser for each network in `rates`, name -> learning rate."""
    return {name: OptimiserSpec(list(nets[name].parameters()), lr) for name, lr in rates.items()}


class Optimiser:
    """One optimiser: gradients, clipping, step.

    Args:
        spec: parameters, learning rate, options.
        grad_clip: clipping threshold; None disables clipping.
        grad_clip_by: what is clipped: the norm of all gradients together, the norm of each parameter's gradient, or
            each value.
        name: the optimiser's name, for messages.

    Attributes:
        parameters: all parameters that it trains.
        torch_optimiser: the optimiser of torch.

    Raises:
        SpecError: torch has no such optimiser, or it does not accept these options or parameters.
    """

    def __init__(
        self, spec: OptimiserSpec, grad_clip: float | None, grad_clip_by: ClipBy, name: str = "policy"
    ) -> None:
        groups = [ParameterGroup(spec.parameters), *spec.groups] if spec.parameters else list(spec.groups)
        rates = [spec.lr if group.lr is None else group.lr for group in groups]
        self.parameters = [parameter for group in groups for parameter in group.parameters]
        self._name = name
        self._clip, self._clip_by = grad_clip, grad_clip_by
        self.torch_optimiser = _build_optimiser(spec, groups, rates, f"optimiser {name!r}")
        self._rate_functions = [None if is_constant(rate) else make_curve(rate) for rate in rates]
        self._store_rates_as_tensors()

    @property
    def lr(self) -> float:
        """The current learning rate, that of the first group if there are several."""
        return float(self.torch_optimiser.param_groups[0]["lr"])

    @property
    def is_capturable(self) -> bool:
        """True if a CUDA graph can record its steps."""
        return (
            isinstance(self.torch_optimiser, torch.optim.SGD) or "capturable" in self.torch_optimiser.defaults
        )

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters that have one."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def set_learning_rates(self, timesteps: int) -> None:
        """Set scheduled learning rates to their values after `timesteps` trained timesteps."""
        for group, rate in zip(self.torch_optimiser.param_groups, self._rate_functions, strict=True):
            if rate is not None:
                group["lr"].fill_(rate(timesteps))

    @property
    def is_gradient_preserving(self) -> bool:
        """True if neither clipping nor the step changes the gradients."""
        # torch's steps over lists may change gradients: the step of SGD with Nesterov momentum does.
        return self._clip is None and all(group.get("fused") for group in self.torch_optimiser.param_groups)

    def gradient_norm(self) -> Tensor:
        """Return the L2 norm of all gradients before clipping, as a scalar tensor, without waiting for the device.

        Raises:
            Misuse: no parameter has a gradient.
        """
        gradients = self.gradients
        if not gradients:
            raise Misuse(
                f"returned a loss of optimiser {self._name!r} that depends on none of its parameters"
            )
        (chunks,) = split_into_chunks(gradients)
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(chunks)))

    def step(self) -> None:
        """Update the parameters."""
        self.torch_optimiser.step()

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        # torch's own zero_grad takes longer, since it notifies a profiler.
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """Return the state tensors as `<index>/<key>`, and the parameter groups as JSON."""
        state = self.torch_optimiser.state_dict()
        tensors = {
            f"{index}/{key}": value
            for index, values in state["state"].items()
            for key, value in values.items()
        }
        return tensors, [
            {key: _to_json_value(value) for key, value in group.items()} for group in state["param_groups"]
        ]

    def load(self, tensors: Mapping[str, Tensor], groups: Sequence[Mapping[str, Any]]) -> None:
        """Restore the result of `state`.

        This optimiser keeps its options and constant learning rates; of `groups` only scheduled rates are restored.

        Raises:
            DataError: the saved state has other parameter groups.
        """
        param_groups = self.torch_optimiser.state_dict()["param_groups"]
        saved_indices = [group["params"] for group in groups]
        if saved_indices != [group["params"] for group in param_groups]:
            raise DataError(
                f"the checkpoint's optimiser {self._name!r} has groups of "
                f"{[len(indices) for indices in saved_indices]} parameters, but this one has groups of "
                f"{[len(group['params']) for group in param_groups]}"
            )
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            index, key = name.split("/")
            # Copied, because torch keeps the tensors and updates them in place.
            slots.setdefault(int(index), {})[key] = tensor.clone()
        for group, saved_group, rate in zip(param_groups, groups, self._rate_functions, strict=True):
            group["lr"] = group["lr"] if rate is None else float(saved_group["lr"])
        self.torch_optimiser.load_state_dict({"state": slots, "param_groups": param_groups})
        self._store_rates_as_tensors()

    def _store_rates_as_tensors(self) -> None:
        """Replace scheduled rates by tensors, so that compiled code and CUDA graphs read their current values."""
        for group, rate in zip(self.torch_optimiser.param_groups, self._rate_functions, strict=True):
            if rate is not None:
                # CUDA's fused kernels require float32; on the CPU float64 keeps all digits of a Python number.
                device = self.parameters[0].device
                dtype = torch.float32 if device.type == "cuda" else torch.float64
                group["lr"] = torch.tensor(float(group["lr"]), dtype=dtype, device=device)

    def clip(self, norm: Tensor) -> None:
        """Clip the gradients, given their `gradient_norm()`."""
        gradients = self.gradients
        if self._clip is None:
            return
        if self._clip_by == "value":
            torch._foreach_clamp_min_(gradients, -self._clip)
            torch._foreach_clamp_max_(gradients, self._clip)
        elif self._clip_by == "global_norm":
            torch._foreach_mul_(gradients, _clip_factor(self._clip, norm))
        else:
            norms = torch._foreach_norm(gradients)
            torch._foreach_mul_(
                gradients, [_clip_factor(self._clip, gradient_norm) for gradient_norm in norms]
            )


def without_compile_wrappers(optimiser_class: type[Kind]) -> type[Kind]:
    """Return an optimiser class without the wrappers that torch puts around its methods for compiled code.

    No step is compiled here, and the wrappers import torch's compiler at their first call, which costs each process
    1.3 to 2.3 seconds of processor time and 62 MB.
    """
    methods = {name: inspect.unwrap(getattr(optimiser_class, name)) for name in _WRAPPED_METHODS}
    return type(
        optimiser_class.__name__, (optimiser_class,), {**methods, "step": torch.no_grad()(methods["step"])}
    )


def backward(losses: Sequence[Tensor], optimisers: Sequence[Optimiser], keep_graph: bool = False) -> None:
    """Compute the gradients of the sum of scalar losses, only for the optimisers' parameters, in one pass."""
    parameters = [parameter for optimiser in optimisers for parameter in optimiser.parameters]
    torch.autograd.backward(losses, inputs=parameters, retain_graph=keep_graph)


def check_disjoint(losses: Mapping[str, Tensor], optimisers: Mapping[str, Optimiser]) -> None:
    """Refuse joint losses whose gradients one backward pass would mix.

    Args:
        losses: optimiser name -> loss. Each may reach only the parameters of its own optimiser.
        optimisers: by name.

    Raises:
        Misuse: a loss reaches a parameter of another loss's optimiser.
    """
    owners = {id(parameter): name for name in losses for parameter in optimisers[name].parameters}
    for name, loss in losses.items():
        reached_owners = {owners[id(parameter)] for parameter in _leaves(loss) if id(parameter) in owners}
        for owner in sorted(reached_owners - {name}):
            raise Misuse(
                f"returned a loss of optimiser {name!r} that reaches parameters of {owner!r}, so that the two cannot "
                "share a backward pass: drop joint=True, or detach the outputs of those parameters"
            )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Iterate over the leaf tensors of a loss's autograd graph."""
    stack, visited_nodes = [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in visited_nodes:
            continue
        visited_nodes.add(node)
        stack += [next_node for next_node, _ in node.next_functions]
        if hasattr(node, "variable"):
            yield node.variable


def _build_optimiser(
    spec: OptimiserSpec, groups: Sequence[ParameterGroup], rates: Sequence[Schedule], subject: str
) -> torch.optim.Optimizer:
    optimiser_class = _OPTIMISER_CLASSES.get(spec.kind.lower())
    if optimiser_class is None:
        raise SpecError(
            f"{subject} has kind {spec.kind!r}, but torch.optim has only {', '.join(sorted(_OPTIMISER_CLASSES))}",
        )
    if not groups:
        raise SpecError(f"{subject} has no parameters")
    param_groups = []
    for group, rate in zip(groups, rates, strict=True):
        options = {**spec.options, **group.options}
        _check_options(options, optimiser_class, subject)
        kernels = _kernel_options(optimiser_class, options, group.parameters)
        param_groups.append({"params": list(group.parameters), "lr": value_at(rate, 0), **kernels, **options})
    try:
        for options in param_groups[1:]:  # torch checks the options of the first group only
            optimiser_class(**options)
        # `without_compile_wrappers` disables gradients in steps, which differentiable steps need.
        step_class = (
            optimiser_class
            if param_groups[0].get("differentiable")
            else without_compile_wrappers(optimiser_class)
        )
        is_fused = all(options.get("fused") for options in param_groups)
        if is_fused and issubclass(optimiser_class, _ADAM_CLASSES):
            step_class = fused_adam(step_class)
        return step_class(
            param_groups, **{key: value for key, value in param_groups[0].items() if key != "params"}
        )
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SpecError(f"{subject} ({optimiser_class.__name__}): {reason}") from error


def _check_options(
    options: Mapping[str, Any], optimiser_class: type[torch.optim.Optimizer], subject: str
) -> None:
    known_options = _parameter_names(optimiser_class) - {"params", "lr"}
    for option in options:
        if option not in known_options:
            raise SpecError(
                f"{subject}: torch.optim.{optimiser_class.__name__} has no option {option!r}; it has "
                f"{', '.join(sorted(known_options))}"
            )


def _kernel_options(
    optimiser_class: type[torch.optim.Optimizer],
    options: Mapping[str, Any],
    parameters: Sequence[nn.Parameter],
) -> dict[str, bool]:
    """Select fused kernels, and kernels that CUDA graphs can capture, unless the options select others."""
    devices = {parameter.device.type for parameter in parameters}
    flags = {}
    if optimiser_class in _FUSED_CLASSES and not _KERNEL_OPTIONS & options.keys():
        flags["fused"] = devices <= {"cpu", "cuda"}
    if "capturable" in _parameter_names(optimiser_class) and "cuda" in devices:
        flags["capturable"] = True
    return flags


def _parameter_names(optimiser_class: type[torch.optim.Optimizer]) -> frozenset[str]:
    return frozenset(inspect.signature(optimiser_class).parameters)


def _to_json_value(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _clip_factor(bound: float, norm: Tensor) -> Tensor:
    return (bound / (norm + 1e-6)).clamp(max=1.0)
