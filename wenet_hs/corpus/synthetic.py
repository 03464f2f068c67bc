# SPDX-License-Identifier: Apache-2.0
"""Simulated speech of espeak-ng, in the layout of a Common Voice release, and its data lists.

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
"""Control characters."""
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
"""Columns of the tables of a Common Voice release."""


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
        """Raises ValueError for an option that has no effect, is missing or out of range."""
        self._refuse_options_without_effect()
        super().__post_init__()
        if self.unit == "phone":
            return
        check_langs(self.langs)
        if self.sentences is None:
            raise ValueError(
                "sentences: required with --unit char; name the folder with one <lang>.txt per language"
            )
        for name in ("test_sentences", "dev_sentences", "test_repeats"):
            number = getattr(self, name)
            if number < 1:
                raise ValueError(f"{name} {number}: must be at least 1")
        self.read_noise_range()  # raises ValueError for a wrong range

    def _refuse_options_without_effect(self) -> None:
        """Raise ValueError if an option of the other `unit` has another value than its default.

        Options of phones are `exclude_langs` and `match_list`. All options that `SimulationOptions`
        does not have are options of sentences (`char`).
        """
        names_without_effect = {"exclude_langs", "match_list"}
        if self.unit == "phone":
            own_names = {option_field.name for option_field in fields(self)}
            names_without_effect = own_names - set(SimulationOptions.__dataclass_fields__)
        for option_field in fields(self):
            name = option_field.name
            if name in names_without_effect and getattr(self, name) != option_field.default:
                raise ValueError(f"{name}: has no effect with --unit {self.unit}; leave it out")

    def read_noise_range(self) -> tuple[float, float]:
        """The least and greatest signal-to-noise ratio, dB. Raises ValueError for other values."""
        where = f"noise_snr {self.noise_snr!r}"
        try:
            low, high = map(float, self.noise_snr.split())
        except ValueError as error:
            raise ValueError(f'{where}: expected two numbers in dB, such as "15 40"') from error
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"{where}: the first number must be the smaller one, both finite")
        return low, high


def prepare(options: SyntheticOptions) -> dict[str, Any]:
    """Speak the corpus in OUT/corpus and write its lists. Returns the content of `stats.json`.

    Dev and test are spoken by other voices than train. Raises DataError for a language that
    espeak-ng cannot speak, and for sentences that are missing or too few.
    """
    if options.unit == "phone":
        return run_phones(options)
    assert options.sentences is not None  # checked by the options
    for lang in options.langs:
        espeak.voice_name(lang)  # raises for an unknown language before anything is spoken
    train_voices, test_voices = choose_voices(options.test_voices, seed=options.seed)
    sentences_of_lang = read_sentence_lists(options.sentences, options.langs)
    sets_of_lang = {
        lang: sentences.split(
            num_test=options.test_sentences, num_dev=options.dev_sentences, seed=options.seed
        )
        for lang, sentences in sentences_of_lang.items()
    }
    hours = hours_by_language(options)
    corpus = options.out.absolute() / "corpus"
    maker = ClipMaker(corpus, options.format, options.num_workers)
    lists: dict[str, list[Utterance]] = {name: [] for name in SPLITS}
    rejected: list[Rejected] = []
    facts_of_lang = {}
    for lang, sets in sets_of_lang.items():
        clips = _speak_language(
            options,
            maker,
            lang,
            sets,
            train_voices=train_voices,
            test_voices=test_voices,
            hours=hours[lang],
        )
        # The tables change now, and stats.json certifies that the lists match the clips.
        (options.out / "stats.json").unlink(missing_ok=True)
        write_tables(corpus / lang, clips)
        language = _read_language(corpus / lang, clips, sentences_of_lang[lang])
        for name, utterances in language.splits.items():
            lists[name] += utterances
        rejected += language.rejected
        facts_of_lang[lang] = {
            "removed_characters": most_frequent(language.removed),
            "sentences": _count_requested(clips, sentences_of_lang[lang]),
        }
    facts = {
        "corpus": "synthetic (simulated speech)",
        "simulated": True,
        "engine": f"espeak-ng {espeak.installed_voices().version}",
        "options": _record_options(options),
        "voices": {"train": list(train_voices), "dev and test": list(test_voices)},
    }
    return write_corpus(options.out, lists, rejected, facts, facts_of_lang)


def _record_options(options: SyntheticOptions) -> dict[str, Any]:
    """The options for `stats.json`.

    Other paths are not recorded (`recorded_options`), but the name of the file of statistics is.
    """
    recorded = recorded_options(options)
    del recorded["exclude_langs"]  # an option of phones only
    recorded["statistics"] = None if options.statistics is None else options.statistics.name
    return recorded


def hours_by_language(options: SyntheticOptions) -> dict[str, float]:
    """Hours of training speech per language; their sum is --hours.

    All languages have equal hours. With --statistics, the statistics of a release of Common Voice,
    they are in proportion to the hours that `hours_to_keep` would keep of this release.
    """
    shares = dict.fromkeys(options.langs, 1.0)
    if options.statistics is not None:
        statistics = read_statistics(options.statistics, options.langs)
        validated_h = {lang: of_lang.hours for lang, of_lang in statistics.items()}
        shares = hours_to_keep(validated_h)
    total = sum(shares.values())
    return {lang: options.hours * share / total for lang, share in shares.items()}


# ---- sentences


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
        to_do = "give --sentences a folder with one <lang>.txt per language"
        raise DataError(source, "no such file or folder", to_do)
    if source.is_dir():
        return _read_sentence_folder(source, langs)
    return _read_sentence_file(source, langs)


def _read_sentence_folder(folder: Path, langs: Sequence[str]) -> dict[str, Sentences]:
    """The sentences of `<lang>.txt` for each language. Raises DataError if a file is missing."""
    path_of = {lang: folder / f"{lang}.txt" for lang in langs}
    for path in path_of.values():
        if not path.exists():
            names = sorted(file.stem for file in folder.glob("*.txt"))
            listed = " ".join(names) or "no .txt file"
            to_do = f"write its sentences, one per line, or drop the language (found: {listed})"
            raise DataError(path, "no such file", to_do)
    return {
        lang: _clean_sentences(lang, path, enumerate(read_lines(path), start=1))
        for lang, path in path_of.items()
    }


def _read_sentence_file(path: Path, langs: Sequence[str]) -> dict[str, Sentences]:
    """The sentences in `lang<TAB>sentence` lines; empty lines belong to no language.

    Raises DataError for another line.
    """
    lines_of = defaultdict[str, list[tuple[int, str]]](list)
    for number, line in enumerate(read_lines(path), start=1):
        lang, tab, text = line.partition("\t")
        if not tab and line.strip():
            to_do = "write lang<TAB>sentence on each line, or give a folder with one <lang>.txt per language"
            raise DataError(f"{path}:{number}", f"no tab in {line[:40]!r}", to_do)
        lines_of[lang.strip()].append((number, text))
    return {lang: _clean_sentences(lang, path, lines_of[lang]) for lang in langs}


def _clean_sentences(lang: str, path: Path, numbered_lines: Iterable[tuple[int, str]]) -> Sentences:
    """The sentences of one language, in NFC, with single spaces in place of control characters.

    Rejected are lines without a letter, which is a fault; also empty lines, and sentences that
    differ from an earlier one only in case or punctuation, because they sound the same.

    Raises DataError if no sentence is left.
    """
    first_of_transcript: dict[str, tuple[int, str]] = {}
    rejected = []
    for number, line in numbered_lines:
        text = " ".join(unicodedata.normalize("NFC", _CONTROL.sub(" ", line)).split())
        transcript = normalize(text, lang)
        has_letter = any(character.isalpha() for character in text)
        if has_letter and transcript not in first_of_transcript:
            first_of_transcript[transcript] = (number, text)
            continue
        if not text:
            reason = "empty line"
        elif not has_letter:
            reason = f"no letter: {text}"
        else:
            first_number, _ = first_of_transcript[transcript]
            reason = f"duplicate: the same sentence is on line {first_number}"
        is_fault = bool(text) and not has_letter  # empty lines and repetitions are no faults
        where = f"{lang}:{path.name}:{number}"
        rejected.append(
            Rejected(key=where, path=str(path), reason=reason, lang=lang, is_fault=is_fault)
        )
    if not first_of_transcript:
        raise DataError(path, f"contains no sentence of {lang!r}", "add some, or drop the language")
    return Sentences(
        lang=lang,
        path=path,
        kept=tuple(text for _, text in first_of_transcript.values()),
        rejected=tuple(rejected),
    )


# ---- clips


def choose_voices(num_test: int, *, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The training voices, and the held-out voices, which speak dev and test.

    `num_test` voices are held out at random, alternately a female and a male one. If all voices of
    one gender are held out, the others are all of the other one.

    Raises ConfigError when training or test would have no voice.
    """
    if not 1 <= num_test < len(VOICES):
        raise ConfigError(
            "--test_voices", f"{num_test} of {len(VOICES)} voices", f"give 1 to {len(VOICES) - 1}"
        )
    generator = random.Random(f"{seed}/voices")
    names_of_gender = list[list[str]]()
    for gender in ("female", "male"):
        names = [name for name, gender_of_voice in VOICES.items() if gender_of_voice == gender]
        generator.shuffle(names)
        names.reverse()  # only so that a seed gives the voices that it always gave
        names_of_gender.append(names)
    alternating = list[str]()
    for female_and_male in zip_longest(*names_of_gender):
        # After the last name of a gender, its place has None.
        alternating += [name for name in female_and_male if name is not None]
    held_out = alternating[:num_test]
    training = [name for name in VOICES if name not in held_out]
    return tuple(training), tuple(sorted(held_out))


def _speak_language(
    options: SyntheticOptions,
    maker: ClipMaker,
    lang: str,
    sets: Mapping[str, Sequence[str]],
    *,
    train_voices: Sequence[str],
    test_voices: Sequence[str],
    hours: float,
) -> dict[str, list[SpokenClip]]:
    """The clips of dev, test and train, also those without a sound.

    Dev and test are spoken first: their pace tells how many training clips are needed.

    Args:
        sets: the sentences of each set.
        hours: of all training clips together.
    Raises DataError if no sentence of a set has a sound.
    """
    draw = partial(draw_sentences, seed=options.seed, lang=lang, snr_db=options.read_noise_range())
    clips = dict[str, list[SpokenClip]]()
    for name, num_repeats in (("dev", 1), ("test", options.test_repeats)):
        num_clips = num_repeats * len(sets[name])
        requests = list(islice(draw(sets[name], test_voices), num_clips))
        clips[name] = list(maker.make(requests, f"{lang}: speak {name}"))
        espeak.check_sound(clips[name])
    audible = [clip for clip in clips["dev"] + clips["test"] if clip.duration_s is not None]
    num_letters = sum(len(clip.request.sentence) for clip in audible)  # not 0: there is a sound
    clips["train"] = espeak.speak_training(
        maker,
        draw(sets["train"], train_voices),
        target_s=3600 * hours,
        pace=espeak.total_seconds(audible) / num_letters,
        num_sentences=len(sets["train"]),
    )
    return clips


def draw_sentences(
    sentences: Sequence[str],
    voices: Sequence[str],
    *,
    seed: int,
    lang: str,
    snr_db: tuple[float, float],
) -> Iterator[ClipRequest]:
    """Every sentence once, then every sentence again by other voices, and so on, without end.

    The voice and all other properties depend on the sentence and the turn, not on the position of
    the sentence. So the existing clips stay the same if sentences are added.
    """
    for turn in count():
        for sentence in sentences:
            # Each sentence has its own order of the voices, one per turn.
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
                # With another length of the vocal tract, a voice sounds like another speaker.
                tract=round(draw.uniform(0.9, 1.1), 3),
            )


# ---- tables and lists


def write_tables(folder: Path, clips: Mapping[str, Sequence[SpokenClip]]) -> None:
    """Write the Common Voice tables of a language, and remove the clips of earlier requests.

    `clips`: those of each set; clips without a sound are in no table.
    """
    audible = {
        name: [clip for clip in clips[name] if clip.duration_s is not None] for name in SPLITS
    }
    audible["validated"] = list(chain.from_iterable(audible.values()))
    for name, clips_of_table in audible.items():
        _write_table(folder / f"{name}.tsv", [_COLUMNS, *map(_make_row, clips_of_table)])
    ms_of_name = {
        clip.name: round(1000 * (clip.duration_s or 0.0)) for clip in audible["validated"]
    }
    duration_rows = [(name, str(ms)) for name, ms in ms_of_name.items()]
    _write_table(folder / "clip_durations.tsv", [("clip", "duration[ms]"), *duration_rows])
    espeak.remove_other_clips([folder / "clips"], ms_of_name.keys())


def _make_row(clip: SpokenClip) -> tuple[str, ...]:
    """The row of a clip in a table, in the order of `_COLUMNS`."""
    request = clip.request
    cells = dict.fromkeys(_COLUMNS, "") | {
        "client_id": f"{request.lang}-{request.voice}",
        "path": clip.name,
        "sentence": request.sentence,
        "up_votes": "2",
        "down_votes": "0",
        "gender": VOICES[request.voice],
        "accents": "simulated",
        "locale": request.lang,
    }
    return tuple(cells.values())


def _write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write a table with tabs between its cells."""
    write_atomic(path, "".join("\t".join(row) + "\n" for row in rows))


def _read_language(
    folder: Path, clips: Mapping[str, Sequence[SpokenClip]], sentences: Sentences
) -> Language:
    """The sets of a language from its tables, in the order of the keys, and its rejected clips.

    Rejected are sentences that are not spoken, clips without a sound, and rows of the tables that
    cannot be used.
    """
    language = Language(sentences.lang)
    language.rejected += sentences.rejected
    # A sentence is requested once per turn (`draw_sentences`), but rejected only once.
    silent: dict[str, SpokenClip] = {}
    for name in SPLITS:
        for clip in clips[name]:
            if clip.duration_s is None:
                silent[clip.request.sentence] = clip
    for sentence, clip in silent.items():
        path = str(folder / "clips" / clip.name)
        reason = f"{clip.reason}: {sentence}"
        language.rejected.append(
            Rejected(key=clip.name, path=path, reason=reason, lang=sentences.lang)
        )
    for name in SPLITS:
        rows = read_release_table(folder / f"{name}.tsv", language.lang)
        language.rejected += rows.rejected
        language.removed += rows.removed
        language.splits[name] = sorted(rows.usable, key=lambda utterance: utterance.key)
    return language


def _count_requested(
    clips: Mapping[str, Sequence[SpokenClip]], sentences: Sentences
) -> dict[str, int]:
    """The numbers of training sentences that espeak-ng was asked to speak, and of the others.

    The first number also counts sentences that gave no sound. Others are left when the hours are
    full; this gives a warning.
    """
    held_out = {clip.request.sentence for clip in (*clips["dev"], *clips["test"])}
    num_train = len(sentences.kept) - len(held_out)
    num_requested = len({clip.request.sentence for clip in clips["train"]})
    if num_requested < num_train:
        message = "%s: only %d of %d training sentences are spoken; more --hours would use them all"
        logger.warning(message, sentences.lang, num_requested, num_train)
    return {"train": num_requested, "train_unused": num_train - num_requested}
