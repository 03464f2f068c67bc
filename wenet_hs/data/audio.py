# SPDX-License-Identifier: Apache-2.0
"""Reading of audio: files, URLs and members of shards to mono waveforms at one sample rate.

libsndfile decodes (wav, flac, mp3, ogg, …), or PyAV what libsndfile cannot or wrongly reads
(`decoders`), and soxr resamples. libsndfile gives no error for a truncated wav or mp3. Therefore
the length of the audio is compared with the length in the header: `check_length` decides for every
command. An Ogg file declares no length: only the duration in a list or corpus (`length_fault`)
finds a truncated one.

A source is a path, a URL (read by fsspec), or a part of either, written `PATH#OFFSET+SIZE` (a
member of a tar).
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.data import containers
from wenet_hs.data.containers import CONVERT, SourceError
from wenet_hs.data.decoders import open_decoder
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.manifest.data_list import BadClip, Utterance
from wenet_hs.manifest.file_forms import find_form_of_file
from wenet_hs.tree.errors import ConfigError, DataError

MAX_MISSING_S = 0.1
MAX_MISSING_SHARE = 0.05
"""A clip that is shorter than its header states, by less than MAX_MISSING_S and at most this share,
is used and counted: encoders of MP3 declare some milliseconds too many.
"""
MAX_HOURS = 24
"""Longer audio is not read."""
_BLOCK_SAMPLES = 1 << 22
"""Samples decoded per call (16 MiB): memory follows the audio that is present, not the length in
the header.
"""
_MAX_PEAK = 1e10
"""Float files may exceed 1, and unscaled integers reach 2^31.

From about 1e12 on features are infinite in float32.
"""
_CANCELLED = 0.01
"""Share of the energy of a channel. One of C channels with speech has a mean of 1 / C² of it."""
_CORRECT_SEGMENT = "correct start and end in the list"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")

Samples = NDArray[np.float32]


class AudioError(DataError):
    """Audio that cannot be used."""

    is_of_file = True
    """See `SourceError`."""


class TooLongError(AudioError):
    """Audio of more than MAX_HOURS."""


class ClipError(AudioError):
    """The audio of one utterance cannot be used; training skips the utterance and records `clip`."""

    def __init__(self, key: str, wav: str, reason: str, remedy: str) -> None:
        super().__init__(f"utterance {key}: {wav}", reason, remedy)
        self.args = (key, wav, reason, remedy)
        self.clip = BadClip(key=key, wav=wav, reason=reason)


def read_utterance(
    utterance: Utterance, sample_rate: int, incomplete: list[str] | None = None
) -> Tensor:
    """The waveform (N,) of an utterance at `sample_rate`.

    `incomplete`: the key is appended if the clip lacks a little of the length in its header; see
    `check_length`.

    Raises: ClipError, also where the length of the audio differs from the duration in the data
        list.
    """
    try:
        samples, rate, missing_s = read_segment(utterance)
    except AudioError as error:
        raise ClipError(utterance.key, utterance.wav, error.found, error.to_do) from error
    if utterance.duration is not None:
        reason = length_fault(len(samples) / rate, utterance.duration, "the data list")
        if reason is not None:
            raise ClipError(
                utterance.key, utterance.wav, reason, "restore the file, or prepare the data again"
            )
    if missing_s and incomplete is not None:
        incomplete.append(utterance.key)
    return resample(torch.from_numpy(samples), rate, sample_rate)


def read_audio(
    source: str | Path | bytes,
    *,
    start: float | None = None,
    end: float | None = None,
    channel: int | None = None,
    sample_rate: int = 16000,
) -> Tensor:
    """The waveform of a source: one channel, or all averaged, resampled to `sample_rate` where
    needed.

    Args:
        source: a path, a URL, a member of a shard (`TAR#OFFSET+SIZE`), or the bytes of a file.
        start, end: the segment to read, in seconds; reading begins at `start`.
        channel: the channel to read, from 0; None: the mean of all.

    Returns: (samples,) float32 in [-1, 1], never empty, always finite.
    Raises: AudioError: missing, empty, not audio, truncated, damaged, not finite, implausible size
        or loudness.
    """
    waveform, rate, _ = read_audio_file(source, start=start, end=end, channel=channel)
    return resample(torch.from_numpy(waveform), rate, sample_rate)


def read_segment(utterance: Utterance) -> tuple[Samples, int, float]:
    """`read_audio_file` of what an utterance selects: its segment and channel of its audio."""
    return read_audio_file(
        utterance.wav, start=utterance.start, end=utterance.end, channel=utterance.channel
    )


def read_audio_file(
    source: str | Path | bytes,
    *,
    start: float | None = None,
    end: float | None = None,
    channel: int | None = None,
) -> tuple[Samples, int, float]:
    """Like `read_audio`, but at the file's own rate.

    Returns: mono samples (n,), the rate in Hz, and the seconds that the file lacks; see
        `check_length`.
    """
    with _open_audio(source) as (file, num_frames, missing_s):
        rate: int = file.samplerate
        first, last = _segment(num_frames, rate, start, end)
        if channel is not None and channel >= file.channels:
            found = f"channel {channel}, counted from 0, of audio with {file.channels}"
            raise SourceError(f"outside the audio: {found}", "correct the channel in the list")
        try:
            if first:
                file.seek(first)
            waveform = _read_mono(file, last - first, channel)
        except soundfile.LibsndfileError as error:
            raise SourceError(
                f"damaged or cut off: {error.error_string.strip().removeprefix('Error : ')}"
            ) from error
        if len(waveform) < last - first:
            present_s = (first + len(waveform)) / rate if len(waveform) else 0.0
            missing_s += check_length(present_s, num_frames / rate)
        peak = max(float(waveform.max()), -float(waveform.min()))  # NaN where one sample is
        if not np.isfinite(peak):
            raise SourceError("samples that are not finite (NaN or infinity)")
        if peak > _MAX_PEAK:
            raise SourceError(f"a sample of {peak:g}, where 1 is full scale")
    return waveform, rate, missing_s


def iterate_blocks(source: str | Path) -> Iterator[tuple[Samples, int]]:
    """The samples (n, C) of all channels in blocks of a minute, with their rate; whatever is
    present.

    Raises: AudioError.
    """
    with _open_audio(source) as (file, num_frames, _):
        rate: int = file.samplerate
        wanted = 60 * rate
        for first in range(0, num_frames, wanted):
            try:
                samples = file.read(
                    min(wanted, num_frames - first), dtype="float32", always_2d=True
                )
            except soundfile.LibsndfileError as error:
                raise SourceError(f"damaged or cut off: {error.error_string.strip()}") from error
            yield samples, rate
            if len(samples) < min(wanted, num_frames - first):  # see _read_mono
                break


def check_length(present_s: float, declared_s: float) -> float:
    """The seconds that a clip lacks of the length in its header, where it lacks so little that it
    is used.

    Raises: SourceError if it lacks more.
    """
    missing_s = declared_s - present_s
    if missing_s >= MAX_MISSING_S or missing_s > MAX_MISSING_SHARE * declared_s:
        raise SourceError(
            f"cut off: {present_s:.3f} s of audio, its header declares {declared_s:.3f} s"
        )
    return max(0.0, missing_s)


def describe_incomplete(num_clips: int) -> str:
    """The line in which a command states how many clips `check_length` accepted although they lack
    a little.
    """
    return f"{num_clips} clips lack less than {MAX_MISSING_S:g} s of the length in their header; they are used"


def read_duration(source: str | Path | bytes) -> float:
    """Seconds of audio, read from the header only.

    Raises AudioError; may not find a truncated file.
    """
    with _open_audio(source) as (file, num_frames, _):
        return num_frames / float(file.samplerate)


def read_num_channels(source: str | Path | bytes) -> int:
    """The channels of audio, read from the header only. Raises AudioError."""
    with _open_audio(source) as (file, _, _):
        return int(file.channels)


def read_sample_rate(source: str | Path | bytes) -> float:
    """The samples per second of audio, read from the header only. Raises AudioError."""
    with _open_audio(source) as (file, _, _):
        return float(file.samplerate)


def segment_duration(utterance: Utterance) -> float:
    """Seconds of an utterance by its `start` and `end`, and by the header where `end` is None.

    Raises AudioError.
    """
    end = read_duration(utterance.wav) if utterance.end is None else utterance.end
    return max(0.0, end - (utterance.start or 0.0))


def resample(waveform: Tensor, from_rate: float, to_rate: float) -> Tensor:
    """The waveform at another rate. waveform: (samples,) float32.

    Returns: (about samples * to_rate / from_rate,).
    """
    if from_rate == to_rate:
        return waveform
    return torch.from_numpy(soxr.resample(waveform.numpy(), from_rate, to_rate, quality="HQ"))


def length_fault(duration_s: float, expected_s: float, origin: str) -> str | None:
    """The reason if a decoded duration differs from the expected one by more than 2 % and by more
    than 100 ms.

    libsndfile gives no error for a truncated mp3 or ogg: often only this comparison finds a damaged
    clip.

    `origin`: where `expected_s` is from, for the reason.
    """
    if abs(duration_s - expected_s) <= max(0.1, 0.02 * expected_s):
        return None
    what = "cut off" if duration_s < expected_s else "too long"
    return f"{what}: {duration_s:.2f} s, {origin} says {expected_s:.2f} s"


def is_silent(waveform: Tensor) -> bool:
    """Whether all samples (samples,) in [-1, 1] are within 1e-4 of each other; a constant offset is
    silence too.

    This is about three 16-bit steps: dithered digital silence is below, quiet speech above.
    """
    return waveform.numel() == 0 or float(waveform.max() - waveform.min()) < 1e-4


@contextmanager
def _open_audio(source: str | Path | bytes) -> Iterator[tuple[Any, int, float]]:
    """Open audio and check its header.

    A SourceError raised in the block becomes an AudioError with the name.

    That of a file of annotations names its form, as other commands do.

    Yields: the file, its samples per channel, and the seconds that it lacks of the length in its
        header.
    """
    name = f"audio of {len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        content = fetch(source)
        try:
            if not isinstance(content, bytes) and not (path := Path(content)).is_file():
                if path.exists():
                    raise SourceError("not a file", "give the path of an audio file")
                where = (
                    ""
                    if path.is_absolute()
                    else f" (looked for in the current folder {Path.cwd()})"
                )
                raise SourceError(f"missing{where}", is_of_file=False)
            sizes = containers.compare_sizes(content)
            opened, num_frames = open_decoder(content, sizes.samples_begin)
        except OSError as error:
            if error.errno in (
                errno.EMFILE,
                errno.ENFILE,
                errno.ENOMEM,
            ):  # these are not faults of the file
                raise
            raise SourceError(f"cannot be read ({error.strerror})", is_of_file=False) from error
        with opened as file:
            _check_header(file, name)
            present_s = num_frames / file.samplerate
            yield file, num_frames, check_length(present_s, present_s * sizes.declared_over_present)
    except SourceError as fault:
        if not isinstance(source, bytes) and Path(source).suffix.lower() not in ALL_SUFFIXES:
            _refuse_annotations(Path(source))
        failed = AudioError(name, str(fault), fault.remedy)
        failed.is_of_file = fault.is_of_file
        raise failed from fault


def _refuse_annotations(path: Path) -> None:
    """Raise AudioError with the form of a file, if it has a known form of annotations."""
    form = find_form_of_file(path)
    if form is not None:
        raise AudioError(path, form.name, form.remedy)


def _check_header(file: Any, name: str) -> None:
    """Refuse damaged or hostile headers, with which resampling could need any amount of memory."""
    if not 1_000 <= file.samplerate <= 1_000_000:
        raise SourceError(f"declares a sample rate of {file.samplerate} Hz")
    if file.channels > 64:
        raise SourceError(f"declares {file.channels} channels, more than 64")
    if file.frames >= 2**62:
        raise SourceError("no length in its header, as after writing to a pipe", CONVERT)
    if file.frames > MAX_HOURS * 3600 * file.samplerate:
        found = f"declares {file.frames / file.samplerate / 3600:.0f} hours of audio, more than {MAX_HOURS}"
        raise TooLongError(name, found, "divide it into shorter files, or restore it")
    if file.frames <= 0:
        raise SourceError("empty: no samples")


def _segment(
    num_samples: int, rate: int, start: float | None, end: float | None
) -> tuple[int, int]:
    """The first sample of a segment and the one after its last."""
    duration_s = num_samples / rate
    first_s = 0.0 if start is None else start
    last_s = duration_s if end is None else end
    if (
        not 0.0 <= first_s < min(last_s, duration_s) or last_s > duration_s + 0.1
    ):  # annotated ends are rounded
        segment = f"outside the audio: a segment from {first_s:g} to {last_s:g} s"
        raise SourceError(f"{segment} does not lie in its {duration_s:.2f} s", _CORRECT_SEGMENT)
    first, last = round(first_s * rate), min(round(last_s * rate), num_samples)
    if first >= last:
        reason = f"outside the audio: a segment from {first_s:g} to {last_s:g} s has no samples"
        raise SourceError(reason, _CORRECT_SEGMENT)
    return first, last


def _read_mono(file: Any, num_samples: int, channel: int | None) -> Samples:
    """Up to `num_samples` samples (n,) of a channel, or of the mean of all; fewer if the file ends
    earlier.

    Reading stops at the first short block: after a gap in a damaged mp3 the next block would repeat
    earlier samples, and the clip would seem complete.
    """
    blocks: list[Samples] = []
    block = max(1, _BLOCK_SAMPLES // file.channels)
    while num_samples > 0:
        wanted = min(block, num_samples)
        samples = file.read(wanted, dtype="float32", always_2d=True)
        one = 0 if file.channels == 1 else channel
        blocks.append(mix_channels(samples) if one is None else samples[:, one])
        if len(samples) < wanted:
            break
        num_samples -= wanted
    return np.concatenate(blocks)


def mix_channels(samples: Samples) -> Samples:
    """The mean (n,) of channels (n, C), or the loudest one where they cancel each other (one is
    wired inversely).
    """
    mean = samples.mean(axis=1)
    energies = np.einsum("nc,nc->c", samples, samples)
    return samples[:, energies.argmax()] if mean @ mean < _CANCELLED * energies.max() else mean


# Sources

MEMBER = re.compile(r"(.+)#(\d+)\+(\d+)", re.DOTALL)
"""A member of a shard: the path or URL of the tar, offset and size in bytes."""


def is_url(source: str) -> bool:
    """Whether fsspec reads the source: `https://…`, `s3://…`, `simplecache::https://…`."""
    return _URL.match(source) is not None


def fetch(source: str | Path | bytes) -> str | Path | bytes:
    """The bytes of a URL or of a part; local files and bytes are returned unchanged.

    Raises SourceError.
    """
    if not isinstance(source, str):
        return source
    part = MEMBER.fullmatch(source)
    if part is None:
        return (
            call_fsspec(source, lambda filesystem, path: filesystem.cat_file(path))
            if is_url(source)
            else source
        )
    where, offset, size = part[1], int(part[2]), int(part[3])
    if is_url(where):
        content = call_fsspec(
            where, lambda fs, path: fs.cat_file(path, start=offset, end=offset + size)
        )
    else:
        with open_local(where) as file:
            file.seek(offset)
            content = file.read(size)
    if len(content) < size:
        raise SourceError(f"cut off: {len(content)} of {size} bytes are there")
    return bytes(content)


def open_local(path: str) -> BinaryIO:
    """Open a local file. Raises SourceError."""
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror})", is_of_file=False) from error


def call_fsspec(url: str, call: Callable[[Any, str], Any]) -> Any:
    """`call(filesystem, path)` for a URL.

    Raises SourceError for any error of the server or of an fsspec plug-in.
    """
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(url, "URLs need fsspec", "pip install 'wenet_hs[remote]'") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
        return call(filesystem, path)
    except Exception as error:
        text = str(error) or type(error).__name__
        raise SourceError(f"cannot be read ({' '.join(text.split())})", is_of_file=False) from error
