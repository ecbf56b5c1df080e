"""`RLModuleSpec`: RLlib's description of a custom network, and what becomes of each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import orjson

from hindcast.api.model import ModelSpec
from hindcast.api.sentences import nearest
from hindcast.builder.model_config import DefaultModelConfig, model_fields, replaced_model_fields
from hindcast.builder.options import MODULE, OPTIONS
from hindcast.builder.user_objects import to_import_path
from hindcast.errors import SpecError
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.rllib_names import BCCatalog

if TYPE_CHECKING:
    from hindcast.models.rl_module import RLModule
    from hindcast.pipeline.multi_rl_module import MultiRLModule

_NAME: Final = "rl_module_spec"
_DEFAULT: Final = "hindcast.models.rl_module:PolicyModule"
_SEQUENCES: Final = "max_seq_len"


@dataclass
class RLModuleSpec:
    """A custom policy network, for `config.rl_module(rl_module_spec=...)`.

    Attributes:
        module_class: a subclass of `hindcast.RLModule` at the top level of a module, or its "package.module:Class".
            None is the default network.
        model_config: a dictionary is JSON: the keyword arguments of the class's `setup()`, or what a `setup()` without
            arguments reads as `self.model_config["name"]`; `max_seq_len` is the network's too. A `DefaultModelConfig`,
            or, where there is no class, a dictionary is what `rl_module(model_config=...)` takes.
        observation_space, action_space, inference_only, learner_only: follow from the rest of the config.
        catalog_class, load_state_path: refused.
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
        """A module with fresh weights, for code that runs outside a training.

        Raises:
            SpecError: there are no spaces, or the options do not fit them.
        """
        from hindcast.models.rl_module import build_module

        if self.observation_space is None or self.action_space is None:
            raise SpecError("RLModuleSpec.build(): give observation_space and action_space.")
        model = ModelSpec.model_validate(module_fields(self))
        return build_module(self.observation_space, self.action_space, model)


@dataclass
class MultiRLModuleSpec:
    """RLlib's specs of several modules; here there is one.

    Attributes:
        rl_module_specs: `{"default_policy": RLModuleSpec(…)}`.
    """

    rl_module_specs: Mapping[str, RLModuleSpec] = field(default_factory=dict)

    @property
    def observation_space(self) -> Any:
        """Of the one module."""
        return _only_spec(self).observation_space

    @property
    def action_space(self) -> Any:
        """Of the one module."""
        return _only_spec(self).action_space

    def build(self) -> MultiRLModule:
        """The module, by its id; see `RLModuleSpec.build`."""
        from hindcast.pipeline.multi_rl_module import MultiRLModule

        return MultiRLModule(_only_spec(self).build())


ModuleSpecLike = RLModuleSpec | MultiRLModuleSpec | Mapping[str, Any]


def spec_to_dict(spec: ModuleSpecLike) -> dict[str, Any]:
    """The fields that are not at their defaults, the class by its path.

    Raises:
        SpecError: it is not a spec, has a refused field, or a class that cannot be imported by name.
    """
    if isinstance(spec, MultiRLModuleSpec):
        return spec_to_dict(_only_spec(spec))
    if isinstance(spec, RLModuleSpec):
        given = {field.name: getattr(spec, field.name) for field in fields(spec)}
    elif isinstance(spec, Mapping):
        given = dict(spec)
    else:
        raise SpecError(f"{_NAME} is a {type(spec).__name__}, expected an RLModuleSpec.")
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    if given.get("catalog_class") is BCCatalog:
        del given["catalog_class"]  # RLlib's own default
    for name, value in given.items():
        if name not in OPTIONS[MODULE]:
            raise SpecError(f"{_NAME}: {name} is not a field{nearest(name, OPTIONS[MODULE])}")
        if OPTIONS[MODULE][name].kind == "refused":
            raise SpecError(f"{_NAME}: {name} is {value!r}: {OPTIONS[MODULE][name].remark}.")
    if "module_class" in given:
        given["module_class"] = to_import_path(f"{_NAME}: module_class", given["module_class"])
        if given["module_class"] == _DEFAULT:
            del given["module_class"]
    return given


def _only_spec(specs: MultiRLModuleSpec) -> RLModuleSpec:
    if set(specs.rl_module_specs) != {DEFAULT_MODULE_ID}:
        names = ", ".join(map(repr, specs.rl_module_specs)) or "none"
        raise SpecError(
            f"{_NAME}: rl_module_specs has {names}: several agents are not available yet; give "
            f"{{{DEFAULT_MODULE_ID!r}: RLModuleSpec(...)}}."
        )
    return specs.rl_module_specs[DEFAULT_MODULE_ID]


def module_fields(spec: ModuleSpecLike) -> dict[str, Any]:
    """The resource's model section, by its YAML names.

    Raises:
        SpecError: as of `spec_as_dict`; or the options of a class are not JSON.
    """
    given = spec_to_dict(spec)
    path, config = given.get("module_class"), given.get("model_config")
    own = {} if path is None else {"moduleClass": path}
    if config is None:
        return own
    if path is None or not isinstance(config, Mapping):
        return own | model_fields(config)
    try:
        options = orjson.loads(orjson.dumps(dict(config), option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise SpecError(
            f"{_NAME}: model_config of {path} is not JSON ({error}): use numbers, text, lists and dictionaries."
        ) from error
    length = {"maxSeqLen": options[_SEQUENCES]} if _SEQUENCES in options else {}
    return own | length | {"moduleOptions": options}


def replaced_module_fields(spec: ModuleSpecLike, idle: Mapping[str, str]) -> list[str]:
    """Notes on the fields whose values are replaced or have no effect; `idle` as of `replaced_model_fields`."""
    given = spec_to_dict(spec)
    config = given.get("model_config")
    lines = [
        f"{name}: {OPTIONS[MODULE][name].remark}"
        for name in given
        if OPTIONS[MODULE][name].kind == "replaced"
    ]
    if config is not None and ("module_class" not in given or isinstance(config, DefaultModelConfig)):
        lines += replaced_model_fields(config, idle)
    return lines
