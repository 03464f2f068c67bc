# SPDX-License-Identifier: Apache-2.0
"""Where segments of a stream end. A script has the best unit of each frame; `.` is blank."""

import math

import pytest

from wenet_hs.decode.endpoints import Endpoint, EndpointDetector, EndpointRules

RULES = EndpointRules(silence_s=4, max_segment_s=12, no_speech_s=8)
SCRIPTS = {
    "": None,
    "3...": None,
    "3....": Endpoint(3),
    "..3.....": Endpoint(6),  # of a longer silence so much is kept as of the shortest one
    ".......": None,
    "........": Endpoint(6, is_dropped=True),
    ".........": Endpoint(7, is_dropped=True),
    "34567893456": None,
    "3.4.5.6.7.8.": Endpoint(11),  # too long: in the last silence of the last quarter
    "34567893..45": Endpoint(9),
    "3....6....45": Endpoint(8),  # the longest one, which begins before that quarter
    "345..8.93444": Endpoint(9),  # no silence there: before the last unit
    "345..8.34444": Endpoint(12),  # it has begun before too
    "333333333333": Endpoint(12),
}


def find(rules: EndpointRules, script: str) -> Endpoint | None:
    units = [0 if letter == "." else int(letter) for letter in script]
    return EndpointDetector(rules, frame_s=1.0, blank=0).find(units)


@pytest.mark.parametrize("script", SCRIPTS)
def test_endpoints(script: str) -> None:
    assert find(RULES, script) == SCRIPTS[script]


def test_a_segment_of_silence_may_be_the_longest_one() -> None:
    rules = EndpointRules(silence_s=4, max_segment_s=6, no_speech_s=8)
    assert find(rules, "......") == Endpoint(4)
    assert find(rules, "........") == Endpoint(6, is_dropped=True)


def test_without_a_rule_of_silence_half_of_a_silence_is_kept() -> None:
    rules = EndpointRules(silence_s=math.inf, max_segment_s=8, no_speech_s=8)
    assert find(rules, "........") == Endpoint(4, is_dropped=True)
    assert find(rules, "3.......") == Endpoint(4)


def test_one_silent_frame_ends_no_segment() -> None:
    for rules in (EndpointRules(no_speech_s=0.5), EndpointRules(max_segment_s=0.5)):
        assert find(rules, ".") is None
        endpoint = find(rules, "..")
        assert endpoint is not None and endpoint.num_frames == 1
