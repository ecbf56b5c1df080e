"""`RLModuleSpec`, RLlib's description of a custom network, and the mapping of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import orjson

from hindcast.api.model import ModelOptions, ModelSpec
from hindcast.api.sentences import nearest
from hindcast.errors import Problem, SpecError
from hindcast.formatting import describe_type
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.rllib.builder.model_config import DefaultModelConfig, model_fields, notes_on_model_fields
from hindcast.rllib.builder.options import MODULE, OPTIONS
from hindcast.rllib.builder.user_objects import to_import_path
from hindcast.rllib.names import BCCatalog

if TYPE_CHECKING:
    from hindcast.models.rl_module import RLModule
    from hindcast.rllib.multi_rl_module import MultiRLModule

_OPTION: Final = "rl_module_spec"
_DEFAULT_CLASS: Final = "hindcast.models.rl_module:PolicyModule"
_MAX_SEQ_LEN: Final = "max_seq_len"


@dataclass
class RLModuleSpec:
    """A custom policy network, for `config.rl_module(rl_module_spec=...)`.

    Attributes:
        module_class: a subclass of `hindcast.RLModule` at the top level of a module, or its "package.module:Class".
            None is the default network.
        model_config: with a class, a dictionary of JSON values: the keyword arguments of `setup()`, or, if `setup()`
            has no arguments, the values of `self.model_config["name"]`; `max_seq_len` also sets the network's sequence
            length. A `DefaultModelConfig`, or a dictionary without a class, is used as `rl_module(model_config=...)`.
        observation_space: only used by `build()`; a training uses the space of the environment or the data.
        action_space: see `observation_space`.
        inference_only: has no effect: it follows from the other options.
        learner_only: has no effect: it follows from the other options.
        catalog_class: refused, except `BCCatalog` and None.
        load_state_path: refused, except None; use `initial_checkpoint`.
    """

    module_class: type[RLModule] | str | None = None
    model_config: DefaultModelConfig | Mapping[str, Any] | None = None
    observation_space: Any = None
    action_space: Any = None
    inference_only: bool = False
    learner_only: bool = False
    catalog_class: Any = None
    load_state_path: str | None = None

    def build(self) -> RLModule:
        """Build a module with new weights, for code outside a training.

        Raises:
            SpecError: there are no spaces, or the options do not match them.
        """
        from hindcast.models.rl_module import build_module

        if self.observation_space is None or self.action_space is None:
            raise SpecError("RLModuleSpec.build() requires observation_space and action_space.")
        # The defaults of `ModelSpec` are RLlib's, which is what the preset means.
        options = ModelOptions.model_validate(module_fields(self)).model_dump(
            exclude_none=True, exclude={"preset"}
        )
        model = ModelSpec.model_validate(options)
        return build_module(self.observation_space, self.action_space, model)


@dataclass
class MultiRLModuleSpec:
    """RLlib's collection of module specs; Hindcast accepts exactly one.

    Attributes:
        rl_module_specs: `{"default_policy": RLModuleSpec(…)}`.
    """

    rl_module_specs: Mapping[str, RLModuleSpec] = field(default_factory=dict)

    @property
    def observation_space(self) -> Any:
        """The observation space of the only module."""
        return _only_spec(self).observation_space

    @property
    def action_space(self) -> Any:
        """The action space of the only module."""
        return _only_spec(self).action_space

    def build(self) -> MultiRLModule:
        """Build the module; see `RLModuleSpec.build`."""
        from hindcast.rllib.multi_rl_module import MultiRLModule

        return MultiRLModule(_only_spec(self).build())


ModuleSpecLike = RLModuleSpec | MultiRLModuleSpec | Mapping[str, Any]


def spec_to_dict(spec: ModuleSpecLike) -> dict[str, Any]:
    """Return the fields that are not at their defaults, with the import path of the class.

    Raises:
        SpecError: the argument is not a spec, sets a refused field, or its class is neither a class nor text.
    """
    if isinstance(spec, MultiRLModuleSpec):
        return spec_to_dict(_only_spec(spec))
    if isinstance(spec, RLModuleSpec):
        spec_fields = {field.name: getattr(spec, field.name) for field in fields(spec)}
    elif isinstance(spec, Mapping):
        spec_fields = dict(spec)
    else:
        raise SpecError(f"{_OPTION} is {describe_type(spec)}, expected an RLModuleSpec.")
    spec_fields = {
        # None and False are the defaults of these fields.
        name: value
        for name, value in spec_fields.items()
        if value is not None and value is not False
    }
    if spec_fields.get("catalog_class") is BCCatalog:
        del spec_fields["catalog_class"]  # RLlib's own default
    for name, value in spec_fields.items():
        if name not in OPTIONS[MODULE]:
            raise SpecError(f"{_OPTION}: {name!r} is not a field{nearest(name, OPTIONS[MODULE])}")
        if OPTIONS[MODULE][name].kind == "refused":
            raise SpecError(f"{_OPTION}: {name} is {value!r}: {OPTIONS[MODULE][name].remark}.")
    if "module_class" in spec_fields:
        spec_fields["module_class"] = to_import_path(f"{_OPTION}: module_class", spec_fields["module_class"])
        if spec_fields["module_class"] == _DEFAULT_CLASS:
            del spec_fields["module_class"]
    return spec_fields


def _only_spec(specs: MultiRLModuleSpec) -> RLModuleSpec:
    if set(specs.rl_module_specs) != {DEFAULT_MODULE_ID}:
        names = ", ".join(map(repr, specs.rl_module_specs)) or "none"
        raise SpecError(
            f"{_OPTION}: rl_module_specs has {names}, expected one module (several agents are not available yet): pass "
            f"{{{DEFAULT_MODULE_ID!r}: RLModuleSpec(...)}}."
        )
    return specs.rl_module_specs[DEFAULT_MODULE_ID]


def module_fields(spec: ModuleSpecLike) -> dict[str, Any]:
    """Return the resource's model section, by its YAML names.

    Raises:
        SpecError: see `spec_to_dict`; or the options of a class are not JSON.
    """
    spec_fields = spec_to_dict(spec)
    path, config = spec_fields.get("module_class"), spec_fields.get("model_config")
    section = {} if path is None else {"moduleClass": path}
    if config is None:
        return section
    if path is None or not isinstance(config, Mapping):
        return section | model_fields(config)
    try:
        options = orjson.loads(orjson.dumps(dict(config), option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise SpecError(
            f"{_OPTION}: model_config of {path} is not JSON ({error}): use numbers, text, lists and dictionaries."
        ) from error
    sequence_length = {"maxSeqLen": options[_MAX_SEQ_LEN]} if _MAX_SEQ_LEN in options else {}
    return section | sequence_length | {"moduleOptions": options}


def replaced_module_fields(spec: ModuleSpecLike, reason_by_field: Mapping[str, Problem]) -> list[str]:
    """Return a note for each field whose value is replaced or has no effect; see `notes_on_model_fields`."""
    spec_fields = spec_to_dict(spec)
    config = spec_fields.get("model_config")
    notes = [
        f"{name}: {OPTIONS[MODULE][name].remark}"
        for name in spec_fields
        if OPTIONS[MODULE][name].kind == "replaced"
    ]
    if config is not None and ("module_class" not in spec_fields or isinstance(config, DefaultModelConfig)):
        notes += notes_on_model_fields(config, reason_by_field)
    return notes
