# SPDX-License-Identifier: Apache-2.0
"""No test here cuts the power, so files need not reach the disk: a third of the time."""

import os

import pytest


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
