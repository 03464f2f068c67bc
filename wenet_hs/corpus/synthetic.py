# SPDX-License-Identifier: Apache-2.0
"""`prepare synthetic`: a Common Voice-shaped corpus of simulated speech, spoken by espeak-ng, and its data lists.

OUT/corpus/<lang>/ looks like a release of Common Voice; OUT/{train,dev,test} and OUT/stats.json like those of every
other corpus. The sentences and the voices of dev and test are never heard in training.
"""

import argparse
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wenet_hs.corpus import espeak
from wenet_hs.corpus.commonvoice_tables import read_table
from wenet_hs.corpus.output import Rejected, describe_splits, write_splits
from wenet_hs.corpus.synthetic_clip import ClipMaker
from wenet_hs.corpus.synthetic_corpus import PARTS, SpokenLanguage, speak_corpus, write_corpus
from wenet_hs.corpus.synthetic_plan import SpeechPlan, choose_voices
from wenet_hs.corpus.synthetic_sentences import Sentences, Split, read_sentences, split_sentences
from wenet_hs.errors import ConfigError
from wenet_hs.manifest import Utterance

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `prepare synthetic`."""
    parser.add_argument("--langs", required=True, help='languages of espeak-ng to speak: "es it"')
    parser.add_argument(
        "--sentences",
        type=Path,
        required=True,
        help="folder with a <lang>.txt a language, one sentence a line; or a file of lang<TAB>sentence lines",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write; the clips go to OUT/corpus")
    parser.add_argument(
        "--hours", type=float, default=1.0, help="hours to train on, all languages together (default 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default 0)")
    parser.add_argument("--num_workers", type=int, default=_num_cores(), help="processes (default: one a core)")
    parser.add_argument("--test_sentences", type=int, default=30, help="of a language (default 30)")
    parser.add_argument("--dev_sentences", type=int, default=15, help="of a language (default 15)")
    parser.add_argument("--test_repeats", type=int, default=1, help="times each test sentence is spoken (default 1)")
    parser.add_argument(
        "--test_voices", type=int, default=2, help="voices of dev and test, never heard in training (default 2)"
    )
    parser.add_argument(
        "--format",
        choices=("flac", "mp3", "wav"),
        default="flac",
        help="of the clips, 16 kHz, one channel (default flac)",
    )
    parser.add_argument(
        "--noise_snr", default="15 40", help='least and greatest signal-to-noise ratio in dB (default "15 40")'
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Speak the corpus and write its lists. Returns what is in `stats.json`."""
    langs = _check_options(args)
    train_voices, test_voices = choose_voices(args.test_voices, seed=args.seed)
    plan = SpeechPlan(
        seed=args.seed, train_voices=train_voices, test_voices=test_voices, noise_snr_db=_noise_range(args.noise_snr)
    )
    sentences = read_sentences(args.sentences, langs)
    splits = {
        lang: split_sentences(of, num_test=args.test_sentences, num_dev=args.dev_sentences, seed=args.seed)
        for lang, of in sentences.items()
    }
    corpus = args.out.absolute() / "corpus"
    maker = ClipMaker(corpus, args.format, args.num_workers)
    languages = speak_corpus(plan, splits, maker, hours=args.hours, test_repeats=args.test_repeats)
    (args.out / "stats.json").unlink(missing_ok=True)  # it says that the lists fit the clips
    write_corpus(corpus, languages)
    stats = _facts(args, plan)
    by_lang = {lang: _Lists(corpus, languages[lang], sentences[lang], splits[lang]) for lang in langs}
    return _write_lists(args.out, by_lang, stats)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_options(args: argparse.Namespace) -> list[str]:
    """The languages. Raises ConfigError for options that cannot be, DataError for a language espeak-ng cannot speak."""
    langs: list[str] = args.langs.split()
    if not langs:
        raise ConfigError('--langs: no language named; give codes of espeak-ng, such as --langs "es it"')
    twice = sorted(lang for lang, count in Counter(langs).items() if count > 1)
    if twice:
        raise ConfigError(f"--langs: {' '.join(twice)} named twice; name each language once")
    if not (math.isfinite(args.hours) and args.hours > 0):
        raise ConfigError(f"--hours {args.hours:g}: must be above 0")
    for name, least in (("num_workers", 0), ("test_sentences", 1), ("dev_sentences", 1), ("test_repeats", 1)):
        if getattr(args, name) < least:
            raise ConfigError(f"--{name} {getattr(args, name)}: must be at least {least}")
    for lang in langs:
        espeak.voice_name(lang)
    return langs


def _noise_range(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split())
    except ValueError as error:
        raise ConfigError(f'--noise_snr {text!r}: expected two numbers in dB, such as "15 40"') from error
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ConfigError(f"--noise_snr {text!r}: the first number must be the smaller one, both finite")
    return low, high


class _Lists:
    """What of one language goes into the lists, and what does not."""

    def __init__(self, corpus: Path, language: SpokenLanguage, sentences: Sentences, split: Split) -> None:
        tables = {part: read_table(corpus / language.lang / f"{part}.tsv", language.lang) for part in PARTS}
        self.splits = {part: sorted(table.utterances, key=lambda u: u.key) for part, table in tables.items()}
        self.rejected = [*_rejected_lines(sentences), *_rejected_clips(corpus, language)]
        removed: Counter[str] = Counter()
        for table in tables.values():
            self.rejected += table.rejected
            removed += table.removed
        used = {clip.request.sentence for clip in language.clips["train"]}
        if len(used) < len(split.train):
            logger.warning(
                "%s: only %d of %d training sentences are spoken; more --hours would use them all",
                *(language.lang, len(used), len(split.train)),
            )
        self.stats = {
            "num_in": sum(map(len, self.splits.values())) + len(self.rejected),
            **describe_splits(self.splits, self.rejected),
            "removed_characters": dict(sorted(removed.items(), key=lambda entry: (-entry[1], entry[0]))),
            "sentences": {"train": len(used), "train_unused": len(split.train) - len(used)},
        }


def _rejected_lines(sentences: Sentences) -> list[Rejected]:
    name, path = sentences.path.name, str(sentences.path)
    return [
        Rejected(f"{sentences.lang}:{name}:{line.line}", path, line.reason, sentences.lang, line.is_fault)
        for line in sentences.rejected
    ]


def _rejected_clips(corpus: Path, language: SpokenLanguage) -> list[Rejected]:
    rejected = {}
    for part in PARTS:
        for clip in language.clips[part]:
            if clip.duration_s is None:  # asked for again in each round: once in the account is enough
                path = corpus / language.lang / "clips" / clip.name
                reason = f"{clip.reason}: {clip.request.sentence}"
                rejected[clip.request.sentence] = Rejected(clip.name, str(path), reason, language.lang)
    return list(rejected.values())


def _facts(args: argparse.Namespace, plan: SpeechPlan) -> dict[str, Any]:
    """What `stats.json` tells about the speech."""
    options = ("hours", "seed", "test_sentences", "dev_sentences", "test_repeats", "test_voices", "format", "noise_snr")
    return {
        "corpus": "synthetic (simulated speech)",
        "simulated": True,
        "engine": f"espeak-ng {espeak.catalogue().version}",
        "options": {"langs": args.langs.split(), **{name: getattr(args, name) for name in options}},
        "voices": {"train": list(plan.train_voices), "dev and test": list(plan.test_voices)},
    }


def _write_lists(out: Path, by_lang: Mapping[str, _Lists], facts: Mapping[str, Any]) -> dict[str, Any]:
    splits: dict[str, list[Utterance]] = {
        part: [u for of in by_lang.values() for u in of.splits[part]] for part in PARTS
    }
    rejected = [entry for of in by_lang.values() for entry in of.rejected]
    stats = {
        **facts,
        "num_in": sum(of.stats["num_in"] for of in by_lang.values()),
        "langs": {lang: of.stats for lang, of in by_lang.items()},
        "total": describe_splits(splits, rejected),
    }
    write_splits(out, splits, rejected, stats)
    return stats
