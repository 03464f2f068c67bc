# SPDX-License-Identifier: Apache-2.0
"""Audio files to mono waveforms at one rate, with every way a clip can be bad told in one line.

libsndfile decodes (wav, flac, mp3, ogg, …) and soxr resamples. "It decoded" is not "it is intact": libsndfile reads a
cut-off wav or mp3 without a word, so what was decoded is compared with what the header declares. An Ogg file declares
no length; only the `expected_duration_s` of `check_clip` finds a cut there.
"""

import errno
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
import torch
from torch import Tensor

from wenet_hs.data.sources import SourceFault, fetch
from wenet_hs.errors import DataError

MAX_DURATION_S = 24 * 3600.0
MAX_CHANNELS = 64
MIN_RATE, MAX_RATE = (
    1_000,
    1_000_000,
)  # Hz; outside, a header is damaged or hostile, and resampling could need any amount of memory
_BLOCK_SAMPLES = (
    1 << 22
)  # decoded at a time (16 MiB), so that memory follows the audio that is there, not the header's word
_MAX_CHUNKS = 1000  # of a wav before its samples; a file of zeros would be walked through for ever
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # no fault of the file that happens to be next
_SEGMENT_SLACK_S = 0.1  # annotated ends are rounded
_MEND_SEGMENT = "mend start and end in the list"
_MAX_PEAK = 1e10
"""A float file may go over 1, and one of integers never scaled up to 2^31; from about 1e12 on the energies of the
features, which are squares, are infinite in float32, and one such clip would spoil its whole batch."""
_SILENCE_RANGE = 1e-4  # about three steps of 16 bits: dithered digital silence stays inside, quiet speech does not

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioInfo:
    """What a header says."""

    duration_s: float
    sample_rate: int
    """In Hz."""
    channels: int


class AudioFault(Exception):
    """Why audio cannot be used, without the file's name: `read_audio` adds it, `check_clip` returns the bare reason."""

    def __init__(self, reason: str, *, where: str = "", remedy: str = "restore the file, or leave it out") -> None:
        """`where` follows the reason in messages; `remedy` is what to do about it."""
        super().__init__(reason + where)
        self.reason, self.remedy = reason, remedy


def read_audio(
    source: str | Path | bytes, *, start: float | None = None, end: float | None = None, sample_rate: int = 16000
) -> Tensor:
    """The waveform of a file, or of a file's bytes: channels averaged, resampled to `sample_rate` where needed.

    Args:
        source: a path, a URL, a member of a shard (`TAR#OFFSET+SIZE`), or the bytes themselves.
        start, end: the segment to read, in seconds; the file is read from `start`, not from its begin.

    Returns: (samples,) float32 in [-1, 1], never empty, always finite.
    Raises: DataError with the file's name: missing, empty, not audio, cut off, damaged, not finite, of absurd size or
        loudness.
    """
    waveform, rate = read_audio_file(source, start=start, end=end)
    return resample(torch.from_numpy(waveform), rate, sample_rate)


def read_audio_file(
    source: str | Path | bytes, *, start: float | None = None, end: float | None = None
) -> tuple[Samples, int]:
    """What `read_audio` reads, at the file's own rate: mono samples (n,) and the rate in Hz. Raises as it does."""
    try:
        return decode(source, start, end)
    except AudioFault as fault:
        raise DataError(f"{_name(source)}: {fault}; {fault.remedy}") from fault


def resample(waveform: Tensor, from_rate: float, to_rate: float) -> Tensor:
    """The same sound at another rate. waveform: (samples,) float32. Returns: (about samples * to_rate / from_rate,)."""
    if from_rate == to_rate:
        return waveform
    return torch.from_numpy(soxr.resample(waveform.numpy(), from_rate, to_rate, quality="HQ"))


def probe_audio(source: str | Path | bytes) -> AudioInfo:
    """Duration, rate and channels from the header alone. Raises DataError as `read_audio` does, but may miss a cut."""
    try:
        return probe(source)
    except AudioFault as fault:
        raise DataError(f"{_name(source)}: {fault}; {fault.remedy}") from fault


def check_clip(
    path: str | Path,
    expected_duration_s: float | None = None,
    *,
    min_duration_s: float = 0.1,
    max_duration_s: float = 600.0,
) -> str | None:
    """Why a clip is of no use for training, or None if it is good. Decodes it whole.

    Args:
        expected_duration_s: what the corpus says. A clip further from it than 2 % and 100 ms has lost or won audio.
    """
    try:
        waveform, rate = decode(path, None, None)
    except AudioFault as fault:
        return fault.reason
    duration_s = len(waveform) / rate
    if expected_duration_s is not None:
        reason = length_fault(duration_s, expected_duration_s, "the corpus")
        if reason is not None:
            return reason
    if duration_s < min_duration_s:
        return f"shorter than {min_duration_s:g} s: {duration_s:.3f} s"
    if duration_s > max_duration_s:
        return f"longer than {max_duration_s:g} s: {duration_s:.1f} s"
    return "silent" if is_silent(torch.from_numpy(waveform)) else None


def length_fault(duration_s: float, expected_s: float, who: str) -> str | None:
    """What `prepare`, training and recognition say of a clip that decodes to another length than `who` says, or None.

    libsndfile decodes a cut-off mp3 or ogg without a word: often this alone tells a damaged clip from a whole one.
    """
    if durations_agree(duration_s, expected_s):
        return None
    what = "cut off" if duration_s < expected_s else "too long"
    return f"{what}: {duration_s:.2f} s, {who} says {expected_s:.2f} s"


def durations_agree(actual_s: float, expected_s: float) -> bool:
    """Whether two durations differ by no more than coding padding and rounding do: 2 % or 100 ms, whichever is more."""
    return abs(actual_s - expected_s) <= max(0.1, 0.02 * expected_s)


def is_silent(waveform: Tensor) -> bool:
    """Whether there is nothing to hear: all samples within 1e-4 of each other (a constant offset is silence too).

    waveform: (samples,) in [-1, 1].
    """
    return waveform.numel() == 0 or float(waveform.max() - waveform.min()) < _SILENCE_RANGE


def _name(source: str | Path | bytes) -> str:
    return f"audio of {len(source)} bytes" if isinstance(source, bytes) else str(source)


def decode(source: str | Path | bytes, start: float | None, end: float | None) -> tuple[Samples, int]:
    """Mono samples (n,) and their rate: `read_audio_file`, but for the fault, which is an AudioFault."""
    with _open(source) as file:
        _check_header(file)
        rate: int = file.samplerate
        first, last = _segment(file.frames, rate, start, end)
        try:
            if first:
                file.seek(first)
            waveform = _read_mono(file, last - first)
        except soundfile.LibsndfileError as error:
            raise AudioFault(f"damaged or cut off ({error.error_string.strip()})") from error
    if len(waveform) < last - first:
        raise AudioFault(
            f"cut off: {len(waveform) / rate:.2f} s decoded, its header declares {(last - first) / rate:.2f} s"
        )
    _check_samples(waveform)
    return waveform, rate


def probe(source: str | Path | bytes) -> AudioInfo:
    """What `probe_audio` gives, but for the fault, which is an AudioFault."""
    with _open(source) as file:
        _check_header(file)
        return AudioInfo(duration_s=file.frames / file.samplerate, sample_rate=file.samplerate, channels=file.channels)


def _open(source: str | Path | bytes) -> soundfile.SoundFile:
    try:
        source = fetch(source)
        if not isinstance(source, bytes) and not Path(source).is_file():
            raise _no_file(Path(source))
        _check_riff_size(source)
        return soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else str(source))
    except soundfile.LibsndfileError as error:
        # libsndfile says of a file that is there but in no format it knows: "File does not exist …".
        reason = "no known format" if "does not exist" in error.error_string else error.error_string.strip()
        raise AudioFault(f"not audio that can be read ({reason})") from error
    except SourceFault as fault:
        raise AudioFault(str(fault)) from fault
    except OSError as error:
        if error.errno in _OURS:
            raise
        raise AudioFault(f"cannot be read ({error.strerror})") from error


def _no_file(path: Path) -> AudioFault:
    if path.exists():
        return AudioFault("not a file", remedy="give the path of an audio file")
    return AudioFault(
        "missing", where="" if path.is_absolute() else f" (looked for in the current folder {Path.cwd()})"
    )


def _check_header(file: soundfile.SoundFile) -> None:
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise AudioFault(f"declares a sample rate of {file.samplerate} Hz")
    if file.channels > MAX_CHANNELS:
        raise AudioFault(f"declares {file.channels} channels, more than {MAX_CHANNELS}")
    if file.frames > MAX_DURATION_S * file.samplerate:
        raise AudioFault(f"declares {file.frames / file.samplerate / 3600:.0f} hours of audio, more than 24")
    if file.frames <= 0:
        raise AudioFault("empty: no samples in it")


def _check_riff_size(source: str | Path | bytes) -> None:
    """Refuse an empty file, and a wav whose data chunk is longer than the file: libsndfile mends that in silence."""
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
        total = file.seek(0, os.SEEK_END)
        if not total:
            raise AudioFault("empty: 0 bytes")
        file.seek(0)
        header = file.read(12)
        if header[:4] != b"RIFF" or header[8:] != b"WAVE":
            return
        declared = _data_chunk_size(file)
        present = total - file.tell()
    if declared > present:
        raise AudioFault(f"cut off: {present} bytes of audio, its header declares {declared}")


def _data_chunk_size(file: BinaryIO) -> int:
    """The declared size of the `data` chunk, the file left at its first byte; 0 if there is no such chunk."""
    for _ in range(_MAX_CHUNKS):
        header = file.read(8)
        size = int.from_bytes(header[4:], "little")
        if header[:4] == b"data":
            return size
        file.seek(size + size % 2, os.SEEK_CUR)
    return 0


def _check_samples(waveform: Samples) -> None:
    peak = max(float(waveform.max()), -float(waveform.min()))  # NaN where one sample is
    if not np.isfinite(peak):
        raise AudioFault("samples that are not finite (NaN or infinity)")
    if peak > _MAX_PEAK:
        raise AudioFault(f"a sample of {peak:g}, where 1 is full scale")


def _segment(num_samples: int, rate: int, start: float | None, end: float | None) -> tuple[int, int]:
    """The first sample of the segment and the one after its last."""
    duration_s = num_samples / rate
    first_s = 0.0 if start is None else start
    last_s = duration_s if end is None else end
    if not 0.0 <= first_s < min(last_s, duration_s) or last_s > duration_s + _SEGMENT_SLACK_S:
        segment = f"a segment from {first_s:g} to {last_s:g} s"
        raise AudioFault(f"{segment} does not lie in its {duration_s:.2f} s", remedy=_MEND_SEGMENT)
    first, last = round(first_s * rate), min(round(last_s * rate), num_samples)
    if first >= last:
        raise AudioFault(f"a segment from {first_s:g} to {last_s:g} s has no samples", remedy=_MEND_SEGMENT)
    return first, last


def _read_mono(file: soundfile.SoundFile, num_samples: int) -> Samples:
    """Up to `num_samples` samples (n,), channels averaged; fewer if the file ends before.

    A read that comes back short is the last one: behind the gap in a damaged mp3 the next would give earlier samples
    again, and the clip would seem to be as long as it was.
    """
    blocks: list[Samples] = []
    block = max(1, _BLOCK_SAMPLES // file.channels)
    while num_samples > 0:
        wanted = min(block, num_samples)
        samples = file.read(wanted, dtype="float32", always_2d=True)
        blocks.append(samples[:, 0] if file.channels == 1 else samples.mean(axis=1))
        if len(samples) < wanted:
            break
        num_samples -= wanted
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.float32)
