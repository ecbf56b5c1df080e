"""The neural network of the policy, with RLlib's option names and defaults."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from hindcast.api.base import ClassPath, FreeForm, Model, NonNegative, Positive, Rule

Activation = Literal["tanh", "relu", "silu", "elu", "gelu", "linear"]
Distribution = Literal[
    "auto", "categorical", "gaussian", "squashedGaussian", "deterministic", "squashedDeterministic"
]
Hiddens = Annotated[list[Positive], Field(max_length=32)]


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


class ModelSpec(Model):
    """Encoder and heads of the policy network, and what is done to observations before it."""

    rules: ClassVar = (
        Rule(
            "!has(self.burnIn) || !has(self.maxSeqLen) || self.burnIn < self.maxSeqLen",
            "burnIn must be less than maxSeqLen: nothing of a sequence would be learnt from",
            at=".burnIn",
        ),
    )

    fcnet_hiddens: Hiddens = [256, 256]
    """Units of the encoder's dense layers."""
    fcnet_activation: Activation = "tanh"
    """Activation of the dense layers."""
    vf_share_layers: bool = False
    """The value head uses the policy's encoder rather than one of its own."""
    head_fcnet_hiddens: Hiddens = []
    """Units of dense layers between the encoder and each head."""
    distribution: Distribution = "auto"
    """Distribution of actions. `auto`: the algorithm's own, mostly categorical for discrete, gaussian for continuous
    spaces. Squashed ones stay within the bounds of the actions."""
    free_log_std: bool = False
    """Gaussian log standard deviations are parameters of their own that do not depend on the observation."""
    log_std_clip: Annotated[float, Field(gt=0)] = 20.0
    """Log standard deviations are clipped to ± this value."""
    conv_filters: Filters | None = None
    """Convolutions over image observations, each [channels, kernel, stride]. Default: by the image's size."""
    conv_activation: Activation = "relu"
    """Activation of the convolutions."""
    observation_filter: Literal["none", "meanStd"] = "none"
    """`meanStd` normalises observations by running mean and deviation, saved with the policy."""
    frame_stack: Positive = 1
    """Number of most recent observations that the policy sees at once."""
    recurrent: Literal["none", "lstm", "gru"] = "none"
    """A recurrent layer between the encoder and the heads. Its state begins at zero with every episode."""
    cell_size: Positive = 256
    """Units of the recurrent layer."""
    max_seq_len: Positive = 20
    """Timesteps of the sequences that a policy with a state learns from."""
    burn_in: NonNegative = 0
    """First timesteps of a sequence that only warm up the state; they repeat the end of the sequence before."""
    initial_state: Literal["zero", "recorded"] = "zero"
    """The state in which a sequence begins in training: zero, or as recorded (`output.recurrentStates`)."""
    module_class: ClassPath | None = None
    """An `RLModule` of one's own in place of the default networks, "package.module:Class"."""
    module_options: FreeForm = {}
    """Keyword arguments of its `setup()`."""

    @model_validator(mode="after")
    def _check_burn_in(self) -> Self:
        if self.burn_in >= self.max_seq_len:
            raise ValueError(
                f"has burnIn {self.burn_in} and maxSeqLen {self.max_seq_len}: burnIn must be less, or nothing of a "
                "sequence would be learnt from"
            )
        return self
