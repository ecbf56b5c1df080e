"""Why a policy cannot begin with the weights of another: it is of another kind, means something else, or is larger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hindcast.algorithms import REGISTRY
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import Algorithm
from hindcast.models.flow_policy import OneStepPolicy
from hindcast.models.greedy_policy import GreedyPolicy
from hindcast.models.policy import Policy
from hindcast.models.return_policy import ReturnPolicy
from hindcast.models.rl_module import PolicyModule, RLModule

_PLAIN: Final = ("categorical", "gaussian")
"""What `auto` is, of one kind of actions each."""
_KINDS: Final[dict[type[RLModule], str]] = {
    PolicyModule: "an action distribution",
    GreedyPolicy: "action values",
    OneStepPolicy: "a one-step flow",
    ReturnPolicy: "a transformer",
}
_OPTIONS: Final = {
    "chunk": "actionChunk",
    "context": "contextLength",
    "heads": "numHeads",
    "layers": "numLayers",
    "max_timestep": "maxTimestep",
    "quantiles": "numQuantiles",
    "return_scale": "returnScale",
    "size": "embedSize",
    "target_return": "targetReturn",
}
"""What an algorithm calls the options of its own kind of policy, where the names differ."""


def kind_mismatch(policy: Policy, saved: Policy, algorithm: Algorithm, maker: str | None) -> str | None:
    """What is wrong where the saved policy is of a kind that no `model` of this algorithm gives.

    Args:
        algorithm: that trains `policy`.
        maker: name of the algorithm that trained `saved`, where that is known.
    """
    own, given = type(policy.module), type(saved.module)
    is_chosen = any(each.module.model_config.module_class for each in (policy, saved))
    if own is given or (is_chosen and not algorithm.has_own_policy):
        return None
    trained = "" if maker is None else f" that {maker} trained"
    return (
        f"holds {_KINDS.get(given, given.__name__)}{trained}, and {type(algorithm).__name__} trains "
        f"{_KINDS.get(own, own.__name__)}: start from a checkpoint of {_makers(own, algorithm)}, or leave it out"
    )


def option_mismatch(policy: Policy, saved: Policy) -> str | None:
    """What is wrong where the two differ in an option that gives weights of the same shapes another meaning."""
    own, given = _meaning(policy), _meaning(saved)
    if not any(weights.dim() == 4 for weights in policy.module.state_dict().values()):
        del own["convActivation"]
    return _difference("model", own, given) or _difference("config", _made_with(policy), _made_with(saved))


def shape_mismatch(policy: Policy, saved: Policy) -> str | None:
    """Why weights have other shapes; None where neither the model sections nor the spaces say it."""
    shaping = [_shaping(each.module.model_config) for each in (policy, saved)]
    if found := _difference("model", *shaping):
        return found
    for what in ("observation_space", "action_space"):
        own, given = getattr(policy, what), getattr(saved, what)
        if own != given:
            return f"is for the {what.replace('_', ' ')} {given}, this training's is {own}; they must be the same"
    return None


def _makers(kind: type[RLModule], algorithm: Algorithm) -> str:
    """The algorithms that make this kind of policy."""
    own = type(algorithm)
    names = [
        name
        for name, each in REGISTRY.items()
        if (
            not each.has_own_policy
            if kind is PolicyModule
            else issubclass(each, own) or issubclass(own, each)
        )
    ] or [own.__name__]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _difference(section: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    for option, here in own.items():
        if given.get(option) != here:
            chosen = ", in which Auto is the algorithm's own choice" if option == "distribution" else ""
            theirs, ours = given.get(option), here
            if section == "model":
                theirs, ours = (ModelSpec.in_yaml(option, value) for value in (theirs, ours))
            return (
                f"has {section}.{option} {theirs}, this one has {ours}; the {section} sections must be the "
                f"same{chosen}"
            )
    return None


def _meaning(policy: Policy) -> dict[str, Any]:
    """The options of `model` that give weights another meaning and do not show in their shapes."""
    preprocessing, model = policy.preprocessing.to_json(), policy.module.model_config
    return {
        "observationFilter": preprocessing["observationFilter"],
        "frameStack": preprocessing["frameStack"],
        "fcnetActivation": model.fcnet_activation,
        "convActivation": model.conv_activation,
        "convPadding": model.conv_padding,
        "moduleClass": model.module_class,
        "moduleOptions": model.module_options if model.module_class else {},
        "distribution": "auto" if model.distribution in _PLAIN else model.distribution,
    }


def _made_with(policy: Policy) -> dict[str, Any]:
    """The options that the algorithm, rather than the user, gave its own kind of policy, by their YAML names."""
    model = policy.module.model_config
    if model.module_class:
        return {}
    return {_OPTIONS.get(name, name): value for name, value in model.module_options.items()}


def _shaping(model: ModelSpec) -> dict[str, Any]:
    """The options of `model` that show in the shapes of weights."""
    return {
        "fcnetHiddens": model.fcnet_hiddens,
        "headFcnetHiddens": model.head_fcnet_hiddens,
        "convFilters": model.conv_filters,
        "layerNorm": model.layer_norm,
        "recurrent": model.recurrent,
        "cellSize": model.cell_size,
        "freeLogStd": model.free_log_std,
        "vfShareLayers": model.vf_share_layers,
    }
