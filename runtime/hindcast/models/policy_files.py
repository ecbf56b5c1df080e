"""Files of a saved policy: safetensors and JSON, checked before anything is built from them; never pickles.

module.json                 formatVersion, module class, spaces, model, value (whether there is a value head),
                            preprocessing, checksums of the other two; written last
weights.safetensors         the module's state dict
preprocessing.safetensors   the observation filters' statistics
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import safetensors.numpy
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer
from pydantic.alias_generators import to_camel
from safetensors import SafetensorError

from hindcast.api.model import ModelSpec
from hindcast.api.spelling import IN_PYTHON
from hindcast.episodes.spaces import space_from_json, space_to_json
from hindcast.errors import DataError
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule, build_module
from hindcast.storage.location import Location, missing_error
from hindcast.user_code import class_import_path, import_subclass, is_registered

FORMAT_VERSION = 1
FOLDER = "module"
DESCRIPTION = "module.json"
WEIGHTS = "weights.safetensors"
STATISTICS = "preprocessing.safetensors"
FILE_NAMES = (WEIGHTS, STATISTICS, DESCRIPTION)
_ALWAYS_WRITTEN_FIELDS = frozenset(
    {
        "conv_activation",
        "conv_filters",
        "distribution",
        "fcnet_activation",
        "fcnet_hiddens",
        "frame_stack",
        "free_log_std",
        "head_fcnet_hiddens",
        "log_std_clip",
        "observation_filter",
        "vf_share_layers",
    }
)
"""The fields of a model that the first saved policies had. Later fields are written only if they differ from their
defaults, so that policies without them keep their bytes and digest."""


AllowedClasses: TypeAlias = Sequence[type[RLModule] | str]


class PolicyContents(NamedTuple):
    """The parts of a saved policy; the spaces are the environment's."""

    module: RLModule
    preprocessing: Preprocessing
    observation_space: gym.Space
    action_space: gym.Space


def find_folder(location: Location) -> Location:
    """Return the folder with the policy's files: the location itself, or `module` in it.

    Raises:
        DataError: neither contains a policy.
    """
    for folder in (location, location.child(FOLDER)):
        if folder.child(DESCRIPTION).exists():
            return folder
    if not location.exists():
        raise missing_error(location)
    raise DataError(
        f"{location} contains no policy: it has neither {DESCRIPTION} nor {FOLDER}/{DESCRIPTION}. "
        "Pass the folder of a checkpoint that Hindcast wrote."
    )


def copy_policy(source: Location, target: Location) -> None:
    """Copy the files of a saved policy, after checking them; its network is not built.

    Raises:
        DataError: the files are damaged.
    """
    files = {name: source.child(name).read_bytes() for name in FILE_NAMES}
    _check_files(files, str(source))
    for name, data in files.items():
        target.child(name).write_bytes(data)


def to_files(contents: PolicyContents) -> dict[str, bytes]:
    """Return the files by name, the description last; the same policy gives the same bytes."""
    module = contents.module
    tensors = {
        # safetensors refuses tensors that are not contiguous.
        WEIGHTS: safetensors.torch.save({name: t.contiguous() for name, t in module.get_state().items()}),
        STATISTICS: safetensors.numpy.save(contents.preprocessing.state()),
    }
    description = _Description(
        format_version=FORMAT_VERSION,
        module_class=class_import_path(type(module)),
        observation_space=space_to_json(contents.observation_space),
        action_space=space_to_json(contents.action_space),
        model=module.model_config,
        value=module.value,
        preprocessing=contents.preprocessing.to_json(),
        checksums={name: hashlib.sha256(data).hexdigest() for name, data in tensors.items()},
    )
    # Sorted keys: the digest of a policy is the hash of these bytes.
    text = json.dumps(description.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True)
    return {**tensors, DESCRIPTION: text.encode()}


def from_files(
    files: Mapping[str, bytes], allow_classes: AllowedClasses | None, where: str
) -> PolicyContents:
    """Build the contents of a saved policy.

    Args:
        files: content by name, all of `FILE_NAMES`.
        allow_classes: custom module classes, or their paths, that may be used, in addition to those that this process
            has imported. None allows any class, for files that a process of the same program sent.
        where: the folder, for messages.

    Raises:
        DataError: the files are damaged, have a newer format, or name a class that is not allowed.
        UserError: an allowed class cannot be imported, or raised.
    """
    description_path = f"{where}/{DESCRIPTION}"
    description = _check_files(files, where)
    module_class = _find_class(description.module_class, allow_classes, description_path)
    try:
        return _build(description, files, module_class)
    except (
        DataError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
        SafetensorError,
    ) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{description_path} and the tensor files next to it do not match: {reason}; use another checkpoint."
        ) from error


def _check_files(files: Mapping[str, bytes], where: str) -> _Description:
    """Return the description of a policy; raise a DataError if a file is damaged."""
    description = _parse_description(files[DESCRIPTION], f"{where}/{DESCRIPTION}")
    for name in (WEIGHTS, STATISTICS):
        _check_checksum(files[name], description.checksums.get(name, "missing"), f"{where}/{name}")
    return description


class _Description(BaseModel):
    """The content of `module.json`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, protected_namespaces=())

    format_version: int
    module_class: str
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    model: ModelSpec
    value: bool
    preprocessing: dict[str, Any]
    checksums: dict[str, str]

    @field_serializer("model")
    def _serialise_model(self, model: ModelSpec) -> dict[str, Any]:
        later_fields = ModelSpec.model_fields.keys() - _ALWAYS_WRITTEN_FIELDS
        defaults = ModelSpec()
        omitted_fields = {name for name in later_fields if getattr(model, name) == getattr(defaults, name)}
        return model.model_dump(mode="json", by_alias=True, exclude=omitted_fields, context=IN_PYTHON)


def _parse_description(data: bytes, where: str) -> _Description:
    try:
        content = json.loads(data)
        version = content["formatVersion"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{where} is damaged or does not describe a policy: it is not JSON with a formatVersion ({error!r})."
        ) from error
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise DataError(
            f"{where} has formatVersion {version!r}, but this Hindcast reads up to {FORMAT_VERSION}: "
            "use a newer Hindcast."
        )
    try:
        return _Description.model_validate(content)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors())
        raise DataError(
            f"{where} is damaged: invalid or missing fields: {fields}; use another checkpoint."
        ) from error


def _check_checksum(data: bytes, checksum: str, where: str) -> None:
    digest = hashlib.sha256(data).hexdigest()
    if digest != checksum:
        raise DataError(
            f"{where} is damaged: its sha256 is {digest[:12]}…, but {DESCRIPTION} states {checksum[:12]}…; "
            "use another checkpoint."
        )


def _build(
    description: _Description, files: Mapping[str, bytes], module_class: type[RLModule]
) -> PolicyContents:
    observation_space = space_from_json(description.observation_space)
    action_space = space_from_json(description.action_space)
    preprocessing = Preprocessing.from_json(observation_space, action_space, description.preprocessing)
    preprocessing.load(safetensors.numpy.load(files[STATISTICS]))
    # The initial weights are replaced, so drawing them must not advance the caller's generator.
    with torch.random.fork_rng(devices=[]):
        module = build_module(
            preprocessing.observation_space,
            preprocessing.action_space,
            description.model,
            description.value,
            module_class,
        )
    module.set_state(safetensors.torch.load(files[WEIGHTS]))
    return PolicyContents(module, preprocessing, observation_space, action_space)


def _find_class(path: str, allow_classes: AllowedClasses | None, where: str) -> type[RLModule]:
    """Return the class of a path if the caller allows it, or it is registered, already imported, or Hindcast's.

    A file alone never causes an import of other code.
    """
    # The object that was passed is returned: a class that a script defines cannot be imported by its path.
    for allowed_class in allow_classes or ():
        if not isinstance(allowed_class, str) and class_import_path(allowed_class) == path:
            return allowed_class
    if allow_classes is None or path in allow_classes or is_registered(path):
        return import_subclass(path, RLModule, (f"{where}: moduleClass",))
    module_name, _, name = path.partition(":")
    if path.startswith("hindcast."):
        with suppress(ImportError):
            importlib.import_module(module_name)
    with suppress(AttributeError):
        module_class = attrgetter(name)(sys.modules.get(module_name))
        if isinstance(module_class, type) and issubclass(module_class, RLModule):
            return module_class
    raise DataError(
        f"{where} names the module class {path!r}. Hindcast never imports a class only because a file names "
        "it. If you trust the class, import it first, or name it: Policy.load(path, "
        f"allow_classes=[{path!r}]), hindcast evaluate --module-class, spec.policy.moduleClass of a "
        "recording.",
        mentions=("spec.policy.moduleClass",),
    )
