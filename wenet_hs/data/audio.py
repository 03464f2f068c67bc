# SPDX-License-Identifier: Apache-2.0
"""Reading of audio: files, URLs and members of shards to mono waveforms at one sample rate.

libsndfile decodes wav, flac, mp3, ogg and others. PyAV decodes what libsndfile reads wrongly or not
(`decoders`). soxr resamples. libsndfile gives no error for a truncated wav or mp3. Therefore the
length of the audio is compared with the length in the header: `accept_missing_audio` decides for
every command. An Ogg file declares no length: a truncated one is only found if a list or corpus
states its duration (`length_fault`).

A source is a path, a URL (read by fsspec), or a part of either, written `PATH#OFFSET+SIZE` (a
member of a tar).
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
_MIN_RATE = 1_000
_MAX_RATE = 1_000_000
"""The lowest and the highest plausible sample rate, in Hz."""
_MAX_CHANNELS = 64
_UNKNOWN_LENGTH = 2**62
"""libsndfile states at least so many samples if it does not know the length."""
_BLOCK_SAMPLES = 1 << 22
"""Samples decoded per call (16 MiB).

A header may declare any length: so memory is only used for audio that is present.
"""
_BLOCK_S = 60
"""Seconds of audio per block of `iterate_blocks`."""
_MAX_PEAK = 1e10
"""Float files may exceed 1, and unscaled integers reach 2^31.

From about 1e12 on features are infinite in float32.
"""
_CANCELLED = 0.01
"""Channels cancel each other if the energy of their mean is less than this share of a channel's.

If only one of C channels has speech, the mean has the share 1 / C² of its energy.
"""
_CORRECT_SEGMENT = "correct start and end in the list"
_MAX_END_S = 0.1
"""Seconds by which a segment may end after the audio: annotated ends are rounded."""
_SILENT_RANGE = 1e-4
"""Largest difference of samples in silence.

It is about three 16-bit steps: dithered digital silence is below, quiet speech above.
"""
_ERRORS_OF_COMPUTER = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error numbers that are no fault of the file: too many open files, no memory."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")

Samples = NDArray[np.float32]


class AudioError(DataError):
    """Audio that cannot be used."""

    is_of_file = True
    """Whether only the content of the file is the reason; see `SourceError`."""


class TooLongError(AudioError):
    """Audio of more than MAX_HOURS."""


class ClipError(AudioError):
    """The audio of one utterance cannot be used. Training skips it and records `clip`."""

    def __init__(self, key: str, wav: str, reason: str, remedy: str) -> None:
        """The error of the utterance `key`, whose audio is `wav`; see `WenetHsError`."""
        super().__init__(f"utterance {key}: {wav}", reason, remedy)
        # pickle makes the error again from these arguments, in another process.
        self.args = (key, wav, reason, remedy)
        self.clip = BadClip(key=key, wav=wav, reason=reason)


def read_utterance(
    utterance: Utterance, sample_rate: int, incomplete: list[str] | None = None
) -> Tensor:
    """The waveform (N,) of an utterance at `sample_rate`.

    `incomplete`: the key of the utterance is appended if its clip lacks a little of the length in
    its header; see `accept_missing_audio`.

    Raises: ClipError, also if the length of the audio differs from the duration in the data list.
    """
    try:
        samples, rate, missing_s = read_segment(utterance)
    except AudioError as error:
        raise ClipError(utterance.key, utterance.wav, error.found, error.to_do) from error
    if utterance.duration is not None:
        reason = length_fault(len(samples) / rate, utterance.duration, "the data list")
        if reason is not None:
            remedy = "restore the file, or prepare the data again"
            raise ClipError(utterance.key, utterance.wav, reason, remedy)
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
    """The waveform of a source at `sample_rate`: of one channel, or of the mean of all.

    Args:
        source: a path, a URL, a member of a shard (`TAR#OFFSET+SIZE`), or the bytes of a file.
        start, end: the segment to read, in seconds; None: from the beginning, to the end.
        channel: the channel to read, from 0; None: the mean of all.

    Returns: (samples,) float32 in [-1, 1], never empty, always finite.
    Raises: AudioError: missing, empty, not audio, truncated, damaged, not finite, implausible size
        or loudness.
    """
    waveform, rate, _ = read_audio_file(source, start=start, end=end, channel=channel)
    return resample(torch.from_numpy(waveform), rate, sample_rate)


def read_segment(utterance: Utterance) -> tuple[Samples, int, float]:
    """The mono samples of an utterance: its segment and channel of its audio.

    Returns and raises as `read_audio_file`: samples (n,), rate in Hz, missing seconds.
    """
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
    """The mono samples of a source at its own rate; `read_audio` describes the arguments.

    Returns: samples (n,); the rate in Hz; and the seconds that the file lacks of the length in its
        header, see `accept_missing_audio`.
    Raises: AudioError, as `read_audio`; also for a segment or a channel that the audio lacks.
    """
    with _open_audio(source) as audio:
        file = audio.file
        rate: int = file.samplerate
        first, end_sample = _find_segment(audio.num_samples, rate, start, end)
        num_wanted = end_sample - first
        if channel is not None and channel >= file.channels:
            found = f"channel {channel}, counted from 0, of audio with {file.channels}"
            raise SourceError(f"outside the audio: {found}", "correct the channel in the list")
        try:
            if first:
                file.seek(first)
            waveform = _read_mono(file, num_wanted, channel)
        except soundfile.LibsndfileError as error:
            raise _make_damaged_error(error) from error
        missing_s = audio.missing_s  # by the bytes of the file; decoding may find less
        if len(waveform) < num_wanted:  # the file ends earlier than its header declares
            # Without a sample it is not known how much is present before the segment.
            present_s = (first + len(waveform)) / rate if len(waveform) else 0.0
            missing_s += accept_missing_audio(present_s, audio.num_samples / rate)
        _check_peak(waveform)
    return waveform, rate, missing_s


def iterate_blocks(source: str | Path) -> Iterator[tuple[Samples, int]]:
    """The samples (n, C) of all channels in blocks of a minute, each with the rate in Hz.

    If decoding ends before the declared length, the blocks end there, without an error.
    Raises AudioError for a file that cannot be opened or decoded, or whose size in bytes shows that
    it is cut off.
    """
    with _open_audio(source) as audio:
        rate: int = audio.file.samplerate
        block_size = _BLOCK_S * rate
        for first in range(0, audio.num_samples, block_size):
            num_wanted = min(block_size, audio.num_samples - first)
            try:
                samples = audio.file.read(num_wanted, dtype="float32", always_2d=True)
            except soundfile.LibsndfileError as error:
                raise _make_damaged_error(error) from error
            yield samples, rate
            if len(samples) < num_wanted:  # what follows may be wrong: see _read_mono
                break


def accept_missing_audio(present_s: float, declared_s: float) -> float:
    """The seconds of audio that a clip lacks of the length in its header, if it can be used.

    A clip is used if it lacks less than MAX_MISSING_S, and at most MAX_MISSING_SHARE of the length.
    It lacks 0 s if it is longer than its header declares.

    Raises: SourceError if the clip lacks more.
    """
    missing_s = declared_s - present_s
    if missing_s >= MAX_MISSING_S or missing_s > MAX_MISSING_SHARE * declared_s:
        raise SourceError(
            f"cut off: {present_s:.3f} s of audio, its header declares {declared_s:.3f} s"
        )
    return max(0.0, missing_s)


def describe_incomplete(num_clips: int) -> str:
    """The line in which a command states how many clips it used that lack a little audio."""
    lack = f"lack less than {MAX_MISSING_S:g} s of the length in their header"
    return f"{num_clips} clips {lack}; they are used"


def read_duration(source: str | Path | bytes) -> float:
    """Seconds of audio, read from the header only. Raises AudioError.

    The header of a truncated file may still declare its full length.
    """
    with _open_audio(source) as audio:
        return audio.num_samples / float(audio.file.samplerate)


def read_num_channels(source: str | Path | bytes) -> int:
    """The channels of audio, read from the header only. Raises AudioError."""
    with _open_audio(source) as audio:
        return int(audio.file.channels)


def read_sample_rate(source: str | Path | bytes) -> float:
    """The samples per second of audio, read from the header only. Raises AudioError."""
    with _open_audio(source) as audio:
        return float(audio.file.samplerate)


def segment_duration(utterance: Utterance) -> float:
    """Seconds of an utterance from its `start` to its `end`, at least 0.

    Without `end` it goes to the end of the audio, whose header is read. Raises AudioError.
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
    """The reason why a decoded duration is wrong; None: it is right.

    It is wrong if it differs from the expected one by more than 2 % and by more than 100 ms.
    libsndfile gives no error for a truncated mp3 or ogg: often only this comparison finds it.

    `origin`: what states `expected_s`, for the reason, such as "the data list".
    """
    if abs(duration_s - expected_s) <= max(0.1, 0.02 * expected_s):
        return None
    fault = "cut off" if duration_s < expected_s else "too long"
    return f"{fault}: {duration_s:.2f} s, {origin} says {expected_s:.2f} s"


def is_silent(waveform: Tensor) -> bool:
    """Whether samples (samples,) in [-1, 1] are within 1e-4 of each other, or there are none.

    A constant offset is silence too.
    """
    return waveform.numel() == 0 or float(waveform.max() - waveform.min()) < _SILENT_RANGE


# ---- Opening and checks


class _OpenAudio(NamedTuple):
    """Audio that is open, with a header that is plausible."""

    file: Any
    """A `soundfile.SoundFile` or `decoders.MediaFile`."""
    num_samples: int
    """Per channel."""
    missing_s: float
    """Seconds that the file lacks of the length in its header."""


@contextmanager
def _open_audio(source: str | Path | bytes) -> Iterator[_OpenAudio]:
    """Open audio, check its header, and close it after the block.

    Errors of opening, and each SourceError that is raised in the block, become an AudioError that
    names the source. Errors of this computer, such as too many open files, stay OSErrors.
    """
    name = f"audio of {len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        content = fetch(source)
        try:
            if not isinstance(content, bytes):
                _check_is_file(Path(content))
            sizes = containers.compare_sizes(content)
            opened, num_samples = open_decoder(content, sizes.samples_begin)
        except OSError as error:
            if error.errno in _ERRORS_OF_COMPUTER:
                raise
            raise SourceError(f"cannot be read ({error.strerror})", is_of_file=False) from error
        with opened as file:
            _check_header(file, name)
            # A decoder counts only samples in the bytes that are present.
            present_s = num_samples / file.samplerate
            declared_s = present_s * sizes.declared_over_present
            missing_s = accept_missing_audio(present_s, declared_s)
            yield _OpenAudio(file=file, num_samples=num_samples, missing_s=missing_s)
    except SourceError as error:
        raise _make_audio_error(source, name, error) from error


def _check_is_file(path: Path) -> None:
    """Raises SourceError for a path that does not exist, or is a folder or device."""
    if path.is_file():
        return
    if path.exists():
        raise SourceError("not a file", "give the path of an audio file")
    where = "" if path.is_absolute() else f" (looked for in the current folder {Path.cwd()})"
    raise SourceError(f"missing{where}", is_of_file=False)


def _make_audio_error(source: str | Path | bytes, name: str, error: SourceError) -> AudioError:
    """The error of a source with its name.

    If the source is a file of annotations, such as a TextGrid, the error names its form instead.
    """
    if not isinstance(source, bytes) and Path(source).suffix.lower() not in ALL_SUFFIXES:
        form = find_form_of_file(Path(source))
        if form is not None:
            return AudioError(Path(source), form.name, form.remedy)
    audio_error = AudioError(name, str(error), error.remedy)
    audio_error.is_of_file = error.is_of_file
    return audio_error


def _make_damaged_error(error: soundfile.LibsndfileError) -> SourceError:
    """The error for samples that libsndfile cannot decode."""
    reason = error.error_string.strip().removeprefix("Error : ")
    return SourceError(f"damaged or cut off: {reason}")


def _check_header(file: Any, name: str) -> None:
    """Refuse damaged or hostile headers, with which resampling could need any amount of memory.

    Raises: SourceError; TooLongError with the name of the source.
    """
    if not _MIN_RATE <= file.samplerate <= _MAX_RATE:
        raise SourceError(f"declares a sample rate of {file.samplerate} Hz")
    if file.channels > _MAX_CHANNELS:
        raise SourceError(f"declares {file.channels} channels, more than {_MAX_CHANNELS}")
    if file.frames >= _UNKNOWN_LENGTH:
        raise SourceError("no length in its header, as after writing to a pipe", CONVERT)
    if file.frames > MAX_HOURS * 3600 * file.samplerate:
        hours = file.frames / file.samplerate / 3600
        found = f"declares {hours:.0f} hours of audio, more than {MAX_HOURS}"
        raise TooLongError(name, found, "divide it into shorter files, or restore it")
    if file.frames <= 0:
        raise SourceError("empty: no samples")


def _find_segment(
    num_samples: int, rate: int, start: float | None, end: float | None
) -> tuple[int, int]:
    """The first sample of a segment of audio, and the sample after its last one.

    Args:
        num_samples: of the whole audio, per channel.
        start, end: in seconds; None: the beginning, the end of the audio.
    Raises: SourceError for a segment that is not inside the audio, or has no samples.
    """
    duration_s = num_samples / rate
    start_s = 0.0 if start is None else start
    end_s = duration_s if end is None else end
    segment = f"outside the audio: a segment from {start_s:g} to {end_s:g} s"
    begins_inside = 0.0 <= start_s < min(end_s, duration_s)
    ends_inside = end_s <= duration_s + _MAX_END_S
    if not (begins_inside and ends_inside):
        raise SourceError(f"{segment} does not lie in its {duration_s:.2f} s", _CORRECT_SEGMENT)
    first = round(start_s * rate)
    end_sample = min(round(end_s * rate), num_samples)
    if first >= end_sample:
        raise SourceError(f"{segment} has no samples", _CORRECT_SEGMENT)
    return first, end_sample


def _read_mono(file: Any, num_samples: int, channel: int | None) -> Samples:
    """Up to `num_samples` samples (n,) of a channel, or of the mean of all; fewer if the file ends.

    Reading stops at the first short block: after a gap in a damaged mp3 the next block would repeat
    earlier samples, and the clip would seem complete.
    """
    if file.channels == 1:
        channel = 0  # the mean of one channel is that channel
    block_size = _BLOCK_SAMPLES // file.channels
    blocks: list[Samples] = []
    num_left = num_samples
    while num_left > 0:
        num_wanted = min(block_size, num_left)
        samples_NC = file.read(num_wanted, dtype="float32", always_2d=True)
        blocks.append(mix_channels(samples_NC) if channel is None else samples_NC[:, channel])
        if len(samples_NC) < num_wanted:
            break
        num_left -= num_wanted
    return np.concatenate(blocks)


def _check_peak(waveform: Samples) -> None:
    """Raises SourceError for samples (n,) that are not finite, or too large to be audio."""
    peak = max(float(waveform.max()), -float(waveform.min()))  # NaN if one of the samples is NaN
    if not np.isfinite(peak):
        raise SourceError("samples that are not finite (NaN or infinity)")
    if peak > _MAX_PEAK:
        raise SourceError(f"a sample of {peak:g}, where 1 is full scale")


def mix_channels(samples: Samples) -> Samples:
    """The mean (n,) of channels (n, C), or the loudest channel if they cancel each other.

    Channels cancel each other if one of them is wired inversely.
    """
    mean = samples.mean(axis=1)
    mean_energy = mean @ mean
    energies = np.einsum("nc,nc->c", samples, samples)  # (C,) sums of squares
    is_cancelled = mean_energy < _CANCELLED * energies.max()
    return samples[:, energies.argmax()] if is_cancelled else mean


# ---- Sources

MEMBER = re.compile(r"(.+)#(\d+)\+(\d+)", re.DOTALL)
"""A member of a shard: the path or URL of the tar, offset and size in bytes."""


def is_url(source: str) -> bool:
    """Whether fsspec reads the source: `https://…`, `s3://…`, `simplecache::https://…`."""
    return _URL.match(source) is not None


def fetch(source: str | Path | bytes) -> str | Path | bytes:
    """The bytes of a URL, or of a part of a file or URL (`PATH#OFFSET+SIZE`).

    A local file and bytes are returned as they are. Raises SourceError.
    """
    if not isinstance(source, str):
        return source
    part = MEMBER.fullmatch(source)
    if part is not None:
        return _fetch_part(part[1], offset=int(part[2]), size=int(part[3]))
    if is_url(source):
        content: bytes = call_fsspec(source, lambda filesystem, path: filesystem.cat_file(path))
        return content
    return source


def _fetch_part(source: str, *, offset: int, size: int) -> bytes:
    """`size` bytes of a local file or URL from the byte `offset` on. Raises SourceError."""
    if is_url(source):
        end = offset + size
        content = call_fsspec(
            source, lambda filesystem, path: filesystem.cat_file(path, start=offset, end=end)
        )
    else:
        with open_local(source) as file:
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
    """The result of `call(filesystem, path)`, with the file system of a URL and the path in it.

    Raises: SourceError for any error of the server or of a plug-in of fsspec; ConfigError if fsspec
        is not installed.
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
        reason = " ".join(text.split())  # on one line
        raise SourceError(f"cannot be read ({reason})", is_of_file=False) from error
