# SPDX-License-Identifier: Apache-2.0
"""The UCLA Phonetic Corpus (Li et al. 2021): words of 97 languages with phones, for recognition of unseen languages.

https://github.com/xinjli/ucla-phonetic-corpus, CC BY-NC. `<lang>/text.txt` has `utterance phone phone …` a line,
`<lang>/audio/<utterance>.wav` (or `.flac`) the sound. Languages are ISO 639-3 codes; speakers are not named.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wenet_hs.corpus.audio_check import Clip, ClipChecker
from wenet_hs.corpus.output import Rejected, check_share_rejected, describe_splits, write_splits
from wenet_hs.corpus.splits import shuffled
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.normalize import normalize_phones

logger = logging.getLogger(__name__)

PAPER_TEST_LANGS = ("bin", "sbc", "mal", "kea", "klu", "aeb", "mak", "fin", "abk", "ace")
"""Test languages of the paper, section 3.1."""
_AUDIO_ENDINGS = (".wav", ".flac")


@dataclass(frozen=True, kw_only=True)
class UclaOptions:
    """What to make of the corpus."""

    corpus: Path
    out: Path
    test_langs: tuple[str, ...] = PAPER_TEST_LANGS
    dev_fraction: float = 0.05
    """Share of the utterances of the training languages that is held out as dev set."""
    seed: int = 0
    max_rejected: float = 0.5
    """Share of faulty clips above which the corpus is refused."""


def prepare_ucla(options: UclaOptions, checker: ClipChecker) -> dict[str, Any]:
    """Write the lists of the corpus into `options.out`. Returns what is in `stats.json`.

    Test languages are in no other set. Raises DataError when the folder holds another corpus or no test language.
    """
    if not 0.0 < options.dev_fraction < 1.0:
        raise ConfigError(f"--dev_fraction {options.dev_fraction:g}: must be between 0 and 1; the default is 0.05")
    folders = _find_languages(options.corpus)
    test_langs = _present(options, folders)
    utterances: list[Utterance] = []
    rejected: list[Rejected] = []
    for lang, folder in folders.items():
        _read_language(folder, lang, utterances, rejected)
    num_in = len(utterances) + len(rejected)
    usable = _check_audio(utterances, rejected, checker)
    check_share_rejected(options.out, rejected, num_in, options.max_rejected)
    splits = _split(usable, test_langs, options)
    stats = {
        "corpus": "ucla",
        "licence": "CC BY-NC: not for commercial use, and not to be passed on under another licence",
        "options": {name: value for name, value in asdict(options).items() if name not in ("corpus", "out")},
        "num_in": num_in,
        "langs": {lang: _describe(lang, splits, rejected) for lang in folders},
        "test_langs_absent": [lang for lang in options.test_langs if lang not in folders],
        "phones": _describe_phones(splits),
        "total": describe_splits(splits, rejected),
    }
    write_splits(options.out, splits, rejected, stats)
    return stats


def _find_languages(corpus: Path) -> dict[str, Path]:
    if not corpus.is_dir():
        raise DataError(
            f"{corpus}: no such folder; --corpus is the folder of the UCLA Phonetic Corpus, with <lang>/text.txt "
            "and <lang>/audio/"
        )
    folders = {path.parent.name: path.parent for path in sorted(corpus.glob("*/text.txt"))}
    if not folders:
        expected = "expected <lang>/text.txt and <lang>/audio/ of the UCLA Phonetic Corpus"
        if any(corpus.glob("**/validated.tsv")):
            raise DataError(f"{corpus}: {expected}, found Common Voice; use `prepare commonvoice`")
        found = ", ".join(sorted(path.name for path in corpus.iterdir())[:8]) or "an empty folder"
        raise DataError(f"{corpus}: {expected}, found {found}; check --corpus")
    return folders


def _present(options: UclaOptions, folders: dict[str, Path]) -> set[str]:
    """The test languages that are there; those absent are named in a warning."""
    absent = [lang for lang in options.test_langs if lang not in folders]
    present = set(options.test_langs) - set(absent)
    if not present:
        raise DataError(
            f"{options.corpus}: none of the test languages {' '.join(options.test_langs)} is there; "
            f"choose --test_langs from: {' '.join(folders)}"
        )
    if absent:
        logger.warning(
            "%s: test languages not there: %s; testing on %d", options.corpus, " ".join(absent), len(present)
        )
    return present


def _read_language(folder: Path, lang: str, utterances: list[Utterance], rejected: list[Rejected]) -> None:
    """Add the lines of one `text.txt` to the utterances or the rejected."""
    keys = {utterance.key for utterance in utterances}
    for number, raw in enumerate(
        (folder / "text.txt").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1
    ):
        where = f"{lang}:text.txt:{number}"
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            rejected.append(Rejected(where, "", f"not UTF-8: byte {error.start} of the line", lang))
            continue
        if not line:
            continue
        name, *phones = line.split(maxsplit=1)
        key = name if name.startswith(f"{lang}-") else f"{lang}-{name}"
        audio = _find_audio(folder / "audio", name)
        reason = _fault(name, phones, audio, key in keys)
        if reason is not None or audio is None:
            path = audio or folder / "audio" / f"{name}{_AUDIO_ENDINGS[0]}"
            rejected.append(Rejected(where if key in keys else key, str(path), reason or "", lang))
            continue
        keys.add(key)
        utterances.append(Utterance(key=key, wav=str(audio), txt=normalize_phones(phones[0]), lang=lang))


def _find_audio(folder: Path, name: str) -> Path | None:
    if "/" in name:
        return None
    return next((path for ending in _AUDIO_ENDINGS if (path := folder / f"{name}{ending}").is_file()), None)


def _fault(name: str, phones: Sequence[str], audio: Path | None, is_repeated: bool) -> str | None:
    if is_repeated:
        return "repeated: this utterance stands on an earlier line"
    if not phones or not normalize_phones(phones[0]):
        return "empty transcript"
    return None if audio else f"missing: no audio/{name}{' or '.join(_AUDIO_ENDINGS)}"


def _check_audio(utterances: Sequence[Utterance], rejected: list[Rejected], checker: ClipChecker) -> list[Utterance]:
    """The utterances whose clip can be used, with its duration."""
    usable = []
    clips = [Clip(utterance.wav, None) for utterance in utterances]
    for utterance, finding in zip(utterances, checker.check(clips, "clips"), strict=True):
        if finding.reason is None:
            usable.append(replace(utterance, duration=finding.duration_s))
        else:
            rejected.append(Rejected(utterance.key, utterance.wav, finding.reason, utterance.lang or ""))
    return usable


def _split(usable: Sequence[Utterance], test_langs: set[str], options: UclaOptions) -> dict[str, list[Utterance]]:
    """Test: all of the test languages. Dev: a random share of the others, at least one utterance."""
    test = [utterance for utterance in usable if utterance.lang in test_langs]
    others = shuffled((u for u in usable if u.lang not in test_langs), options.seed, "dev")
    num_dev = max(1, round(options.dev_fraction * len(others)))
    by_key = {"train": others[num_dev:], "dev": others[:num_dev], "test": test}
    return {name: sorted(utterances, key=lambda u: u.key) for name, utterances in by_key.items()}


def _describe(lang: str, splits: dict[str, list[Utterance]], rejected: Sequence[Rejected]) -> dict[str, Any]:
    of_lang = {name: [u for u in utterances if u.lang == lang] for name, utterances in splits.items()}
    rejected_of_lang = [clip for clip in rejected if clip.lang == lang]
    num_in = sum(map(len, of_lang.values())) + len(rejected_of_lang)
    return {"num_in": num_in, **describe_splits(of_lang, rejected_of_lang)}


def _describe_phones(splits: dict[str, list[Utterance]]) -> dict[str, Any]:
    """How many phones there are, and which ones of the test set no training utterance has."""
    counts = {name: Counter(p for u in utterances for p in u.txt.split()) for name, utterances in splits.items()}
    unseen = sorted(counts["test"].keys() - counts["train"].keys())
    return {
        "types": {name: len(count) for name, count in counts.items()},
        "tokens": {name: count.total() for name, count in counts.items()},
        "unseen_in_test": unseen,
        "unseen_tokens_in_test": sum(counts["test"][phone] for phone in unseen),
    }
