"""Compile an algorithm's losses with `torch.compile`."""

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
_REMEDY = "leave it at false"


def compile_losses(algorithm: Algorithm, backend: str = "inductor") -> None:
    """Replace each method in `algorithm.compiled_methods` by a compiled one, each as a single graph.

    A method is compiled when it is first called.

    Args:
        algorithm: changed in place.
        backend: backend of torch.compile. "inductor" compiles C++ for a CPU and Triton for a GPU.

    Raises:
        SpecError: the algorithm names no methods, or no compiler is installed. The first call of a compiled method
            raises it if torch cannot compile it as one graph, or if it changes a buffer.
    """
    name = type(algorithm).__name__
    if not algorithm.compiled_methods:
        raise SpecError(
            f"torch.compile does not support the losses of {name} as one graph; {_REMEDY}.", field=_FIELD
        )
    if backend == "inductor":
        _check_compiler()
    # Dynamo reads .grad of every tensor argument, and some methods take tensors that another method computed.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf", UserWarning)
    for method in algorithm.compiled_methods:
        setattr(algorithm, method, _compile(getattr(algorithm, method), name, backend))


def _compile(method: Callable[..., Any], algorithm_name: str, backend: str) -> Callable[..., Any]:
    compiled_method = torch.compile(method, fullgraph=True, backend=backend)
    has_run = False

    @functools.wraps(method)
    def compute(*arguments: Any) -> Any:
        nonlocal has_run
        if has_run:
            return compiled_method(*arguments)
        # Only the first call compiles and can fail. The version of a tensor counts its in-place changes.
        buffers = dict(arguments[0].named_buffers()) if isinstance(arguments[0], nn.Module) else {}
        versions = {buffer: tensor._version for buffer, tensor in buffers.items()}
        try:
            result = compiled_method(*arguments)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split("\n\n")[0].split())
            raise SpecError(
                f"torch.compile cannot compile {algorithm_name}.{method.__name__}: {reason}; {_REMEDY}.",
                field=_FIELD,
            ) from error
        for buffer, tensor in buffers.items():
            if tensor._version != versions[buffer]:  # the backward graph may read its new value
                raise SpecError(
                    f"{algorithm_name}.{method.__name__} changes the buffer {buffer!r}, for which "
                    f"torch.compile computes wrong gradients: change it in after_update, or {_REMEDY}.",
                    field=_FIELD,
                )
        has_run = True
        return result

    return compute


def _check_compiler() -> None:
    """Check that a C++ compiler and torch's headers are installed; Triton on a GPU also needs a compiler.

    Raises:
        SpecError: one of the two is missing.
    """
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if not any(map(shutil.which, compilers)):
        raise SpecError(
            f"torch.compile needs a C++ compiler, and none is installed here: install g++, or {_REMEDY}.",
            field=_FIELD,
        )
    if not (Path(torch.__file__).parent / "include").is_dir():
        raise SpecError(
            f"torch.compile needs torch's headers, which were removed from this image; {_REMEDY}.",
            field=_FIELD,
        )
