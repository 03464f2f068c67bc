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
    """The stats.json of each corpus of these trainings, each once, if it still exists.

    It is looked for at OUT/stats.json for each recorded list OUT/NAME/data.list.
    """
    list_paths = list[str]()
    for run in runs:
        list_paths += run.lists.train_paths
        list_paths += run.lists.valid_paths
    candidates = [
        Path(path).parent.parent / "stats.json" for path in list_paths if path.endswith(".list")
    ]
    return [path for path in dict.fromkeys(candidates) if path.is_file()]


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
    """The first OUT/test/data.list that has all of these utterances; an empty list if none has.

    Args:
        keys: of the utterances. Without any, the result is empty.
        stats: the paths OUT/stats.json.
    Raises:
        DataError: a list is damaged.
    """
    for stats_path in stats:
        list_path = stats_path.parent / "test" / "data.list"
        if not list_path.is_file():
            continue
        clips = {clip.key: clip for clip in read_data_list(list_path)}
        if keys and keys <= clips.keys():
            return ListOfTest(clips, list_path)
    return ListOfTest()


def read_test_list(keys: Set[str], path: Path) -> ListOfTest:
    """The list in a file, which must have all of these utterances.

    Raises DataError if it lacks one of them, or is damaged.
    """
    clips = {clip.key: clip for clip in read_data_list(path)}
    absent = sorted(keys - clips.keys())
    if absent:
        which = f"{count_of(len(absent), 'scored utterance')} ({list_names(absent)})"
        fault = f"not the list that was decoded, it lacks {which}"
        raise DataError(path, fault, "give --data_list the list of the test")
    return ListOfTest(clips, path)
