# SPDX-License-Identifier: Apache-2.0
"""Inventories: the units of each language, in a file with one line `lang<TAB>unit unit unit …` per language."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from wenet_hs.errors import DataError, list_names, refuse_faults
from wenet_hs.files import read_lines, write_atomic
from wenet_hs.manifest import Utterance

Inventories = Mapping[str, Sequence[str]]
"""Language → its units."""


def read_inventories(path: Path) -> Inventories:
    """The units of each language, in NFC. Raises DataError with one line per fault."""
    found: dict[str, list[str]] = {}
    faults = []
    for number, line in enumerate(read_lines(path), start=1):
        lang, tab, text = line.partition("\t")
        units = list(dict.fromkeys(unicodedata.normalize("NFC", unit) for unit in text.split(" ") if unit))
        if not lang or not tab or "\t" in text:
            faults.append(f"{path}:{number}: expected `lang<TAB>unit unit …`, found {line[:60]!r}; write two fields")
        elif lang in found:
            faults.append(f"{path}:{number}: language {lang!r} has a line already; keep one")
        elif not units:
            faults.append(f"{path}:{number}: language {lang!r} has no units; list them, or remove the line")
        found.setdefault(lang, units)
    refuse_faults(path, faults)
    return found


def write_inventories(path: Path, inventories: Inventories) -> None:
    """Write the languages and the units of each in code point order."""
    lines = [f"{lang}\t{' '.join(sorted(units))}\n" for lang, units in sorted(inventories.items())]
    write_atomic(path, "".join(lines))


def collect_inventories(utterances: Iterable[tuple[Utterance, Iterable[str]]]) -> Inventories:
    """The units of each language in transcripts, given as utterances with their units.

    Raises DataError for utterances without a language.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    unnamed = []
    for utterance, units in utterances:
        if utterance.lang is None:
            unnamed.append(utterance.key)
        else:
            found[utterance.lang].update(units)
    _check_named(unnamed)
    return {lang: sorted(units) for lang, units in found.items()}


def select_languages(inventories: Inventories, utterances: Sequence[Utterance], path: Path) -> Inventories:
    """The inventories of the languages of these utterances.

    Raises DataError if an utterance has no language, or one without a line in the inventory file `path`.
    """
    _check_named([utterance.key for utterance in utterances if utterance.lang is None])
    langs = sorted({utterance.lang for utterance in utterances if utterance.lang is not None})
    absent = [lang for lang in langs if lang not in inventories]
    if absent:
        raise DataError(f"{path}: no line for the languages {list_names(absent)} of --test_data; add their units")
    return {lang: inventories[lang] for lang in langs}


def _check_named(keys: Sequence[str]) -> None:
    if keys:
        raise DataError(
            f"--inventory: {len(keys)} utterances have no language ({list_names(keys)}); give each its `lang`"
        )
