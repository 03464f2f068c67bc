# SPDX-License-Identifier: Apache-2.0
"""Whether speech is simulated, and the note about it beside numbers."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

_SIMULATED_KEY = re.compile(r"(^|[_/])simulated_[0-9a-f]{8}")
"""In the key of every clip of `prepare synthetic`, such as `en_simulated_0123abcd`."""


def has_simulated_speech(keys: Iterable[str]) -> bool:
    """Whether one of the utterances with these keys is simulated speech.

    The keys show it even if the experiment was moved to another machine.
    """
    return any(_SIMULATED_KEY.search(key) for key in keys)


def is_marked_simulated(stats: Any) -> bool:
    """Whether a stats.json has `"simulated": true` at any depth.

    `stats`: the content of the file, or a part of it.
    """
    if isinstance(stats, dict):
        return stats.get("simulated") is True or any(map(is_marked_simulated, stats.values()))
    if isinstance(stats, list):
        return any(map(is_marked_simulated, stats))
    return False


def describe_speech(is_simulated: bool, are_pretrained: Sequence[bool]) -> str:
    """A note on the speech behind numbers, to put after a word; empty if all speech is real.

    "real + simulated" stands for a test on real speech after pretraining on simulated speech.

    Args:
        is_simulated: whether the test set is simulated speech.
        are_pretrained: for each training, whether it began from a model of simulated speech.
    """
    if is_simulated:
        return " (simulated speech)"
    if not any(are_pretrained):
        return ""
    if all(are_pretrained):
        return " (real + simulated)"
    return " (real, and real + simulated)"
