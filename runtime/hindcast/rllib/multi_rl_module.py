"""The policy's network in the forms that RLlib's connectors and pre-learners expect: by module id, and as a spec."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym

from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID


class MultiRLModule(Mapping[str, RLModule]):
    """A mapping `{"default_policy": module}` that delegates other attributes to the module.

    Args:
        module: the network. Connectors and pre-learners get one on the CPU, in evaluation mode.
    """

    def __init__(self, module: RLModule) -> None:
        self._module = module

    def __getitem__(self, module_id: str) -> RLModule:
        if module_id != DEFAULT_MODULE_ID:
            raise KeyError(f"{module_id!r}: the only module is {DEFAULT_MODULE_ID!r}")
        return self._module

    def __iter__(self) -> Iterator[str]:
        return iter((DEFAULT_MODULE_ID,))

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look up dunder names and `_module` before `__init__` ran: delegating would recurse.
        if name.startswith("__") or name == "_module":
            raise AttributeError(name)
        return getattr(self._module, name)

    def foreach_module(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """Return `[func("default_policy", module, **kwargs)]`."""
        return [func(DEFAULT_MODULE_ID, self._module, **kwargs)]


class ModuleSpec:
    """The part of RLlib's module spec that pre-learners use: `build()`, the spaces, and the spec by module id.

    Args:
        module: the network, of which `build()` returns a copy.
    """

    def __init__(self, module: RLModule) -> None:
        self._module = module
        self.observation_space: gym.Space = module.observation_space
        self.action_space: gym.Space = module.action_space
        self.model_config = module.model_config
        self.module_class = type(module)

    @property
    def rl_module_specs(self) -> dict[str, ModuleSpec]:
        """The spec itself, as `{"default_policy": spec}`."""
        return {DEFAULT_MODULE_ID: self}

    def __getitem__(self, module_id: str) -> ModuleSpec:
        return self.rl_module_specs[module_id]

    def build(self) -> MultiRLModule:
        """Return a copy of the module with equal weights; see `frozen_copy`."""
        return MultiRLModule(frozen_copy(self._module))


def frozen_copy(module: RLModule) -> RLModule:
    """Return a copy of the network on the CPU, in evaluation mode, without gradients."""
    module_copy = copy.deepcopy(module).cpu().eval()
    return module_copy.requires_grad_(False)
