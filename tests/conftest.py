# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures. One torch thread, here and in the processes that tests start: two make small models far slower,
beside other work so much that a training seems to hang."""

import gc
import os
import signal
from pathlib import Path

import pytest
import torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born deaf to it
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def shared_dir() -> Path:
    """The reference material beside the checkout; a test that needs it is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the reference folder ../shared is not here")
    return SHARED


def pytest_collection_finish() -> None:
    """What is loaded by now stays for the whole run: no search for garbage need look at it again."""
    gc.collect()
    gc.freeze()
