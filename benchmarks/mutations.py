# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: changes one operator, constant or condition of the source at a time and runs the tests for it.

    python benchmarks/mutations.py draw --seed 10 --count 60 --out mutations.json
    python benchmarks/mutations.py run mutations.json

`draw` draws mutations of the source and runs them; `run` runs listed ones again (exit code 1 if one survives).
A mutation is listed as file, line (its text), the mutated line and the tests that are run for it.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.And: "or", ast.Or: "and",
}  # fmt: skip
SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.And: "and", ast.Or: "or",
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One changed line of one file; `caught` says whether the tests failed with it."""

    file: str
    line: str
    mutated: str
    tests: list[str]
    caught: bool | None = None


def candidates(path: Path) -> Iterator[Mutation]:
    """All mutations of one file that change a single place of a line which occurs once in the file."""
    lines = path.read_text("utf-8").splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp):
            continue
        left, operator = _operator(node)
        if type(operator) not in SWAPS or left.end_lineno is None or left.end_col_offset is None:
            continue
        line = lines[left.end_lineno - 1]
        prefix = line.encode()[: left.end_col_offset].decode()
        rest, sign = line[len(prefix) :], SIGNS[type(operator)]
        position = rest.find(sign)
        if position < 0 or rest[:position].strip(" )]") or lines.count(line) != 1:
            continue
        mutated = prefix + rest[:position] + SWAPS[type(operator)] + rest[position + len(sign) :]
        yield Mutation(str(path.relative_to(ROOT)), line, mutated, tests_of(path))


def _operator(node: ast.Compare | ast.BinOp | ast.BoolOp) -> tuple[ast.expr, ast.AST]:
    if isinstance(node, ast.Compare):
        return node.left, node.ops[0]
    return (node.left, node.op) if isinstance(node, ast.BinOp) else (node.values[0], node.op)


def tests_of(path: Path) -> list[str]:
    """The test folder of a package, or the test file of a module of the top level."""
    parts = path.relative_to(ROOT / "wenet_hs").parts
    folder = f"tests/{parts[0]}" if len(parts) > 1 else f"tests/test_{path.stem}.py"
    return [folder] if (ROOT / folder).exists() else ["tests/test_recognizer.py"]


def is_caught(mutation: Mutation, timeout_s: int = 600) -> bool:
    """Whether the tests fail when the package has this mutation. Works on a copy of the package.

    The copy has the compiled kernels too, because their compilation takes minutes. Numba compiles a kernel again if its
    own file has changed, but not if a kernel of another file that it calls has changed: all are compiled again then.
    """
    has_kernels = "njit" in (ROOT / mutation.file).read_text("utf-8")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        copy = Path(name)
        for part in ("wenet_hs", "tests", "conf", "examples", "tools", "docs", "benchmarks"):
            ignored = ("data*", "exp*") if part == "examples" else ("__pycache__" if has_kernels else "*.pyc",)
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns(*ignored))
        for part in ("pyproject.toml", "README.md", "setup.py"):
            shutil.copy(ROOT / part, copy / part)
        file = copy / mutation.file
        text = file.read_text("utf-8")
        if text.count(mutation.line + "\n") != 1:
            raise SystemExit(f"{mutation.file}: this line does not occur exactly once: {mutation.line}")
        file.write_text(text.replace(mutation.line + "\n", mutation.mutated + "\n"), "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode == 1


def draw(seed: int, count: int, out: Path) -> None:
    """Draws mutations at random, the same number of each package, runs them and writes all with their outcome.

    Those that `out` has already are not run again.
    """
    generator = random.Random(seed)
    by_package: dict[str, list[Mutation]] = {}
    for path in sorted((ROOT / "wenet_hs").rglob("*.py")):
        by_package.setdefault(path.relative_to(ROOT / "wenet_hs").parts[0], []).extend(candidates(path))
    packages = [name for name, found in sorted(by_package.items()) if len(found) >= 20]
    done = read_mutations(out) if out.exists() else []
    for index in range(count):
        mutation = generator.choice(by_package[packages[index % len(packages)]])
        if index < len(done):
            continue
        done.append(Mutation(**asdict(mutation) | {"caught": is_caught(mutation)}))
        print(done[-1], flush=True)
        out.write_text(json.dumps([asdict(one) for one in done], indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_mutations(path: Path) -> list[Mutation]:
    """The mutations in a JSON file."""
    return [Mutation(**fields) for fields in json.loads(path.read_text("utf-8"))]


def run(listed: Path) -> int:
    """Runs the listed mutations; returns how many survive."""
    mutations = read_mutations(listed)
    survivors = [mutation for mutation in mutations if not is_caught(mutation)]
    for mutation in survivors:
        print(f"survived: {mutation.file}: {mutation.mutated.strip()}")
    print(f"{len(mutations) - len(survivors)} of {len(mutations)} mutations are caught")
    return len(survivors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="draw mutations of the source and run them")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=60)
    drawing.add_argument("--out", type=Path, required=True)
    running = commands.add_parser("run", help="run listed mutations")
    running.add_argument("listed", type=Path)
    args = parser.parse_args()
    if args.command == "draw":
        draw(args.seed, args.count, args.out)
    else:
        sys.exit(1 if run(args.listed) else 0)


if __name__ == "__main__":
    main()
