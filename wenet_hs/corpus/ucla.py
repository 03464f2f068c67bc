# SPDX-License-Identifier: Apache-2.0
"""The UCLA Phonetic Corpus (Li et al. 2021): words of 97 languages, to recognise unseen languages.

Example: wenet-hs prepare ucla --corpus ucla-phonetic-corpus --out data

https://github.com/xinjli/ucla-phonetic-corpus, CC BY-NC. `<lang>/text.txt` has one `utterance phone
phone …` per line, `<lang>/audio/<utterance>.wav` (or `.flac`) the sound. Languages are ISO 639-3
codes; speakers are not named.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        """Raises ValueError for shares out of range, and for a language that is in test and dev."""
        super().__post_init__()
        if not 0.0 < self.dev_fraction < 1.0:
            raise ValueError(
                f"dev_fraction {self.dev_fraction:g}: must be between 0 and 1; the default is 0.05"
            )
        if not 0.0 < self.train_share <= 1.0:
            raise ValueError(f"train_share {self.train_share:g}: must be above 0 and at most 1")
        in_both = [lang for lang in self.dev_langs if lang in self.test_langs]
        if in_both:
            listed = " ".join(in_both)
            raise ValueError(
                f"dev_langs: {listed} also in --test_langs; a language belongs to one set only"
            )


def prepare(options: UclaOptions) -> dict[str, Any]:
    """Write the lists of the corpus. Returns the content of `stats.json`.

    Test languages are in no other set, and neither are dev languages. Raises DataError when the
    folder contains another corpus, no test language, or not all dev languages.
    """
    folders = _find_languages(options.corpus)
    absent_test_langs = _check_langs(options, folders)
    utterances = list[Utterance]()
    rejected = list[Rejected]()
    for lang, folder in folders.items():
        for row in _read_language(folder, lang, used_keys={u.key for u in utterances}):
            if isinstance(row, Rejected):
                rejected.append(row)
            else:
                utterances.append(row)
    checker = options.make_checker()
    usable, unusable = checker.check(utterances, "clips")
    splits = _split_sets(usable, options)
    return write_corpus(
        options.out,
        splits,
        rejected + unusable,
        facts={
            "corpus": "ucla",
            "licence": "CC BY-NC: not for commercial use, and not to be passed on under another licence",
            "options": recorded_options(options),
            "num_incomplete": checker.count_incomplete(splits),
            "test_langs_absent": absent_test_langs,
            "phones": _describe_phones(splits),
        },
        langs={lang: {} for lang in folders},
        max_rejected=options.max_rejected,
        unit="phone",
    )


def _find_languages(corpus: Path) -> dict[str, Path]:
    """Language → its folder, in the order of the names. Raises DataError if there is none."""
    expected = "<lang>/text.txt and <lang>/audio/ of the UCLA Phonetic Corpus"
    if not corpus.is_dir():
        raise DataError(corpus, "no such folder", f"--corpus is the folder with {expected}")
    folders = {path.parent.name: path.parent for path in sorted(corpus.glob("*/text.txt"))}
    if folders:
        return folders
    if any(corpus.glob("**/validated.tsv")):
        found = f"expected {expected}, found Common Voice"
        raise DataError(corpus, found, "use `prepare commonvoice`")
    names = sorted(path.name for path in corpus.iterdir())
    listed = ", ".join(names[:8]) or "an empty folder"
    raise DataError(corpus, f"expected {expected}, found {listed}", "check --corpus")


def _check_langs(options: UclaOptions, folders: Mapping[str, Path]) -> list[str]:
    """The test languages that the corpus lacks; they get a warning.

    Raises DataError if it lacks all test languages, or any dev language.
    """
    unknown = [lang for lang in options.dev_langs if lang not in folders]
    if unknown:
        choices = " ".join(lang for lang in folders if lang not in options.test_langs)
        found = f"does not contain {' '.join(unknown)} of --dev_langs"
        raise DataError(options.corpus, found, f"choose from: {choices}")
    absent = [lang for lang in options.test_langs if lang not in folders]
    if len(absent) == len(options.test_langs):
        found = f"contains none of the test languages {' '.join(options.test_langs)}"
        raise DataError(options.corpus, found, f"choose --test_langs from: {' '.join(folders)}")
    if absent:
        num_present = len(set(options.test_langs) - set(absent))
        message = "%s: missing test languages: %s; testing on %d"
        logger.warning(message, options.corpus, " ".join(absent), num_present)
    return absent


def _read_language(
    folder: Path, lang: str, *, used_keys: Iterable[str]
) -> Iterator[Utterance | Rejected]:
    """The utterances of one `text.txt`, and the lines that cannot be used; empty lines are skipped.

    A line is rejected if it is no UTF-8, has a key that was used before, no phones, or no audio. It
    is named by its place if it has no key of its own, otherwise by its key.
    `used_keys`: the keys of the utterances of other languages. One of them may be repeated here,
    because `x` of the language `a-b` and `b-x` of the language `a` have the key `a-b-x`.
    """
    lines = read_bytes(folder / "text.txt").removeprefix(b"\xef\xbb\xbf").split(b"\n")
    keys = set(used_keys)
    for number, raw in enumerate(lines, start=1):
        where = f"{lang}:text.txt:{number}"
        try:
            line = " ".join(raw.decode("utf-8").split())
        except UnicodeDecodeError as error:
            yield Rejected(
                key=where, path="", reason=f"not UTF-8: byte {error.start} of the line", lang=lang
            )
            continue
        name, _, phones = line.partition(" ")
        if not name:
            continue
        # Some names begin with their language already.
        key = name if name.startswith(f"{lang}-") else f"{lang}-{name}"
        txt = normalize_phones(phones)
        candidates = [folder / "audio" / f"{name}{suffix}" for suffix in _AUDIO_SUFFIXES]
        audio = _find_audio(name, candidates)
        path = str(audio or candidates[0])
        if key in keys:
            reason = "repeated: this utterance is on an earlier line"
            yield Rejected(key=where, path=path, reason=reason, lang=lang)
        elif not txt:
            yield Rejected(key=key, path=path, reason="empty transcript", lang=lang)
        elif audio is None:
            reason = f"missing: no audio/{name}{' or '.join(_AUDIO_SUFFIXES)}"
            yield Rejected(key=key, path=path, reason=reason, lang=lang)
        else:
            keys.add(key)
            yield Utterance(key=key, wav=path, txt=txt, lang=lang)


def _find_audio(name: str, candidates: Sequence[Path]) -> Path | None:
    """The first of the paths that exists; None for a name with a folder, which is not looked for."""
    if "/" in name:
        return None
    return next(filter(Path.is_file, candidates), None)


def _split_sets(usable: Sequence[Utterance], options: UclaOptions) -> dict[str, list[Utterance]]:
    """The three sets; each in the order of the keys.

    Test: all of the test languages. Dev: all of the dev languages, or if there are none a random
    share of the other utterances. Train: a random share of the rest. A share has at least one
    utterance.
    """
    test = [utterance for utterance in usable if utterance.lang in options.test_langs]
    others = shuffled((u for u in usable if u.lang not in options.test_langs), options.seed, "dev")
    if options.dev_langs:
        dev = [utterance for utterance in others if utterance.lang in options.dev_langs]
        rest = [utterance for utterance in others if utterance.lang not in options.dev_langs]
    else:
        num_dev = max(1, round(options.dev_fraction * len(others)))
        dev = others[:num_dev]
        rest = others[num_dev:]
    num_train = max(1, round(options.train_share * len(rest)))
    splits = {"train": rest[:num_train], "dev": dev, "test": test}
    return {name: sorted(utterances, key=lambda u: u.key) for name, utterances in splits.items()}


def _describe_phones(splits: Mapping[str, Sequence[Utterance]]) -> dict[str, Any]:
    """The numbers of different phones and of all phones per set, for `stats.json`.

    Also the phones of the test set that no training utterance has, and how often they occur.
    """
    counts_of_set = {name: _count_phones(utterances) for name, utterances in splits.items()}
    test_counts = counts_of_set["test"]
    unseen = sorted(test_counts.keys() - counts_of_set["train"].keys())
    return {
        "types": {name: len(counts) for name, counts in counts_of_set.items()},
        "tokens": {name: counts.total() for name, counts in counts_of_set.items()},
        "unseen_in_test": unseen,
        "unseen_tokens_in_test": sum(test_counts[phone] for phone in unseen),
    }


def _count_phones(utterances: Iterable[Utterance]) -> Counter[str]:
    """How often each phone occurs."""
    counts = Counter[str]()
    for utterance in utterances:
        counts.update(utterance.txt.split())
    return counts
