# SPDX-License-Identifier: Apache-2.0
"""Simulated speech: keys, marks in stats.json, and the note beside numbers."""

import pytest

from wenet_hs.results.speech import describe_speech, has_simulated_speech, is_marked_simulated


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["k", "cs_simulated_028374bf9a19ceb0"], True),
        (["x/simulated_028374bf.flac"], True),
        (["dissimulated_00000000"], False),
        (["simulated_word"], False),
        ([], False),
    ],
)
def test_keys_of_simulated_speech(keys: list[str], *, expected: bool) -> None:
    assert has_simulated_speech(keys) is expected


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"parts": [{"speech": {"simulated": True}}]}, True),
        ({"simulated": True}, True),
        ({"simulated": False, "name": '"simulated": true'}, False),
        ({"simulated": "true"}, False),
        ([1, None, "simulated"], False),
    ],
)
def test_marks_in_stats(stats: object, *, expected: bool) -> None:
    assert is_marked_simulated(stats) is expected


@pytest.mark.parametrize(
    ("is_simulated", "are_pretrained", "note"),
    [
        (True, [False], " (simulated speech)"),
        (False, [False, False], ""),
        (False, [True, True], " (real + simulated)"),
        (False, [True, False], " (real, and real + simulated)"),
        (False, [], ""),
    ],
)
def test_the_note_beside_numbers(is_simulated: bool, are_pretrained: list[bool], note: str) -> None:
    assert describe_speech(is_simulated, are_pretrained) == note
