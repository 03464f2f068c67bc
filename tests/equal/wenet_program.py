# SPDX-License-Identifier: Apache-2.0
"""The program that is recorded: where its code is, and its own `wenet_internals.py`."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

INTERNALS = "wenet_internals"


def root() -> Path:
    """The folder of the checkout from which `import wenet_hs` takes the package."""
    package = importlib.util.find_spec("wenet_hs")
    if package is None or package.origin is None:
        raise SystemExit("wenet_hs cannot be imported; set PYTHONPATH to a checkout")
    return Path(package.origin).parents[1]


def internals() -> ModuleType:
    """`wenet_internals.py` of that checkout, or if it has none, the one beside this file."""
    if INTERNALS in sys.modules:
        return sys.modules[INTERNALS]
    own = root() / "tests" / "equal" / f"{INTERNALS}.py"
    path = own if own.is_file() else Path(__file__).with_name(f"{INTERNALS}.py")
    spec = importlib.util.spec_from_file_location(INTERNALS, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[INTERNALS] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Run the command of sys.argv and raise SystemExit with its exit code."""
    internals().load_commands().main()
