# SPDX-License-Identifier: Apache-2.0
"""Trained models and exports that all processes of a test run share: an export takes seconds."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tone_models import MAX_PAUSE_S, PAUSES, STREAM, WHOLE, write_clips, write_tone_model

from wenet_hs.export.job import export_model
from wenet_hs.export.options import ExportOptions

LENGTHS = [3, 5, 7, 9, 12, 14, 20, 4, 6, 10] * 4


class Shared:
    """Makes each folder once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, name: str, write: Callable[[Path], object]) -> Path:
        """The folder NAME, which `write` makes."""
        folder = self.root / name
        with (self.root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                write(self.root / f"{name}.new")
                (self.root / f"{name}.new").rename(folder)
        return folder

    @property
    def clips(self) -> Path:
        """The data.list of 40 clips."""
        return self.make("clips", lambda folder: write_clips(folder, LENGTHS)) / "data.list"

    def model(self, name: str) -> Path:
        """`whole`, `stream` or `pauses`: a trained model."""
        sections = {"whole": WHOLE, "stream": STREAM, "pauses": PAUSES}[name]
        max_pause_s = MAX_PAUSE_S if name == "pauses" else 0.0

        def write(folder: Path) -> None:
            write_tone_model(folder, sections, max_pause_s=max_pause_s)

        return self.make(name, write)

    def export(self, model: str, runtime: str, *, streaming: bool = False) -> Path:
        """An export of a trained model, with 8-bit weights where the runtime takes them."""
        options = ExportOptions(
            model_dir=str(self.model(model)),
            out=self.root / f"{model}-{runtime}-{streaming}.new",
            runtime=runtime,  # type: ignore[arg-type]
            streaming=streaming,
            test_data=self.clips,
            quantize=None if runtime == "wenet" else "int8",
        )
        return self.make(f"{model}-{runtime}-{streaming}", lambda folder: export_model(options))


def shared_folder(factory: pytest.TempPathFactory) -> Shared:
    """One folder for all processes of pytest-xdist."""
    root = factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "exports"
    root.mkdir(exist_ok=True)
    return Shared(root)
