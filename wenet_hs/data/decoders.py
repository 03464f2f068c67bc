# SPDX-License-Identifier: Apache-2.0
"""Decoders of audio: libsndfile, and PyAV (FFmpeg) for files that libsndfile reads wrongly or not.

`open_decoder` chooses one by the content of the file. Both have the same interface: that of
`soundfile.SoundFile`.
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

_MAX_MP3_DELAY = 5 * 1152
"""More samples than an encoder adds before and after the audio; decoders remove them."""
_PLAIN_ENCODINGS = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
"""libsndfile's encodings with the same number of bytes for every sample."""
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
_PRE_ROLL_S = 0.2
"""Audio that is decoded and dropped after a jump: a codec needs the frames before the first one."""
_SILENCE_SAMPLES = 1 << 16
"""Samples of silence that are returned at a time."""
_MAX_S = 24 * 3600.0
"""No frame begins later, unless its time is damaged."""
_MIN_GAP_S = 0.02
"""Frames follow one another if less is missing between them: some formats round their times."""

NOT_AUDIO = "not audio that can be read"
"""Begins the reason why no decoder reads a file."""
NEEDS_PYAV = "PyAV reads it: pip install 'wenet_hs[media]'"
"""In the reason why a file cannot be read where PyAV is not installed."""

Samples = NDArray[np.float32]


def open_decoder(content: str | Path | bytes, samples_begin: int | None = None) -> tuple[Any, int]:
    """Open a local file of audio, or the bytes of one, with the decoder that reads all of it.

    libsndfile opens every format but those of PyAV. PyAV reads what libsndfile refuses, of which it
    reads only a part, or whose beginning it misses.

    Args:
        samples_begin: see `SizeComparison`.
    Returns: a `SoundFile` or `MediaFile`, and its samples per channel.
    Raises: SourceError, OSError.
    """
    pyav_format = containers.find_pyav_format(content)
    if pyav_format is not None:
        return _open_media(content, f"{pyav_format}: libsndfile cannot read it")
    try:
        file = soundfile.SoundFile(_openable(content))
    except soundfile.LibsndfileError as error:
        return _open_media(content, _describe_refused(content, error))
    end = containers.StreamEnd()
    if file.format in ("MP3", "OGG"):
        end = containers.find_stream_end(content)
    fault = _describe_unread(file, end)
    if fault is not None:
        return _open_media(content, fault)
    if samples_begin is not None:
        file = _open_samples(file, content, samples_begin)
    # libsndfile guesses the length of an MP3 whose first frame does not state it.
    is_length_guessed = end.num_samples > 0 and not end.is_stated
    num_samples = min(file.frames, end.num_samples) if is_length_guessed else file.frames
    return file, num_samples


def _describe_unread(file: soundfile.SoundFile, end: containers.StreamEnd) -> str | None:
    """What libsndfile does not read of a file that it has opened; None: it reads all of it.

    This is a part of an MP3, or a fault of an Ogg file that `StreamEnd.fault` describes.
    """
    num_unread = end.num_samples - file.frames  # negative unless the file is an MP3
    if num_unread > _MAX_MP3_DELAY:
        read_s = file.frames / file.samplerate
        whole_s = end.num_samples / file.samplerate
        found = f"{read_s:.2f} of {whole_s:.2f} s can be read"
        return f"joined files, or a variable bit rate without a header: {found}"
    return end.fault


def _open_media(content: str | Path | bytes, fault: str) -> tuple["MediaFile", int]:
    """`MediaFile`, with its samples per channel."""
    media = MediaFile(content, fault)
    return media, media.frames


def _describe_refused(content: str | Path | bytes, error: soundfile.LibsndfileError) -> str:
    """Why libsndfile refuses a file that PyAV may read.

    Raises: SourceError for raw samples, and for a file that PyAV does not read either; OSError.
    """
    suffix = "" if isinstance(content, bytes) else Path(content).suffix.lower()
    if suffix in containers.RAW_SUFFIXES:
        raise SourceError(containers.RAW_SAMPLES, containers.ADD_HEADER) from error
    form = containers.find_ffmpeg_form(content)
    if form is None:
        raise _make_unreadable_error(error) from error
    return f"{form}: libsndfile cannot read it"


def _make_unreadable_error(error: soundfile.LibsndfileError) -> SourceError:
    """The error for a file that libsndfile refuses and FFmpeg cannot read either."""
    reason = error.error_string.strip()
    # libsndfile says "File does not exist …" of an existing file in an unknown format.
    is_unknown_format = "does not exist" in reason or "not recognised" in reason
    if not is_unknown_format:
        return SourceError(f"{NOT_AUDIO}: {reason}")
    to_do = f"{CONVERT} if it is audio, or restore it, or leave it out"
    return SourceError(f"{NOT_AUDIO}: no known format", to_do)


def _openable(content: str | Path | bytes) -> str | int | BinaryIO:
    """The argument with which `SoundFile` opens a file or bytes by their content. Raises OSError.

    `SoundFile` takes a path that ends in .raw for samples without a header, so such a file is
    opened here, and its file descriptor is returned.
    """
    if isinstance(content, bytes):
        return io.BytesIO(content)
    is_named_raw = Path(content).suffix.lower() == ".raw"
    return os.open(content, os.O_RDONLY) if is_named_raw else str(content)


def _open_samples(
    header: soundfile.SoundFile, content: str | Path | bytes, begin: int
) -> soundfile.SoundFile:
    """The samples from the byte `begin` to the end of a wav, whatever its header states.

    header: the same wav, opened by its header. Raises SourceError if it is compressed; OSError.
    """
    if header.subtype not in _PLAIN_ENCODINGS:
        raise SourceError("more samples than its header states, in a compressed wav", CONVERT)
    if isinstance(content, bytes):
        samples: BinaryIO | _FileFrom = io.BytesIO(content[begin:])
    else:
        samples = _FileFrom(content, begin)
    return soundfile.SoundFile(
        samples,
        format="RAW",
        endian="LITTLE",
        samplerate=header.samplerate,
        channels=header.channels,
        subtype=header.subtype,
    )


class _FileFrom(io.FileIO):
    """The bytes of a file from the byte `begin` on, as if the file began there."""

    def __init__(self, path: str | Path, begin: int) -> None:
        super().__init__(path)
        self._begin = begin
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As `FileIO.seek`, with positions from `begin` on."""
        if whence == io.SEEK_SET:
            offset += self._begin
        return super().seek(offset, whence) - self._begin

    def tell(self) -> int:
        """As `FileIO.tell`, with positions from `begin` on."""
        return super().tell() - self._begin

    def __del__(self) -> None:
        self.close()  # libsndfile does not


# ---- PyAV


class _Sound(NamedTuple):
    """The first audio stream of a file."""

    rate: int
    layout: Any
    """PyAV's layout of the channels, with their number."""
    origin_s: float
    """FFmpeg's time at which the recording begins; FFmpeg does not count every file from 0."""
    has_times: bool
    """Whether frames have times that can be used."""
    num_samples: int = 0
    """Per channel; 0: not known yet."""


class MediaFile:
    """The first audio stream of a file that FFmpeg reads, also of a video.

    Where sound begins later than the picture, or frames are missing, there is silence, so that all
    times are right.
    """

    format = "FFmpeg"
    """Instead of libsndfile's name of a format; it is none of those."""

    def __init__(self, content: str | Path | bytes, fault: str) -> None:
        """Open a file, or its bytes, and find its length.

        `fault`: why libsndfile does not read it, for a message.

        Raises SourceError, also where PyAV is not installed; OSError.
        """
        try:
            import av  # noqa: F401
        except ImportError as error:
            found = f"{fault}; {NEEDS_PYAV}"
            raise SourceError(found, f"or {CONVERT}", is_of_file=False) from error
        self._content = content
        if isinstance(content, bytes):
            self._sound = _probe(content)
        else:
            self._sound = _probe_file(content, *containers.file_state(content))
        self.samplerate = self._sound.rate
        self.frames = self._sound.num_samples
        self.channels: int = self._sound.layout.nb_channels
        self.seek(0)

    def __enter__(self) -> "MediaFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks.close()

    def seek(self, first: int) -> None:
        """Read from the sample `first` on."""
        self._blocks = _decode(self._content, self._sound, first)
        self._rest = np.empty((0, self.channels), np.float32)  # decoded, but not returned yet

    def read(self, num_samples: int, **_: object) -> Samples:
        """The next samples (n, C) in [-1, 1] as float32; fewer at the end.

        Other arguments of `SoundFile.read` are ignored: callers ask for this type and shape.
        """
        blocks = [self._rest]
        num_decoded = len(self._rest)
        while num_decoded < num_samples:
            block = next(self._blocks, None)
            if block is None:
                break
            blocks.append(block)
            num_decoded += len(block)
        samples = np.concatenate(blocks)
        self._rest = samples[num_samples:]
        return samples[:num_samples]


def _probe(content: str | Path | bytes) -> _Sound:
    """The first audio stream of a file, with its length.

    The length is that of the header. If the header does not state it, the whole file is decoded.
    Raises SourceError, also for a stream without samples; OSError.
    """
    with _open_stream(content) as (file, stream):
        frame = next(file.decode(stream), None)
        if frame is None:
            fault = "damaged or cut off: no samples" if stream.duration else "empty: no samples"
            raise SourceError(fault)
        sound = _Sound(
            rate=frame.sample_rate,
            layout=frame.layout,
            origin_s=(file.start_time or 0) / 1_000_000,  # FFmpeg has microseconds
            has_times=_has_times(file, stream),
        )
        # PyAV counts the duration in units of time_base; None: the header does not state it.
        duration_s = stream.duration * stream.time_base if stream.duration else 0
        num_stated = round(duration_s * sound.rate)
        if num_stated and _is_length_stated(file, stream, sound):
            late_s = (frame.time or 0.0) - sound.origin_s
            num_before = max(0, round(late_s * sound.rate))  # silence before a late sound
            return sound._replace(num_samples=num_before + num_stated)
        is_end_stated = _format_name(file) == "ogg" and stream.codec_context.name in _OGG_CODECS
    num_decoded = sum(map(len, _decode(content, sound, 0)))
    if is_end_stated:  # a file with fewer samples than its end states has damaged pages
        return sound._replace(num_samples=max(num_decoded, num_stated))
    return sound._replace(num_samples=num_decoded)


def _has_times(file: Any, stream: Any) -> bool:
    """Whether the frames of a file have times that can be used to jump to a sample.

    Formats without times have none. The times of a compressed wav or AU cannot be used: after a
    jump in it, FFmpeg would decode other samples.
    """
    name = _format_name(file)
    if name in _WITHOUT_TIMES:
        return False
    is_plain = stream.codec_context.name.startswith("pcm_")
    return is_plain or name not in _WITH_PLAIN_SAMPLES


def _is_length_stated(file: Any, stream: Any, sound: _Sound) -> bool:
    """Whether FFmpeg's duration is that of the whole file, by its header.

    A header that states no number of frames may be of a fragment.
    """
    states_num_frames = sound.has_times and stream.frames > 0
    return states_num_frames or _format_name(file) in _WITH_STATED_LENGTH


def _format_name(file: Any) -> str:
    """FFmpeg's name of the format of a file, such as mov; the first one of several names."""
    name: str = file.format.name.split(",")[0]
    return name


@lru_cache(maxsize=4096)
def _probe_file(path: str | Path, size: int, time_ns: int) -> _Sound:
    """`_probe` of a file; `size` and `time_ns` only tell the cache that it changed."""
    return _probe(path)


@contextmanager
def _open_stream(content: str | Path | bytes) -> Iterator[tuple[Any, Any]]:
    """Open a file, or its bytes, with FFmpeg.

    Yields: FFmpeg's file and its first audio stream.
    Raises: SourceError for a file without sound, and for errors of FFmpeg, in the block too;
        OSError.
    """
    import av

    try:
        source = io.BytesIO(content) if isinstance(content, bytes) else f"file:{content}"
        with av.open(source, metadata_errors="ignore") as file:
            if not file.streams.audio:
                raise SourceError("no sound: a video without an audio stream")
            stream = file.streams.audio[0]
            if _format_name(file) in _WITH_CHECKSUMS:
                # Compare the checksums, and fail at the first error instead of hiding it.
                stream.codec_context.options = {"err_detect": "crccheck+bitstream+buffer+explode"}
            yield file, stream
    except av.error.DecoderNotFoundError as error:
        raise SourceError("a codec that FFmpeg cannot read either", CONVERT) from error
    except av.FFmpegError as error:
        if isinstance(error, OSError):
            raise
        has_no_reason = isinstance(error, av.error.UndefinedError)
        reason = "its decoder refuses it" if has_no_reason else error.strerror
        raise SourceError(f"damaged or cut off: {reason}") from error
    except ValueError as error:  # of AudioResampler: a frame is not like the first one
        raise SourceError(
            "its sample rate or channels change, as in joined files", CONVERT
        ) from error


def _decode(
    content: str | Path | bytes, sound: _Sound, first: int, *, can_jump: bool = True
) -> Generator[Samples]:
    """The samples (n, C) from the sample `first` on, in [-1, 1], with silence for missing frames.

    If `first` is not near the beginning of the file, decoding begins shortly before it, by a jump
    in the file. If this fails before a sample was returned, all samples from the beginning of the
    file are decoded, and those before `first` are dropped. `can_jump`: False to do this at once.

    Raises SourceError, OSError.
    """
    from av import AudioResampler

    # The resampler converts the samples to float32 ("fltp"), at the same rate.
    resampler = AudioResampler("fltp", sound.layout, sound.rate)
    is_jump = can_jump and sound.has_times and first > _PRE_ROLL_S * sound.rate
    next_sample = first  # the next one to return
    end: int | None = None  # the sample after the last decoded one; None before the first frame
    try:
        with _open_stream(content) as (file, stream):
            if is_jump:
                target_s = sound.origin_s + first / sound.rate - _PRE_ROLL_S
                file.seek(int(target_s / stream.time_base), stream=stream)
            for frame in file.decode(stream):
                parts_CN = [part.to_ndarray() for part in resampler.resample(frame)]
                block = np.concatenate(parts_CN, axis=1).T
                begin = _find_begin(frame, sound, end)
                if is_jump and end is None and begin > first:
                    raise SourceError("the jump went too far")  # caught below
                end = begin + len(block)
                while next_sample < begin:
                    num_silent = min(begin - next_sample, _SILENCE_SAMPLES)
                    yield np.zeros((num_silent, block.shape[1]), np.float32)
                    next_sample += num_silent
                if end > next_sample:
                    yield block[next_sample - begin :]
                    next_sample = end
    except SourceError:
        has_returned_samples = next_sample > first
        if not is_jump or has_returned_samples:
            raise
        yield from _decode(content, sound, first, can_jump=False)


def _find_begin(frame: Any, sound: _Sound, previous_end: int | None) -> int:
    """The number of the first sample of a frame, from the beginning of the recording.

    It is by the time of the frame, if that is usable and leaves a gap after the previous frame.
    Otherwise the frame follows the previous one.

    previous_end: the sample after the previous frame; None: the frame is the first one decoded.
    Raises: SourceError for a time after the longest recording: the file is damaged.
    """
    # In a format without usable times only that of the first frame is used.
    has_usable_time = frame.time is not None and (previous_end is None or sound.has_times)
    if not has_usable_time:
        return previous_end or 0
    begin: int = round((frame.time - sound.origin_s) * sound.rate)
    if begin > _MAX_S * sound.rate:
        raise SourceError(f"damaged: it has audio at {frame.time:.0f} s")
    if previous_end is None or begin - previous_end > _MIN_GAP_S * sound.rate:
        return begin
    return previous_end
