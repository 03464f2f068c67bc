# SPDX-License-Identifier: Apache-2.0
"""Simulated speech: sentences spoken by espeak-ng, in the layout of a Common Voice release, and its
data lists.

Example: wenet-hs prepare synthetic --langs "es fr" --sentences sentences --hours 1 --out data
         wenet-hs prepare synthetic --unit phone --hours 14 --exclude_langs "sem pt" \\
             --match_list data/train/data.list --out data/simulated

OUT/corpus/<lang>/ has the layout of a Common Voice release. OUT/{train,dev,test} and OUT/stats.json
are those of every corpus. Training contains neither the sentences nor the voices of dev and test.
With --unit phone: words and their phones (docs/data.md), without a test set.
"""

import logging
import math
import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.base.options import option, recorded_options
from wenet_hs.corpus import espeak
from wenet_hs.corpus.commonvoice import Language, read_release_table
from wenet_hs.corpus.espeak import VOICES, ClipFormat, ClipMaker, ClipRequest, SpokenClip
from wenet_hs.corpus.output import SPLITS, Rejected, check_langs, most_frequent, write_corpus
from wenet_hs.corpus.phones import SimulationOptions, run_phones
from wenet_hs.corpus.subset import hours_to_keep, read_statistics
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.normalize import normalize
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_COLUMNS = (
    "client_id",
    "path",
    "sentence",
    "up_votes",
    "down_votes",
    "age",
    "gender",
    "accents",
    "locale",
    "segment",
)


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(SimulationOptions):
    """Options of `prepare synthetic`."""

    sentences: Path | None = option(
        None,
        "char: folder with one <lang>.txt per language, one sentence per line; or a file of lang<TAB>sentence lines",
    )
    statistics: Path | None = option(
        None,
        "char: statistics of a Common Voice release, to share the hours as the paper does (default: equal shares)",
        metavar="JSON",
    )
    test_sentences: int = option(30, "char: per language")
    dev_sentences: int = option(15, "char: per language")
    test_repeats: int = option(1, "char: times each test sentence is spoken")
    test_voices: int = option(2, "char: voices of dev and test, not used in training")
    format: ClipFormat = option("flac", "char: of the clips, 16 kHz, one channel")
    noise_snr: str = option(
        "15 40", 'char: least and greatest signal-to-noise ratio in dB (default: "15 40")'
    )

    def __post_init__(self) -> None:
        of_phones = [one for one in fields(self) if one.name in ("exclude_langs", "match_list")]
        of_texts = [
            one for one in fields(self) if one.name not in SimulationOptions.__dataclass_fields__
        ]
        for one in of_phones if self.unit == "char" else of_texts:
            if getattr(self, one.name) != one.default:
                raise ValueError(f"{one.name}: has no effect with --unit {self.unit}; leave it out")
        super().__post_init__()
        if self.unit == "phone":
            return
        check_langs(self.langs)
        if self.sentences is None:
            raise ValueError(
                "sentences: required with --unit char; name the folder with one <lang>.txt per language"
            )
        for name in ("test_sentences", "dev_sentences", "test_repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: must be at least 1")
        self.read_noise_range()

    def read_noise_range(self) -> tuple[float, float]:
        """The least and greatest signal-to-noise ratio, dB."""
        try:
            low, high = map(float, self.noise_snr.split())
        except ValueError as error:
            raise ValueError(
                f'noise_snr {self.noise_snr!r}: expected two numbers in dB, such as "15 40"'
            ) from error
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(
                f"noise_snr {self.noise_snr!r}: the first number must be the smaller one, both finite"
            )
        return low, high


def prepare(options: SyntheticOptions) -> dict[str, Any]:
    """Speak the corpus in OUT/corpus and write its lists. Returns the content of `stats.json`.

    Raises DataError for a language that espeak-ng cannot speak.
    """
    if options.unit == "phone":
        return run_phones(options)
    assert options.sentences is not None  # checked by the options
    for lang in options.langs:
        espeak.voice_name(lang)
    snr_db = options.read_noise_range()
    train_voices, test_voices = choose_voices(options.test_voices, seed=options.seed)
    sentences = read_sentence_lists(options.sentences, options.langs)
    splits = {
        lang: of_lang.split(
            num_test=options.test_sentences, num_dev=options.dev_sentences, seed=options.seed
        )
        for lang, of_lang in sentences.items()
    }
    hours = hours_by_language(options)
    corpus = options.out.absolute() / "corpus"
    maker = ClipMaker(corpus, options.format, options.num_workers)
    lists: dict[str, list[Utterance]] = {name: [] for name in SPLITS}
    rejected: list[Rejected] = []
    langs = {}
    for lang, split in splits.items():
        draw = partial(draw_sentences, seed=options.seed, lang=lang, snr_db=snr_db)
        clips = {}
        for name, num_rounds in (("dev", 1), ("test", options.test_repeats)):
            requests = list(islice(draw(split[name], test_voices), num_rounds * len(split[name])))
            clips[name] = list(maker.make(requests, f"{lang}: speak {name}"))
            espeak.check_sound(clips[name])
        held_out = [clip for clip in clips["dev"] + clips["test"] if clip.duration_s is not None]
        pace = espeak.total_seconds(held_out) / sum(len(clip.request.sentence) for clip in held_out)
        drawn = draw(split["train"], train_voices)
        clips["train"] = espeak.speak_training(
            maker, drawn, 3600 * hours[lang], pace, len(split["train"])
        )
        (options.out / "stats.json").unlink(
            missing_ok=True
        )  # it certifies that the lists match the clips
        langs[lang] = _write_language(corpus / lang, clips, sentences[lang], lists, rejected)
    recorded = recorded_options(options)
    del recorded["exclude_langs"]
    facts = {
        "corpus": "synthetic (simulated speech)",
        "simulated": True,
        "engine": f"espeak-ng {espeak.installed_voices()[0]}",
        "options": recorded | {"statistics": options.statistics and options.statistics.name},
        "voices": {"train": list(train_voices), "dev and test": list(test_voices)},
    }
    return write_corpus(options.out, lists, rejected, facts, langs)


def hours_by_language(options: SyntheticOptions) -> dict[str, float]:
    """Hours of training speech per language: equal, or in proportion to the paper's λ_i · hours_i
    of a release.
    """
    shares = dict.fromkeys(options.langs, 1.0)
    if options.statistics is not None:
        validated = {
            lang: hours
            for lang, (hours, *_) in read_statistics(options.statistics, options.langs).items()
        }
        shares = hours_to_keep(validated)
    return {lang: options.hours * share / sum(shares.values()) for lang, share in shares.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentences:
    """The sentences of one language, in the order of the file."""

    lang: str
    path: Path
    kept: tuple[str, ...]
    """NFC, single spaces, each once."""
    rejected: tuple[Rejected, ...]
    """Empty lines, lines without a letter, and repetitions."""

    def split(self, *, num_test: int, num_dev: int, seed: int) -> dict[str, list[str]]:
        """Test, dev and training sentences in random order.

        Raises DataError when none is left to train on.
        """
        order = list(self.kept)
        num_held_out = num_test + num_dev
        if len(order) <= num_held_out:
            held_out = f"{num_test} for test and {num_dev} for dev leave none to train on"
            found = f"{len(order)} different sentences of {self.lang!r}, but {held_out}"
            raise DataError(
                self.path, found, "add sentences or lower --test_sentences and --dev_sentences"
            )
        random.Random(f"{seed}/{self.lang}").shuffle(order)
        return {
            "train": order[num_held_out:],
            "dev": order[num_test:num_held_out],
            "test": order[:num_test],
        }


def read_sentence_lists(source: Path, langs: Sequence[str]) -> dict[str, Sentences]:
    """The sentences of each language in `langs`.

    `source` is a folder with one `<lang>.txt` per language, or a file of `lang<TAB>sentence` lines.
    Raises DataError when the source or a language is missing, or a line cannot be read.
    """
    if not source.exists():
        raise DataError(
            source,
            "no such file or folder",
            "give --sentences a folder with one <lang>.txt per language",
        )
    if source.is_dir():
        paths = {lang: source / f"{lang}.txt" for lang in langs}
        for path in paths.values():
            if not path.exists():
                found = (
                    " ".join(sorted(file.stem for file in source.glob("*.txt"))) or "no .txt file"
                )
                to_do = f"write its sentences, one per line, or drop the language (found: {found})"
                raise DataError(path, "no such file", to_do)
        return {
            lang: _clean(lang, path, enumerate(read_lines(path), start=1))
            for lang, path in paths.items()
        }
    lines = defaultdict[str, list[tuple[int, str]]](list)
    for number, line in enumerate(read_lines(source), start=1):
        tag, tab, text = line.partition("\t")
        if not tab and line.strip():
            to_do = "write lang<TAB>sentence on each line, or give a folder with one <lang>.txt per language"
            raise DataError(f"{source}:{number}", f"no tab in {line[:40]!r}", to_do)
        lines[tag.strip()].append((number, text))
    return {lang: _clean(lang, source, lines[lang]) for lang in langs}


def _clean(lang: str, path: Path, lines: Iterable[tuple[int, str]]) -> Sentences:
    """Sentences in NFC with single spaces (also for control characters)."""
    kept: dict[
        str, tuple[int, str]
    ] = {}  # by transcript: two that differ in case or punctuation sound the same
    rejected = []
    for number, line in lines:
        text = " ".join(unicodedata.normalize("NFC", _CONTROL.sub(" ", line)).split())
        reason, is_fault = None, False
        if not text:
            reason = "empty line"
        elif not any(character.isalpha() for character in text):
            reason, is_fault = f"no letter: {text}", True
        elif (same := kept.setdefault(normalize(text, lang), (number, text))) != (number, text):
            reason = f"duplicate: the same sentence is on line {same[0]}"
        if reason is not None:
            rejected.append(
                Rejected(f"{lang}:{path.name}:{number}", str(path), reason, lang, is_fault)
            )
    if not kept:
        raise DataError(path, f"contains no sentence of {lang!r}", "add some, or drop the language")
    return Sentences(
        lang=lang,
        path=path,
        kept=tuple(text for _, text in kept.values()),
        rejected=tuple(rejected),
    )


def choose_voices(num_test: int, *, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(training voices, held-out voices): `num_test` are held out, alternately female and male.

    Raises ConfigError when training or test would have no voice.
    """
    if not 1 <= num_test < len(VOICES):
        raise ConfigError(
            "--test_voices", f"{num_test} of {len(VOICES)} voices", f"give 1 to {len(VOICES) - 1}"
        )
    generator = random.Random(f"{seed}/voices")
    queues = [
        [name for name, of in VOICES.items() if of == gender] for gender in ("female", "male")
    ]
    for queue in queues:
        generator.shuffle(queue)
    in_turn = chain.from_iterable(zip_longest(*map(reversed, queues)))
    held_out = list(islice(filter(None, in_turn), num_test))
    return tuple(name for name in VOICES if name not in held_out), tuple(sorted(held_out))


def draw_sentences(
    sentences: Sequence[str],
    voices: Sequence[str],
    *,
    seed: int,
    lang: str,
    snr_db: tuple[float, float],
) -> Iterator[ClipRequest]:
    """Every sentence once, then every sentence again by other voices, and so on, without end.

    Draws depend on the sentence, not on its position: a longer list of sentences keeps the existing
    clips.
    """
    for turn in count():
        for sentence in sentences:
            order = random.Random(f"{seed}/{lang}/{sentence}").sample(voices, len(voices))
            draw = random.Random(f"{seed}/{lang}/{sentence}/{turn}")
            yield ClipRequest(
                lang=lang,
                sentence=sentence,
                voice=order[turn % len(order)],
                rate_wpm=draw.randint(140, 200),
                pitch=draw.randint(30, 70),
                pitch_range=draw.randint(30, 70),
                lead_s=round(draw.uniform(0.05, 0.15), 3),
                trail_s=round(draw.uniform(0.05, 0.15), 3),
                peak_db=round(draw.uniform(-15.0, -1.0), 2),
                noise=draw.choice(("white", "pink")),
                snr_db=round(draw.uniform(*snr_db), 2),
                noise_seed=draw.getrandbits(32),
                tract=round(
                    draw.uniform(0.9, 1.1), 3
                ),  # about as many speakers as clips, of two dozen voices
            )


def _write_language(
    folder: Path,
    clips: Mapping[str, Sequence[SpokenClip]],
    sentences: Sentences,
    lists: Mapping[str, list[Utterance]],
    rejected: list[Rejected],
) -> dict[str, Any]:
    """Write the tables of a language, add its utterances and rejected clips.

    Returns its facts for `stats.json`.
    """
    write_tables(folder, clips)
    silent = {
        clip.request.sentence: clip
        for name in SPLITS
        for clip in clips[name]
        if clip.duration_s is None
    }
    language = Language(sentences.lang)
    language.rejected += sentences.rejected
    for sentence, clip in silent.items():  # one per sentence: every round requests it again
        reason = f"{clip.reason}: {sentence}"
        language.rejected.append(
            Rejected(clip.name, str(folder / "clips" / clip.name), reason, sentences.lang)
        )
    for name, utterances in lists.items():
        utterances += sorted(
            read_release_table(folder / f"{name}.tsv", language),
            key=lambda utterance: utterance.key,
        )
    rejected += language.rejected
    num_used = len({clip.request.sentence for clip in clips["train"]})
    num_train = len(sentences.kept) - len(
        {clip.request.sentence for clip in (*clips["dev"], *clips["test"])}
    )
    if num_used < num_train:
        message = "%s: only %d of %d training sentences are spoken; more --hours would use them all"
        logger.warning(message, sentences.lang, num_used, num_train)
    facts = {"train": num_used, "train_unused": num_train - num_used}
    return {"removed_characters": most_frequent(language.removed), "sentences": facts}


def write_tables(folder: Path, clips: Mapping[str, Sequence[SpokenClip]]) -> None:
    """Write the Common Voice tables of a language, and remove the clips of earlier requests."""
    audible = {
        name: [clip for clip in clips[name] if clip.duration_s is not None] for name in SPLITS
    }
    audible["validated"] = list(chain.from_iterable(audible.values()))
    tables: dict[str, list[Sequence[str]]] = {name: [_COLUMNS] for name in audible}
    for name, of_set in audible.items():
        for clip in of_set:
            request = clip.request
            speaker, gender = f"{request.lang}-{request.voice}", VOICES[request.voice]
            row = (
                speaker,
                clip.name,
                request.sentence,
                "2",
                "0",
                "",
                gender,
                "simulated",
                request.lang,
                "",
            )
            tables[name].append(row)
    durations_ms = {
        clip.name: round(1000 * (clip.duration_s or 0.0)) for clip in audible["validated"]
    }
    tables["clip_durations"] = [
        ("clip", "duration[ms]"),
        *((name, str(ms)) for name, ms in durations_ms.items()),
    ]
    for name, rows in tables.items():
        write_atomic(folder / f"{name}.tsv", "".join("\t".join(row) + "\n" for row in rows))
    espeak.remove_other_clips([folder / "clips"], durations_ms.keys())
