# SPDX-License-Identifier: Apache-2.0
"""Inventories: the units of each language, in a file with one line `lang<TAB>unit unit unit …` per
language.
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
    """The units of each language, in NFC. Raises DataError with one line per fault."""
    found: dict[str, list[str]] = {}
    faults = []
    for number, line in enumerate(read_lines(path), start=1):
        lang, tab, text = line.partition("\t")
        units = list(
            dict.fromkeys(unicodedata.normalize("NFC", unit) for unit in text.split(" ") if unit)
        )
        if not lang or not tab or "\t" in text:
            faults.append(
                f"{path}:{number}: expected `lang<TAB>unit unit …`, found {line[:60]!r}; write two fields"
            )
        elif lang in found:
            faults.append(f"{path}:{number}: language {lang!r} has a line already; keep one")
        elif not units:
            faults.append(
                f"{path}:{number}: language {lang!r} has no units; list them, or remove the line"
            )
        found.setdefault(lang, units)
    refuse_faults(path, faults)
    return found


def write_inventories(path: Path, inventories: Inventories) -> None:
    """Write the languages and the units of each in code point order."""
    lines = [f"{lang}\t{' '.join(sorted(units))}\n" for lang, units in sorted(inventories.items())]
    write_atomic(path, "".join(lines))


def collect_inventories(
    utterances: Sequence[Utterance], split: Callable[[str], Iterable[str]]
) -> Inventories:
    """The units of each language in transcripts, which `split` divides.

    Raises DataError for utterances without a language.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for lang, utterance in zip(_languages(utterances), utterances, strict=True):
        found[lang].update(split(utterance.txt))
    return {lang: sorted(units) for lang, units in found.items()}


def select_languages(
    inventories: Inventories, utterances: Sequence[Utterance], path: Path
) -> Inventories:
    """The inventories of the languages of these utterances.

    Raises DataError if an utterance has no language, or one without a line in the inventory file
        `path`.
    """
    langs = sorted(set(_languages(utterances)))
    absent = [lang for lang in langs if lang not in inventories]
    if absent:
        raise DataError(
            path,
            f"no line for the languages {list_names(absent)} of --test_data",
            "add their units",
        )
    return {lang: inventories[lang] for lang in langs}


def _languages(utterances: Sequence[Utterance]) -> list[str]:
    unnamed = [utterance.key for utterance in utterances if utterance.lang is None]
    if unnamed:
        found = f"{len(unnamed)} utterances have no language ({list_names(unnamed)})"
        raise DataError("--inventory", found, "give each its `lang`")
    return [utterance.lang for utterance in utterances if utterance.lang is not None]
