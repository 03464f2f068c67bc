# SPDX-License-Identifier: Apache-2.0
"""The sentences to speak: read, cleaned, and shared out to train, dev and test so that no two parts share one."""

import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.errors import DataError
from wenet_hs.files import read_lines
from wenet_hs.text.normalize import normalize

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedLine:
    """A line that is not spoken."""

    line: int
    """Its number in the file, from 1."""
    reason: str
    """`kind` or `kind: details`."""
    is_fault: bool
    """False when nothing is wrong with it: it is empty, or stands there already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentences:
    """The sentences of one language, in the order of the file."""

    lang: str
    path: Path
    kept: tuple[str, ...]
    """NFC, single spaces, each once."""
    rejected: tuple[RejectedLine, ...]
    """Empty lines, lines without a letter, and repetitions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Sentences of one language; no sentence is in two parts."""

    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]


def read_sentences(source: Path, langs: Sequence[str]) -> dict[str, Sentences]:
    """The sentences of each language in `langs`.

    Args:
        source: a folder with a `<lang>.txt` for each language, a file of `lang<TAB>sentence` lines, or, for one
            language, a file with a sentence a line.
    Raises: DataError when the source or a language is missing, or a line cannot be read.
    """
    if source.is_dir():
        return {lang: _collect(lang, source / f"{lang}.txt", _plain(source / f"{lang}.txt", source)) for lang in langs}
    if not source.exists():
        raise DataError(f"{source}: no such file or folder; give --sentences a folder with a <lang>.txt a language")
    lines = _plain(source)
    if not any("\t" in line for _, line in lines):
        if len(langs) > 1:
            raise DataError(
                f"{source}: sentences without a language, but {len(langs)} languages are asked for;"
                " write lang<TAB>sentence lines, or give a folder with a <lang>.txt a language"
            )
        return {langs[0]: _collect(langs[0], source, lines)}
    tagged = list(_tagged(source, lines))
    return {
        lang: _collect(lang, source, [(number, text) for number, of, text in tagged if of == lang]) for lang in langs
    }


def _plain(path: Path, folder: Path | None = None) -> list[tuple[int, str]]:
    if folder is not None and not path.exists():
        there = " ".join(sorted(file.stem for file in folder.glob("*.txt"))) or "no .txt file at all"
        raise DataError(f"{path}: no such file; write its sentences, one a line, or drop the language (found: {there})")
    return list(enumerate(read_lines(path), start=1))


def _tagged(path: Path, lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        lang, tab, text = line.partition("\t")
        if tab:
            yield number, lang.strip(), text
        elif line.strip():
            raise DataError(f"{path}:{number}: no tab in {line[:40]!r}; every line is lang<TAB>sentence, or none is")


def _collect(lang: str, path: Path, lines: Sequence[tuple[int, str]]) -> Sentences:
    kept: dict[str, tuple[int, str]] = {}  # by transcript: two that differ in case or punctuation sound the same
    rejected: list[RejectedLine] = []
    for number, line in lines:
        text = clean_sentence(line)
        if not text:
            rejected.append(RejectedLine(line=number, reason="empty line", is_fault=False))
        elif not any(character.isalpha() for character in text):
            rejected.append(RejectedLine(line=number, reason=f"no letter: {text}", is_fault=True))
        elif (same := kept.setdefault(normalize(text, lang), (number, text))) != (number, text):
            reason = f"duplicate: the same sentence stands on line {same[0]}"
            rejected.append(RejectedLine(line=number, reason=reason, is_fault=False))
    if not kept:
        raise DataError(f"{path}: no sentence of {lang!r} in it; add some, or drop the language")
    return Sentences(lang=lang, path=path, kept=tuple(text for _, text in kept.values()), rejected=tuple(rejected))


def clean_sentence(line: str) -> str:
    """The line in NFC with single spaces; control characters count as spaces."""
    return " ".join(unicodedata.normalize("NFC", _CONTROL.sub(" ", line)).split())


def split_sentences(sentences: Sentences, *, num_test: int, num_dev: int, seed: int) -> Split:
    """Shuffle by the seed; the first `num_test` are the test set, the next `num_dev` the dev set, the rest train.

    Raises DataError when nothing is left to train on.
    """
    shuffled = list(sentences.kept)
    if len(shuffled) <= num_test + num_dev:
        raise DataError(
            f"{sentences.path}: {len(shuffled)} different sentences of {sentences.lang!r}, but {num_test} for test and"
            f" {num_dev} for dev leave none to train on; add sentences or lower --test_sentences and --dev_sentences"
        )
    random.Random(f"{seed}/{sentences.lang}").shuffle(shuffled)
    held_out = num_test + num_dev
    return Split(
        test=tuple(shuffled[:num_test]), dev=tuple(shuffled[num_test:held_out]), train=tuple(shuffled[held_out:])
    )
