# SPDX-License-Identifier: Apache-2.0
"""Made-up experiment folders in the temporary folder of a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_experiment import write_experiment


@pytest.fixture
def make_experiment(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, **options: Any) -> Path:
        return write_experiment(tmp_path / name, **options)

    return make
