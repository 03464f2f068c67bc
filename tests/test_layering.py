# SPDX-License-Identifier: Apache-2.0
"""Import rules: modules import downward, there are no cycles, chains are short, function-level imports save time."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "wenet_hs"
LAYERS = (
    "bin",
    "report recognizer interop.wenet interop.gensim",
    "train decode",
    "build",
    "interop",
    "model",
    "heads corpus",
    "nn data score",
    "tree",
    "text",
    "manifest config",
    "distributed checkpoint devices",
    "files",
    "errors",
)
"""From top to bottom: packages and modules. A module belongs to the longest name that matches it."""
LONGEST_CHAIN = 10
"""Modules in the longest chain of imports at the top of modules."""


@dataclass
class Module:
    """What a module imports: modules of wenet_hs with the line, and other libraries."""

    at_top: dict[str, int] = field(default_factory=dict)
    in_functions: dict[str, int] = field(default_factory=dict)
    for_typing: dict[str, int] = field(default_factory=dict)
    libraries: set[str] = field(default_factory=set)

    @property
    def imports(self) -> dict[str, int]:
        return self.for_typing | self.in_functions | self.at_top


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {_name(path): path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"}


def _imported(node: ast.stmt) -> Iterator[str]:
    """The full names of what an import statement imports; `a.b` and `a.b.c` both for `from a.b import c`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(name: str) -> Module:
    module = Module()
    tree = ast.parse(FILES[name].read_text("utf-8"))
    in_functions, for_typing = set[ast.AST](), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            in_functions.update(ast.walk(node))
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for_typing.update(ast.walk(node))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for full in _imported(node):
            package, _, rest = full.partition(".")
            if package == "wenet_hs":
                target = rest if rest in FILES else rest.rpartition(".")[0]
                is_late, is_typing = node in in_functions, node in for_typing
                kind = module.in_functions if is_late else module.for_typing if is_typing else module.at_top
                kind[target] = node.lineno
            elif node not in in_functions | for_typing and package not in sys.stdlib_module_names:
                module.libraries.add(package)
    module.at_top.pop("", None)  # `from wenet_hs import __version__`
    return module


MODULES = {name: _module(name) for name in FILES}
RANK = {name: rank for rank, row in enumerate(reversed(LAYERS)) for name in row.split()}


def _rank(name: str) -> int:
    while name not in RANK:
        name = name.rpartition(".")[0]
    return RANK[name]


def _package(name: str) -> str:
    return name.partition(".")[0]


def test_every_module_has_a_layer() -> None:
    assert len(MODULES) > 50
    assert [name for name in MODULES if _package(name) not in RANK] == []


def test_imports_point_downward() -> None:
    faults = [
        f"{FILES[name]}:{line}: {name} may not import {target}, which is not below it"
        for name, module in MODULES.items()
        for target, line in module.imports.items()
        if not (_rank(target) < _rank(name) or _package(target) == _package(name) and _rank(target) == _rank(name))
    ]
    assert not faults, "\n".join(faults)


def test_no_module_imports_itself_by_a_detour() -> None:
    try:
        TopologicalSorter({name: list(module.imports) for name, module in MODULES.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' imports '.join(reversed(error.args[1]))}")


def test_chains_of_imports_are_short() -> None:
    graph = {name: list(module.at_top) for name, module in MODULES.items()}
    longest: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(graph).static_order():
        longest[name] = (name, *max((longest[target] for target in graph[name]), key=len, default=()))
    chain = max(longest.values(), key=len)
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
        if _package(name) != "bin" and all_libraries(target) <= all_libraries(name)
    }
    assert not idle, "move these imports to the top of their module"
