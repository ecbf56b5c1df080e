"""Find the options of a model that have no effect on a policy, because of its spaces, its class or other options."""

from __future__ import annotations

from typing import TypeAlias

from hindcast.api.model import ModelOptions, ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.models.encoders import sees_images
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import is_float_box
from hindcast.models.return_policy import ReturnPolicy
from hindcast.models.rl_module import RLModule, is_user_class

_Case: TypeAlias = tuple[bool, str, tuple[str, ...]]
"""(whether the options have no effect, the reason, YAML names of the options)."""
_IMAGE_OPTIONS = (
    "convFilters",
    "convActivation",
    "convPadding",
    "convKernelInitializer",
    "convBiasInitializer",
)
_DENSE_LAYER_OPTIONS = ("fcnetActivation", "layerNorm", "dropout")
_DENSE_ENCODER_OPTIONS = ("fcnetKernelInitializer", "fcnetBiasInitializer")
_LOG_STD_OPTIONS = ("freeLogStd", "logStdClip", "logStdMin", "logStdMax")


def find_ineffective_model_options(
    policy: Policy, model: ModelOptions, full_model: ModelSpec, has_critics: bool
) -> dict[str, str]:
    """Return YAML name -> reason for each option that the user set and that has no effect on the networks.

    Options whose effect the resource alone decides are in `run/ineffective_fields.py`. A custom module may read any
    option of the networks, so options of networks are not reported for it.

    Args:
        policy: the policy that was built.
        model: the options that the user set.
        full_model: these options, completed with defaults.
        has_critics: True if the algorithm has critics or value networks.
    """
    changed_options = model.model_dump(by_alias=True, exclude_defaults=True)
    for role in ("policy", "critics"):
        changed_options |= {f"{role}.{name}": value for name, value in changed_options.get(role, {}).items()}
    preprocessing = policy.preprocessing
    cases: list[_Case] = [
        (
            not any(map(is_float_box, flatten_space(policy.observation_space, Columns.OBS).values())),
            "no observation is a Box of floats",
            ("observationFilter",),
        ),
        (
            not preprocessing.stacked_leaves,
            "no observation is a Box with at least one dimension",
            ("frameStack",),
        ),
        (not has_critics, "the algorithm has no critics or value networks", ("critics",)),
    ]
    if not is_user_class(type(policy.module)):
        cases += _network_cases(policy.module, full_model, has_critics)
    reasons = {
        option: reason for is_ineffective, reason, options in cases if is_ineffective for option in options
    }
    return {option: reason for option, reason in reasons.items() if option in changed_options}


def _network_cases(module: RLModule, full_model: ModelSpec, has_critics: bool) -> list[_Case]:
    """Return the cases of options that only the networks read."""
    model = module.model_config
    has_images = sees_images(module.observation_space, model)
    policy_has_layers = bool(model.fcnet_hiddens or model.head_fcnet_hiddens)
    critics_have_layers = has_critics and bool(full_model.for_network("critics").fcnet_hiddens)
    has_layers = policy_has_layers or critics_have_layers
    # A ReturnPolicy's embeddings are dense layers, regardless of fcnetHiddens.
    has_embeddings = isinstance(module, ReturnPolicy)
    has_range = None not in (model.log_std_min, model.log_std_max)
    return [
        (not has_images, "no observation is an image", _IMAGE_OPTIONS),
        (not has_layers, "there are no fcnetHiddens or headFcnetHiddens", _DENSE_LAYER_OPTIONS),
        (not policy_has_layers, "the policy has no hidden layers", _dense_options("policy")),
        (
            has_critics and not critics_have_layers,
            "the critics have no hidden layers",
            _dense_options("critics"),
        ),
        (
            not (model.fcnet_hiddens or critics_have_layers or has_embeddings),
            "there are no fcnetHiddens",
            _DENSE_ENCODER_OPTIONS,
        ),
        (has_range, "logStdMin and logStdMax replace it", ("logStdClip",)),
        (not module.action_head.log_std_columns, "the policy has no standard deviations", _LOG_STD_OPTIONS),
        (not module.value, "the policy has no value head", ("vfShareLayers",)),
    ]


def _dense_options(role: str) -> tuple[str, ...]:
    """Return the YAML names of the options of dense layers in the section of one role, "policy" or "critics"."""
    return tuple(f"{role}.{option}" for option in _DENSE_LAYER_OPTIONS)
