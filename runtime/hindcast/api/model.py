"""The neural networks of an algorithm, with RLlib's option names."""

from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, Field, WithJsonSchema

from hindcast.api.base import ClassPath, FreeForm, Model, NonNegative, Positive
from hindcast.api.environment import NamedCall, NameOrCall
from hindcast.api.rules import comparison, field_value, is_set, negative
from hindcast.api.spelling import YamlWords, respell, yaml_words

Activation = Literal["tanh", "relu", "silu", "elu", "gelu", "linear"]
Distribution = Literal[
    "auto",
    "categorical",
    "jointCategorical",
    "gaussian",
    "squashedGaussian",
    "boundedGaussian",
    "deterministic",
    "squashedDeterministic",
]
_DISTRIBUTION_WORDS: Final = YamlWords(
    "Auto",
    "Categorical",
    "JointCategorical",
    "Gaussian",
    "SquashedGaussian",
    "BoundedGaussian",
    "Deterministic",
    "SquashedDeterministic",
)
STOCHASTIC_DISTRIBUTIONS: Final[tuple[Distribution, ...]] = tuple(
    name for name in get_args(Distribution) if name not in ("deterministic", "squashedDeterministic")
)
"""Distributions that have densities."""
Hiddens = Annotated[list[Positive], Field(max_length=32)]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]
ObservationFilter = Annotated[Literal["none", "meanStd"], YamlWords("None", "MeanStd")]


def _check_filters(filters: list[list[int]]) -> list[list[int]]:
    for conv in filters:
        if len(conv) != 3 or min(conv) < 1:
            raise ValueError(f"has the entry {conv}, expected [channels, kernel, stride], all at least 1")
    return filters


Filters = Annotated[
    list[list[int]],
    AfterValidator(_check_filters),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": 32,
            "items": {
                "type": "array",
                "minItems": 3,
                "maxItems": 3,
                "items": {"type": "integer", "minimum": 1},
            },
        }
    ),
]


INITIALIZERS: Final = {
    "constant": ("val",),
    "kaiming_normal": ("a", "mode", "nonlinearity"),
    "kaiming_uniform": ("a", "mode", "nonlinearity"),
    "normal": ("mean", "std"),
    "ones": (),
    "orthogonal": ("gain",),
    "trunc_normal": ("mean", "std", "a", "b"),
    "uniform": ("a", "b"),
    "xavier_normal": ("gain",),
    "xavier_uniform": ("gain",),
    "zeros": (),
}
"""Initialiser of `torch.nn.init`, without the final underscore -> names of its arguments."""
_MATRIX_INITIALIZERS: Final = (
    "kaiming_normal",
    "kaiming_uniform",
    "orthogonal",
    "xavier_normal",
    "xavier_uniform",
)
_TEXT_ARGUMENTS: Final = ("mode", "nonlinearity")


def _normalize_initializer(initializer: NamedCall) -> NamedCall:
    """Check an initialiser, and return it under its name without a final underscore."""
    name = initializer.name.removesuffix("_")
    if name not in INITIALIZERS:
        raise ValueError(
            f"is '{initializer.name}', which is not an initialiser; expected one of: {', '.join(INITIALIZERS)}"
        )
    for argument, value in initializer.kwargs.items():
        if argument not in INITIALIZERS[name]:
            arguments = ", ".join(INITIALIZERS[name]) or "no arguments"
            raise ValueError(f"has {argument!r}, which {name} does not accept; it accepts {arguments}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_valid = isinstance(value, str) if argument in _TEXT_ARGUMENTS else is_number
        if is_valid:
            continue
        raise ValueError(
            f"has {argument} {value!r}, expected {'text' if argument in _TEXT_ARGUMENTS else 'a number'}"
        )
    if name == "constant" and "val" not in initializer.kwargs:
        raise ValueError("is constant without a val; write {name: constant, kwargs: {val: 0.1}}")
    return NamedCall(name=name, kwargs=initializer.kwargs)


def _check_bias(initializer: NamedCall) -> NamedCall:
    if initializer.name in _MATRIX_INITIALIZERS:
        bias_initializers = ", ".join(name for name in INITIALIZERS if name not in _MATRIX_INITIALIZERS)
        raise ValueError(
            f"is {initializer.name}, which only initialises matrices; for a bias use one of "
            f"{bias_initializers}"
        )
    return initializer


Initializer = Annotated[NameOrCall, AfterValidator(_normalize_initializer)]
BiasInitializer = Annotated[Initializer, AfterValidator(_check_bias)]


class LayerOptions(Model):
    """Dense layers of one of an algorithm's networks; a field that is left out has the value of `model`."""

    fcnet_hiddens: Hiddens | None = None
    """Units of the encoder's dense layers. Default: the algorithm's."""
    fcnet_activation: Activation | None = None
    """Activation of the dense layers. Default: the algorithm's."""
    layer_norm: bool | None = None
    """Layer normalisation before each activation of dense layers (arXiv 1607.06450), in encoders, heads and critics.
    Default: the algorithm's."""
    dropout: DropoutRate | None = None
    """Dropout rate of dense layers in training; acting, evaluation and targets use none. Default: the algorithm's."""


class ModelOptions(LayerOptions):
    """Encoder and heads of an algorithm's networks, and preprocessing of observations.

    A field that is left out has the algorithm's default, which is that of its paper.
    """

    rules: ClassVar = (
        comparison(
            "burnIn", "less than", "maxSeqLen", reason=": otherwise no timestep is left to learn from"
        ),
        comparison(
            "logStdMin",
            "less than",
            "logStdMax",
            values=(
                field_value("logStdMin", default=negative(field_value("logStdClip"))),
                field_value("logStdMax", default=field_value("logStdClip")),
            ),
            condition=is_set("logStdClip"),
            reason="; they default to -logStdClip and logStdClip",
        ),
    )

    preset: Annotated[Literal["rllib"], YamlWords("RLlib")] | None = None
    """`RLlib`: RLlib's defaults for all algorithms: two tanh layers of 256 units, a Gaussian without bounds for
    continuous actions unless the algorithm requires another distribution, and no normalisation. Default: the
    algorithm's own."""
    policy: LayerOptions = LayerOptions()
    """Dense layers of the policy, where they differ from those above."""
    critics: LayerOptions = LayerOptions()
    """Dense layers of the critics and value networks, where they differ from those above."""
    fcnet_kernel_initializer: Initializer | None = None
    """Initialiser for dense layer weights of encoders and critics: a torch.nn.init function, or `{name, kwargs}`.
    Default: orthogonal with gain √2."""
    fcnet_bias_initializer: BiasInitializer | None = None
    """Initialiser for dense layer biases of encoders and critics. Default: zeros."""
    vf_share_layers: bool = False
    """The value head shares the policy's encoder instead of having a separate one."""
    head_fcnet_hiddens: Hiddens = []
    """Units of dense layers between the encoder and each head."""
    head_fcnet_kernel_initializer: Initializer | None = None
    """Initialiser for head weights, including the last layer. Default: orthogonal; the policy's last layer
    near zero."""
    head_fcnet_bias_initializer: BiasInitializer | None = None
    """Initialiser for head biases. Default: zeros."""
    distribution: Annotated[Distribution, _DISTRIBUTION_WORDS] = "auto"
    """Distribution of actions. `Auto`: the algorithm's default, mostly categorical for discrete and Gaussian for
    continuous spaces. Squashed distributions stay within the bounds of the actions. `BoundedGaussian` is a Gaussian
    with a mean that tanh keeps within these bounds (the policy of the IQL paper). `JointCategorical` has one
    probability for each combination of a MultiDiscrete action's elements, of which there may be 4,096; `Categorical`
    draws the elements independently."""
    free_log_std: bool | None = None
    """Gaussian log standard deviations are free parameters that do not depend on the observation. Default: the
    algorithm's."""
    log_std_clip: Annotated[float, Field(gt=0)] = 20.0
    """Log standard deviations are clipped to ± this value."""
    log_std_min: float | None = None
    """Lower bound of log standard deviations, in place of -logStdClip. Default: the algorithm's, unless logStdClip is
    set."""
    log_std_max: float | None = None
    """Upper bound of log standard deviations, in place of logStdClip. Default: the algorithm's, unless logStdClip is
    set."""
    conv_filters: Filters | None = None
    """Convolutions over image observations, each [channels, kernel, stride]. Default: depends on the image's size."""
    conv_activation: Activation = "relu"
    """Activation of the convolutions."""
    conv_padding: Literal["valid", "same"] = "valid"
    """`same` pads images with zeros, so that a stride of n divides their size by n."""
    conv_kernel_initializer: Initializer | None = None
    """Initialiser for convolution weights. Default: orthogonal with gain √2."""
    conv_bias_initializer: BiasInitializer | None = None
    """Initialiser for convolution biases. Default: zeros."""
    observation_filter: ObservationFilter | None = None
    """`MeanStd` normalises observations by running mean and deviation, saved with the policy. Default: the
    algorithm's."""
    frame_stack: Positive = 1
    """Number of most recent observations that the policy sees at once."""
    recurrent: Annotated[Literal["none", "lstm", "gru"], YamlWords("None", "LSTM", "GRU")] = "none"
    """A recurrent layer between the encoder and the heads, also of value networks. Its state is reset to zero at the
    start of each episode."""
    cell_size: Positive = 256
    """Units of the recurrent layer."""
    recurrent_kernel_initializer: Initializer | None = None
    """Initialiser for the recurrent layer's weights, applied per gate. Default: orthogonal."""
    recurrent_bias_initializer: BiasInitializer | None = None
    """Initialiser for the recurrent layer's biases. Default: zeros, and ones for the gate that keeps the state."""
    max_seq_len: Positive = 20
    """Length, in timesteps, of the sequences that a recurrent policy learns from."""
    burn_in: NonNegative = 0
    """Number of timesteps at the start of a sequence that only warm up the state; they repeat the end of the previous
    sequence."""
    initial_state: Annotated[Literal["zero", "recorded"], YamlWords("Zero", "Recorded")] = "zero"
    """State at the start of a training sequence: zero, or as recorded (`output.recurrentStates`)."""
    module_class: ClassPath | None = None
    """A custom `RLModule` in place of the default networks, "package.module:Class"."""
    module_options: FreeForm = {}
    """Options of the custom module: arguments of its `setup()`, or read there as `self.model_config["name"]`."""


class ModelSpec(ModelOptions):
    """Complete options of networks, which `complete_model` makes; without an algorithm, the defaults are RLlib's."""

    fcnet_hiddens: Hiddens = [256, 256]
    fcnet_activation: Activation = "tanh"
    layer_norm: bool = False
    dropout: DropoutRate = 0.0
    free_log_std: bool = False
    observation_filter: ObservationFilter = "none"

    def for_network(self, role: Literal["policy", "critics"]) -> "ModelSpec":
        """Return the options of the policy, or of the critics and value networks."""
        layers: LayerOptions = getattr(self, role)
        changes = layers.model_dump(exclude_none=True)
        return self.model_copy(update={**changes, "policy": LayerOptions(), "critics": LayerOptions()})

    @property
    def log_std_range(self) -> tuple[float, float]:
        """The range to which log standard deviations are clipped."""
        low, high = self.log_std_min, self.log_std_max
        return (-self.log_std_clip if low is None else low, self.log_std_clip if high is None else high)

    @classmethod
    def in_yaml(cls, option: str, value: Any) -> Any:
        """Return the value of an option in YAML's spelling, for messages; `option` is its YAML name."""
        return respell(value, _yaml_words_by_option().get(option, {}))

    def keys(self) -> list[str]:
        """List the names of the module's options.

        A module reads its spec like RLlib's `model_config`, with `keys`, `[]`, `in` and `get`; the last three also find
        the fields of this section.
        """
        return list(self.module_options)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option of the module, else a field of this section by its Python name, else the default."""
        if name in self.module_options:
            return self.module_options[name]
        return getattr(self, name) if name in type(self).model_fields else default

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return self.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.module_options or name in type(self).model_fields


@cache
def _yaml_words_by_option() -> dict[str, dict[str, str]]:
    """Map the YAML name of each option to the YAML spellings of its values, by their Python spellings."""
    options = ModelSpec.model_json_schema(by_alias=True)["properties"]
    return {name: yaml_words(option) for name, option in options.items()}
