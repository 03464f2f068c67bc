# SPDX-License-Identifier: Apache-2.0
"""A few hundred damaged clips: the script that the reader can run with any number of them."""

import re

import pytest
from mutate_clips import main

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.mark.parametrize(
    "clips", [pytest.param(100, id="hundred"), pytest.param(1000, marks=pytest.mark.slow, id="thousand")]
)
def test_every_clip_is_used_or_quarantined(clips: int, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--clips", str(clips), "--seed", "5"])
    captured = capfd.readouterr()
    assert code == 0, captured.err
    (line,) = captured.out.splitlines()
    counts = re.match(r"seed 5 \| (\d+) clips = (\d+) used \+ (\d+) quarantined \| 0 crashes or hangs \| lost", line)
    assert counts is not None, line
    assert int(counts[1]) == clips == int(counts[2]) + int(counts[3])
    assert int(counts[2]) > clips / 20, "some damage leaves a clip as long as it was"
    assert line.endswith("no violation")
    assert f"page {clips // 10}/{clips // 10}" in line
