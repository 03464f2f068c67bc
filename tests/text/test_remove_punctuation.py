# SPDX-License-Identifier: Apache-2.0
"""Punctuation out with the case kept: what `normalize` does, but for the case."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wenet_hs.text.normalize import normalize, remove_punctuation

LANGS = ["ca", "fr", "uz", "uk", "de", None]
TEXTS = st.text("aAlLoOgGñÉßŀĿİıI'’ʼʻ·•.,-«»!? јЖאב״\u0301\u200d1")


@pytest.mark.parametrize(
    ("text", "lang", "written"),
    [
        ("L’Hospitalet", "ca", "L'Hospitalet"),
        ("Paraŀlel, PARAĿLEL", "ca", "Paral·lel PARAL·LEL"),
        ("O‘ZBEKISTON Respublikasi", "uz", "OʻZBEKISTON Respublikasi"),
        ("Un po' di «Vino»", "it", "Un po' di Vino"),
        ("Straße; STRASSE", "de", "Straße STRASSE"),
        ("İstanbul'da", "tr", "İstanbul'da"),
    ],
)
def test_case_is_kept(text: str, lang: str | None, written: str) -> None:
    assert remove_punctuation(text, lang) == written


@given(TEXTS, st.sampled_from(LANGS))
def test_twice_is_once(text: str, lang: str | None) -> None:
    once = remove_punctuation(text, lang)
    assert remove_punctuation(once, lang) == once


@example("א״״", "ca")
@given(TEXTS, st.sampled_from(LANGS))
def test_lower_case_afterwards_is_the_normal_form(text: str, lang: str | None) -> None:
    assert normalize(remove_punctuation(text, lang), lang) == normalize(text, lang)
