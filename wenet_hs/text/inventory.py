# SPDX-License-Identifier: Apache-2.0
"""Inventories: the units of each language.

A file of inventories has one line `lang<TAB>unit unit unit …` per language.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from wenet_hs.base.files import read_lines
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, list_names, refuse_faults

Inventories = Mapping[str, Sequence[str]]
"""Language → its units."""


def read_inventories(path: Path) -> Inventories:
    """The units of each language in a file, in NFC, each once and in the order of the file.

    Raises DataError with one line per fault.
    """
    inventories: dict[str, list[str]] = {}
    faults = []
    for number, line in enumerate(read_lines(path), start=1):
        lang, tab, text = line.partition("\t")
        units = [unicodedata.normalize("NFC", unit) for unit in text.split(" ") if unit]
        fault = None
        if not lang or not tab or "\t" in text:
            fault = f"expected `lang<TAB>unit unit …`, found {line[:60]!r}; write two fields"
        elif lang in inventories:
            fault = f"language {lang!r} has a line already; keep one"
        elif not units:
            fault = f"language {lang!r} has no units; list them, or remove the line"
        if fault is not None:
            faults.append(f"{path}:{number}: {fault}")
        inventories.setdefault(lang, list(dict.fromkeys(units)))
    refuse_faults(path, faults)
    return inventories


def write_inventories(path: Path, inventories: Inventories) -> None:
    """Writes the languages, and the units of each one, in code point order."""
    lines = [f"{lang}\t{' '.join(sorted(units))}\n" for lang, units in sorted(inventories.items())]
    write_atomic(path, "".join(lines))


def collect_inventories(
    utterances: Sequence[Utterance], split: Callable[[str], Iterable[str]]
) -> Inventories:
    """The units of each language in the transcripts of utterances, in code point order.

    `split` gives the units of a transcript. Raises DataError if an utterance has no language.
    """
    units_of_lang: defaultdict[str, set[str]] = defaultdict(set)
    for lang, utterance in zip(_languages(utterances), utterances, strict=True):
        units_of_lang[lang].update(split(utterance.txt))
    return {lang: sorted(units) for lang, units in units_of_lang.items()}


def select_languages(
    inventories: Inventories, utterances: Sequence[Utterance], path: Path
) -> Inventories:
    """The inventories of the languages of these utterances.

    Raises DataError if an utterance has no language, or if `path`, the file of the inventories,
        has no line for one of the languages.
    """
    langs = sorted(set(_languages(utterances)))
    missing_langs = [lang for lang in langs if lang not in inventories]
    if missing_langs:
        raise DataError(
            path,
            f"no line for the languages {list_names(missing_langs)} of --test_data",
            "add their units",
        )
    return {lang: inventories[lang] for lang in langs}


def _languages(utterances: Sequence[Utterance]) -> list[str]:
    """The language of each utterance. Raises DataError if some have none, with their keys."""
    langs = []
    keys_without_lang = []
    for utterance in utterances:
        if utterance.lang is None:
            keys_without_lang.append(utterance.key)
        else:
            langs.append(utterance.lang)
    if keys_without_lang:
        raise DataError(
            "--inventory",
            f"{len(keys_without_lang)} utterances have no language "
            f"({list_names(keys_without_lang)})",
            "give each its `lang`",
        )
    return langs
