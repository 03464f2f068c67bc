# SPDX-License-Identifier: Apache-2.0
"""Keep torch.compile out of functions that call Numba or NumPy."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def untraced(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, which a compiled graph calls as it is: `torch.compiler.disable` without its second of imports,
    which only a process that compiles pays."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling():
            disabled: Callable[_P, _R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return call
