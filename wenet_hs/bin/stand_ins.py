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
"""What the modules of a command import, and the text of its `--help` does not depend on."""


class StandIn(ModuleType):
    """A module, function or class that does nothing: its attributes, items and results are
    stand-ins too.
    """

    __path__: list[str] = []

    def __getattr__(self, name: str) -> "StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        is_decorator = len(args) == 1 and not options and callable(args[0])
        return args[0] if is_decorator else StandIn("result")

    def __getitem__(self, item: object) -> "StandIn":
        return self

    __or__ = __ror__ = __getitem__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type(self.__name__, (), {}),)


class Finder(MetaPathFinder, Loader):
    """Finds a stand-in for every module of SLOW_LIBRARIES."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return (
            ModuleSpec(name, self, is_package=True)
            if name.partition(".")[0] in SLOW_LIBRARIES
            else None
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """From now on the slow libraries are stand-ins.

    Call it only in a process that does nothing but print a text.
    """
    sys.meta_path.insert(0, Finder())
