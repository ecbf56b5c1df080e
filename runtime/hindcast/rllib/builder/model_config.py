"""`DefaultModelConfig`, RLlib's description of a policy network, and the mapping of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from hindcast.api.sentences import nearest
from hindcast.errors import Problem, SpecError
from hindcast.formatting import describe_type
from hindcast.rllib.builder.options import MODEL, OPTIONS, use_option_names

Initializer = str | Callable[..., Any] | None


@dataclass
class DefaultModelConfig:
    """Networks of an algorithm, with RLlib's names and defaults.

    A dictionary with some of the fields keeps the algorithm's own defaults for the others. `vf_share_layers` is True,
    as in RLlib; without a model config the value head has separate layers.
    """

    fcnet_hiddens: list[int] = field(default_factory=lambda: [256, 256])
    fcnet_activation: str | None = "tanh"
    fcnet_kernel_initializer: Initializer = None
    fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    fcnet_bias_initializer: Initializer = None
    fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    fcnet_use_layernorm: bool = False
    conv_filters: list[Any] | None = None
    conv_activation: str = "relu"
    conv_kernel_initializer: Initializer = None
    conv_kernel_initializer_kwargs: dict[str, Any] | None = None
    conv_bias_initializer: Initializer = None
    conv_bias_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_hiddens: list[int] = field(default_factory=list)
    head_fcnet_activation: str = "relu"
    head_fcnet_kernel_initializer: Initializer = None
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_bias_initializer: Initializer = None
    head_fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_use_layernorm: bool = False
    free_log_std: bool = False
    log_std_clip_param: float = 20.0
    vf_share_layers: bool = True
    use_lstm: bool = False
    max_seq_len: int = 20
    lstm_cell_size: int = 256
    lstm_use_prev_action: bool = False
    lstm_use_prev_reward: bool = False
    lstm_kernel_initializer: Initializer = None
    lstm_kernel_initializer_kwargs: dict[str, Any] | None = None
    lstm_bias_initializer: Initializer = None
    lstm_bias_initializer_kwargs: dict[str, Any] | None = None
    fusionnet_hiddens: list[int] = field(default_factory=lambda: [256, 256])
    fusionnet_activation: str = "tanh"
    fusionnet_kernel_initializer: Initializer = None
    fusionnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    fusionnet_bias_initializer: Initializer = None
    fusionnet_bias_initializer_kwargs: dict[str, Any] | None = None
    log_std_min: float | None = None
    log_std_max: float | None = None
    distribution: str = "auto"
    observation_filter: str = "none"
    frame_stack: int = 1
    recurrent: str = "none"
    dropout: float = 0.0
    conv_padding: str | None = None
    preset: str | None = "rllib"
    policy: dict[str, Any] = field(default_factory=dict)
    critics: dict[str, Any] = field(default_factory=dict)


_LAYER_FIELDS: Final = ("fcnet_hiddens", "fcnet_activation", "fcnet_use_layernorm", "dropout")
_DEFAULTS: Final = asdict(DefaultModelConfig())
_ALGORITHM_FIELDS: Final = (*_LAYER_FIELDS, "free_log_std", "observation_filter")
"""Fields that, left out of a dictionary, have the algorithm's default and not RLlib's. A value for them is therefore
passed on even if it is RLlib's default."""
_OWN_DEFAULTS: Final = ("preset", "vf_share_layers")
"""Fields that have other defaults here than in the resource."""
_KWARGS_SUFFIX: Final = "_kwargs"
_ACTIVATIONS: Final = {"swish": "silu", None: "linear"}
_OBSERVATION_FILTERS: Final = {"NoFilter": "none", "MeanStdFilter": "meanStd"}


def model_config_to_dict(config: DefaultModelConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model config, or the entries of a mapping, with names in place of initialiser functions.

    Raises:
        SpecError: the config is neither a `DefaultModelConfig` nor a mapping.
    """
    if not isinstance(config, DefaultModelConfig | Mapping):
        raise SpecError(
            f"model_config is {describe_type(config)}, expected a DefaultModelConfig or a dictionary."
        )
    fields = asdict(config) if isinstance(config, DefaultModelConfig) else dict(config)
    initializers = {
        name: getattr(fields[name], "__name__", fields[name]) for name in fields if _is_initializer(name)
    }
    return {**fields, **initializers}


def model_fields(config: DefaultModelConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource's model section, by its YAML names.

    Raises:
        SpecError: a field is unknown, or is refused and does not have its default.
    """
    options = model_config_to_dict(config)
    section: dict[str, Any] = _padding_field(options)
    for name, value in options.items():
        option = OPTIONS[MODEL].get(name)
        if option is None:
            raise SpecError(f"model_config.{name} is not a field{nearest(name, OPTIONS[MODEL])}")
        is_default = name not in _OWN_DEFAULTS and value == _DEFAULTS[name]
        if is_default and (options.get("preset") or name not in _ALGORITHM_FIELDS):
            continue
        # The arguments of an initialiser belong to the field of the initialiser.
        if option.kind == "mapped" and not name.endswith(_KWARGS_SUFFIX):
            section[option.training.removeprefix("model.")] = _convert_field(name, value, options)
        elif option.kind == "refused" and value != _DEFAULTS[name]:
            raise SpecError(f"model_config.{name} is {value!r}: {option.remark}.")
    return section


def notes_on_model_fields(
    config: DefaultModelConfig | Mapping[str, Any], reason_by_field: Mapping[str, Problem]
) -> list[str]:
    """Return a note, `<field>: <reason>`, for each field whose value is replaced or has no effect.

    Args:
        config: the model config.
        reason_by_field: field of the resource that has no effect -> the note on it.
    """
    options, notes = model_config_to_dict(config), []
    if options.get("head_fcnet_hiddens") and "head_fcnet_activation" in options:
        notes.append(f"head_fcnet_activation: {OPTIONS[MODEL]['head_fcnet_activation'].remark}")
    if options.get("head_fcnet_hiddens") and options.get("head_fcnet_use_layernorm", False) != options.get(
        "fcnet_use_layernorm", False
    ):
        notes.append(f"head_fcnet_use_layernorm: {OPTIONS[MODEL]['head_fcnet_use_layernorm'].remark}")
    notes += [
        f"{name}: has no effect without {name.removesuffix(_KWARGS_SUFFIX)}"
        for name, value in options.items()
        if name.endswith(_KWARGS_SUFFIX) and value and options.get(name.removesuffix(_KWARGS_SUFFIX)) is None
    ]
    return notes + [
        f"{name}: {use_option_names(reason_by_field[field]).text}"
        for name, option in OPTIONS[MODEL].items()
        if name in options
        and (field := option.training) in reason_by_field
        and not name.endswith(_KWARGS_SUFFIX)
    ]


def convert_observation_filter(name: Any) -> Any:
    """Convert RLlib's name of an observation filter to Hindcast's; return any other value unchanged."""
    return _OBSERVATION_FILTERS.get(name, name) if isinstance(name, str) else name


def _convert_field(name: str, value: Any, options: Mapping[str, Any]) -> Any:
    if _is_initializer(name):
        arguments = options.get(f"{name}{_KWARGS_SUFFIX}")
        return {"name": value, "kwargs": arguments} if value is not None and arguments else value
    if name in ("fcnet_activation", "conv_activation"):
        return _ACTIVATIONS.get(value, value) if isinstance(value, str | None) else value
    if name in _FIELD_CONVERTERS:
        return _FIELD_CONVERTERS[name](value)
    if name == "use_lstm":
        if not isinstance(value, bool):
            raise SpecError(f"model_config.use_lstm is {value!r}, expected True or False.")
        return "lstm" if value else "none"
    if name == "conv_filters" and _is_list_of_layers(value):
        return [[_to_square_size(size) for size in layer[:3]] for layer in value]
    return value


def _layer_fields(role: str, fields: Any) -> Any:
    """Return the section of one role's layers, by YAML names."""
    if not isinstance(fields, Mapping):
        raise SpecError(f"model_config.{role} is {fields!r}, expected a dictionary.")
    names = {name: OPTIONS[MODEL][name].training for name in _LAYER_FIELDS}
    for name in fields:
        if name not in names:
            raise SpecError(f"model_config.{role}[{name!r}] is not a field{nearest(name, names)}")
    return {
        names[name].removeprefix("model."): _convert_field(name, value, fields)
        for name, value in fields.items()
    }


_FIELD_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "observation_filter": convert_observation_filter,
    "policy": partial(_layer_fields, "policy"),
    "critics": partial(_layer_fields, "critics"),
}


def _is_initializer(name: str) -> bool:
    return name.endswith("_initializer")


def _padding_field(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `convPadding`, from the fourth entries of `conv_filters`; a layer with three entries has "same".

    Empty without filters, or if `conv_padding` is set. All layers must have the same padding.
    """
    filters = options.get("conv_filters")
    if not filters or not _is_list_of_layers(filters) or options.get("conv_padding") is not None:
        return {}
    paddings = {layer[3] if len(layer) > 3 else "same" for layer in filters}
    if len(paddings) > 1:
        raise SpecError(
            f"model_config.conv_filters mixes {' and '.join(sorted(map(repr, paddings)))}: "
            "all layers must use the same padding."
        )
    return {"convPadding": paddings.pop()}


def _is_list_of_layers(filters: Any) -> bool:
    """Return True for a list of lists, the form of `conv_filters`; `ModelSpec` refuses other values."""
    return isinstance(filters, list | tuple) and all(isinstance(layer, list | tuple) for layer in filters)


def _to_square_size(size: Any) -> Any:
    """Convert a size such as `(4, 4)` to 4; `ModelSpec` refuses sizes that are not square."""
    return size[0] if isinstance(size, list | tuple) and len(size) == 2 and size[0] == size[1] else size
