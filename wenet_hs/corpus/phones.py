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
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

_PHRASE_SHARE = 0.12
"""Share of the texts that are phrases of two words."""
_ROOM_SHARE = 0.5
"""Share of the clips that have the sound of a room."""
_HUM_SHARE = 0.4
"""Share of the clips that have mains hum."""
_DEV_SHARE = 0.01
"""Share of the transcripts that are the dev set."""
_MIN_WORDS = 20
"""A voice that can read fewer different words is not used."""
_PACE_S = 0.18
"""Expected seconds per letter, only to plan the number of clips per round."""
_TUNING_SENTENCE = "The quick brown fox jumps over the lazy dog and the young bear."
"""Spoken to measure the spectrum of espeak-ng."""
NUM_WORDS = 5000
"""Words of a language: the most frequent ones, or made-up ones."""
_LISTS = {"bs": "sh", "hr": "sh", "sr": "sh"}
"""Languages whose list has another name. wordfreq (Speer 2022) has lists of some 40 languages."""
_WORD = regex.compile(r"[\p{L}\p{M}\u200c\u200d'’]{2,8}|\p{Lo}")
"""A word that is used; short ones: two thirds of UCLA's have up to 5 phones."""
_MIN_SYLLABLES = 20
"""A voice that reads fewer syllables gets no made-up words."""
_MOST_PHONES = 6
"""A letter that is written three times has at most so many phones, unless it is read by its name."""
_NUM_BINS = 257
"""Bins of the spectra of a `Recording`."""
_DEFAULT_NOISE = 2e-3
"""Without real recordings: power of the noise floor, where the power of the speech is 1."""
_DEFAULT_PEAK_DB = (-15.0, -1.0)
"""Without real recordings: range of the clips' highest samples, in dB of full scale."""


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
        """Raises ValueError for hours that are not above 0, or not finite."""
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
    """Name → the recordings of one language; a clip imitates one of them."""
    engine_F: Floats
    """Long-term power spectrum (F,) of espeak-ng; F: bins of frequency."""

    def __call__(self, request: PhoneRequest) -> NDArray[np.float32] | None:
        """Samples (N,) at 16,000 Hz, or None when espeak-ng gives no sound for the text.

        The speech gets the spectrum of the imitated recordings, and in some clips a room. Then noise
        with the spectrum of their noise is added, and in some clips hum. All draws are made in a
        fixed order.
        """
        speech = espeak.render_speech(request)
        if speech is None:
            return None
        draw = np.random.default_rng(request.noise_seed)
        imitated = self.recordings[request.recording]
        num_before, _ = request.padding  # samples of silence before and after the speech
        padded = np.pad(speech, request.padding)
        wave = recording.match_spectrum(padded, self.engine_F, imitated.speech_F)
        if draw.random() < _ROOM_SHARE:
            decay_s = draw.uniform(0.1, 0.6)
            direct_db = draw.uniform(0.0, 15.0)
            wave = recording.add_room(wave, decay_s, direct_db, draw)
        noise = self._make_noise(request, len(wave), draw)
        spoken = wave[num_before : num_before + len(speech)]
        loudness = np.sqrt(np.square(spoken).mean())
        wave += noise * loudness
        return espeak.scale_to_peak(wave.astype(np.float32), request.peak_db)

    def _make_noise(
        self, request: PhoneRequest, num_samples: int, draw: np.random.Generator
    ) -> Floats:
        """The noise (N,) of a clip, in some clips with hum, for speech of power 1."""
        imitated = self.recordings[request.recording]
        # `noise_F` gives noise with the signal-to-noise ratio of the recordings. The clip has
        # another ratio: if it is lower, the noise is amplified.
        gain_db = imitated.snr_db - request.snr_db
        noise_gain = 10 ** (gain_db / 20)
        noise = recording.make_coloured_noise(imitated.noise_F, num_samples, draw) * noise_gain
        if draw.random() < _HUM_SHARE:
            mains_hz = draw.choice((50, 60))
            hum = recording.make_hum(num_samples, mains_hz, draw)  # of power 1, as the speech
            hum_db = draw.uniform(-50, -25)  # 25 to 50 dB below the speech
            noise += hum * 10 ** (hum_db / 20)
        return noise


@dataclass(frozen=True)
class VoicePlan:
    """The texts that a voice speaks, in order, with their phones."""

    lang: str
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Text → its phones."""
    rejected: list[Rejected] = field(default_factory=list)
    """Texts without a usable label."""
    is_made_up: bool = False


def run_phones(options: SimulationOptions) -> dict[str, Any]:
    """Speak the corpus in OUT/corpus and write its lists. Returns the content of `stats.json`.

    Clips of earlier requests are removed. Raises ConfigError if no voice can be used, and DataError
    if espeak-ng or wordfreq is missing, or the real recordings cannot be listed.
    """
    voices = choose_langs(options.langs, options.exclude_langs)
    real_utterances = read_data_list(options.match_list) if options.match_list else []
    # The simulated clips get the spellings of phones of the real transcripts, and the sound of the
    # real recordings.
    spelling = PhoneSpelling(utterance.txt for utterance in real_utterances)
    renderer = _make_renderer(real_utterances)
    plans, voices_not_used = _plan_voices(options, voices)
    corpus = options.out.absolute() / "corpus"
    maker = ClipMaker(corpus, "flac", options.num_workers, renderer)
    hours_of_lang = split_hours([plan.lang for plan in plans], options.hours)
    utterances: list[Utterance] = []
    rejected: list[Rejected] = []
    for plan in plans:
        clips = speak_training(
            maker,
            draw_words(plan, renderer.recordings, seed=options.seed),
            target_s=hours_of_lang[plan.lang] * 3600,
            pace=_PACE_S,
            num_sentences=len(plan.texts),
        )
        spoken, silent = _read_clips(plan, clips, corpus / plan.lang / "clips", spelling)
        utterances += spoken
        rejected += silent + plan.rejected
    # Clips are removed now, and stats.json certifies that the lists match the clips.
    (options.out / "stats.json").unlink(missing_ok=True)
    clip_names = {Path(utterance.wav).name for utterance in utterances}
    espeak.remove_other_clips(corpus.glob("*/clips"), clip_names)
    return write_corpus(
        options.out,
        _split_sets(utterances, options.seed),
        rejected,
        facts={
            "corpus": "synthetic phones (simulated speech)",
            "simulated": True,
            "engine": f"espeak-ng {espeak.installed_voices().version}",
            "options": recorded_options(options, SimulationOptions),
            "voices_not_used": voices_not_used,
            "recordings": list(renderer.recordings),
        },
        langs={plan.lang: _describe_voice(plan) for plan in plans},
        unit="phone",
    )


def _make_renderer(real_utterances: Sequence[Utterance]) -> PhoneRenderer:
    """The renderer of clips that sound like the recordings of these utterances.

    Without utterances the clips keep the spectrum of espeak-ng, and get a usual white noise and
    level.
    """
    engine_F = _measure_engine()
    recordings = recording.measure_recordings(real_utterances)
    if not recordings:
        noise_F = np.full(_NUM_BINS, _DEFAULT_NOISE)
        # Its name is empty, because it is of no language.
        recordings = {"": Recording(engine_F, noise_F, _DEFAULT_PEAK_DB)}
    return PhoneRenderer(recordings, engine_F)


def _describe_voice(plan: VoicePlan) -> dict[str, str]:
    """The facts of a voice for `stats.json`."""
    words = "made up" if plan.is_made_up else "wordfreq"
    return {"voice": voice_name(plan.lang), "words": words}


def _read_clips(
    plan: VoicePlan, clips: Sequence[SpokenClip], folder: Path, spelling: PhoneSpelling
) -> tuple[list[Utterance], list[Rejected]]:
    """The clips of a voice in `folder` as utterances, and those without a sound."""
    utterances = list[Utterance]()
    silent = list[Rejected]()
    for clip in clips:
        key = f"{plan.lang}_{Path(clip.name).stem}"
        wav = str(folder / clip.name)
        text = clip.request.sentence
        if clip.duration_s is None:
            silent.append(
                Rejected(key=key, path=wav, reason=f"{clip.reason}: {text}", lang=plan.lang)
            )
        else:
            utterances.append(
                Utterance(
                    key=key,
                    wav=wav,
                    txt=spelling.spell(plan.texts[text]),
                    lang=plan.lang,
                    duration=clip.duration_s,
                )
            )
    return utterances, silent


# ---- voices and their texts


class ChosenVoices(NamedTuple):
    """The languages whose voices are used, and the others."""

    chosen: list[str]
    unused: dict[str, str]
    """Language → why its voice is not used. Languages that are not in --langs are not listed."""


def choose_langs(langs: Sequence[str], exclude: Sequence[str]) -> ChosenVoices:
    """The languages whose voices are used, and the reason for each other one.

    A voice with several codes is named by the shortest one.

    Args:
        langs: the languages to use; empty: all languages.
        exclude: the languages not to use. Both are codes of languages (`pt` is also `pt-br`), or of
            the families by which espeak-ng sorts its voices (ISO 639-5, such as `sem`).
    Raises ConfigError for a code that no voice has, and if no voice is left.
    """
    names_of_voice = _name_voices()  # shortest code of a voice → all its codes and its family
    known_names = set[str]().union(*names_of_voice.values())
    for flag, wanted in (("--langs", langs), ("--exclude_langs", exclude)):
        unknown = set(wanted) - known_names
        if unknown:
            where = f"{flag} {' '.join(sorted(unknown))}"
            to_do = f"the voices are {' '.join(sorted(names_of_voice))}"
            raise ConfigError(where, "no voice or family of espeak-ng", to_do)
    chosen = list[str]()
    unused = dict[str, str]()
    for lang, names in sorted(names_of_voice.items()):
        reason = _find_reason_against(lang, names, exclude)
        if reason is not None:
            unused[lang] = reason
        elif not langs or names & set(langs):
            chosen.append(lang)
    if not chosen:
        raise ConfigError(f"--langs {' '.join(langs)}", f"no voice is left; {unused}")
    return ChosenVoices(chosen, unused)


def _find_reason_against(lang: str, names: Set[str], exclude: Sequence[str]) -> str | None:
    """Why the voice `lang` must not be used, or None. It is excluded, or its phones are not usable.

    Args:
        names: all codes of the voice and its family.
        exclude: the codes and families that the user excludes.
    """
    excluded_names = names & set(exclude)
    if excluded_names:
        return f"excluded by --exclude_langs {' '.join(sorted(excluded_names))}"
    language = lang.partition("-")[0]  # `pt` of `pt-br`
    return UNUSABLE.get(lang) or UNUSABLE.get(language)


def _name_voices() -> dict[str, set[str]]:
    """The shortest code of each voice → all names of it: codes, language, and family."""
    codes_of_voice = defaultdict[str, list[str]](list)
    for code, voice in espeak.installed_voices().name_of.items():
        codes_of_voice[voice].append(code)
    names_of = {}
    for voice, codes in codes_of_voice.items():
        shortest = min(codes, key=lambda code: (len(code), code))
        language = shortest.partition("-")[0]
        family = voice.partition("/")[0]
        names_of[shortest] = {*codes, language, family}
    return names_of


def _plan_voices(
    options: SimulationOptions, voices: ChosenVoices
) -> tuple[list[VoicePlan], dict[str, str]]:
    """A plan per chosen voice that can read enough words, and the reason for each other voice.

    Raises ConfigError if no voice can read enough words.
    """
    langs = voices.chosen
    # A clip lasts about a second.
    num_texts = math.ceil(options.hours * 3600 / len(langs)) + _MIN_WORDS
    all_plans = parallel_map(
        partial(plan_voice, num_texts=num_texts, seed=options.seed),
        langs,
        # For some voices espeak-ng crashes and ends its process, so this one must not be used.
        num_workers=max(1, options.num_workers),
        description="words and labels",
        on_crash=VoicePlan,  # a voice that crashed gets a plan without texts
    )
    plans = list[VoicePlan]()
    unused = dict(voices.unused)
    for plan in all_plans:
        if len(plan.texts) >= _MIN_WORDS:
            plans.append(plan)
        else:
            unused[plan.lang] = (
                f"only {len(plan.texts)} words with labels, {len(plan.rejected)} without"
            )
    if not plans:
        raise ConfigError(f"--langs {' '.join(langs)}", f"no voice can be used; {unused}")
    return plans, unused


def plan_voice(lang: str, *, num_texts: int, seed: int) -> VoicePlan:
    """The first `num_texts` texts of a voice that have a usable label, in random order.

    With a larger number the first texts are the same, because they are drawn one after the other.
    Texts without a usable label that come before the last text are rejected.
    """
    voice = voice_name(lang)
    words, is_made_up = read_words(lang, voice, seed=seed)
    draw = random.Random(f"{seed}/{lang}/texts")
    draw.shuffle(words)
    texts = dict[str, None]()  # a set that keeps the order
    for word in words[: 3 * num_texts]:  # more than are needed: some have no usable label
        is_phrase = draw.random() < _PHRASE_SHARE
        text = word
        if is_phrase:
            text += f" {draw.choice(words)}"
        texts[text] = None
    plan = VoicePlan(lang, is_made_up=is_made_up)
    for text, label in zip(texts, phonemize([*texts], voice=voice), strict=True):
        if len(plan.texts) == num_texts:
            break
        try:
            plan.texts[text] = split_label(label, lang)
        except ValueError as error:
            plan.rejected.append(
                Rejected(key=f"{lang}:{text}", path="", reason=str(error), lang=lang)
            )
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
    frequent_words = wordfreq.top_n_list(name, 2 * NUM_WORDS)
    words = [word for word in frequent_words if _WORD.fullmatch(word)]
    return words[:NUM_WORDS], False


def make_up_words(lang: str, voice: str, *, seed: int) -> list[str]:
    """Different words of one to three syllables, some with a final consonant.

    There are none if the voice reads too few syllables, and fewer than `NUM_WORDS` because some
    draws are equal.
    """
    syllables = find_syllables(lang, voice)
    if len(syllables) < _MIN_SYLLABLES:
        return []
    draw = random.Random(f"{seed}/{lang}")
    words = dict[str, None]()  # a set that keeps the order
    for _ in range(NUM_WORDS):
        num_syllables = draw.choice((1, 1, 2, 2, 2, 3))  # most words have two
        parts = [draw.choice(syllables) for _ in range(num_syllables)]
        # 40 % of the words end with the consonant of a further syllable.
        final_consonant = draw.choice(syllables)[0] if draw.random() < 0.4 else ""
        words["".join(parts) + final_consonant] = None
    return list(words)


def find_syllables(lang: str, voice: str) -> list[str]:
    """Syllables that the voice reads: a letter for a consonant, and a letter or sign for a vowel.

    There is one per sound. All are of one script, the one with the most such syllables.
    """
    best: list[str] = []
    for characters in _list_scripts():
        syllables = _find_syllables_of_script(characters, lang, voice)
        if len(syllables) > len(best):
            best = syllables
    return best


def _find_syllables_of_script(characters: Sequence[str], lang: str, voice: str) -> list[str]:
    """The pairs of these characters that the voice reads as consonant and vowel, one per sound.

    Two tests leave out what the voice does not read as letters of a word:
    1. A letter that the voice reads by its name. It is written three times: `bbb` has few phones,
       and read as `bee bee bee` it has more than `_MOST_PHONES`. Marks, such as vowel signs, are
       only read after a letter, so they are not tested; they can only be the second of a pair.
    2. A pair that is not a consonant and a vowel. It is written twice: `baba` must give consonant,
       vowel, consonant, vowel.
    """
    labels = phonemize([3 * character for character in characters], voice=voice)
    usable = []
    for character, label in zip(characters, labels, strict=True):
        num_phones = len(_describe_sounds(label, lang))
        # No phones: the label cannot be used.
        is_read_as_letter = 0 < num_phones <= _MOST_PHONES
        if is_read_as_letter or _is_mark(character):
            usable.append(character)
    letters = [character for character in usable if not _is_mark(character)]
    pairs = [first + second for first, second in product(letters, usable)]
    pair_of_sound: dict[str, str] = {}
    doubled_labels = phonemize([2 * pair for pair in pairs], voice=voice)
    for pair, label in zip(pairs, doubled_labels, strict=True):
        if _describe_sounds(label, lang) == "CVCV":
            pair_of_sound.setdefault(label, pair)
    return list(pair_of_sound.values())


@cache
def _list_scripts() -> list[list[str]]:
    """The lower-case letters, letters without case, and marks of each script.

    The first word of a character's Unicode name is the script.
    """
    scripts = defaultdict[str, list[str]](list)
    # Latin from `a`, and the scripts from Greek to Georgian; without Hangul and Chinese.
    code_points = (*range(0x61, 0x180), *range(0x370, 0x1100))
    for character in map(chr, code_points):
        if unicodedata.category(character) in ("Ll", "Lo", "Mn", "Mc"):
            scripts[unicodedata.name(character).partition(" ")[0]].append(character)
    return list(scripts.values())


def _is_mark(character: str) -> bool:
    """Whether a character is a sign at a letter, such as a vowel sign or an accent."""
    return unicodedata.category(character).startswith("M")


def _describe_sounds(label: str, lang: str) -> str:
    """The label as C (consonant) and V (vowel) per phone; empty if it cannot be used."""
    try:
        return "".join("V" if phone[0] in VOWELS else "C" for phone in split_label(label, lang))
    except ValueError:
        return ""


# ---- clips


def split_hours(langs: Sequence[str], hours: float) -> dict[str, float]:
    """Hours per voice: languages have equal shares, which their accents (`en-us`) share equally."""
    language_of = {lang: lang.partition("-")[0] for lang in langs}
    num_accents_of = Counter(language_of.values())
    hours_per_language = hours / len(num_accents_of)
    return {lang: hours_per_language / num_accents_of[language_of[lang]] for lang in langs}


def draw_words(
    plan: VoicePlan, recordings: Mapping[str, Recording], *, seed: int
) -> Iterator[PhoneRequest]:
    """Every text once, then every text again by other speakers, and so on, without end."""
    for turn in count():
        for text in plan.texts:
            draw = random.Random(f"{seed}/{plan.lang}/{text}/{turn}")
            name = draw.choice([*recordings])
            imitated = recordings[name]
            yield PhoneRequest(
                lang=plan.lang,
                sentence=text,
                voice=draw.choice(list(espeak.VOICES)),
                rate_wpm=draw.randint(80, 150),  # words without a sentence are slow
                pitch=draw.randint(20, 80),
                pitch_range=draw.randint(20, 80),
                lead_s=round(draw.uniform(0.01, 0.22), 3),
                trail_s=round(draw.uniform(0.01, 0.42), 3),
                peak_db=round(draw.uniform(*imitated.peak_db), 2),
                noise="white",
                snr_db=round(imitated.snr_db + draw.uniform(-6.0, 6.0), 2),
                noise_seed=draw.getrandbits(32),
                tract=round(draw.uniform(0.86, 1.18), 3),
                recording=name,
            )


def _measure_engine() -> Floats:
    """The long-term power spectrum (F,) of espeak-ng, the mean of its variants in English."""
    waves = [
        espeak.speak(_TUNING_SENTENCE, voice=voice_name("en", variant)) for variant in espeak.VOICES
    ]
    resampled = [
        soxr.resample(wave, espeak.ENGINE_RATE, espeak.SAMPLE_RATE).astype(np.float64)
        for wave in waves
    ]
    return recording.measure_recording(resampled).speech_F


def _split_sets(utterances: Sequence[Utterance], seed: int) -> dict[str, list[Utterance]]:
    """The clips of a random share of the transcripts become the dev set, at least one transcript.

    The clips of both sets are in the order of their keys.
    """
    transcripts = sorted(
        {utterance.txt for utterance in utterances}, key=partial(rank, seed, "dev")
    )
    num_dev = max(1, round(_DEV_SHARE * len(transcripts)))
    dev_transcripts = set(transcripts[:num_dev])
    by_key = sorted(utterances, key=lambda utterance: utterance.key)
    return {
        "train": [u for u in by_key if u.txt not in dev_transcripts],
        "dev": [u for u in by_key if u.txt in dev_transcripts],
    }
