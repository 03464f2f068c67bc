# SPDX-License-Identifier: Apache-2.0
"""Phones of espeak-ng's labels, spelled as a corpus of phones spells them.

A label has the names of espeak-ng's phonemes in the order of speech, with `_` or a space between
them. Most names are IPA, some are ASCII mnemonics. A name may have several phones (a diphthong, a
vowel with r). Stress and tone are left out.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

import numpy as np
import regex  # type: ignore[import-untyped]

from wenet_hs.text.articulatory import phone_features

UNUSABLE = {
    "da": "its labels are not IPA: stød is a part of the vowel",
    "yue": "its labels are not IPA, but Jyutping",
    **dict.fromkeys(("fo", "kaa", "xex"), "espeak-ng 1.52 has no dictionary for it"),
    **dict.fromkeys(
        ("cmn-latn-pinyin", "en-shaw", "fa-latn"), "another alphabet of a voice that is used"
    ),
    "ru-lv": "its labels disagree with its formants",
    "kl": "espeak-ng 1.52 ends its process on some words",
}
"""Languages whose voices or labels cannot be used, with the reason."""
VOWELS = "aeiouyɑɐɒæɔɘəɚɛɜɝɤɨɪɯøœɵɶʉʊʌʏᵻ"

_LETTERS: dict[str, dict[int, str]] = {
    "ko": str.maketrans({"q": "k"}),
    "mk": str.maketrans({"æ": "a"}),
    "ru": str.maketrans({"y": "ɨ"}),
    "vi": str.maketrans({"y": "ɯ"}),
    **dict.fromkeys(("bg", "chr", "cs", "hy", "ka", "lt", "si"), str.maketrans({"e": "ɛ"})),
    **dict.fromkeys(
        ("bpy", "gu", "hi", "ne", "pa", "sd", "ur"), str.maketrans({"c": "tʃ", "ɟ": "dʒ"})
    ),
}
"""Letters that the labels of a language use for another phone than the one that is heard (formants,
friction).
"""
_RULES = [(regex.compile(pattern), written) for pattern, written in (
    ("[ˈˌ]", ""), ("(?<=.)[ɜ0-9]$", ""),  # stress, tone: the IPA output writes the digit 3 as ɜ
    ("nɡ$", "ŋ"), (":", "ː"), ("(?<=[ptkcqsɕ.])h$", "ʰ"),
    (r"ts\.", "ʈʂ"), (r"s\.", "ʂ"), (r"r\.", "ɽ"), ("i[.\u032a]", "ɨ"), ("^o-$", "ɤ"),  # Mandarin, Hindi
    ('^u"$', "ʉ"), (r"^k\^$", "c"), ("#$", "\u0325"),  # Russian, Macedonian, Icelandic
    ("^sx$", "x"), ("^cr$", "ʈ"), ("(?<=[ptkʃ])`", "ʼ"), ("`", ""),  # Swedish, Vietnamese, Oromo, Latvian
    ("^g$", "ɡ"), ("ʦ", "ts"),
    ("ᵻ", "ɪ"), ("ɚ", "ə˞"), ("ɝ", "ɜ˞"), ("ᵝ", ""), ("a\u0308", "a"), ("ε", "ɛ"), ("ɫ", "l"),
    ("ʲʲ", "ʲ"), ("ːː", "ː"), (r"^(.+)\1$", r"\1ː"),
    (rf"(?<=[{VOWELS}]ː?)ɪ", "i"), (rf"(?<=[{VOWELS}]ː?)ʊ", "u"),  # the ends of diphthongs
    ("([tʈ])([sʃɕʂ])", "\\1\u0361\\2"), ("([dɖ])([zʒʑʐ])", "\\1\u0361\\2"), ("pf", "p\u0361f"),
)]  # fmt: skip
"""Replacements in a name in NFD, one after the other; the result is IPA."""
_SIGNS = r"[\p{Mn}\p{Lm}\p{Sk}]*"
_PHONE = regex.compile(rf"[\p{{Ll}}\p{{Lo}}]{_SIGNS}(?:(?<=\u0361)[\p{{Ll}}\p{{Lo}}]{_SIGNS})*")
_SPELLINGS = {"ɡ": ("ɡ", "q\u0320"), "ɐ": ("ɐ", "a")}
"""Phones with another spelling in some corpora. UCLA's lists have q̠ for most ɡ."""


def split_label(label: str, lang: str) -> list[str]:
    """The phones of a label, in NFD.

    Raises ValueError with the reason if the label cannot be used.
    """
    if "(" in label:
        raise ValueError("another language: espeak-ng reads a part of it with another voice")
    letters = _LETTERS.get(lang.partition("-")[0], {})
    return [
        phone
        for name in regex.split("[_ ]+", label)
        for phone in _split_name(name.translate(letters))
    ]


@cache
def _split_name(name: str) -> tuple[str, ...]:
    ipa = unicodedata.normalize("NFD", name)
    for pattern, written in _RULES:
        ipa = pattern.sub(written, ipa)
    phones = _PHONE.findall(ipa)
    if "".join(phones) != ipa or np.isnan(phone_features(phones)[0]).any():
        raise ValueError(f"unknown phone: {name!r}")
    return tuple(phones)


class PhoneSpelling:
    """The spelling that a corpus uses for each phone: of several ones the most frequent."""

    def __init__(self, transcripts: Iterable[str]) -> None:
        """`transcripts`: phones with spaces between them.

        If there are none, every phone keeps its IPA.
        """
        phones = [unicodedata.normalize("NFD", text).split() for text in transcripts]
        self._counts = Counter[tuple[str, ...]]((phone,) for of_one in phones for phone in of_one)
        self._counts.update(
            pair for of_one in phones for pair in zip(of_one, of_one[1:], strict=False)
        )

    def spell(self, phones: Iterable[str]) -> str:
        """The transcript, NFC.

        A phone that the corpus lacks loses its signs, the last one first, until it has it.

        If the corpus lacks the letter too, the phone keeps all signs but the length.
        """
        spelled = (spelling for phone in phones for spelling in self._spell_phone(phone))
        return unicodedata.normalize("NFC", " ".join(spelled))

    def _spell_phone(self, phone: str) -> tuple[str, ...]:
        if not self._counts:
            return (phone,)
        shorter = phone
        while shorter:
            best = max(_spellings(shorter), key=lambda spelling: self._counts[spelling])
            if self._counts[best]:
                return best
            shorter = shorter[:-1].removesuffix("\u0361")
        return (phone.replace("ː", ""),)


def _spellings(phone: str) -> list[tuple[str, ...]]:
    """The ways to write a phone: an affricate and a long consonant may also be two phones."""
    spellings: list[tuple[str, ...]] = [(spelling,) for spelling in _SPELLINGS.get(phone, (phone,))]
    first, tie, second = phone.partition("\u0361")
    if tie and second:
        spellings += [(first, second), (f"{first}\u0320", second)]
    elif phone.endswith("ː") and phone[0] not in VOWELS:
        spellings.append((phone[:-1], phone[:-1]))
    return spellings
