# SPDX-License-Identifier: Apache-2.0
"""Import rules: rooms import downward, there are no cycles, chains are short; and no two classes share a name."""

import ast
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "wenet_hs"
ROW = re.compile(r"^\| ((?:`\w+` ?)+) \|", re.MULTILINE)
LAYERS = [re.findall(r"\w+", row) for row in ROW.findall((ROOT / "README.md").read_text("utf-8"))]
"""From top to bottom: the rooms of each row of the table in the README of the package."""
LONGEST_CHAIN_OF_ROOMS = 12
MOST_AT_TOP = 6
LONGEST_CHAIN = 14
"""Modules in the longest chain of imports at the top of modules."""


@dataclass
class Module:
    """What a module imports: modules of wenet_hs with the line, and other libraries at its top."""

    imports: dict[str, int] = field(default_factory=dict)
    at_top: list[str] = field(default_factory=list)
    in_functions: list[str] = field(default_factory=list)
    libraries: set[str] = field(default_factory=set)


FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if path != ROOT / "__init__.py"
}


def _imports(parent: ast.AST, place: str = "") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """The imports among the statements below a node, and whether they are in a `function` or for `typing`."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(parent, name, ()):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node, place
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _imports(node, "function")
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                yield from _imports(node, "typing")
            else:
                yield from _imports(node, place)


def _module(name: str) -> Module:
    module = Module()
    for node, place in _imports(ast.parse(FILES[name].read_text("utf-8"))):
        start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for package, _, rest in ((start + alias.name).partition(".") for alias in node.names):
            target = rest if rest in FILES else rest.rpartition(".")[0]  # `from a.b import c`: a.b.c, or a.b
            if package == "wenet_hs" and target:  # not `from wenet_hs import __version__`
                module.imports[target] = node.lineno
                if place != "typing":
                    (module.in_functions if place else module.at_top).append(target)
            elif not place and package not in {"wenet_hs", *sys.stdlib_module_names}:
                module.libraries.add(package)
    return module


MODULES = {name: _module(name) for name in FILES}
RANK = {room: rank for rank, row in enumerate(reversed(LAYERS)) for room in row}


def _room(name: str) -> str:
    return name.partition(".")[0]


def test_the_readme_of_the_package_has_every_room_once() -> None:
    assert len(MODULES) > 50
    assert sorted(itertools.chain(*LAYERS)) == sorted({_room(name) for name in MODULES})


def test_few_modules_are_at_the_top() -> None:
    at_top = [name for name in MODULES if FILES[name].parent == ROOT]
    assert len(at_top) <= MOST_AT_TOP, at_top


def test_imports_point_downward() -> None:
    faults = [
        f"{FILES[name]}:{line}: {name} may not import {target}, which is not below it"
        for name, module in MODULES.items()
        for target, line in module.imports.items()
        if _room(target) != _room(name) and RANK[_room(target)] >= RANK[_room(name)]
    ]
    assert not faults, "\n".join(faults)


def test_chains_of_rooms_are_short() -> None:
    """Rooms that import each other, by imports at the top of modules or in functions."""
    graph: dict[str, set[str]] = {_room(name): set() for name in MODULES}
    for name, module in MODULES.items():
        graph[_room(name)] |= {_room(target) for target in module.imports} - {_room(name)}
    chain = _longest_chain(graph)
    assert len(chain) <= LONGEST_CHAIN_OF_ROOMS, f"{len(chain)} rooms: {' imports '.join(chain)}"


def _longest_chain(graph: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    longest: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(graph).static_order():
        longest[name] = (name, *max((longest[target] for target in graph[name]), key=len, default=()))
    return max(longest.values(), key=len)


def test_no_module_imports_itself_by_a_detour() -> None:
    try:
        TopologicalSorter({name: list(module.imports) for name, module in MODULES.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' imports '.join(reversed(error.args[1]))}")


def test_chains_of_imports_are_short() -> None:
    chain = _longest_chain({name: module.at_top for name, module in MODULES.items()})
    assert len(chain) <= LONGEST_CHAIN, f"{len(chain)} modules: {' imports '.join(chain)}"


def test_function_level_imports_save_loading_a_library() -> None:
    """A command in bin/ may also load its own modules late, so that `wenet-hs --help` starts at once."""
    libraries: dict[str, set[str]] = {}

    def all_libraries(name: str) -> set[str]:
        if name not in libraries:
            libraries[name] = set()  # ends the recursion in a cycle
            inner = (all_libraries(target) for target in MODULES[name].at_top)
            libraries[name] = MODULES[name].libraries.union(*inner)
        return libraries[name]

    idle = {
        (name, target)
        for name, module in MODULES.items()
        for target in module.in_functions
        if _room(name) != "bin" and all_libraries(target) <= all_libraries(name)
    }
    assert not idle, "move these imports to the top of their module"


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    shared = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert len(places) > 300
    assert shared == {}
