# SPDX-License-Identifier: Apache-2.0
"""The arrows of docs/design/0001-main-path.md, kept true: a module imports only from the rows below its own."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "wenet_hs"
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
LAYERS = (
    "bin",
    "report recognizer",
    "train decode",
    "build interop",
    "model",
    "heads",
    "nn data corpus score",
    "tree",
    "text",
    "manifest config",
    "checkpoint distributed",
    "devices errors files",
)
RANK = {name: rank for rank, row in enumerate(reversed(LAYERS)) for name in row.split()}
# `interop` stands beside `build`.
SIBLINGS = {
    ("build", "interop"),
    ("interop", "build"),
    ("files", "errors"),
    ("devices", "errors"),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wenet_hs."):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("wenet_hs.")]
        for name in names:
            there = name.split(".")[1]
            allowed = there == here or RANK[there] < RANK[here] or (here, there) in SIBLINGS
            assert allowed, f"{path}:{node.lineno}: {here} may not import {there}"


def test_something_was_checked() -> None:
    assert len(FILES) > 5
