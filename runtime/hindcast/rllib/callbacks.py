"""`RLlibCallback`, and callbacks of single functions: `callbacks(on_episode_end=function)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

from hindcast.record.callbacks import EPISODE_HOOKS, TRAINING_HOOKS, Callbacks
from hindcast.user_code import import_object


class RLlibCallback(Callbacks):
    """Callbacks with RLlib's methods; also `hindcast.Callbacks` and `hindcast.DefaultCallbacks`."""

    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        "on_env_runners_recreated": "runners that die are replaced automatically; on_environment_created is called for "
        "new ones",
        "on_workers_recreated": "runners that die are replaced automatically; on_environment_created is called for new "
        "ones",
        "on_offline_eval_runners_recreated": "there are no such runners",
        "on_learn_on_batch": "a connector of scope batch sees every batch",
        "on_postprocess_trajectory": "a connector sees every recorded episode, and on_episode_end every played one",
        "on_create_policy": "use on_algorithm_init, which is called when the policy exists",
        "on_sub_environment_created": "rename it to on_environment_created",
        "on_trainer_init": "rename it to on_algorithm_init",
    }


@cache
def callbacks_from_function(hook: str, function: Callable[..., Any]) -> type[RLlibCallback]:
    """Create a callbacks class with one method: the function, which is called with the hook's keyword arguments.

    The class is cached, so that one function has one class, and is registered under one path.
    """
    name = getattr(function, "__name__", type(function).__name__)
    # With `__main__` as its module the class counts as one that other processes cannot import, so it is registered.
    return type(name, (RLlibCallback,), {hook: staticmethod(function), "__module__": "__main__"})


def __getattr__(name: str) -> Any:
    """Resolve `on_episode_end.package.module.name` to a callbacks class with this function, for use in resources."""
    hook, _, path = name.partition(".")
    if hook not in (*EPISODE_HOOKS, *TRAINING_HOOKS) or "." not in path:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = path.rpartition(".")
    return callbacks_from_function(hook, import_object(f"{module}:{function}", ("spec", "callbacks")))
