# SPDX-License-Identifier: Apache-2.0
"""The files from which a report is made, with their hashes."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from wenet_hs.base.files import file_sha256
from wenet_hs.results.report_data import ReportData
from wenet_hs.runs.file_names import CURVES_FILE

_FILES_OF_FOLDER = (
    "train.yaml",
    CURVES_FILE,
    "units.txt",
    "tree.json",
    "final.pt",
    "final.json",
)


@dataclass(frozen=True)
class InputFile:
    """A file as it was read."""

    path: Path
    changed: datetime
    """In UTC."""
    num_bytes: int
    sha256: str


def read_input_files(data: ReportData) -> list[InputFile]:
    """The input files that exist, each once, in the order of the experiments."""
    paths = dict.fromkeys(_list_paths(data))
    return [_describe_file(path) for path in paths if path.is_file()]


def _describe_file(path: Path) -> InputFile:
    """The state of a file and its hash. Reads the whole file."""
    state = path.stat()
    return InputFile(
        path=path,
        changed=datetime.fromtimestamp(state.st_mtime, UTC),
        num_bytes=state.st_size,
        sha256=file_sha256(path),
    )


def _list_paths(data: ReportData) -> Iterator[Path]:
    """Where the files may be: those of each experiment, then those of the data."""
    for experiment in data.experiments:
        yield from (experiment.folder / name for name in _FILES_OF_FOLDER)
        yield experiment.test.record_path
        yield from map(experiment.test.score_path, experiment.scores)
        if data.mode is not None:
            yield experiment.test.hypotheses_path(data.mode)
    yield from data.stats
    if data.data_list is not None:
        yield data.data_list
