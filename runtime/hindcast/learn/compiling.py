"""`torch.compile` for an algorithm's losses."""

from __future__ import annotations

import functools
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hindcast.errors import SpecError
from hindcast.learn.algorithm import Algorithm

_FIELD = "spec.learners.compile"
_INSTEAD = "leave it at false"


def compile_losses(algorithm: Algorithm, backend: str = "inductor") -> None:
    """Have torch.compile make one graph of each method that `algorithm.compiled` names, when it is first called.

    Args:
        algorithm: is changed.
        backend: of torch.compile. "inductor" compiles C++ for a CPU and Triton for a GPU.

    Raises:
        SpecError: the algorithm names no methods, or there is no compiler. The methods themselves raise it where torch
            cannot take them whole.
    """
    name = type(algorithm).__name__
    if not algorithm.compiled_methods:
        raise SpecError(
            f"{_FIELD}: torch.compile does not support the losses of {name} as one graph; {_INSTEAD}."
        )
    if backend == "inductor":
        _check_compiler()
    # The compiler looks at it while it reads a method that takes what another one computed.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf", UserWarning)
    for method in algorithm.compiled_methods:
        setattr(algorithm, method, _compiled(getattr(algorithm, method), name, backend))


def _compiled(losses: Callable[..., Any], name: str, backend: str) -> Callable[..., Any]:
    whole = torch.compile(losses, fullgraph=True, backend=backend)
    is_tried = False

    @functools.wraps(losses)
    def compute(*arguments: Any) -> Any:
        nonlocal is_tried
        if is_tried:
            return whole(*arguments)
        buffers = dict(arguments[0].named_buffers()) if isinstance(arguments[0], nn.Module) else {}
        versions = {buffer: each._version for buffer, each in buffers.items()}
        try:
            found = whole(*arguments)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split("\n\n")[0].split())
            raise SpecError(
                f"{_FIELD}: torch.compile does not take {name}.{losses.__name__}: {reason}; {_INSTEAD}."
            ) from error
        for buffer, each in buffers.items():
            if each._version != versions[buffer]:  # gradients may be computed with what it is afterwards
                raise SpecError(
                    f"{_FIELD}: {name}.{losses.__name__} changes the buffer {buffer!r}, for which torch.compile "
                    f"computes wrong gradients: change it in after_update, or {_INSTEAD}."
                )
        is_tried = True
        return found

    return compute


def _check_compiler() -> None:
    """What torch builds with on a CPU; for a GPU Triton takes a compiler too."""
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if not any(map(shutil.which, compilers)):
        raise SpecError(
            f"{_FIELD}: torch.compile needs a C++ compiler, and there is none here: install g++, or {_INSTEAD}."
        )
    if not (Path(torch.__file__).parent / "include").is_dir():
        raise SpecError(
            f"{_FIELD}: torch.compile needs torch's headers, which were taken out of this image; {_INSTEAD}."
        )
