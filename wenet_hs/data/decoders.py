# SPDX-License-Identifier: Apache-2.0
"""Decoders of audio: libsndfile, and PyAV (FFmpeg) with the same interface for what libsndfile
cannot read rightly.
"""

import io
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray

from wenet_hs.data import containers
from wenet_hs.data.containers import CONVERT, SourceError

_MP3_DELAY = 5 * 1152
"""Samples that an encoder adds before and after the audio, and more: decoders remove them."""
_PLAIN = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
"""Encodings with the same number of bytes for every sample."""
_WITHOUT_TIMES = ("mp3", "ogg", "aac", "amr", "ac3", "eac3", "mpc", "mpc8")
"""FFmpeg's formats without times, or with repeated ones in joined files: their samples are counted
from the first.
"""
_WITH_PLAIN_SAMPLES = ("wav", "au")
"""FFmpeg's formats that can be read from every sample on, if they are not compressed."""
_WITH_STATED_LENGTH = ("wv", "ape", "tta", "tak")
"""FFmpeg's formats whose header states the samples of the whole file: a shorter one is cut off."""
_OGG_CODECS = ("flac", "speex")
"""Codecs of Ogg files that libsndfile does not read."""
_WITH_CHECKSUMS = ("wv", "ape", "tta", "tak")
"""FFmpeg's formats with checksums of the samples, which FFmpeg only checks if it is told to."""
_PRE_ROLL_S = 0.2  # decoded and dropped after a jump: a codec needs what is before
_SILENCE = 1 << 16  # samples
_MAX_S = 24 * 3600.0
_GAP_S = 0.02  # shorter ones are none: some containers round times to milliseconds

NOT_AUDIO = "not audio that can be read"
"""Begins the reason why no decoder reads a file."""
NEEDS_PYAV = "PyAV reads it: pip install 'wenet_hs[media]'"
"""In the reason why a file cannot be read where PyAV is not installed."""

Samples = NDArray[np.float32]


def open_decoder(content: str | Path | bytes, first: int) -> tuple[Any, int]:
    """A `SoundFile` or `MediaFile` of a local file or of bytes, and the samples per channel that it
    has.

    `first`: see `read_sizes`. Raises: SourceError, OSError.
    """
    pyav_format = containers.find_pyav_format(content)
    if pyav_format is not None:
        media = MediaFile(content, f"{pyav_format}: libsndfile cannot read it")
        return media, media.frames
    try:
        file = soundfile.SoundFile(_openable(content))
    except soundfile.LibsndfileError as error:
        suffix = "" if isinstance(content, bytes) else Path(content).suffix.lower()
        if suffix in containers.RAW_SUFFIXES:
            raise SourceError(containers.RAW_SAMPLES, containers.ADD_HEADER) from error
        form = containers.find_ffmpeg_form(content)
        if form is None:
            raise _make_unreadable_error(error) from error
        media = MediaFile(content, f"{form}: libsndfile cannot read it")
        return media, media.frames
    end = containers.find_end(content) if file.format in ("MP3", "OGG") else containers.StreamEnd()
    fault = end.fault
    if end.num_samples - file.frames > _MP3_DELAY:
        found = f"{file.frames / file.samplerate:.2f} of {end.num_samples / file.samplerate:.2f} s can be read"
        fault = f"joined files, or a variable bit rate without a header: {found}"
    if fault:
        media = MediaFile(content, fault)
        return media, media.frames
    file = _open_samples(file, content, first) if first else file
    return file, file.frames if end.is_stated or not end.num_samples else min(
        file.frames, end.num_samples
    )


def _make_unreadable_error(error: soundfile.LibsndfileError) -> SourceError:
    """The error for what libsndfile refuses and FFmpeg cannot read either."""
    reason = error.error_string.strip()
    # It says "File does not exist …" of an existing file in an unknown format.
    is_unknown = "does not exist" in reason or "not recognised" in reason
    if not is_unknown:
        return SourceError(f"{NOT_AUDIO}: {reason}")
    to_do = f"{CONVERT} if it is audio, or restore it, or leave it out"
    return SourceError(f"{NOT_AUDIO}: no known format", to_do)


def _openable(content: str | Path | bytes) -> str | int | BinaryIO:
    """What `SoundFile` opens by its content.

    It takes a path that ends in .raw for samples without a header, so such a file is opened here.
    Raises OSError.
    """
    if isinstance(content, bytes):
        return io.BytesIO(content)
    is_named_raw = Path(content).suffix.lower() == ".raw"
    return os.open(content, os.O_RDONLY) if is_named_raw else str(content)


def _open_samples(
    header: soundfile.SoundFile, content: str | Path | bytes, first: int
) -> soundfile.SoundFile:
    """The samples from a byte to the end of a wav, whatever its header states."""
    if header.subtype not in _PLAIN:
        raise SourceError("more samples than its header states, in a compressed wav", CONVERT)
    form = {"samplerate": header.samplerate, "channels": header.channels, "subtype": header.subtype}
    file = io.BytesIO(content[first:]) if isinstance(content, bytes) else _FileFrom(content, first)
    return soundfile.SoundFile(file, format="RAW", endian="LITTLE", **form)


class _FileFrom(io.FileIO):
    """The bytes of a file from one of them on."""

    def __init__(self, path: str | Path, first: int) -> None:
        super().__init__(path)
        self._first = first
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return (
            super().seek(offset + (self._first if whence == io.SEEK_SET else 0), whence)
            - self._first
        )

    def tell(self) -> int:
        return super().tell() - self._first

    def __del__(self) -> None:
        self.close()  # libsndfile does not


# ---- PyAV


class _Sound(NamedTuple):
    """The first audio stream of a file."""

    rate: int
    layout: Any
    """PyAV's, with the number of channels."""
    origin_s: float
    """FFmpeg's time at which the recording begins."""
    has_times: bool
    """Whether frames have times that can be used."""
    num_samples: int = 0


class MediaFile:
    """The first audio stream of a file that FFmpeg reads, also of a video.

    Where sound begins later than the picture, or frames are missing, there is silence, so that all
    times are right.
    """

    def __init__(self, content: str | Path | bytes, fault: str) -> None:
        """`fault`: why libsndfile does not read it.

        Raises SourceError, also where PyAV is not installed; OSError.
        """
        try:
            import av  # noqa: F401
        except ImportError as error:
            found = f"{fault}; {NEEDS_PYAV}"
            raise SourceError(found, f"or {CONVERT}", is_of_file=False) from error
        self._content = content
        self._sound = (
            _probe(content)
            if isinstance(content, bytes)
            else _probe_file(content, *containers.file_state(content))
        )
        self.format, self.samplerate, self.frames = (
            "FFmpeg",
            self._sound.rate,
            self._sound.num_samples,
        )
        self.channels: int = self._sound.layout.nb_channels
        self.seek(0)

    def __enter__(self) -> "MediaFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks.close()

    def seek(self, first: int) -> None:
        """Read from this sample on."""
        self._blocks, self._rest = (
            _decode(self._content, self._sound, first),
            np.empty((0, self.channels), np.float32),
        )

    def read(self, num_samples: int, **_: object) -> Samples:
        """The next samples (n, C) in [-1, 1]; fewer at the end."""
        parts, num = [self._rest], len(self._rest)
        while num < num_samples and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            num += len(block)
        samples = np.concatenate(parts)
        self._rest = samples[num_samples:]
        return samples[:num_samples]


def _probe(content: str | Path | bytes) -> _Sound:
    """The sound of a file and its length, for which it is decoded if no header states it."""
    with _open(content) as (file, stream):
        frame = next(file.decode(stream), None)
        if frame is None:
            fault = "damaged or cut off: no samples" if stream.duration else "empty: no samples"
            raise SourceError(fault)
        sound = _Sound(
            rate=frame.sample_rate,
            layout=frame.layout,
            origin_s=(file.start_time or 0) / 1_000_000,
            has_times=_has_times(file, stream),
        )
        duration_s = stream.duration * stream.time_base if stream.duration else 0
        num_stated = round(duration_s * sound.rate)
        if num_stated and _is_length_stated(file, stream, sound):
            late_s = (frame.time or 0.0) - sound.origin_s
            num_before = max(0, round(late_s * sound.rate))
            return sound._replace(num_samples=num_before + num_stated)
        is_end_stated = _format_name(file) == "ogg" and stream.codec_context.name in _OGG_CODECS
    num_decoded = sum(map(len, _decode(content, sound, 0)))
    if is_end_stated:  # if it has fewer samples, some of its pages are damaged
        return sound._replace(num_samples=max(num_decoded, num_stated))
    return sound._replace(num_samples=num_decoded)


def _has_times(file: Any, stream: Any) -> bool:
    """See `_Sound.has_times`. In a compressed wav the samples after a jump would be others."""
    form = _format_name(file)
    is_compressed = not stream.codec_context.name.startswith("pcm_")
    return form not in _WITHOUT_TIMES and not (form in _WITH_PLAIN_SAMPLES and is_compressed)


def _is_length_stated(file: Any, stream: Any, sound: _Sound) -> bool:
    """Whether FFmpeg's duration is that of the whole file, by its header.

    A header that states no number of frames may be of a fragment.
    """
    return _format_name(file) in _WITH_STATED_LENGTH or (sound.has_times and stream.frames > 0)


def _format_name(file: Any) -> str:
    """FFmpeg's name of a format, the first one of several for the same format."""
    name: str = file.format.name.split(",")[0]
    return name


@lru_cache(maxsize=4096)
def _probe_file(path: str | Path, size: int, time_ns: int) -> _Sound:
    return _probe(path)


@contextmanager
def _open(content: str | Path | bytes) -> Iterator[tuple[Any, Any]]:
    """FFmpeg's file and its first audio stream. Raises SourceError, OSError."""
    import av

    try:
        source = io.BytesIO(content) if isinstance(content, bytes) else f"file:{content}"
        with av.open(source, metadata_errors="ignore") as file:
            if not file.streams.audio:
                raise SourceError("no sound: a video without an audio stream")
            stream = file.streams.audio[0]
            if _format_name(file) in _WITH_CHECKSUMS:
                stream.codec_context.options = {"err_detect": "crccheck+bitstream+buffer+explode"}
            yield file, stream
    except av.error.DecoderNotFoundError as error:
        raise SourceError("a codec that FFmpeg cannot read either", CONVERT) from error
    except av.FFmpegError as error:
        if isinstance(error, OSError):
            raise
        is_unnamed = isinstance(error, av.error.UndefinedError)
        reason = "its decoder refuses it" if is_unnamed else error.strerror
        raise SourceError(f"damaged or cut off: {reason}") from error
    except ValueError as error:
        raise SourceError(
            "its sample rate or channels change, as in joined files", CONVERT
        ) from error


def _decode(
    content: str | Path | bytes, sound: _Sound, first: int, *, can_jump: bool = True
) -> Generator[Samples]:
    """The samples (n, C) from `first` on."""
    from av import AudioResampler

    resampler = AudioResampler("fltp", sound.layout, sound.rate)
    is_jump = can_jump and sound.has_times and first > _PRE_ROLL_S * sound.rate
    following, end = first, None
    try:
        with _open(content) as (file, stream):
            if is_jump:
                file.seek(
                    int((sound.origin_s + first / sound.rate - _PRE_ROLL_S) / stream.time_base),
                    stream=stream,
                )
            for frame in file.decode(stream):
                block = np.concatenate(
                    [one.to_ndarray() for one in resampler.resample(frame)], axis=1
                ).T
                begin = _find_begin(frame, sound, end)
                if is_jump and end is None and begin > first:
                    raise SourceError("the jump went too far")
                end = begin + len(block)
                while following < begin:
                    yield np.zeros((min(begin - following, _SILENCE), block.shape[1]), np.float32)
                    following += min(begin - following, _SILENCE)
                if end > following:
                    yield block[following - begin :]
                    following = end
    except SourceError:
        if not is_jump or following > first:
            raise
        yield from _decode(content, sound, first, can_jump=False)


def _find_begin(frame: Any, sound: _Sound, end: int | None) -> int:
    """The first sample of a frame. `end`: that after the frame before."""
    if frame.time is None or (end is not None and not sound.has_times):
        return end or 0
    begin = round((frame.time - sound.origin_s) * sound.rate)
    if begin > _MAX_S * sound.rate:
        raise SourceError(f"damaged: it has audio at {frame.time:.0f} s")
    return begin if end is None or begin - end > _GAP_S * sound.rate else end
