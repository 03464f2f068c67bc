# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for libraries that take seconds to import, so that `--help` answers at once.

Sphinx mocks imports in the same way.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SLOW_LIBRARIES = ("torch", "scipy", "numba", "tensorboard")
"""Libraries that the modules of commands import, and that no text of `--help` depends on."""


class StandIn(ModuleType):
    """A module, function or class that does nothing, for code that is only imported.

    Its attributes, its items and what it returns are stand-ins too. It can be a decorator, a base
    class, and a part of an annotation such as `Tensor | None`.
    """

    __path__: list[str] = []  # a module with it is a package, so its submodules can be imported

    def __getattr__(self, name: str) -> "StandIn":
        """A stand-in for each name; AttributeError for names of Python such as `__file__`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As a decorator: the function itself. Otherwise a stand-in for the result."""
        is_decorator = len(args) == 1 and not options and callable(args[0])
        return args[0] if is_decorator else StandIn("result")

    def __getitem__(self, item: object) -> "StandIn":
        """The stand-in itself, for each item."""
        return self

    # `Tensor | None` and `None | Tensor` are the stand-in itself, too.
    __or__ = __getitem__
    __ror__ = __getitem__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """As a base class: an empty class of this name."""
        return (type(self.__name__, (), {}),)


class Finder(MetaPathFinder, Loader):
    """Finds a stand-in for every module of SLOW_LIBRARIES, and their submodules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The specification of a stand-in; None for other modules, which Python finds itself."""
        library = name.partition(".")[0]
        if library not in SLOW_LIBRARIES:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: a stand-in has no code."""


def install() -> None:
    """From now on the slow libraries are stand-ins.

    Call it only in a process that does nothing but print a text.
    """
    sys.meta_path.insert(0, Finder())
