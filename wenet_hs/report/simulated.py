# SPDX-License-Identifier: Apache-2.0
"""Whether speech is simulated, from what an experiment bears: the names of its clips, and its lists' stats.json."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wenet_hs.report.collect import ExperimentResults

_LISTS = ("--train_data", "--cv_data")
_NAME = re.compile(r"(^|[_/])simulated_[0-9a-f]{8}")  # of every clip of `prepare synthetic`, and so of its key


def says_simulated(value: Any) -> bool:
    """`"simulated": true` anywhere: the data's own facts may stand in a section."""
    if isinstance(value, Mapping):
        return value.get("simulated") is True or any(map(says_simulated, value.values()))
    return isinstance(value, list) and any(map(says_simulated, value))


def named_simulated(keys: Iterable[str]) -> bool:
    """Whether a key has the name that `prepare synthetic` gives: an experiment that was moved tells it too."""
    return any(map(_NAME.search, keys))


def stats_files(experiments: Sequence[ExperimentResults]) -> list[Path]:
    """The stats.json of each corpus that an experiment was trained on, where it still lies where `prepare` wrote it.

    `prepare` writes OUT/stats.json above OUT/train/data.list, and train.yaml keeps the command with its lists.
    """
    found = (
        path.parent.parent / "stats.json"
        for experiment in experiments
        for path in _lists(str(experiment.provenance.get("command", "")))
    )
    return [path for path in dict.fromkeys(found) if path.is_file()]


def _lists(command: str) -> list[Path]:
    """The paths behind the flags that name lists, in the order of the command."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote without its end: somebody's own train.yaml
        return []
    lists: list[Path] = []
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            word = value
        if flag in _LISTS and word:
            lists.append(Path(word))
    return lists
