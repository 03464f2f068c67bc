# SPDX-License-Identifier: Apache-2.0
"""Common Voice, prepared as in the paper (section 3.1): a test set a language, then downsampling by λ_i.

https://commonvoice.mozilla.org, CC0. Train, dev and test are made anew from the validated clips, for a release's own
sets use each sentence once and so throw most clips away; `split="released"` takes them all the same.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from wenet_hs.corpus.audio_check import Clip, ClipChecker
from wenet_hs.corpus.commonvoice_tables import find_language_folders, read_table
from wenet_hs.corpus.output import (
    Rejected,
    check_share_rejected,
    count_kinds,
    describe_splits,
    hours_of,
    write_splits,
)
from wenet_hs.corpus.splits import hold_out, shuffled
from wenet_hs.corpus.subset import ratio_for, sampling_ratios
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance

_NOT_NEEDED = "not sampled: the hours of this language are reached"
_DEV_SHARE, _DEV_LIMIT = 0.05, 1000
_DEV_LOSS = 0.1  # share of the training pool that may be given up so that dev shares no sentence with train
_MOST_REMOVED = 30


@dataclass(frozen=True, kw_only=True)
class CommonVoiceOptions:
    """What to make of a release."""

    corpus: Path
    langs: tuple[str, ...]
    out: Path
    alpha: float = 0.5
    """Smoothing of the languages' sizes; see `subset.sampling_ratios`."""
    ratio: float = 0.082
    """λ: share of the hours to train on."""
    hours: float | None = None
    """Training hours of all languages together; in place of `ratio`."""
    seed: int = 0
    split: Literal["paper", "released"] = "paper"
    """`paper`: share out validated.tsv. `released`: take train.tsv, dev.tsv and test.tsv as they are."""
    test_fraction: float = 0.1
    max_test: int = 10_000
    """The test set is the lesser of both, in utterances of a language."""
    dev_utterances: int | None = None
    """A language; None: 5 % of what is trained on, at most 1,000. 0: no dev set (`paper` only)."""
    max_rejected: float = 0.5
    """Share of faulty clips above which the corpus is refused."""


@dataclass
class _Language:
    """One language on its way: its sets, and what did not come into them."""

    splits: dict[str, list[Utterance]]
    rejected: list[Rejected]
    removed: Counter[str]
    num_in: int

    @property
    def train(self) -> list[Utterance]:
        """All that may be trained on, before it is sampled."""
        return self.splits["train"]

    def reject(self, utterance: Utterance, reason: str, *, is_fault: bool = True) -> None:
        """Leave an utterance out."""
        self.rejected.append(Rejected(utterance.key, utterance.wav, reason, utterance.lang or "", is_fault))


def prepare_commonvoice(options: CommonVoiceOptions, checker: ClipChecker) -> dict[str, Any]:
    """Write the lists of a release into `options.out`. Returns what is in `stats.json`.

    Raises DataError when a language is missing or faulty beyond `max_rejected`, ConfigError on impossible options.
    """
    _check_options(options)
    folders = find_language_folders(options.corpus, options.langs)
    # Every language is read twice, so that only one at a time is in memory: λ_i needs the hours of all of them.
    hours = {lang: hours_of(_read_language(folder, lang, options, checker).train) for lang, folder in folders.items()}
    ratio = options.ratio if options.hours is None else ratio_for(sum(hours.values()), options.hours)
    ratios = sampling_ratios(hours, alpha=options.alpha, ratio=ratio)
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    rejected: list[Rejected] = []
    by_lang: dict[str, Any] = {}
    for lang, folder in folders.items():
        wanted_h = ratios[lang] * hours[lang]
        language = _read_language(folder, lang, options, checker)
        _share_out(language, wanted_h, options, checker)
        sizes = {"hours_before": hours[lang], "lambda": ratios[lang], "hours_wanted": wanted_h}
        by_lang[lang] = {name: round(value, 6) for name, value in sizes.items()} | _describe(language)
        for name, utterances in language.splits.items():
            splits[name] += sorted(utterances, key=lambda utterance: utterance.key)
        rejected += language.rejected
    if options.dev_utterances == 0 and not splits["dev"]:
        del splits["dev"]
    return _write(options, splits, rejected, by_lang)


def _write(
    options: CommonVoiceOptions,
    splits: dict[str, list[Utterance]],
    rejected: list[Rejected],
    by_lang: dict[str, Any],
) -> dict[str, Any]:
    num_in = sum(stats["num_in"] for stats in by_lang.values())
    check_share_rejected(options.out, rejected, num_in, options.max_rejected)
    recorded = {name: value for name, value in asdict(options).items() if name not in ("corpus", "out")}
    stats = {
        "corpus": "commonvoice",
        "options": recorded,
        "num_in": num_in,
        "langs": by_lang,
        "total": describe_splits(splits, rejected),
    }
    write_splits(options.out, splits, rejected, stats)
    return stats


def _check_options(options: CommonVoiceOptions) -> None:
    if not options.langs:
        raise ConfigError('--langs: no language named; give the folders to use, such as --langs "ca es"')
    twice = sorted(lang for lang, count in Counter(options.langs).items() if count > 1)
    if twice:
        raise ConfigError(f"--langs: {' '.join(twice)} named twice; name each language once")
    for name, value, least in (("max_test", options.max_test, 1), ("dev_utterances", options.dev_utterances or 0, 0)):
        if value < least:
            raise ConfigError(f"--{name} {value}: must be at least {least}")
    if not 0.0 < options.test_fraction < 1.0 and options.split == "paper":
        raise ConfigError(f"--test_fraction {options.test_fraction:g}: must be between 0 and 1; the paper takes 0.1")


def _read_language(folder: Path, lang: str, options: CommonVoiceOptions, checker: ClipChecker) -> _Language:
    """All that is in the tables, with durations: in `train` for `paper`, in the three sets for `released`."""
    names = {"train": "validated"} if options.split == "paper" else {"test": "test", "dev": "dev", "train": "train"}
    language = _Language(splits={"train": [], "dev": [], "test": []}, rejected=[], removed=Counter(), num_in=0)
    seen: set[str] = set()
    for name, file in names.items():
        table = read_table(folder / f"{file}.tsv", lang)
        language.rejected += table.rejected
        language.removed += table.removed
        language.num_in += table.num_rows
        for utterance in _with_durations(table.utterances, language, checker):
            if utterance.key in seen:
                reason = f"repeated: this clip is in two of {', '.join(sorted(names))}"
                language.reject(utterance, reason)
            else:
                language.splits[name].append(utterance)
        seen.update(utterance.key for utterance in language.splits[name])
    if not language.train:
        kinds = ", ".join(f"{kind} {count}" for kind, count in count_kinds(language.rejected).items()) or "it has none"
        raise DataError(f"{folder}: no clip of this language can be used ({kinds}); leave {lang} out of --langs")
    return language


def _with_durations(utterances: Sequence[Utterance], language: _Language, checker: ClipChecker) -> Iterator[Utterance]:
    """The utterances whose duration the release or the file's header tells; the others are rejected."""
    clips = [Clip(utterance.wav, utterance.duration) for utterance in utterances]
    description = f"{utterances[0].lang}: durations" if utterances else ""
    for utterance, finding in zip(utterances, checker.durations(clips, description), strict=True):
        if finding.reason is None:
            yield replace(utterance, duration=finding.duration_s)
        else:
            language.reject(utterance, finding.reason)


def _share_out(language: _Language, wanted_h: float, options: CommonVoiceOptions, checker: ClipChecker) -> None:
    """Make the three sets of a language, clips checked, `wanted_h` hours in train."""
    if options.split == "paper":
        size = min(int(len(language.train) * options.test_fraction), options.max_test)
        _hold_out(language, "test", size, options.seed, max_loss=0.5)
        size = _dev_size(language.train, wanted_h) if options.dev_utterances is None else options.dev_utterances
        _hold_out(language, "dev", size, options.seed, max_loss=_DEV_LOSS)
    for name in ("test", "dev"):
        language.splits[name] = _usable(language.splits[name], language, checker, name)
    ordered = shuffled(language.train, options.seed, "train")
    language.splits["train"] = _take_hours(ordered, wanted_h, language, checker)


def _hold_out(language: _Language, name: str, size: int, seed: int, *, max_loss: float) -> None:
    held_out = hold_out(language.train, size, seed=seed, purpose=name, max_loss=max_loss)
    language.splits[name] = held_out.held
    language.splits["train"] = held_out.rest
    for utterance, reason in held_out.left_out:
        language.reject(utterance, reason, is_fault=False)


def _dev_size(pool: Sequence[Utterance], wanted_h: float) -> int:
    """5 % of the utterances that will be trained on, at least 1, at most 1,000."""
    share = min(1.0, wanted_h / hours_of(pool)) if pool else 0.0
    return min(_DEV_LIMIT, max(1, round(_DEV_SHARE * share * len(pool))))


def _take_hours(
    ordered: Sequence[Utterance], wanted_h: float, language: _Language, checker: ClipChecker
) -> list[Utterance]:
    """The first usable utterances up to the hours, to the nearest utterance; one that turns out faulty is replaced."""
    taken: list[Utterance] = []
    position = 0
    while True:
        wanted_s = (wanted_h - hours_of(taken)) * 3600.0
        batch = []
        while position < len(ordered) and wanted_s >= (ordered[position].duration or 0.0) / 2:
            batch.append(ordered[position])
            wanted_s -= ordered[position].duration or 0.0
            position += 1
        if not batch:
            break
        taken += _usable(batch, language, checker, "train")
    for utterance in ordered[position:]:
        language.reject(utterance, _NOT_NEEDED, is_fault=False)
    return taken


def _usable(utterances: Sequence[Utterance], language: _Language, checker: ClipChecker, name: str) -> list[Utterance]:
    """The utterances whose audio passes the check; the others are rejected."""
    clips = [Clip(utterance.wav, utterance.duration) for utterance in utterances]
    findings = checker.check(clips, f"{utterances[0].lang}: {name} clips" if utterances else "")
    usable = []
    for utterance, finding in zip(utterances, findings, strict=True):
        if finding.reason is None:
            usable.append(utterance)
        else:
            language.reject(utterance, finding.reason)
    return usable


def _describe(language: _Language) -> dict[str, Any]:
    """A language's part of `stats.json`."""
    removed = sorted(language.removed.items(), key=lambda entry: (-entry[1], entry[0]))
    return {
        "num_in": language.num_in,
        **describe_splits(language.splits, language.rejected),
        "removed_characters": dict(removed[:_MOST_REMOVED]),
    }
