# SPDX-License-Identifier: Apache-2.0
"""Import rules: rooms import downward, there are no cycles, chains are short; and no two classes
share a name.
"""

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
    faults: list[tuple[int, str]] = field(default_factory=list)
    """Line, and what is wrong: imports whose module is not known."""

    def add(self, target: str, line: int, place: str) -> None:
        """Add an import of a module by its full name. `place`: as `_imports` gives it."""
        package, _, name = target.partition(".")
        if package == "wenet_hs":
            if name not in FILES:
                self.faults.append((line, f"{target} is no module of the package"))
                return
            self.imports[name] = line
            if place != "typing":
                (self.in_functions if place else self.at_top).append(name)
        elif not place and package not in sys.stdlib_module_names:
            self.libraries.add(package)


FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if path != ROOT / "__init__.py"
}


COMPUTED_IMPORTS = {
    "bin.main": "the module of a command, by the name of the command",
    "bin.prepare": "the module of a corpus, by the name of the corpus",
}
"""Modules that import others by computed names, and which. Both are in the room at the top."""
CALL_OF_IMPORT = re.compile(r"\b(import_module|__import__)$")


def _read_public_names() -> dict[str, str]:
    """Names of `wenet_hs` itself → the modules they come from: the table that loads them, and the
    version.
    """
    for node in ast.parse((ROOT / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES":
            modules = ast.literal_eval(node.value)
            names = {name: module.removeprefix("wenet_hs.") for name, module in modules.items()}
            return {**names, "__version__": "version"}
    raise AssertionError("wenet_hs/__init__.py has no table _MODULES")


PUBLIC_NAMES = _read_public_names()


def _imports(parent: ast.AST, place: str = "") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """The imports among the statements below a node, and whether they are in a `function` or for
    `typing`.
    """
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


def _module_of_name(name: str) -> str | None:
    """The module that `from wenet_hs import name` loads; None: there is no such name."""
    if name in FILES:
        return name
    return PUBLIC_NAMES.get(name)


def _modules_of_statement(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The full names of the modules that an import loads. A name of a room is its module."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.name
        elif node.module == "wenet_hs":
            yield f"wenet_hs.{_module_of_name(alias.name) or alias.name}"
        else:
            inner = f"{node.module}.{alias.name}"
            is_module = inner.removeprefix("wenet_hs.") in FILES
            yield inner if is_module else f"{node.module}"


def _calls_of_import_module(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """The calls of `import_module` and `__import__`, and whether they are in a `function`."""
    in_functions = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            in_functions.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and CALL_OF_IMPORT.search(ast.unparse(node.func)):
            yield node, "function" if node in in_functions else ""


def read_module(source: str, name: str) -> Module:
    """What a source imports. `name`: of its module, without `wenet_hs.`."""
    module = Module()
    tree = ast.parse(source)
    for node, place in _imports(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            module.faults.append((node.lineno, "a relative import; write its full name"))
            continue
        for target in _modules_of_statement(node):
            module.add(target, node.lineno, place)
    for call, place in _calls_of_import_module(tree):
        argument = call.args[0] if call.args else None
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            module.add(argument.value, call.lineno, place)
        elif name not in COMPUTED_IMPORTS:
            module.faults.append((call.lineno, "an import of a computed name; write an import"))
    return module


MODULES = {name: read_module(path.read_text("utf-8"), name) for name, path in FILES.items()}
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


def test_the_module_of_every_import_is_known() -> None:
    faults = [
        f"{FILES[name]}:{line}: {fault}"
        for name, module in MODULES.items()
        for line, fault in module.faults
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("from wenet_hs import load_model", "recognizer"),
        ("from wenet_hs import __version__", "version"),
        ("from wenet_hs import corpus", "corpus"),
        ("def f():\n    from wenet_hs import DecodeOptions", "decode"),
        ("from wenet_hs.report import page", "report.page"),
        ("from wenet_hs.report.page import write_page", "report.page"),
        ("import wenet_hs.report.page", "report.page"),
        ("import importlib\nimportlib.import_module('wenet_hs.report.page')", "report.page"),
        ("def f():\n    return import_module('wenet_hs.report.page')", "report.page"),
        ("page = __import__('wenet_hs.report.page')", "report.page"),
    ],
)
def test_every_form_of_an_import_is_found(source: str, target: str) -> None:
    module = read_module(source, "tree.tree")
    assert [*module.imports] == [target]
    assert module.faults == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("from . import page", "a relative import; write its full name"),
        ("from ..report.page import write_page", "a relative import; write its full name"),
        ("def f(name):\n    import_module(name)", "an import of a computed name; write an import"),
        ("from wenet_hs import no_such", "wenet_hs.no_such is no module of the package"),
        ("import wenet_hs", "wenet_hs is no module of the package"),
        (
            "import_module('wenet_hs.report.no_such')",
            "wenet_hs.report.no_such is no module of the package",
        ),
    ],
)
def test_imports_of_unknown_modules_are_refused(source: str, fault: str) -> None:
    module = read_module(source, "tree.tree")
    assert (module.imports, module.libraries) == ({}, set())
    assert [text for _, text in module.faults] == [fault]


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
        longest[name] = (
            name,
            *max((longest[target] for target in graph[name]), key=len, default=()),
        )
    return max(longest.values(), key=len)


def test_no_module_imports_itself_by_a_detour() -> None:
    try:
        TopologicalSorter(
            {name: list(module.imports) for name, module in MODULES.items()}
        ).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' imports '.join(reversed(error.args[1]))}")


def test_chains_of_imports_are_short() -> None:
    chain = _longest_chain({name: module.at_top for name, module in MODULES.items()})
    assert len(chain) <= LONGEST_CHAIN, f"{len(chain)} modules: {' imports '.join(chain)}"


def test_function_level_imports_save_loading_a_library() -> None:
    """A command in bin/ may also load its own modules late, so that `wenet-hs --help` starts at
    once.
    """
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


@dataclass(frozen=True)
class Meaning:
    """A name at the top of a module."""

    module: str
    definition: str
    """Of an alias its value: equal values are one meaning. Of a class or function its module."""


SHARED_NAMES = {
    "CostOfPaths": "the autograd function of one kernel, for Numba and for Triton",
    "run": "every command has it, and the program below which jobs run",
    "main": "of each program",
}
"""Names that mean something else in several modules, and why they are not renamed."""


def names_and_meanings(source: str, module: str) -> Iterator[tuple[str, Meaning]]:
    """Classes and type aliases without leading underscores, and public functions."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_"), Meaning(module, f"{module} {node.lineno}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
            "_"
        ):
            yield node.name, Meaning(module, module)  # its overloads are one function
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id.lstrip("_")
            is_constant = name.isupper()
            if name[:1].isupper() and not is_constant:
                yield name, Meaning(module, ast.unparse(node.value))


def _meanings(sources: Mapping[str, str]) -> dict[str, list[Meaning]]:
    meanings: dict[str, list[Meaning]] = {}
    for module, source in sources.items():
        for name, meaning in names_and_meanings(source, module):
            meanings.setdefault(name, []).append(meaning)
    return meanings


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names with several meanings → the modules. Functions may share a name within a room."""
    shared = dict[str, list[str]]()
    for name, meanings in _meanings(sources).items():
        has_several = len({meaning.definition for meaning in meanings}) > 1
        is_in_one_room = len({_room(meaning.module) for meaning in meanings}) == 1
        is_function = name[:1].islower()
        if has_several and not (is_function and is_in_one_room):
            shared[name] = [meaning.module for meaning in meanings]
    return shared


def test_no_two_things_share_a_name() -> None:
    sources = {name: path.read_text("utf-8") for name, path in FILES.items()}
    shared = shared_names(sources)
    faults = {name: modules for name, modules in shared.items() if name not in SHARED_NAMES}
    assert len(sources) > 300
    assert faults == {}
    assert sorted(SHARED_NAMES) == sorted(shared), "a name that is no longer shared"


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("class Job: pass", "class _Job: pass", ["Job"]),
        ("class Job: pass", "Job = tuple[int, int]", ["Job"]),
        ("Ints = list[int]", "_Ints = list[int]", []),
        ("Ints = list[int]", "Ints = set[int]", ["Ints"]),
        ("Value = TypeVar('Value')", "Value = TypeVar('Value')", []),
        ("LIMIT = 3", "LIMIT = 4", []),
        ("def count(): pass", "def count(): pass", ["count"]),
        ("def _count(): pass", "def _count(): pass", []),
    ],
)
def test_names_that_are_shared_by_two_rooms(first: str, second: str, shared: list[str]) -> None:
    assert [*shared_names({"lm.a": first, "tree.b": second})] == shared


def test_names_that_are_shared_within_a_room_or_module() -> None:
    assert shared_names({"lm.a": "def count(): pass", "lm.b": "def count(): pass"}) == {}
    assert shared_names({"lm.a": "class A: pass", "lm.b": "class _A: pass"}) == {
        "A": ["lm.a", "lm.b"]
    }
    assert [*shared_names({"lm.a": "class A: pass\nclass _A: pass"})] == ["A"]
