# SPDX-License-Identifier: Apache-2.0
"""The files that a page was made from, each with its date, size and SHA-256: two pages are told apart by them."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from wenet_hs.report.markup import plain_table
from wenet_hs.report.material import Material

_OF_EXPERIMENT = ("train.yaml", "metrics.jsonl", "units.txt", "tree.json", "final.pt", "final.json")


def inputs_table(material: Material) -> str:
    """A row for each file that is there, folded: it is for those who check."""
    rows = [_row(path) for path in dict.fromkeys(_paths(material)) if path.is_file()]
    names = ["file", "changed, UTC", "bytes", "SHA-256"]
    made = plain_table(names, rows, caption="Files that this page was made from") if rows else ""
    return f"<details><summary>{len(rows)} files that this page was made from</summary>{made}</details>" if rows else ""


def _paths(material: Material) -> Iterator[Path]:
    for experiment in material.experiments:
        yield from (experiment.folder / name for name in _OF_EXPERIMENT)
        results = experiment.folder / experiment.test
        yield results / "rtf.json"
        yield from (results / mode / "score.json" for mode in experiment.scores)
        if material.mode is not None:
            yield results / material.mode / "hyps.jsonl"
    yield from material.stats
    if material.data_list is not None:
        yield material.data_list


def _row(path: Path) -> list[str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    status = path.stat()
    changed = datetime.fromtimestamp(status.st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return [str(path), changed, f"{status.st_size:,}", digest]
