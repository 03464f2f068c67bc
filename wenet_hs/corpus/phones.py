# SPDX-License-Identifier: Apache-2.0
"""Simulated words with their phones, for pretraining: `prepare synthetic --unit phone`.

Voices of espeak-ng speak single words and phrases of two words. Their labels, spelled as in a real
corpus, are the transcripts. The clips have the spectra, noise floors and levels of the real
recordings of --match_list.
"""

import math
import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import regex  # type: ignore[import-untyped]
import soxr
from numpy.typing import NDArray

from wenet_hs.base.options import option, recorded_options
from wenet_hs.corpus import espeak, recording
from wenet_hs.corpus.audio_check import parallel_map
from wenet_hs.corpus.espeak import (
    ClipMaker,
    ClipRequest,
    SpokenClip,
    phonemize,
    speak_training,
    voice_name,
)
from wenet_hs.corpus.espeak_ipa import UNUSABLE, VOWELS, PhoneSpelling, split_label
from wenet_hs.corpus.output import OutputOptions, Rejected, split_names, write_corpus
from wenet_hs.corpus.recording import Floats, Recording
from wenet_hs.corpus.splits import rank
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.tree.errors import ConfigError, DataError

_PHRASE_SHARE = 0.12  # phrases of two words
_ROOM_SHARE, _HUM_SHARE = 0.5, 0.4
_DEV_SHARE = 0.01  # transcripts of the dev set
_MIN_WORDS = 20  # a voice that can read fewer different words is not used
_PACE_S = 0.18  # expected seconds per letter, only to plan the number of clips per round
_TUNING_SENTENCE = "The quick brown fox jumps over the lazy dog and the young bear."
NUM_WORDS = 5000
"""Of a language: the most frequent ones, or made-up ones."""
_LISTS = {"bs": "sh", "hr": "sh", "sr": "sh"}
"""Languages whose list has another name. wordfreq (Speer 2022) has lists of some 40 languages."""
_WORD = regex.compile(
    r"[\p{L}\p{M}\u200c\u200d'’]{2,8}|\p{Lo}"
)  # short ones: two thirds of UCLA's have up to 5 phones
_MIN_SYLLABLES = 20
_MOST_PHONES = 6
"""Of a letter three times; a letter that is spelled by its name has more."""


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(OutputOptions):
    """Options of all simulated speech, and those of phones."""

    unit: Literal["char", "phone"] = option(
        "char",
        "char: sentences with their text (default); phone: words with their phones, for pretraining",
        is_recorded=False,
    )
    langs: tuple[str, ...] = option(
        (),
        'languages of espeak-ng to speak: "es it"; required for char, all of them for phone',
        type=split_names,
    )
    exclude_langs: tuple[str, ...] = option(
        (),
        "phone: languages and families whose voices are not used, such as close relatives of the test languages",
        type=split_names,
    )
    match_list: Path | None = option(
        None,
        "phone: data.list of real speech; its spellings of phones, spectra and noise floors are copied",
    )
    hours: float = option(1.0, "hours to train on, sum of all languages")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.hours) and self.hours > 0):
            raise ValueError(f"hours {self.hours:g}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class PhoneRequest(ClipRequest):
    """A clip of simulated phones. Room and hum are drawn with its `noise_seed`."""

    recording: str
    """Name of the recordings that it imitates."""


@dataclass(frozen=True)
class PhoneRenderer:
    """Makes the samples of a `PhoneRequest`."""

    recordings: Mapping[str, Recording]
    engine_F: Floats
    """Long-term spectrum of espeak-ng."""

    def __call__(self, request: PhoneRequest) -> NDArray[np.float32] | None:
        """Samples (N,) at 16,000 Hz, or None when espeak-ng gives no sound for the text."""
        speech = espeak.render_speech(request)
        if speech is None:
            return None
        draw, imitated = (
            np.random.default_rng(request.noise_seed),
            self.recordings[request.recording],
        )
        wave = recording.transfer(np.pad(speech, request.padding), self.engine_F, imitated.speech_F)
        if draw.random() < _ROOM_SHARE:
            wave = recording.add_room(wave, draw.uniform(0.1, 0.6), draw.uniform(0.0, 15.0), draw)
        spoken = wave[request.padding[0] : request.padding[0] + len(speech)]
        noise = recording.colour(imitated.noise_F, len(wave), draw) * 10 ** (
            (imitated.snr_db - request.snr_db) / 20
        )
        if draw.random() < _HUM_SHARE:
            noise += recording.make_hum(len(wave), draw.choice((50, 60)), draw) * 10 ** (
                draw.uniform(-50, -25) / 20
            )
        wave += noise * np.sqrt(np.square(spoken).mean())
        return espeak.scale_to_peak(wave.astype(np.float32), request.peak_db)


@dataclass(frozen=True)
class VoicePlan:
    """The texts that a voice speaks, in order, with their phones."""

    lang: str
    texts: dict[str, list[str]] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    """Texts without a usable label."""
    is_made_up: bool = False


def run_phones(options: SimulationOptions) -> dict[str, Any]:
    """Speak the corpus in OUT/corpus and write its lists. Returns the content of `stats.json`."""
    langs, unused = choose_langs(options.langs, options.exclude_langs)
    real = read_data_list(options.match_list) if options.match_list else []
    spelling = PhoneSpelling(utterance.txt for utterance in real)
    engine_F = _measure_engine()
    recordings = recording.measure_recordings(real) or {
        "": Recording(engine_F, np.full(257, 2e-3), (-15.0, -1.0))
    }
    plans = _plan_voices(options, langs, unused)
    maker = ClipMaker(
        options.out.absolute() / "corpus",
        "flac",
        options.num_workers,
        PhoneRenderer(recordings, engine_F),
    )
    shares = split_hours([plan.lang for plan in plans], options.hours)
    utterances: list[Utterance] = []
    rejected: list[Rejected] = []
    for plan in plans:
        requests = draw_words(plan, recordings, seed=options.seed)
        clips = speak_training(maker, requests, shares[plan.lang] * 3600, _PACE_S, len(plan.texts))
        spoken, silent = _read_clips(plan, clips, maker.corpus / plan.lang / "clips", spelling)
        utterances += spoken
        rejected += silent + plan.rejected
    (options.out / "stats.json").unlink(
        missing_ok=True
    )  # it certifies that the lists match the clips
    espeak.remove_other_clips(
        maker.corpus.glob("*/clips"), {Path(utterance.wav).name for utterance in utterances}
    )
    facts = {
        "corpus": "synthetic phones (simulated speech)",
        "simulated": True,
        "engine": f"espeak-ng {espeak.installed_voices()[0]}",
        "options": recorded_options(options, SimulationOptions),
        "voices_not_used": unused,
        "recordings": list(recordings),
    }
    of_langs = {
        plan.lang: {
            "voice": voice_name(plan.lang),
            "words": "made up" if plan.is_made_up else "wordfreq",
        }
        for plan in plans
    }
    return write_corpus(
        options.out, _split(utterances, options.seed), rejected, facts, of_langs, unit="phone"
    )


def _read_clips(
    plan: VoicePlan, clips: Sequence[SpokenClip], folder: Path, spelling: PhoneSpelling
) -> tuple[list[Utterance], list[Rejected]]:
    """The clips of a voice as utterances, and those without a sound."""
    utterances, silent = [], []
    for clip in clips:
        key, wav, text = (
            f"{plan.lang}_{Path(clip.name).stem}",
            str(folder / clip.name),
            clip.request.sentence,
        )
        if clip.duration_s is None:
            silent.append(Rejected(key, wav, f"{clip.reason}: {text}", plan.lang))
        else:
            txt = spelling.spell(plan.texts[text])
            utterances.append(
                Utterance(key=key, wav=wav, txt=txt, lang=plan.lang, duration=clip.duration_s)
            )
    return utterances, silent


def choose_langs(langs: Sequence[str], exclude: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The languages whose voices are used, and the reason for each other one.

    A voice with several codes has the shortest one. `exclude` has codes (`pt` is also `pt-br`), or
    the codes of the families by which espeak-ng sorts its voices (ISO 639-5, such as `sem`).

    Raises ConfigError for a name that no voice has, and if no voice is left.
    """
    codes_of = defaultdict[str, list[str]](list)
    for code, voice in espeak.installed_voices()[1].items():
        codes_of[voice].append(code)
    names = {}
    for voice, codes in codes_of.items():
        lang = min(codes, key=lambda code: (len(code), code))
        names[lang] = {*codes, lang.partition("-")[0], voice.partition("/")[0]}
    for flag, wanted in (("--langs", langs), ("--exclude_langs", exclude)):
        if unknown := " ".join(sorted(set(wanted).difference(*names.values()))):
            found = "no voice or family of espeak-ng"
            raise ConfigError(
                f"{flag} {unknown}", found, f"the voices are {' '.join(sorted(names))}"
            )
    chosen, unused = [], {}
    for lang, of_voice in sorted(names.items()):
        if excluded := of_voice & set(exclude):
            unused[lang] = f"excluded by --exclude_langs {' '.join(sorted(excluded))}"
        elif reason := UNUSABLE.get(lang) or UNUSABLE.get(lang.partition("-")[0]):
            unused[lang] = reason
        elif not langs or of_voice & set(langs):
            chosen.append(lang)
    if not chosen:
        raise ConfigError(f"--langs {' '.join(langs)}", f"no voice is left; {unused}")
    return chosen, unused


def _plan_voices(
    options: SimulationOptions, langs: Sequence[str], unused: dict[str, str]
) -> list[VoicePlan]:
    """A plan per voice that can read enough words; the others are added to `unused`."""
    num_texts = (
        math.ceil(options.hours * 3600 / len(langs)) + _MIN_WORDS
    )  # a clip lasts about a second
    planned = parallel_map(
        partial(plan_voice, num_texts=num_texts, seed=options.seed),
        langs,
        num_workers=max(1, options.num_workers),  # at least one process: some voices end theirs
        description="words and labels",
        on_crash=VoicePlan,
    )
    plans = []
    for plan in planned:
        if len(plan.texts) >= _MIN_WORDS:
            plans.append(plan)
        else:
            unused[plan.lang] = (
                f"only {len(plan.texts)} words with labels, {len(plan.rejected)} without"
            )
    if not plans:
        raise ConfigError(f"--langs {' '.join(langs)}", f"no voice can be used; {unused}")
    return plans


def plan_voice(lang: str, *, num_texts: int, seed: int) -> VoicePlan:
    """The first `num_texts` texts of a voice that have a usable label; a larger number keeps the
    first ones.
    """
    words, is_made_up = read_words(lang, voice_name(lang), seed=seed)
    draw, texts = random.Random(f"{seed}/{lang}/texts"), dict[str, None]()
    draw.shuffle(words)
    for word in words[: 3 * num_texts]:
        texts[f"{word} {draw.choice(words)}" if draw.random() < _PHRASE_SHARE else word] = None
    plan = VoicePlan(lang, is_made_up=is_made_up)
    for text, label in zip(texts, phonemize([*texts], voice=voice_name(lang)), strict=True):
        if len(plan.texts) == num_texts:
            break
        try:
            plan.texts[text] = split_label(label, lang)
        except ValueError as error:
            plan.rejected.append(Rejected(f"{lang}:{text}", "", str(error), lang))
    return plan


# ---- words: frequent ones of a language, or made-up ones from the letters that a voice reads


def read_words(lang: str, voice: str, *, seed: int) -> tuple[list[str], bool]:
    """Up to `NUM_WORDS` words, and whether they are made up.

    Raises DataError if the package wordfreq is missing.
    """
    try:
        import wordfreq
    except ImportError as error:
        raise DataError(
            "wordfreq", "not installed", "run `pip install 'wenet_hs[phones]'`"
        ) from error
    language = lang.partition("-")[0]
    name = _LISTS.get(language, language)
    if name not in wordfreq.available_languages():
        return make_up_words(lang, voice, seed=seed), True
    return [word for word in wordfreq.top_n_list(name, 2 * NUM_WORDS) if _WORD.fullmatch(word)][
        :NUM_WORDS
    ], False


def make_up_words(lang: str, voice: str, *, seed: int) -> list[str]:
    """Words of one to three syllables, some with a final consonant; none if the voice reads too few
    syllables.
    """
    syllables = find_syllables(lang, voice)
    draw, words = random.Random(f"{seed}/{lang}"), dict[str, None]()
    for _ in range(NUM_WORDS if len(syllables) >= _MIN_SYLLABLES else 0):
        parts = [draw.choice(syllables) for _ in range(draw.choice((1, 1, 2, 2, 2, 3)))]
        coda = draw.choice(syllables)[0] if draw.random() < 0.4 else ""
        words["".join(parts) + coda] = None
    return list(words)


def find_syllables(lang: str, voice: str) -> list[str]:
    """Pairs of letters, or of a letter and a vowel sign, that the voice reads as consonant and
    vowel; one per sound.

    They are of one script, the one with the most such pairs.
    """
    best: list[str] = []
    for letters in _scripts():
        triples = phonemize([3 * letter for letter in letters], voice=voice)
        lengths = [len(_shape(label, lang)) for label in triples]
        read = [
            one
            for one, length in zip(letters, lengths, strict=True)
            if _is_mark(one) or 0 < length <= _MOST_PHONES
        ]
        pairs = [first + second for first in read if not _is_mark(first) for second in read]
        sounds: dict[str, str] = {}
        for pair, label in zip(
            pairs, phonemize([2 * pair for pair in pairs], voice=voice), strict=True
        ):
            if _shape(label, lang) == "CVCV":
                sounds.setdefault(label, pair)
        best = max(best, [*sounds.values()], key=len)
    return best


@cache
def _scripts() -> list[list[str]]:
    """The lower-case letters and the marks of each script, by the first word of their Unicode
    names.
    """
    scripts = defaultdict[str, list[str]](list)
    for character in map(chr, (*range(0x61, 0x180), *range(0x370, 0x1100))):
        if unicodedata.category(character) in ("Ll", "Lo", "Mn", "Mc"):
            scripts[unicodedata.name(character).partition(" ")[0]].append(character)
    return list(scripts.values())


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def _shape(label: str, lang: str) -> str:
    """The label as C (consonant) and V (vowel) per phone; empty if it cannot be used."""
    try:
        return "".join("V" if phone[0] in VOWELS else "C" for phone in split_label(label, lang))
    except ValueError:
        return ""


# ---- clips


def split_hours(langs: Sequence[str], hours: float) -> dict[str, float]:
    """Hours per voice: languages have equal shares, which their accents (`en-us`) share equally."""
    accents = Counter(lang.partition("-")[0] for lang in langs)
    return {lang: hours / len(accents) / accents[lang.partition("-")[0]] for lang in langs}


def draw_words(
    plan: VoicePlan, recordings: Mapping[str, Recording], *, seed: int
) -> Iterator[PhoneRequest]:
    """Every text once, then every text again by other speakers, and so on, without end."""
    for turn in count():
        for text in plan.texts:
            draw = random.Random(f"{seed}/{plan.lang}/{text}/{turn}")
            name = draw.choice([*recordings])
            yield PhoneRequest(
                lang=plan.lang,
                sentence=text,
                voice=draw.choice(list(espeak.VOICES)),
                rate_wpm=draw.randint(80, 150),  # words without a sentence are slow
                pitch=draw.randint(20, 80),
                pitch_range=draw.randint(20, 80),
                lead_s=round(draw.uniform(0.01, 0.22), 3),
                trail_s=round(draw.uniform(0.01, 0.42), 3),
                peak_db=round(draw.uniform(*recordings[name].peak_db), 2),
                noise="white",
                snr_db=round(recordings[name].snr_db + draw.uniform(-6.0, 6.0), 2),
                noise_seed=draw.getrandbits(32),
                tract=round(draw.uniform(0.86, 1.18), 3),
                recording=name,
            )


def _measure_engine() -> Floats:
    """The mean spectrum of espeak-ng's variants."""
    waves = [
        espeak.speak(_TUNING_SENTENCE, voice=voice_name("en", variant)) for variant in espeak.VOICES
    ]
    resampled = [
        soxr.resample(wave, espeak.ENGINE_RATE, espeak.SAMPLE_RATE).astype(np.float64)
        for wave in waves
    ]
    return recording.measure_recording(resampled).speech_F


def _split(utterances: Sequence[Utterance], seed: int) -> dict[str, list[Utterance]]:
    """The clips of a random share of the transcripts become the dev set."""
    order = sorted({utterance.txt for utterance in utterances}, key=partial(rank, seed, "dev"))
    of_dev = set(order[: max(1, round(_DEV_SHARE * len(order)))])
    by_key = sorted(utterances, key=lambda utterance: utterance.key)
    return {
        "train": [u for u in by_key if u.txt not in of_dev],
        "dev": [u for u in by_key if u.txt in of_dev],
    }
