# SPDX-License-Identifier: Apache-2.0
"""These tests have processes of their own: `pytest -m slow tests/gpu`, as `make slow` does.

The device of `fake_gpu` stays in torch once it is imported; torch then computes no gradients in a
forked process.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves this folder out unless the command names it."""
    named = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True
