# SPDX-License-Identifier: Apache-2.0
"""Look through the source for ways to run code that came with data: pickles, loaders of YAML, eval, shells."""

import ast
import re
from pathlib import Path

from fault_script import Tally

ROOT = Path(__file__).resolve().parents[2]
SCANNED = ("wenet_hs", "examples", "tools")
MODULES = frozenset({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"})
FUNCTIONS = frozenset({"eval", "exec", "compile", "__import__"})
METHODS = frozenset(
    {"os.system", "os.popen", "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader"}
    | {"yaml.FullLoader", "yaml.UnsafeLoader", "torch.hub", "subprocess.getoutput", "subprocess.getstatusoutput"}
)
KEYWORDS = {"allow_pickle": True, "weights_only": False, "shell": True}
_WORDS = ("pickle", "dill", "joblib", "shelve", "marshal", "yaml", "weights_only", "shell", ".load(", "system", "popen")
_WORDS += ("torch.hub", "getoutput", "getstatusoutput")
_SUSPECT = re.compile("|".join(map(re.escape, _WORDS)) + r"|(?<![.\w])(eval|exec|compile|__import__)\(")
"""What a file must have somewhere to be worth parsing."""
NEEDED = {"torch.load": "weights_only", "np.load": "allow_pickle"}
"""Calls that must say how careful they are, rather than rely on the default of a release."""
SHELL = re.compile(r"(^|[;&|(]\s*)\s*(eval|source /dev/stdin)\s|\|\s*(ba)?sh\b")


def scan_sources(tally: Tally, root: Path = ROOT) -> int:
    """Note each place that could run code; the number of files looked through."""
    paths = [path for folder in SCANNED for path in sorted((root / folder).rglob("*")) if path.suffix in (".py", ".sh")]
    for path in paths:
        text = path.read_text("utf-8")
        found = faults_of_python(text) if path.suffix == ".py" else faults_of_shell(text)
        for line, what in found:
            tally.check(False, f"{path.relative_to(root)}:{line}: {what}")
    tally.check(len(paths) > 50, f"only {len(paths)} source files found under {root}")
    return len(paths)


def faults_of_python(text: str) -> list[tuple[int, str]]:
    """(line, what) of each way to run code in a Python file."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text if _SUSPECT.search(text) else "")):
        for what in _faults(node):
            found.append((getattr(node, "lineno", 0), what))
    return found


def _faults(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [f"import {name.name}" for name in node.names if name.name.partition(".")[0] in MODULES]
    if isinstance(node, ast.ImportFrom):
        return [f"from {node.module} import"] if str(node.module).partition(".")[0] in MODULES else []
    if isinstance(node, ast.Attribute):
        name = ast.unparse(node)
        return [name] if name in METHODS else []
    if not isinstance(node, ast.Call):
        return []
    name, named = ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
    faults = [f"{name}()"] if name in FUNCTIONS else []
    faults += [
        f"{key}={value}"
        for key, value in KEYWORDS.items()
        if key in named and ast.unparse(named[key]) != str(not value)
    ]
    missing = NEEDED.get(name)
    return [*faults, f"{name} without {missing}"] if missing and missing not in named else faults


def faults_of_shell(text: str) -> list[tuple[int, str]]:
    """The same of a shell script."""
    lines = enumerate(text.splitlines(), start=1)
    return [(number, line.strip()) for number, line in lines if SHELL.search(line.partition("#")[0])]
