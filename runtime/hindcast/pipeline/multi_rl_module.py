"""The policy's network as RLlib gives it to connectors and pre-learners: by the module's name, and as a spec."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym

from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID


class MultiRLModule(Mapping[str, RLModule]):
    """`{"default_policy": module}`; what it has not itself, the module is asked for.

    Args:
        module: on the CPU, in evaluation mode.
    """

    def __init__(self, module: RLModule) -> None:
        self._module = module

    def __getitem__(self, module_id: str) -> RLModule:
        if module_id != DEFAULT_MODULE_ID:
            raise KeyError(f"{module_id!r}: there is one module, {DEFAULT_MODULE_ID!r}")
        return self._module

    def __iter__(self) -> Iterator[str]:
        return iter((DEFAULT_MODULE_ID,))

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_module":
            raise AttributeError(name)
        return getattr(self._module, name)

    def foreach_module(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """What `func(module_id, module)` returns, in a list."""
        return [func(DEFAULT_MODULE_ID, self._module, **kwargs)]


class ModuleSpec:
    """What a module is built from, as far as a pre-learner asks: `build()`, the spaces, and itself by the module's id.

    Args:
        module: what is built: each time a copy of it.
    """

    def __init__(self, module: RLModule) -> None:
        self._module = module
        self.observation_space: gym.Space = module.observation_space
        self.action_space: gym.Space = module.action_space
        self.model_config = module.model_config
        self.module_class = type(module)

    @property
    def rl_module_specs(self) -> dict[str, ModuleSpec]:
        """By the module's id."""
        return {DEFAULT_MODULE_ID: self}

    def __getitem__(self, module_id: str) -> ModuleSpec:
        return self.rl_module_specs[module_id]

    def build(self) -> MultiRLModule:
        """A separate copy, with the weights that the run began with."""
        return MultiRLModule(frozen_copy(self._module))


def frozen_copy(module: RLModule) -> RLModule:
    """A copy on the CPU, in evaluation mode, that takes no gradients."""
    twin = copy.deepcopy(module).cpu().eval()
    return twin.requires_grad_(False)
