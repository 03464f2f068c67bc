# SPDX-License-Identifier: Apache-2.0
"""Downsampling against the paper's Table 1, and its limits."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_release import OFFICIAL_HOURS

from wenet_hs.corpus.subset import hours_to_keep, ratio_for, sampling_ratios
from wenet_hs.errors import ConfigError

# For cs, pl, uk the paper prints 42.5, 37.8, 23.4; its formula gives 14.5, 23.4, 16.1.
PRINTED = {
    "ca": 76.3, "es": 37.6, "fr": 55.7, "it": 33.4, "pt": 20.7, "be": 63.0, "ba": 29.6, "ky": 11.3, "tr": 16.9,
    "tt": 10.0, "uz": 18.1,
}  # fmt: skip
HOURS = st.dictionaries(st.text("abcdef", min_size=2, max_size=2), st.floats(0.01, 5000), min_size=1, max_size=15)


def test_the_official_hours_give_table_1() -> None:
    kept = hours_to_keep(OFFICIAL_HOURS)
    assert (kept["cs"], kept["pl"], kept["uk"]) == pytest.approx((14.5, 23.4, 16.1), abs=0.11)
    for lang, printed in PRINTED.items():
        assert kept[lang] == pytest.approx(printed, rel=0.03)
    assert kept["ru"] == pytest.approx(27.3, rel=0.08)
    assert sum(kept.values()) == pytest.approx(0.082 * sum(OFFICIAL_HOURS.values()))


def test_the_typed_hours_are_the_official_ones(shared_dir: Path) -> None:
    path = shared_dir / "data/cv_meta/cv-corpus-11.0-2022-09-21.json"
    locales = json.loads(path.read_text("utf-8"))["locales"]
    assert {lang: locales[lang]["validHrs"] for lang in OFFICIAL_HOURS} == OFFICIAL_HOURS


def test_two_languages_by_hand() -> None:
    # p = 0.9, 0.1; p^0.5 = 0.9487, 0.3162, sum 1.2649; λ_i = p^-0.5 / 1.2649 · 0.1
    ratios = sampling_ratios({"a": 90.0, "b": 10.0}, alpha=0.5, ratio=0.1)
    assert ratios == pytest.approx({"a": 0.08333, "b": 0.25}, abs=1e-5)
    assert hours_to_keep({"a": 90.0, "b": 10.0}, 0.5, 0.1) == pytest.approx({"a": 7.5, "b": 2.5})
    # A small language gives no more than it has.
    assert hours_to_keep({"a": 99.0, "b": 1.0}, alpha=0.0, ratio=0.1) == pytest.approx({"a": 5.0, "b": 1.0})


@settings(max_examples=25, deadline=None)
@given(hours=HOURS, alpha=st.floats(0.0, 1.0), ratio=st.floats(0.001, 1.0))
def test_never_more_than_there_is_or_than_asked(hours: dict[str, float], alpha: float, ratio: float) -> None:
    kept = hours_to_keep(hours, alpha=alpha, ratio=ratio)
    assert all(0.0 < kept[lang] <= hours[lang] * (1 + 1e-12) for lang in hours)
    assert sum(kept.values()) <= ratio * sum(hours.values()) * (1 + 1e-9)
    proportional = {lang: ratio * duration for lang, duration in hours.items()}
    assert hours_to_keep(hours, alpha=1.0, ratio=ratio) == pytest.approx(proportional)


def test_hours_become_a_ratio_and_languages_without_audio_are_refused() -> None:
    assert ratio_for(200.0, 50.0) == 0.25
    with pytest.raises(ConfigError, match="^language b: 0 hours of audio; leave it out of --langs$"):
        hours_to_keep({"a": 1.0, "b": 0.0})
