# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures.

One torch thread, here and in the processes that tests start: two make small models much slower.

Bytecode is written, also where PYTHONDONTWRITEBYTECODE is set: otherwise each process compiles the
tests again.
"""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.fsync = lambda fd: None  # no test cuts the power, so files need not reach the disk
gc.disable()  # until all modules are imported: nothing of them is garbage

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def shared_dir() -> Path:
    """The reference material next to the checkout; without it, tests that need it are skipped."""
    if not SHARED.is_dir():
        pytest.skip("the reference folder ../shared does not exist")
    return SHARED


@pytest.fixture
def yaml_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The YAML files that are parsed from now on, each as often as it is parsed."""
    from wenet_hs.config import yaml_file  # not at the top: the first process of xdist runs no test

    reads = list[Path]()
    parse_yaml = yaml_file.parse_yaml

    def parse(text: str, place: yaml_file.Place) -> yaml_file.Settings:
        reads.append(Path(place.source))
        return parse_yaml(text, place)

    monkeypatch.setattr(yaml_file, "parse_yaml", parse)
    return reads


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The faults come first: a process that has computed a gradient cannot be forked to train in
    the child.
    """
    items.sort(key=lambda item: "faults" not in item.path.parts)


def pytest_collection_finish() -> None:
    """Excludes all modules from garbage collection: they are used until the end of the run."""
    import torch  # not at the top: the first process of xdist runs no test

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.enable()
