# SPDX-License-Identifier: Apache-2.0
"""Simulated clips: request, sound and file.   Dimension key: samples at 16,000 Hz."""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from wenet_hs.corpus import espeak
from wenet_hs.corpus.parallel import parallel_map
from wenet_hs.files import write_atomic

SAMPLE_RATE = 16000  # Hz

SUBTYPES = {"flac": "PCM_16", "wav": "PCM_16", "mp3": "MPEG_LAYER_III"}
_RENDERING = 2  # part of a clip's name: increase it when the same request sounds different, so that clips are made anew
_SILENCE = 1e-3  # peak below which nothing was spoken
_TRIM = 3e-3  # of the peak: −50 dB, below the softest consonant
_RENEW = 2000  # clips per process: espeak-ng leaks 0.2 MB per sentence in two alphabets


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipRequest:
    """Everything that determines how a clip sounds."""

    lang: str
    sentence: str
    voice: str
    """espeak-ng variant."""
    rate_wpm: int
    pitch: int
    pitch_range: int
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SpokenClip:
    """A request and its file."""

    request: ClipRequest
    name: str
    """File name. It contains a digest of the request, so a file of that name is that clip."""
    duration_s: float | None
    """None: there is no file, for the reason given."""
    reason: str = ""


def clip_name(request: ClipRequest, audio_format: str) -> str:
    """`simulated_<digest>.<format>`: another request, engine or rendering has another name."""
    fields = [_RENDERING, espeak.catalogue().version, SAMPLE_RATE, asdict(request)]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode("utf-8")).hexdigest()[:16]
    return f"simulated_{digest}.{audio_format}"


def render(request: ClipRequest) -> NDArray[np.float32] | None:
    """Samples (num_samples,) at 16,000 Hz in [-1, 1], or None when espeak-ng gives no sound for the sentence."""
    spoken = espeak.speak(
        request.sentence,
        lang=request.lang,
        variant=request.voice,
        rate_wpm=request.rate_wpm,
        pitch=request.pitch,
        pitch_range=request.pitch_range,
    )
    peak = float(np.abs(spoken).max(initial=0.0))
    if peak < _SILENCE:
        return None
    audible = np.flatnonzero(np.abs(spoken) > _TRIM * peak)
    speech = soxr.resample(spoken[audible[0] : audible[-1] + 1], espeak.SAMPLE_RATE * request.tract, SAMPLE_RATE)
    padding = (round(request.lead_s * SAMPLE_RATE), round(request.trail_s * SAMPLE_RATE))
    noise = make_noise(request.noise, len(speech) + sum(padding), seed=request.noise_seed)
    loudness = float(np.sqrt(np.mean(np.square(speech))))
    mixture = np.pad(speech, padding) + noise * np.float32(loudness * 10 ** (-request.snr_db / 20))
    scaled: NDArray[np.float32] = mixture * np.float32(10 ** (request.peak_db / 20) / np.abs(mixture).max())
    return scaled


def make_noise(kind: Literal["white", "pink"], num_samples: int, *, seed: int) -> NDArray[np.float32]:
    """Noise (num_samples,) of unit energy; "pink" has equal energy in each octave."""
    draw = np.random.default_rng(seed)
    if kind == "white":
        noise = draw.standard_normal(num_samples, dtype=np.float32)
    else:
        period = -(-num_samples // 2048) * 2048  # a length with a large prime factor makes the FFT ten times slower
        real, imaginary = draw.standard_normal((2, period // 2), dtype=np.float32)
        spectrum = np.zeros(period // 2 + 1, dtype=np.complex64)
        spectrum[1:] = (real + 1j * imaginary) / np.sqrt(np.arange(1, period // 2 + 1, dtype=np.float32))
        noise = np.fft.irfft(spectrum, period)[:num_samples].astype(np.float32)
    unit: NDArray[np.float32] = noise / np.sqrt(np.mean(np.square(noise)))
    return unit


@dataclass(frozen=True, slots=True)
class ClipMaker:
    """Makes clips in processes; the files do not depend on their number."""

    corpus: Path
    """Clips of a language go to `corpus/<lang>/clips`."""
    audio_format: str = "flac"
    num_workers: int = 0

    def __call__(self, request: ClipRequest) -> SpokenClip:
        """The clip of one request, made in this process unless its file is complete."""
        name = clip_name(request, self.audio_format)
        path = self.corpus / request.lang / "clips" / name
        duration_s = _read_duration(path)
        if duration_s is None:
            samples = render(request)
            if samples is None:
                reason = "silent: espeak-ng gives no sound for it"
                return SpokenClip(request=request, name=name, duration_s=None, reason=reason)
            encoded = io.BytesIO()
            subtype = SUBTYPES[self.audio_format]
            soundfile.write(encoded, samples, SAMPLE_RATE, format=self.audio_format.upper(), subtype=subtype)
            write_atomic(path, encoded.getvalue())
            duration_s = _read_duration(path)
        return SpokenClip(request=request, name=name, duration_s=duration_s)

    def make(self, requests: Sequence[ClipRequest], description: str) -> Iterator[SpokenClip]:
        """A clip for each request, in the order of the requests, with a progress bar."""
        batch = _RENEW * max(1, self.num_workers)
        for start in range(0, len(requests), batch):
            yield from parallel_map(
                self,
                requests[start : start + batch],
                num_workers=self.num_workers,
                description=description,
                on_crash=self._report_crash,
            )

    def _report_crash(self, request: ClipRequest) -> SpokenClip:
        name = clip_name(request, self.audio_format)
        reason = "crash: espeak-ng ended its process on this sentence"
        return SpokenClip(request=request, name=name, duration_s=None, reason=reason)


def _read_duration(path: Path) -> float | None:
    """Seconds that the file's header declares; None for no file, or an empty one after a power failure."""
    if not path.exists():
        return None
    try:
        info = soundfile.info(str(path))
    except soundfile.LibsndfileError:
        return None
    return float(info.frames / info.samplerate) if info.frames else None
