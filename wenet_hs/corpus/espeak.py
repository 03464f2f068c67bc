# SPDX-License-Identifier: Apache-2.0
"""Clips spoken by espeak-ng: the engine, the sound of a request, and its file.

The same request gives the same samples, whatever was spoken before. The library comes from PyPI's
`espeakng-loader` (an extra: espeak-ng is GPL). It keeps flutter, wave phase and noise from one
sentence to the next, and no call of its interface resets them. So each sentence gets a newly loaded
library: about half a millisecond, where a sentence takes one to five.
"""

import _ctypes
import atexit
import ctypes
import difflib
import hashlib
import io
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from wenet_hs.corpus.audio_check import parallel_map
from wenet_hs.data.audio import AudioError, read_duration
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

SAMPLE_RATE = 16000  # Hz, of the clips
ClipFormat = Literal["flac", "wav", "mp3"]
SUBTYPES: dict[ClipFormat, str] = {"flac": "PCM_16", "wav": "PCM_16", "mp3": "MPEG_LAYER_III"}
_RENDERING = 2  # part of a clip's name: increase it when the same request sounds different, so that clips are made anew
_RENEW = 2000  # clips per process: espeak-ng leaks 0.2 MB per sentence in two alphabets

ENGINE_RATE = 22050  # Hz, of every voice of the engine
_INSTALL = "`pip install 'wenet_hs[synthetic]'`"
_SYNCHRONOUS, _DONT_EXIT = 2, 0x8000  # espeak_AUDIO_OUTPUT, espeakINITIALIZE_DONT_EXIT
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4  # espeak_PARAMETER
_IPA = 2  # phoneme mode of espeak_TextToPhonemes; bits 8 to 23 are the separator
_LOCK = threading.Lock()  # one engine at a time: two threads would share the library's globals

_SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


# espeak-ng variants that sound like different people. Of its 104, those are left out that whisper,
# croak, have an echo, clip inside the engine, are muffled (spectral centroid < 400 Hz) or nearly
# repeat another one; `tests/corpus/test_synthetic.py` measures the rest.
VOICES: dict[str, str] = {
    **{f"m{number}": "male" for number in range(1, 9)},
    **{name: "male" for name in ("Alex", "Mario", "max", "pablo", "rob")},
    **{f"f{number}": "female" for number in range(1, 6)},
    **{name: "female" for name in ("Alicia", "Annie", "aunty", "belinda", "grandma", "shelby")},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipRequest:
    """Everything that determines how a clip sounds."""

    lang: str
    sentence: str
    voice: str
    """espeak-ng variant."""
    rate_wpm: int
    """80 to 450."""
    pitch: int
    """0 to 99, 50 is the speaker's own."""
    pitch_range: int
    """0 (monotone) to 99, 50 is the speaker's own."""
    lead_s: float
    """Silence before the first sound, seconds."""
    trail_s: float
    peak_db: float
    """Highest sample of the mixture, dB of full scale."""
    noise: Literal["white", "pink"]
    snr_db: float
    """Energy of the speech over that of the noise, over the spoken part."""
    noise_seed: int
    tract: float = 1.0
    """Factor of formants, pitch and rate: > 1 for a shorter vocal tract, < 1 for a longer one."""

    @property
    def padding(self) -> tuple[int, int]:
        """Samples of silence before and after the speech."""
        return round(self.lead_s * SAMPLE_RATE), round(self.trail_s * SAMPLE_RATE)


@dataclass(frozen=True, slots=True)
class SpokenClip:
    """A request and its file."""

    request: ClipRequest
    name: str
    """File name. It contains a digest of the request, so a file of that name is that clip."""
    duration_s: float | None
    """None: there is no file, for the reason given."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClipMaker:
    """Makes clips in processes; the files do not depend on their number."""

    corpus: Path
    """Clips of a language go to `corpus/<lang>/clips`."""
    audio_format: ClipFormat = "flac"
    num_workers: int = 0
    renderer: Callable[[Any], NDArray[np.float32] | None] | None = None
    """Makes the samples of a request; None: `render_clip`. It must be picklable."""

    def __call__(self, request: ClipRequest) -> SpokenClip:
        """The clip of one request, made in this process unless its file is complete."""
        name = clip_name(request, self.audio_format)
        path = self.corpus / request.lang / "clips" / name
        duration_s = _read_duration(path)
        if duration_s is None:
            samples = (self.renderer or render_clip)(request)
            if samples is None:
                return SpokenClip(request, name, None, "silent: espeak-ng gives no sound for it")
            encoded = io.BytesIO()
            subtype = SUBTYPES[self.audio_format]
            soundfile.write(
                encoded, samples, SAMPLE_RATE, format=self.audio_format.upper(), subtype=subtype
            )
            write_atomic(path, encoded.getvalue())
            duration_s = _read_duration(path)
        return SpokenClip(request, name, duration_s)

    def make(self, requests: Sequence[ClipRequest], description: str) -> Iterator[SpokenClip]:
        """A clip for each request, in the order of the requests, with a progress bar."""

        def report_crash(request: ClipRequest) -> SpokenClip:
            reason = "crash: espeak-ng ended its process on this sentence"
            return SpokenClip(request, clip_name(request, self.audio_format), None, reason)

        batch = _RENEW * max(1, self.num_workers)
        for start in range(0, len(requests), batch):
            some, workers = requests[start : start + batch], self.num_workers
            yield from parallel_map(
                self, some, num_workers=workers, description=description, on_crash=report_crash
            )


def clip_name(request: ClipRequest, audio_format: str) -> str:
    """`simulated_<digest>.<format>`: another request, engine or rendering has another name."""
    fields = [_RENDERING, installed_voices()[0], SAMPLE_RATE, asdict(request)]
    digest = hashlib.sha256(
        json.dumps(fields, sort_keys=True, ensure_ascii=False).encode("utf-8")
    ).hexdigest()[:16]
    return f"simulated_{digest}.{audio_format}"


def _read_duration(path: Path) -> float | None:
    """Seconds that the file's header declares; None for no file, or an incomplete one after a power
    failure.
    """
    try:
        return read_duration(path)
    except AudioError:
        return None


def render_clip(request: ClipRequest) -> NDArray[np.float32] | None:
    """Samples (num_samples,) at 16,000 Hz in [-1, 1], or None when espeak-ng gives no sound for the
    sentence.
    """
    speech = render_speech(request)
    if speech is None:
        return None
    padding = request.padding
    noise = make_noise(request.noise, len(speech) + sum(padding), seed=request.noise_seed)
    loudness = float(np.sqrt(np.mean(np.square(speech))))
    mixture = np.pad(speech, padding) + noise * np.float32(loudness * 10 ** (-request.snr_db / 20))
    return scale_to_peak(mixture, request.peak_db)


def scale_to_peak(wave: NDArray[np.float32], peak_db: float) -> NDArray[np.float32]:
    """The wave (num_samples,) whose highest sample has `peak_db` dB of full scale."""
    scaled: NDArray[np.float32] = wave * np.float32(10 ** (peak_db / 20) / np.abs(wave).max())
    return scaled


def render_speech(request: ClipRequest) -> NDArray[np.float32] | None:
    """The speech of a request (num_samples,) at 16,000 Hz, without silence at its ends; None if
    there is no sound.
    """
    spoken = speak(
        request.sentence,
        voice=voice_name(request.lang, request.voice),
        rate_wpm=request.rate_wpm,
        pitch=request.pitch,
        pitch_range=request.pitch_range,
    )
    peak = float(np.abs(spoken).max(initial=0.0))
    if peak < 1e-3:
        return None
    audible = np.flatnonzero(np.abs(spoken) > 3e-3 * peak)  # −50 dB, below the softest consonant
    speech: NDArray[np.float32] = soxr.resample(
        spoken[audible[0] : audible[-1] + 1], ENGINE_RATE * request.tract, SAMPLE_RATE
    )
    return speech


def make_noise(
    kind: Literal["white", "pink"], num_samples: int, *, seed: int
) -> NDArray[np.float32]:
    """Noise (num_samples,) of unit energy; "pink" has equal energy in each octave."""
    draw = np.random.default_rng(seed)
    if kind == "white":
        noise = draw.standard_normal(num_samples, dtype=np.float32)
    else:
        period = (
            -(-num_samples // 2048) * 2048
        )  # a length with a large prime factor makes the FFT ten times slower
        real, imaginary = draw.standard_normal((2, period // 2), dtype=np.float32)
        spectrum = np.zeros(period // 2 + 1, dtype=np.complex64)
        spectrum[1:] = (real + 1j * imaginary) / np.sqrt(
            np.arange(1, period // 2 + 1, dtype=np.float32)
        )
        noise = np.fft.irfft(spectrum, period)[:num_samples].astype(np.float32)
    unit: NDArray[np.float32] = noise / np.sqrt(np.mean(np.square(noise)))
    return unit


def check_sound(clips: Sequence[SpokenClip]) -> None:
    if not total_seconds(clips):
        request = clips[0].request
        raise DataError(
            request.lang, f"espeak-ng gives no sound for any sentence, such as {request.sentence!r}"
        )


def total_seconds(clips: Iterable[SpokenClip]) -> float:
    return sum(clip.duration_s or 0.0 for clip in clips)


def speak_training(
    maker: ClipMaker,
    requests: Iterator[ClipRequest],
    target_s: float,
    pace: float,
    num_sentences: int,
) -> list[SpokenClip]:
    """Clips of the first requests that have `target_s` seconds in total; the result does not depend
    on `pace`.

    Args:
        pace: expected seconds per letter, which sets the number of requests per round.
        num_sentences: after so many clips without a sound it raises DataError.
    """
    clips: list[SpokenClip] = []
    total_s = 0.0
    while total_s < target_s:
        wanted: list[ClipRequest] = []
        planned_s = total_s
        while planned_s < target_s:
            wanted.append(next(requests))
            planned_s += pace * len(wanted[-1].sentence)
        for clip in maker.make(wanted, f"{wanted[0].lang}: speak train"):
            if total_s < target_s:
                clips.append(clip)
                total_s += clip.duration_s or 0.0
        if len(clips) >= num_sentences:
            check_sound(clips)
    return clips


def remove_other_clips(folders: Iterable[Path], names: Collection[str]) -> None:
    """Remove all files but these that a `ClipMaker` made in the folders."""
    for folder in folders:
        for path in (*folder.glob("simulated_*"), *folder.glob(".simulated_*.tmp")):
            if path.name not in names:
                path.unlink()


# ---- engine


def speak(
    text: str, *, voice: str, rate_wpm: int = 175, pitch: int = 50, pitch_range: int = 50
) -> NDArray[np.float32]:
    """One sentence, plain text, as samples (samples,) at 22,050 Hz in [-1, 1]; empty when there is
    nothing to say.

    `voice` is the engine's name of a speaker, see `voice_name`; the ranges of the others are those
    of `ClipRequest`.
    Raises DataError when espeak-ng is missing.
    """
    chunks: list[bytes] = []

    def collect(samples: int | None, num_samples: int, _events: int | None) -> int:
        if samples and num_samples:
            chunks.append(ctypes.string_at(samples, 2 * num_samples))
        return 0

    callback = _SynthCallback(collect)
    with _load_engine() as engine:
        engine.espeak_SetSynthCallback(callback)
        _check(engine.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for parameter, value in (
            (_RATE, rate_wpm),
            (_VOLUME, 100),
            (_PITCH, pitch),
            (_RANGE, pitch_range),
        ):
            _check(
                engine.espeak_SetParameter(parameter, value, 0), f"parameter {parameter} = {value}"
            )
        encoded = text.encode("utf-8")
        _check(
            engine.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, 1, None, None), f"text {text!r}"
        )  # UTF-8
        _check(engine.espeak_Synchronize(), "end of speech")
    return np.frombuffer(b"".join(chunks), dtype=np.int16).astype(np.float32) / np.float32(32768)


def phonemize(texts: Sequence[str], *, voice: str) -> list[str]:
    """The label of each text: names of phonemes, mostly IPA, with `_` between them and a space
    between words.

    It has stress marks, and "(en)" where another voice begins. Raises DataError when espeak-ng is
    missing.
    """
    labels = []
    with _load_engine() as engine:
        engine.espeak_TextToPhonemes.restype = ctypes.c_char_p
        _check(engine.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for text in texts:
            rest, clauses = ctypes.c_char_p(text.encode("utf-8")), []
            while rest.value is not None:  # each call reads one clause
                clauses.append(
                    engine.espeak_TextToPhonemes(
                        ctypes.byref(rest), 1, _IPA | ord("_") << 8
                    ).decode()
                )
            labels.append(" ".join(clauses))
    return labels


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"espeak-ng refused {what} (status {status})")


def voice_name(lang: str, variant: str | None = None) -> str:
    """The engine's name of a speaker of a language, such as "roa/es+f2".

    Raises DataError for an unknown language.
    """
    version, voices = installed_voices()
    if lang not in voices:
        similar = difflib.get_close_matches(lang, voices, n=5, cutoff=0.3) or sorted(voices)
        raise DataError(
            f"espeak-ng {version}", f"it has no language {lang!r}", f"it has {' '.join(similar)}"
        )
    return voices[lang] + (f"+{variant}" if variant else "")


@cache
def installed_voices() -> tuple[str, Mapping[str, str]]:
    """The version of espeak-ng, and its voices: language code → the engine's name, such as "es" →
    "roa/es".

    Raises DataError when it is not installed.
    """
    with _load_engine() as engine:
        version = engine.espeak_Info(None).decode()
    ranked: dict[str, tuple[int, str]] = {}
    folder = Path(_find_library()[1]) / "lang"
    for path in filter(Path.is_file, folder.rglob("*")):
        for line in path.read_text("utf-8").splitlines():
            if line.startswith("language "):
                code, priority = [*line.split()[1:], "5"][
                    :2
                ]  # the lowest priority is the best voice
                voice = int(priority), path.relative_to(folder).as_posix()
                ranked[code] = min(ranked.get(code, voice), voice)
    return version, {code: name for code, (_, name) in sorted(ranked.items())}


@contextmanager
def _load_engine() -> Iterator[ctypes.CDLL]:
    """A newly loaded library; unloaded at the end of the block."""
    library, data = _find_library()
    with _LOCK:
        try:
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:  # not loaded, as it should be
            engine = ctypes.CDLL(library)
        else:
            _ctypes.dlclose(loaded._handle)
            fault = "already loaded in this process, so that speech would not be reproducible"
            raise DataError(library, fault, "run `prepare synthetic` in a process of its own")
        try:
            engine.espeak_Info.restype = ctypes.c_char_p
            rate = engine.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), _DONT_EXIT)
            found = ctypes.c_char_p()
            engine.espeak_Info(ctypes.byref(found))
            if rate != ENGINE_RATE or found.value != data.encode():
                raise DataError(
                    data, "espeak-ng cannot read its data there", f"reinstall with {_INSTALL}"
                )
            engine.espeak_ng_SetRandSeed(ctypes.c_long(1))
            ctypes.CDLL(None).srand(1)  # the C library's random numbers, which some variants use
            yield engine
        finally:
            engine.espeak_Terminate()
            _ctypes.dlclose(engine._handle)


@cache
def _find_library() -> tuple[str, str]:
    """Paths of the library and of its data. Raises DataError when they are not installed."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise DataError("espeak-ng", "not installed", f"run {_INSTALL}") from error
    data: str = espeakng_loader.get_data_path()
    # The library cuts the paths of its files at 160 bytes: a long folder gets a link in the
    # temporary folder.
    if len(os.fsencode(data)) > 120:
        folder = Path(tempfile.mkdtemp(prefix="espeak-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        link = folder / "espeak-ng-data"
        link.symlink_to(data, target_is_directory=True)
        data = str(link)
    return espeakng_loader.get_library_path(), data
