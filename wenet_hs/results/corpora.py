# SPDX-License-Identifier: Apache-2.0
"""The files of prepared data that belong to experiments: stats.json, and the list of the test set.

`prepare` writes OUT/stats.json, OUT/train/data.list and OUT/test/data.list.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_json
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.runs.record import RunRecord
from wenet_hs.score.error_rate import count_of
from wenet_hs.tree.errors import DataError, list_names


def find_stats(runs: Iterable[RunRecord]) -> list[Path]:
    """The stats.json of each corpus of these trainings that still exists, beside the lists in the
    records."""
    lists = list[str]()
    for run in runs:
        lists += run.lists.train_paths
        lists += run.lists.valid_paths
    expected = dict.fromkeys(
        Path(path).parent.parent / "stats.json" for path in lists if path.endswith(".list")
    )
    return [path for path in expected if path.is_file()]


def read_stats(path: Path) -> dict[str, Any]:
    """The content of a stats.json. Raises DataError if it is damaged or another file."""
    stats = read_json(path, "prepare the data again")
    if not isinstance(stats, dict):
        raise DataError(path, "not the stats.json of `prepare`", "check --stats")
    return stats


@dataclass(frozen=True)
class ListOfTest:
    """The list of a test set; empty if it is not known."""

    clips: Mapping[str, Utterance] = field(default_factory=dict)
    """The utterances by key."""
    path: Path | None = None


def find_test_list(keys: Set[str], stats: Iterable[Path]) -> ListOfTest:
    """The first list beside these stats.json with all of these utterances.

    Raises DataError if a list is damaged.
    """
    for path in (stats_path.parent / "test" / "data.list" for stats_path in stats):
        if not path.is_file():
            continue
        clips = {clip.key: clip for clip in read_data_list(path)}
        if keys and keys <= clips.keys():
            return ListOfTest(clips, path)
    return ListOfTest()


def read_test_list(keys: Set[str], path: Path) -> ListOfTest:
    """The list that was decoded. Raises DataError if it lacks one of these utterances, or is
    damaged."""
    clips = {clip.key: clip for clip in read_data_list(path)}
    absent = sorted(keys - clips.keys())
    if absent:
        which = f"{count_of(len(absent), 'scored utterance')} ({list_names(absent)})"
        found = f"not the list that was decoded, it lacks {which}"
        raise DataError(path, found, "give --data_list the list of the test")
    return ListOfTest(clips, path)
