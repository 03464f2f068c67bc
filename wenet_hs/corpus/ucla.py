# SPDX-License-Identifier: Apache-2.0
"""The UCLA Phonetic Corpus (Li et al. 2021): words of 97 languages with phones, for recognition of unseen languages.

Example: wenet-hs prepare ucla --corpus ucla-phonetic-corpus --out data

https://github.com/xinjli/ucla-phonetic-corpus, CC BY-NC. `<lang>/text.txt` has one `utterance phone phone …` per line,
`<lang>/audio/<utterance>.wav` (or `.flac`) the sound. Languages are ISO 639-3 codes; speakers are not named.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wenet_hs.corpus import audio_check
from wenet_hs.corpus.output import Rejected, split_names, write_corpus
from wenet_hs.corpus.splits import shuffled
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import read_bytes
from wenet_hs.manifest import Utterance
from wenet_hs.text.normalize import normalize_phones

logger = logging.getLogger(__name__)

PAPER_TEST_LANGS = ("bin", "sbc", "mal", "kea", "klu", "aeb", "mak", "fin", "abk", "ace")
"""Test languages of the paper, section 3.1."""
_OPTIONS = ("test_langs", "dev_langs", "dev_fraction", "train_share", "seed", "max_rejected")
_AUDIO_SUFFIXES = (".wav", ".flac")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `prepare ucla`."""
    audio_check.add_arguments(parser)
    add = parser.add_argument
    text = f"languages of the test set (default: those of Liu et al. 2023, {' '.join(PAPER_TEST_LANGS)})"
    add("--test_langs", type=split_names, default=PAPER_TEST_LANGS, help=text)
    dev = parser.add_mutually_exclusive_group()
    text = "share of the other languages' utterances that become the dev set (default: %(default)s)"
    dev.add_argument("--dev_fraction", type=float, default=0.05, help=text)
    text = "languages whose utterances become the dev set instead; they are in no other set"
    dev.add_argument("--dev_langs", type=split_names, default=(), help=text)
    text = "random share of the training utterances to use; a smaller share is a part of a larger one (default: 1)"
    add("--train_share", type=float, default=1.0, help=text)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the lists of the corpus. Returns the content of `stats.json`.

    Test languages are in no other set, and dev languages neither. Raises DataError when the folder contains another
    corpus, no test language, or not all dev languages.
    """
    if not 0.0 < args.dev_fraction < 1.0:
        raise ConfigError(f"--dev_fraction {args.dev_fraction:g}: must be between 0 and 1; the default is 0.05")
    if not 0.0 < args.train_share <= 1.0:
        raise ConfigError(f"--train_share {args.train_share:g}: must be above 0 and at most 1")
    folders = _find_languages(args.corpus)
    absent = _check_langs(args, folders)
    utterances: dict[str, Utterance] = {}
    rejected: list[Rejected] = []
    for lang, folder in folders.items():
        _read_language(folder, lang, utterances, rejected)
    checker = audio_check.make_checker(args)
    usable, unusable = checker.check(list(utterances.values()), "clips")
    splits = _split(usable, args)
    facts = {
        "corpus": "ucla",
        "licence": "CC BY-NC: not for commercial use, and not to be passed on under another licence",
        "options": {name: getattr(args, name) for name in _OPTIONS},
        "num_incomplete": checker.count_incomplete(splits),
        "test_langs_absent": absent,
        "phones": _describe_phones(splits),
    }
    langs: dict[str, dict[str, Any]] = {lang: {} for lang in folders}
    limit = args.max_rejected
    return write_corpus(args.out, splits, rejected + unusable, facts, langs, max_rejected=limit, unit="phone")


def _find_languages(corpus: Path) -> dict[str, Path]:
    expected = "<lang>/text.txt and <lang>/audio/ of the UCLA Phonetic Corpus"
    if not corpus.is_dir():
        raise DataError(f"{corpus}: no such folder; --corpus is the folder with {expected}")
    folders = {path.parent.name: path.parent for path in sorted(corpus.glob("*/text.txt"))}
    if not folders:
        if any(corpus.glob("**/validated.tsv")):
            raise DataError(f"{corpus}: expected {expected}, found Common Voice; use `prepare commonvoice`")
        found = ", ".join(sorted(path.name for path in corpus.iterdir())[:8]) or "an empty folder"
        raise DataError(f"{corpus}: expected {expected}, found {found}; check --corpus")
    return folders


def _check_langs(args: argparse.Namespace, folders: dict[str, Path]) -> list[str]:
    """The test languages that the corpus lacks.

    Raises DataError if it lacks all of them or a dev language, ConfigError if a language is in both sets.
    """
    if both := " ".join(lang for lang in args.dev_langs if lang in args.test_langs):
        raise ConfigError(f"--dev_langs: {both} also in --test_langs; a language belongs to one set only")
    if unknown := " ".join(lang for lang in args.dev_langs if lang not in folders):
        known = " ".join(lang for lang in folders if lang not in args.test_langs)
        raise DataError(f"{args.corpus}: does not contain {unknown} of --dev_langs; choose from: {known}")
    absent = [lang for lang in args.test_langs if lang not in folders]
    if len(absent) == len(args.test_langs):
        raise DataError(
            f"{args.corpus}: contains none of the test languages {' '.join(args.test_langs)}; "
            f"choose --test_langs from: {' '.join(folders)}"
        )
    if absent:
        num_present = len(set(args.test_langs) - set(absent))
        missing = " ".join(absent)
        logger.warning("%s: missing test languages: %s; testing on %d", args.corpus, missing, num_present)
    return absent


def _read_language(folder: Path, lang: str, utterances: dict[str, Utterance], rejected: list[Rejected]) -> None:
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
        rejected.append(Rejected(where if key in utterances else key, str(audio or candidates[0]), reason, lang))


def _split(usable: Sequence[Utterance], args: argparse.Namespace) -> dict[str, list[Utterance]]:
    """Test: all of the test languages. Dev: all of the dev languages, or a random share of the others (at least 1)."""
    test = [utterance for utterance in usable if utterance.lang in args.test_langs]
    others = shuffled((u for u in usable if u.lang not in args.test_langs), args.seed, "dev")
    num_dev = max(1, round(args.dev_fraction * len(others)))
    if args.dev_langs:
        others.sort(key=lambda utterance: utterance.lang not in args.dev_langs)
        num_dev = sum(utterance.lang in args.dev_langs for utterance in others)
    num_train = max(1, round(args.train_share * (len(others) - num_dev)))
    splits = {"train": others[num_dev:][:num_train], "dev": others[:num_dev], "test": test}
    return {name: sorted(utterances, key=lambda u: u.key) for name, utterances in splits.items()}


def _describe_phones(splits: dict[str, list[Utterance]]) -> dict[str, Any]:
    """The number of phones, and the phones of the test set that no training utterance has."""
    counts = {name: Counter(p for u in utterances for p in u.txt.split()) for name, utterances in splits.items()}
    unseen = sorted(counts["test"].keys() - counts["train"].keys())
    return {
        "types": {name: len(count) for name, count in counts.items()},
        "tokens": {name: count.total() for name, count in counts.items()},
        "unseen_in_test": unseen,
        "unseen_tokens_in_test": sum(counts["test"][phone] for phone in unseen),
    }
