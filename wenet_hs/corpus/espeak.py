# SPDX-License-Identifier: Apache-2.0
"""Clips spoken by espeak-ng: a request, its sound, its file, and the engine.

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
import math
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from wenet_hs.corpus.audio_check import parallel_map
from wenet_hs.data.audio import AudioError, read_duration
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

SAMPLE_RATE = 16000
"""Hz, of the clips."""
ClipFormat = Literal["flac", "wav", "mp3"]
SUBTYPES: dict[ClipFormat, str] = {"flac": "PCM_16", "wav": "PCM_16", "mp3": "MPEG_LAYER_III"}
_RENDERING = 2
"""Version of the sound, in the digest of each clip's name.

Increase it when the same request sounds different, so that all clips are made again.
"""
_CLIPS_PER_PROCESS = 2000
"""espeak-ng leaks 0.2 MB per sentence in two alphabets, so processes are renewed."""
_SILENT_PEAK = 1e-3
"""A sentence whose samples are all below it has no sound."""
_AUDIBLE = 3e-3
"""A sample above this share of the highest one is audible: -50 dB, softer than any consonant."""
_FFT_STEP = 2048
"""Lengths of FFTs are multiples of this: a large prime factor makes an FFT ten times slower."""

ENGINE_RATE = 22050
"""Hz, of every voice of the engine."""
_INSTALL = "`pip install 'wenet_hs[synthetic]'`"

# Constants of the header speak_lib.h of espeak-ng.
_SYNCHRONOUS = 2  # AUDIO_OUTPUT_SYNCHRONOUS: samples go to a callback
_DONT_EXIT = 0x8000  # espeakINITIALIZE_DONT_EXIT: a fault of the data does not end the process
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4  # espeak_PARAMETER
_IPA = 2  # phoneme mode of espeak_TextToPhonemes; bits 8 to 23 are the separator
_UTF_8 = 1  # espeakCHARS_UTF8
_CHARACTERS = 1  # POS_CHARACTER: the position 0, where it begins, is a number of characters

_MAX_DATA_PATH = 120
"""Bytes of the path of the engine's data, so that those of the files in it are below 160."""
_LOCK = threading.Lock()
"""One engine at a time: two threads would share the library's globals."""

_SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)

VOICES: dict[str, str] = {
    **{f"m{number}": "male" for number in range(1, 9)},
    **{name: "male" for name in ("Alex", "Mario", "max", "pablo", "rob")},
    **{f"f{number}": "female" for number in range(1, 6)},
    **{name: "female" for name in ("Alicia", "Annie", "aunty", "belinda", "grandma", "shelby")},
}
"""espeak-ng variants that sound like different people → gender.

Of its 104, those are left out that whisper, croak, have an echo, clip inside the engine, are
muffled (spectral centroid < 400 Hz) or nearly repeat another one; `tests/corpus/test_synthetic.py`
measures the rest.
"""


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
        """The clip of one request, made in this process unless its file is complete.

        A clip without a sound gets no file.
        """
        name = clip_name(request, self.audio_format)
        path = self.corpus / request.lang / "clips" / name
        duration_s = _read_duration(path)
        if duration_s is None:
            render = self.renderer or render_clip
            samples = render(request)
            if samples is None:
                reason = "silent: espeak-ng gives no sound for it"
                return SpokenClip(request, name, duration_s=None, reason=reason)
            write_atomic(path, self._encode(samples))
            duration_s = _read_duration(path)
        return SpokenClip(request, name, duration_s)

    def _encode(self, samples: NDArray[np.float32]) -> bytes:
        """The content of the file of samples (N,)."""
        encoded = io.BytesIO()
        soundfile.write(
            encoded,
            samples,
            SAMPLE_RATE,
            format=self.audio_format.upper(),
            subtype=SUBTYPES[self.audio_format],
        )
        return encoded.getvalue()

    def make(self, requests: Sequence[ClipRequest], description: str) -> Iterator[SpokenClip]:
        """A clip for each request, in the order of the requests, with a progress bar.

        A clip whose process ends has no file. `description` is the text before the progress bar.
        """

        def report_crash(request: ClipRequest) -> SpokenClip:
            name = clip_name(request, self.audio_format)
            reason = "crash: espeak-ng ended its process on this sentence"
            return SpokenClip(request, name, duration_s=None, reason=reason)

        # Each batch has new processes, because espeak-ng leaks memory.
        batch_size = _CLIPS_PER_PROCESS * max(1, self.num_workers)
        for start in range(0, len(requests), batch_size):
            yield from parallel_map(
                self,
                requests[start : start + batch_size],
                num_workers=self.num_workers,
                description=description,
                on_crash=report_crash,
            )


def clip_name(request: ClipRequest, audio_format: str) -> str:
    """`simulated_<digest>.<format>`: another request, engine or rendering has another name."""
    identity = [_RENDERING, installed_voices().version, SAMPLE_RATE, asdict(request)]
    content = json.dumps(identity, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(content.encode("utf-8")).hexdigest()[:16]
    return f"simulated_{digest}.{audio_format}"


def _read_duration(path: Path) -> float | None:
    """Seconds that the file's header declares.

    None if there is no file, or an incomplete one, as after a power failure.
    """
    try:
        return read_duration(path)
    except AudioError:
        return None


# ---- sound


def render_clip(request: ClipRequest) -> NDArray[np.float32] | None:
    """Samples (N,) at 16,000 Hz in [-1, 1]: speech with silence at its ends and noise.

    None when espeak-ng gives no sound for the sentence.
    """
    speech = render_speech(request)
    if speech is None:
        return None
    padding = request.padding
    noise = make_noise(request.noise, len(speech) + sum(padding), seed=request.noise_seed)
    loudness = float(np.sqrt(np.mean(np.square(speech))))
    noise_gain = np.float32(loudness * 10 ** (-request.snr_db / 20))  # the noise has unit energy
    mixture = np.pad(speech, padding) + noise * noise_gain
    return scale_to_peak(mixture, request.peak_db)


def scale_to_peak(wave: NDArray[np.float32], peak_db: float) -> NDArray[np.float32]:
    """The wave (N,), scaled so that its highest sample has `peak_db` dB of full scale."""
    wanted_peak = 10 ** (peak_db / 20)
    scaled: NDArray[np.float32] = wave * np.float32(wanted_peak / np.abs(wave).max())
    return scaled


def render_speech(request: ClipRequest) -> NDArray[np.float32] | None:
    """The speech of a request (N,) at 16,000 Hz, without silence at its ends.

    None if espeak-ng gives no sound.
    """
    spoken = speak(
        request.sentence,
        voice=voice_name(request.lang, request.voice),
        rate_wpm=request.rate_wpm,
        pitch=request.pitch,
        pitch_range=request.pitch_range,
    )
    peak = float(np.abs(spoken).max(initial=0.0))
    if peak < _SILENT_PEAK:
        return None
    audible = np.flatnonzero(np.abs(spoken) > _AUDIBLE * peak)
    without_silence = spoken[audible[0] : audible[-1] + 1]
    # The samples are taken for samples of another rate: formants, pitch and pace change by `tract`.
    pretended_rate = ENGINE_RATE * request.tract
    speech: NDArray[np.float32] = soxr.resample(without_silence, pretended_rate, SAMPLE_RATE)
    return speech


def make_noise(
    kind: Literal["white", "pink"], num_samples: int, *, seed: int
) -> NDArray[np.float32]:
    """Noise (N,) of unit energy; "pink" has equal energy in each octave."""
    draw = np.random.default_rng(seed)
    if kind == "white":
        noise = draw.standard_normal(num_samples, dtype=np.float32)
    else:
        noise = _draw_pink_noise(num_samples, draw)
    unit: NDArray[np.float32] = noise / np.sqrt(np.mean(np.square(noise)))
    return unit


def _draw_pink_noise(num_samples: int, draw: np.random.Generator) -> NDArray[np.float32]:
    """Noise (N,) whose power is 1 / frequency, so that octaves have equal energy.

    Its spectrum is drawn; the bin of 0 Hz stays 0.
    """
    fft_length = math.ceil(num_samples / _FFT_STEP) * _FFT_STEP
    num_bins = fft_length // 2
    real, imaginary = draw.standard_normal((2, num_bins), dtype=np.float32)
    frequencies = np.arange(1, num_bins + 1, dtype=np.float32)
    spectrum = np.zeros(num_bins + 1, dtype=np.complex64)
    spectrum[1:] = (real + 1j * imaginary) / np.sqrt(frequencies)
    return np.fft.irfft(spectrum, fft_length)[:num_samples].astype(np.float32)


# ---- many clips


def check_sound(clips: Sequence[SpokenClip]) -> None:
    """Raise DataError if none of the clips has a sound."""
    if not total_seconds(clips):
        request = clips[0].request
        found = f"espeak-ng gives no sound for any sentence, such as {request.sentence!r}"
        raise DataError(request.lang, found)


def total_seconds(clips: Iterable[SpokenClip]) -> float:
    """Seconds of all clips; clips without a sound have none."""
    return sum(clip.duration_s or 0.0 for clip in clips)


def speak_training(
    maker: ClipMaker,
    requests: Iterator[ClipRequest],
    target_s: float,
    pace: float,
    num_sentences: int,
) -> list[SpokenClip]:
    """The clips of the first requests that have `target_s` seconds in total.

    They are made in rounds. Each round has as many requests as are expected to be enough. The
    result does not depend on this number, because clips after the target is reached are left out.

    Args:
        requests: must not end.
        pace: expected seconds per letter, which sets the number of requests per round.
        num_sentences: number of different sentences.
    Raises DataError if so many clips were made and none of them has a sound: it would never end.
    """
    clips: list[SpokenClip] = []
    total_s = 0.0
    while total_s < target_s:
        batch: list[ClipRequest] = []
        expected_s = total_s
        while expected_s < target_s:
            request = next(requests)
            batch.append(request)
            expected_s += pace * len(request.sentence)
        for clip in maker.make(batch, f"{batch[0].lang}: speak train"):
            if total_s < target_s:
                clips.append(clip)
                total_s += clip.duration_s or 0.0
        if len(clips) >= num_sentences:
            check_sound(clips)
    return clips


def remove_other_clips(folders: Iterable[Path], names: Collection[str]) -> None:
    """Remove all files that a `ClipMaker` made in the folders, except those of these names."""
    for folder in folders:
        for path in (*folder.glob("simulated_*"), *folder.glob(".simulated_*.tmp")):
            if path.name not in names:
                path.unlink()


# ---- engine


def speak(
    text: str, *, voice: str, rate_wpm: int = 175, pitch: int = 50, pitch_range: int = 50
) -> NDArray[np.float32]:
    """A spoken sentence: samples (N,) at 22,050 Hz in [-1, 1]; empty when there is nothing to say.

    Args:
        text: plain text.
        voice: the engine's name of a speaker, see `voice_name`.
        rate_wpm: words per minute, 80 to 450.
        pitch: 0 to 99; 50 is the speaker's own.
        pitch_range: 0 (monotone) to 99; 50 is the speaker's own.
    Raises DataError when espeak-ng is missing, RuntimeError when it refuses a value.
    """
    chunks: list[bytes] = []

    def collect(samples: int | None, num_samples: int, _events: int | None) -> int:
        """Keep the 16-bit samples at this address. Returns 0, by which the engine continues."""
        if samples and num_samples:
            chunks.append(ctypes.string_at(samples, 2 * num_samples))
        return 0

    parameters = {_RATE: rate_wpm, _VOLUME: 100, _PITCH: pitch, _RANGE: pitch_range}
    encoded = text.encode("utf-8")
    callback = _SynthCallback(collect)  # must live until the end of speech
    with _load_engine() as engine:
        engine.espeak_SetSynthCallback(callback)
        _check_status(engine.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for parameter, value in parameters.items():
            is_relative = 0
            status = engine.espeak_SetParameter(parameter, value, is_relative)
            _check_status(status, f"parameter {parameter} = {value}")
        size = len(encoded) + 1  # with the zero at the end
        status = engine.espeak_Synth(encoded, size, 0, _CHARACTERS, 0, _UTF_8, None, None)
        _check_status(status, f"text {text!r}")
        _check_status(engine.espeak_Synchronize(), "end of speech")
    samples = np.frombuffer(b"".join(chunks), dtype=np.int16)
    return samples.astype(np.float32) / np.float32(32768)  # full scale of 16 bits


def phonemize(texts: Sequence[str], *, voice: str) -> list[str]:
    """The label of each text: its phonemes as the voice would read them.

    Names of phonemes are mostly IPA. There is `_` between phonemes, and a space between words. A
    label also has stress marks, and a code such as "(en)" where another voice begins.

    Raises DataError when espeak-ng is missing, RuntimeError when it has no such voice.
    """
    separator_bits = ord("_") << 8
    phoneme_mode = _IPA | separator_bits
    labels = []
    with _load_engine() as engine:
        engine.espeak_TextToPhonemes.restype = ctypes.c_char_p
        _check_status(engine.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for text in texts:
            clauses = []
            rest = ctypes.c_char_p(text.encode("utf-8"))
            while rest.value is not None:  # each call reads one clause and moves `rest` behind it
                label = engine.espeak_TextToPhonemes(ctypes.byref(rest), _UTF_8, phoneme_mode)
                clauses.append(label.decode())
            labels.append(" ".join(clauses))
    return labels


def _check_status(status: int, what: str) -> None:
    """Raise RuntimeError if the status that a function of the engine returned is a fault: not 0."""
    if status != 0:
        raise RuntimeError(f"espeak-ng refused {what} (status {status})")


def voice_name(lang: str, variant: str | None = None) -> str:
    """The engine's name of a speaker of a language, such as "roa/es+f2".

    Raises DataError for an unknown language.
    """
    version, voices = installed_voices()
    if lang not in voices:
        similar = difflib.get_close_matches(lang, voices, n=5, cutoff=0.3) or sorted(voices)
        found = f"it has no language {lang!r}"
        raise DataError(f"espeak-ng {version}", found, f"it has {' '.join(similar)}")
    return voices[lang] + (f"+{variant}" if variant else "")


class InstalledVoices(NamedTuple):
    """The voices of the installed espeak-ng."""

    version: str
    """Of espeak-ng."""
    name_of: Mapping[str, str]
    """Language code → the engine's name of its voice: "es" → "roa/es"."""


@cache
def installed_voices() -> InstalledVoices:
    """The version of espeak-ng and its voices, read once.

    If several voices have the same code, it is that of the voice with the lowest number as its
    priority, or of these the first by name. Raises DataError when espeak-ng is not installed.
    """
    with _load_engine() as engine:
        version = engine.espeak_Info(None).decode()
    _, data = _find_library()
    folder = Path(data) / "lang"
    # Language code → priority and name of each voice that has it.
    candidates = defaultdict[str, list[tuple[int, str]]](list)
    for path in filter(Path.is_file, folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        for code, priority in _read_voice_codes(path):
            candidates[code].append((priority, name))
    name_of = dict[str, str]()
    for code in sorted(candidates):
        _, name = min(candidates[code])
        name_of[code] = name
    return InstalledVoices(version, name_of)


def _read_voice_codes(path: Path) -> Iterator[tuple[str, int]]:
    """The language codes in the file of a voice, with their priorities, 5 where none is written.

    The lines are `language CODE` or `language CODE PRIORITY`.
    """
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("language "):
            _, code, *rest = line.split()
            yield code, int(rest[0]) if rest else 5


@contextmanager
def _load_engine() -> Iterator[ctypes.CDLL]:
    """A newly loaded library, which is unloaded at the end of the block.

    Its random numbers begin with the same seed each time. Only one thread has it at a time; others
    wait. Raises DataError if the library is loaded already, or its data cannot be read.
    """
    library, data = _find_library()
    with _LOCK:
        _refuse_loaded(library)
        engine = ctypes.CDLL(library)
        try:
            engine.espeak_Info.restype = ctypes.c_char_p
            rate = engine.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), _DONT_EXIT)
            used_data = ctypes.c_char_p()
            engine.espeak_Info(ctypes.byref(used_data))  # writes the path of the data that it uses
            if rate != ENGINE_RATE or used_data.value != data.encode():
                found = "espeak-ng cannot read its data there"
                raise DataError(data, found, f"reinstall with {_INSTALL}")
            engine.espeak_ng_SetRandSeed(ctypes.c_long(1))
            ctypes.CDLL(None).srand(1)  # the C library's random numbers, which some variants use
            yield engine
        finally:
            engine.espeak_Terminate()
            _ctypes.dlclose(engine._handle)


def _refuse_loaded(library: str) -> None:
    """Raise DataError if the library is loaded in this process already.

    It would then continue with the state that earlier sentences left.
    """
    try:  # RTLD_NOLOAD: an error unless it is loaded already
        loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # not loaded, as it should be
        return
    _ctypes.dlclose(loaded._handle)  # the call above counts as one more use
    fault = "already loaded in this process, so that speech would not be reproducible"
    raise DataError(library, fault, "run `prepare synthetic` in a process of its own")


@cache
def _find_library() -> tuple[str, str]:
    """The paths of the library and of its data. Raises DataError when they are not installed.

    The library cuts the paths of its files at 160 bytes. So for data with a long path, the result
    is a link to it in a temporary folder, which is removed when this process ends.
    """
    try:
        import espeakng_loader
    except ImportError as error:
        raise DataError("espeak-ng", "not installed", f"run {_INSTALL}") from error
    data: str = espeakng_loader.get_data_path()
    if len(os.fsencode(data)) > _MAX_DATA_PATH:
        folder = Path(tempfile.mkdtemp(prefix="espeak-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        link = folder / "espeak-ng-data"
        link.symlink_to(data, target_is_directory=True)
        data = str(link)
    return espeakng_loader.get_library_path(), data
