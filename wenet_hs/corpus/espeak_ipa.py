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

_LETTERS_AS_HEARD: dict[str, dict[str, str]] = {
    "ko": {"q": "k"},
    "mk": {"æ": "a"},
    "ru": {"y": "ɨ"},
    "vi": {"y": "ɯ"},
    **dict.fromkeys(("bg", "chr", "cs", "hy", "ka", "lt", "si"), {"e": "ɛ"}),
    **dict.fromkeys(("bpy", "gu", "hi", "ne", "pa", "sd", "ur"), {"c": "tʃ", "ɟ": "dʒ"}),
}
"""Language → letter in its labels → the phone that is heard in its place.

These labels disagree with the sound of espeak-ng, by its formants or its friction.
"""
_REPLACEMENTS = (
    # Stress and tone. The IPA output writes the digit 3 as ɜ.
    ("[ˈˌ]", ""),
    ("(?<=.)[ɜ0-9]$", ""),
    # Mnemonics of several languages.
    ("nɡ$", "ŋ"),
    (":", "ː"),
    ("(?<=[ptkcqsɕ.])h$", "ʰ"),
    # Mandarin, Hindi.
    (r"ts\.", "ʈʂ"),
    (r"s\.", "ʂ"),
    (r"r\.", "ɽ"),
    ("i[.\u032a]", "ɨ"),
    ("^o-$", "ɤ"),
    # Russian, Macedonian, Icelandic.
    ('^u"$', "ʉ"),
    (r"^k\^$", "c"),
    ("#$", "\u0325"),
    # Swedish, Vietnamese, Oromo, Latvian.
    ("^sx$", "x"),
    ("^cr$", "ʈ"),
    ("(?<=[ptkʃ])`", "ʼ"),
    ("`", ""),
    # One letter per phone.
    ("^g$", "ɡ"),
    ("ʦ", "ts"),
    ("ᵻ", "ɪ"),
    ("ɚ", "ə˞"),
    ("ɝ", "ɜ˞"),
    ("ᵝ", ""),
    ("a\u0308", "a"),
    ("ε", "ɛ"),
    ("ɫ", "l"),
    # Repeated signs, and letters that are written twice for a long phone.
    ("ʲʲ", "ʲ"),
    ("ːː", "ː"),
    (r"^(.+)\1$", r"\1ː"),
    # The ends of diphthongs.
    (rf"(?<=[{VOWELS}]ː?)ɪ", "i"),
    (rf"(?<=[{VOWELS}]ː?)ʊ", "u"),
    # Affricates get a tie.
    ("([tʈ])([sʃɕʂ])", "\\1\u0361\\2"),
    ("([dɖ])([zʒʑʐ])", "\\1\u0361\\2"),
    ("pf", "p\u0361f"),
)
"""Patterns in the name of a phoneme in NFD, and what replaces them. After all of them, in this
order, the name is IPA.
"""
_RULES = [(regex.compile(pattern), replacement) for pattern, replacement in _REPLACEMENTS]
_SIGNS = r"[\p{Mn}\p{Lm}\p{Sk}]*"
"""Marks and modifier letters after the letter of a phone."""
_PHONE = regex.compile(rf"[\p{{Ll}}\p{{Lo}}]{_SIGNS}(?:(?<=\u0361)[\p{{Ll}}\p{{Lo}}]{_SIGNS})*")
"""A letter with its signs, and further ones that a tie joins to it."""
_SPELLINGS = {"ɡ": ("ɡ", "q\u0320"), "ɐ": ("ɐ", "a")}
"""Phone → its spellings in different corpora. UCLA's lists have q̠ for most ɡ."""


def split_label(label: str, lang: str) -> list[str]:
    """The phones of a label, in NFD.

    Raises ValueError with the reason if the label cannot be used.
    """
    if "(" in label:  # as in "(en)"
        raise ValueError("another language: espeak-ng reads a part of it with another voice")
    letters_as_heard = str.maketrans(_LETTERS_AS_HEARD.get(lang.partition("-")[0], {}))
    phones = list[str]()
    for name in regex.split("[_ ]+", label):
        phones += _split_name(name.translate(letters_as_heard))
    return phones


@cache
def _split_name(name: str) -> tuple[str, ...]:
    """The phones of the name of a phoneme, in NFD. Raises ValueError if one of them is unknown."""
    ipa = unicodedata.normalize("NFD", name)
    for pattern, replacement in _RULES:
        ipa = pattern.sub(replacement, ipa)
    phones = _PHONE.findall(ipa)
    has_other_signs = "".join(phones) != ipa
    if has_other_signs or np.isnan(phone_features(phones)[0]).any():
        raise ValueError(f"unknown phone: {name!r}")
    return tuple(phones)


class PhoneSpelling:
    """The spelling that a corpus uses for each phone: of several ones the most frequent."""

    def __init__(self, transcripts: Iterable[str]) -> None:
        """Count the phones of the corpus.

        `transcripts`: phones with spaces between them. If there are none, every phone keeps its
        IPA.
        """
        self._counts = Counter[tuple[str, ...]]()
        """One phone, or two phones that follow each other → how often they are in the corpus."""
        for text in transcripts:
            phones = unicodedata.normalize("NFD", text).split()
            self._counts.update((phone,) for phone in phones)
            self._counts.update(zip(phones, phones[1:], strict=False))

    def spell(self, phones: Iterable[str]) -> str:
        """The transcript, NFC.

        A phone that the corpus lacks loses its signs, the last one first, until the corpus has it.
        If the corpus lacks its letter too, the phone keeps all signs except the length.
        """
        spelled = list[str]()
        for phone in phones:
            spelled += self._spell_phone(phone)
        return unicodedata.normalize("NFC", " ".join(spelled))

    def _spell_phone(self, phone: str) -> tuple[str, ...]:
        """The most frequent spelling of a phone: one or two phones of the corpus.

        If the corpus lacks all spellings of the phone, its last sign is removed, and so on. If it
        lacks the letter too, the result is the phone with all signs except the length.
        """
        if not self._counts:  # there is no corpus
            return (phone,)
        shortened = phone
        while shortened:
            best = max(_list_spellings(shortened), key=lambda spelling: self._counts[spelling])
            if self._counts[best]:
                return best
            # Without its last sign or letter, and without a tie that joined this letter.
            shortened = shortened[:-1].removesuffix("\u0361")
        return (phone.replace("ː", ""),)


def _list_spellings(phone: str) -> list[tuple[str, ...]]:
    """The ways to write a phone, each of one or two phones.

    Some corpora write an affricate with a tie (U+0361) as `t` and `ʃ`, or as `t` with U+0320 and
    `ʃ`. They write a long consonant such as `kː` as `k` and `k`.
    """
    spellings: list[tuple[str, ...]] = [(spelling,) for spelling in _SPELLINGS.get(phone, (phone,))]
    first, tie, second = phone.partition("\u0361")
    is_long_consonant = phone.endswith("ː") and phone[0] not in VOWELS
    if tie and second:
        spellings += [(first, second), (f"{first}\u0320", second)]
    elif is_long_consonant:
        spellings.append((phone[:-1], phone[:-1]))
    return spellings
