"""The options of a model that change nothing in a policy, for its observations, its actions or its kind."""

from __future__ import annotations

from typing import TypeAlias

from hindcast.api.model import ModelSpec
from hindcast.models.encoders import sees_images
from hindcast.models.policy import Policy
from hindcast.models.return_policy import ReturnPolicy
from hindcast.models.rl_module import RLModule, is_user_class

_Case: TypeAlias = tuple[bool, str, tuple[str, ...]]
"""Whether it is so, why that makes options idle, and which."""
_OF_IMAGES = (
    "convFilters",
    "convActivation",
    "convPadding",
    "convKernelInitializer",
    "convBiasInitializer",
)
_OF_DENSE_LAYERS = ("fcnetActivation", "layerNorm", "dropout")
_OF_DENSE_ENCODERS = ("fcnetKernelInitializer", "fcnetBiasInitializer")
_OF_DEVIATIONS = ("freeLogStd", "logStdClip", "logStdMin", "logStdMax")


def idle_options(policy: Policy, model: ModelSpec) -> dict[str, str]:
    """Those given, and not at their defaults: by their YAML names, with why.

    A module of the user's own may read any option of the networks, so that none of these counts as idle.

    Args:
        policy: as it was built.
        model: what it was built from, as the user gave it.
    """
    given = model.model_dump(by_alias=True, exclude_defaults=True)
    seen = policy.preprocessing
    cases: list[_Case] = [
        (not seen.filters, "no observation is a Box of floats", ("observationFilter",)),
        (not seen.stacked_leaves, "no observation is a Box with axes", ("frameStack",)),
    ]
    if not is_user_class(type(policy.module)):
        cases += _of_networks(policy.module, model)
    found = {option: why for is_so, why, options in cases if is_so for option in options}
    return {option: why for option, why in found.items() if option in given}


def _of_networks(module: RLModule, model: ModelSpec) -> list[_Case]:
    has_images = sees_images(module.observation_space, model)
    has_layers = bool(model.fcnet_hiddens or model.head_fcnet_hiddens)
    embeds = isinstance(module, ReturnPolicy)  # with dense layers, whatever fcnetHiddens is
    has_range = None not in (model.log_std_min, model.log_std_max)
    return [
        (not has_images, "no observation is an image", _OF_IMAGES),
        (not has_layers, "there are no fcnetHiddens or headFcnetHiddens", _OF_DENSE_LAYERS),
        (not (model.fcnet_hiddens or embeds), "there are no fcnetHiddens", _OF_DENSE_ENCODERS),
        (has_range, "logStdMin and logStdMax replace it", ("logStdClip",)),
        (not module.action_head.log_std_columns, "the policy has no standard deviations", _OF_DEVIATIONS),
        (not module.value, "the policy has no value head", ("vfShareLayers",)),
    ]
