# SPDX-License-Identifier: Apache-2.0
"""The UCLA Phonetic Corpus (Li et al.

2021): words of 97 languages with phones, for recognition of unseen languages.

Example: wenet-hs prepare ucla --corpus ucla-phonetic-corpus --out data

https://github.com/xinjli/ucla-phonetic-corpus, CC BY-NC. `<lang>/text.txt` has one `utterance phone
phone …` per line, `<lang>/audio/<utterance>.wav` (or `.flac`) the sound. Languages are ISO 639-3
codes; speakers are not named.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_bytes
from wenet_hs.base.options import option, recorded_options
from wenet_hs.corpus.audio_check import AudioOptions
from wenet_hs.corpus.output import Rejected, split_names, write_corpus
from wenet_hs.corpus.splits import shuffled
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

PAPER_TEST_LANGS = ("bin", "sbc", "mal", "kea", "klu", "aeb", "mak", "fin", "abk", "ace")
"""Test languages of the paper, section 3.1."""
_AUDIO_SUFFIXES = (".wav", ".flac")


@dataclass(frozen=True, kw_only=True)
class UclaOptions(AudioOptions):
    """Options of `prepare ucla`."""

    test_langs: tuple[str, ...] = option(
        PAPER_TEST_LANGS,
        f"languages of the test set (default: those of Liu et al. 2023, {' '.join(PAPER_TEST_LANGS)})",
        type=split_names,
    )
    dev_fraction: float = option(
        0.05, "share of the other languages' utterances that become the dev set", group="dev set"
    )
    dev_langs: tuple[str, ...] = option(
        (),
        "languages whose utterances become the dev set instead; they are in no other set",
        type=split_names,
        group="dev set",
    )
    train_share: float = option(
        1.0,
        "random share of the training utterances to use; a smaller share is a part of a larger one",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.dev_fraction < 1.0:
            raise ValueError(
                f"dev_fraction {self.dev_fraction:g}: must be between 0 and 1; the default is 0.05"
            )
        if not 0.0 < self.train_share <= 1.0:
            raise ValueError(f"train_share {self.train_share:g}: must be above 0 and at most 1")
        if both := " ".join(lang for lang in self.dev_langs if lang in self.test_langs):
            raise ValueError(
                f"dev_langs: {both} also in --test_langs; a language belongs to one set only"
            )


def prepare(options: UclaOptions) -> dict[str, Any]:
    """Write the lists of the corpus. Returns the content of `stats.json`.

    Test languages are in no other set, and dev languages neither. Raises DataError when the folder
    contains another corpus, no test language, or not all dev languages.
    """
    folders = _find_languages(options.corpus)
    absent = _check_langs(options, folders)
    utterances: dict[str, Utterance] = {}
    rejected: list[Rejected] = []
    for lang, folder in folders.items():
        _read_language(folder, lang, utterances, rejected)
    checker = options.make_checker()
    usable, unusable = checker.check(list(utterances.values()), "clips")
    splits = _split(usable, options)
    facts = {
        "corpus": "ucla",
        "licence": "CC BY-NC: not for commercial use, and not to be passed on under another licence",
        "options": recorded_options(options),
        "num_incomplete": checker.count_incomplete(splits),
        "test_langs_absent": absent,
        "phones": _describe_phones(splits),
    }
    langs: dict[str, dict[str, Any]] = {lang: {} for lang in folders}
    limit = options.max_rejected
    return write_corpus(
        options.out, splits, rejected + unusable, facts, langs, max_rejected=limit, unit="phone"
    )


def _find_languages(corpus: Path) -> dict[str, Path]:
    expected = "<lang>/text.txt and <lang>/audio/ of the UCLA Phonetic Corpus"
    if not corpus.is_dir():
        raise DataError(corpus, "no such folder", f"--corpus is the folder with {expected}")
    folders = {path.parent.name: path.parent for path in sorted(corpus.glob("*/text.txt"))}
    if not folders:
        if any(corpus.glob("**/validated.tsv")):
            raise DataError(
                corpus, f"expected {expected}, found Common Voice", "use `prepare commonvoice`"
            )
        found = ", ".join(sorted(path.name for path in corpus.iterdir())[:8]) or "an empty folder"
        raise DataError(corpus, f"expected {expected}, found {found}", "check --corpus")
    return folders


def _check_langs(options: UclaOptions, folders: dict[str, Path]) -> list[str]:
    """The test languages that the corpus lacks.

    Raises DataError if it lacks all of them or a dev language.
    """
    if unknown := " ".join(lang for lang in options.dev_langs if lang not in folders):
        known = " ".join(lang for lang in folders if lang not in options.test_langs)
        raise DataError(
            options.corpus, f"does not contain {unknown} of --dev_langs", f"choose from: {known}"
        )
    absent = [lang for lang in options.test_langs if lang not in folders]
    if len(absent) == len(options.test_langs):
        found = f"contains none of the test languages {' '.join(options.test_langs)}"
        raise DataError(options.corpus, found, f"choose --test_langs from: {' '.join(folders)}")
    if absent:
        num_present = len(set(options.test_langs) - set(absent))
        missing = " ".join(absent)
        logger.warning(
            "%s: missing test languages: %s; testing on %d", options.corpus, missing, num_present
        )
    return absent


def _read_language(
    folder: Path, lang: str, utterances: dict[str, Utterance], rejected: list[Rejected]
) -> None:
    """Add the lines of one `text.txt` to the utterances (by key) or the rejected."""
    lines = read_bytes(folder / "text.txt").removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, raw in enumerate(lines, start=1):
        where = f"{lang}:text.txt:{number}"
        try:
            name, _, phones = " ".join(raw.decode("utf-8").split()).partition(" ")
        except UnicodeDecodeError as error:
            rejected.append(Rejected(where, "", f"not UTF-8: byte {error.start} of the line", lang))
            continue
        if not name:
            continue
        key = name if name.startswith(f"{lang}-") else f"{lang}-{name}"
        txt = normalize_phones(phones)
        candidates = [folder / "audio" / f"{name}{suffix}" for suffix in _AUDIO_SUFFIXES]
        audio = next((path for path in candidates if "/" not in name and path.is_file()), None)
        if key in utterances:
            reason = "repeated: this utterance is on an earlier line"
        elif not txt:
            reason = "empty transcript"
        elif audio is None:
            reason = f"missing: no audio/{name}{' or '.join(_AUDIO_SUFFIXES)}"
        else:
            utterances[key] = Utterance(key=key, wav=str(audio), txt=txt, lang=lang)
            continue
        rejected.append(
            Rejected(where if key in utterances else key, str(audio or candidates[0]), reason, lang)
        )


def _split(usable: Sequence[Utterance], options: UclaOptions) -> dict[str, list[Utterance]]:
    """Test: all of the test languages.

    Dev: all of the dev languages, or a random share of the others (at least 1).
    """
    test = [utterance for utterance in usable if utterance.lang in options.test_langs]
    others = shuffled((u for u in usable if u.lang not in options.test_langs), options.seed, "dev")
    num_dev = max(1, round(options.dev_fraction * len(others)))
    if options.dev_langs:
        others.sort(key=lambda utterance: utterance.lang not in options.dev_langs)
        num_dev = sum(utterance.lang in options.dev_langs for utterance in others)
    num_train = max(1, round(options.train_share * (len(others) - num_dev)))
    splits = {"train": others[num_dev:][:num_train], "dev": others[:num_dev], "test": test}
    return {name: sorted(utterances, key=lambda u: u.key) for name, utterances in splits.items()}


def _describe_phones(splits: dict[str, list[Utterance]]) -> dict[str, Any]:
    """The number of phones, and the phones of the test set that no training utterance has."""
    counts = {
        name: Counter(p for u in utterances for p in u.txt.split())
        for name, utterances in splits.items()
    }
    unseen = sorted(counts["test"].keys() - counts["train"].keys())
    return {
        "types": {name: len(count) for name, count in counts.items()},
        "tokens": {name: count.total() for name, count in counts.items()},
        "unseen_in_test": unseen,
        "unseen_tokens_in_test": sum(counts["test"][phone] for phone in unseen),
    }
