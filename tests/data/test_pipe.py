# SPDX-License-Identifier: Apache-2.0
"""Audio in a pipe: WAVs of all kinds, raw samples, and formats that are refused."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from model_folders import noise
from numpy.typing import NDArray

from wenet_hs.data.audio import read_audio_file
from wenet_hs.data.frame_headers import mp3_frame_size
from wenet_hs.data.pipe import Read, read_pipe
from wenet_hs.data.samples import SampleStream
from wenet_hs.data.signatures import (
    MAX_BEGINNING,
    MAX_SIGNATURE,
    find_file_format,
    find_pipe_format,
    is_undecided,
)
from wenet_hs.tree.errors import DataError

Samples = NDArray[np.float32]
RATE = 8000


def pipe_of(content: bytes, size: int = 1001) -> Read:
    """A pipe from which at most `size` bytes arrive at a time."""
    file = io.BytesIO(content)
    return lambda wanted: file.read(min(wanted, size))


def samples_of(read: Read, rate: int = RATE) -> Samples:
    """The samples of all pieces of a pipe, which all have this rate."""
    parts = []
    for piece, piece_rate in read_pipe(read, None):
        assert piece_rate == rate
        parts.append(from_16_bits(piece) if isinstance(piece, bytes) else piece)
    return np.concatenate(parts)


def from_16_bits(content: bytes) -> Samples:
    return np.frombuffer(content, "<i2").astype(np.float32) / 32768


def error_of(content: bytes, raw_rate: int | None = None) -> str:
    with pytest.raises(DataError) as caught:
        list(read_pipe(pipe_of(content), raw_rate))
    return str(caught.value)


def write(container: str, subtype: str | None = None, channels: int = 1, rate: int = RATE) -> bytes:
    """Half a second of noise."""
    columns = [noise(0.5, rate=rate, seed=channel) for channel in range(channels)]
    file = io.BytesIO()
    soundfile.write(file, np.stack(columns, axis=1), rate, format=container, subtype=subtype)
    return file.getvalue()


def replaced(content: bytes, position: int, other: bytes) -> bytes:
    """The content with other bytes from a position on."""
    return content[:position] + other + content[position + len(other) :]


def with_data_size(wav: bytes, size: int) -> bytes:
    return replaced(wav, wav.index(b"data") + 4, size.to_bytes(4, "little"))


def chunk(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "little") + content + b"\0" * (len(content) % 2)


SUBTYPES = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")


@pytest.mark.parametrize("subtype", SUBTYPES)
@pytest.mark.parametrize("container", ["WAV", "WAVEX", "RF64"])
def test_a_wav_has_the_samples_of_the_file(container: str, subtype: str, tmp_path: Path) -> None:
    for channels, rate in ((1, 16000), (2, 48000), (3, 11025)):
        wav = write(container, subtype, channels, rate)
        path = tmp_path / f"{channels}.wav"
        path.write_bytes(wav)

        expected, file_rate, _ = read_audio_file(path)
        in_small_pieces = samples_of(pipe_of(wav, size=997), rate)
        in_one_piece = samples_of(pipe_of(wav, size=1 << 20), rate)

        assert file_rate == rate
        assert len(expected) == round(0.5 * rate)
        np.testing.assert_array_equal(in_small_pieces, expected)
        np.testing.assert_array_equal(in_one_piece, expected)


UNKNOWN_SIZES = (0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFFF - 36)


@pytest.mark.parametrize("size", UNKNOWN_SIZES)
def test_a_header_that_was_written_before_the_length_was_known(size: int) -> None:
    """As ffmpeg, sox, GStreamer and arecord write it."""
    wav = write("WAV", "PCM_16")
    expected = samples_of(pipe_of(wav))

    samples = samples_of(pipe_of(with_data_size(wav, size)))

    np.testing.assert_array_equal(samples, expected)


def test_chunks_beside_the_samples_are_no_samples() -> None:
    wav = write("WAV", "PCM_24", channels=2)
    expected = samples_of(pipe_of(wav))
    position = wav.index(b"data")
    note = chunk(b"LIST", b"INFOISFT" + bytes(range(256)) * 40 + b"x")
    before = wav[:position] + note + chunk(b"JUNK", b"") + wav[position:]
    after = wav + note + chunk(b"id3 ", b"ID3")
    padded = wav + b"\0" * 500

    for content in (before, after, padded):
        np.testing.assert_array_equal(samples_of(pipe_of(content)), expected)


@pytest.mark.parametrize("too_small", [600, 601])
def test_samples_after_the_declared_size_are_read(too_small: int) -> None:
    wav = write("WAV", "PCM_24", channels=2)
    expected = samples_of(pipe_of(wav))

    samples = samples_of(pipe_of(with_data_size(wav, too_small)))

    np.testing.assert_array_equal(samples, expected)


WAV = write("WAV", "PCM_16")
FMT = WAV.index(b"fmt ") + 8
DATA = WAV.index(b"data")
RESTORE = "; restore the file, or leave it out"
CHANNELS = FMT + 2
SAMPLE_RATE = FMT + 4
FRAME_SIZE = FMT + 12
SAMPLES = DATA + 8


@pytest.mark.parametrize(
    ("wav", "message"),
    [
        pytest.param(
            WAV[:4000],
            f"-: cut off: 0.247 s of audio, its header declares 0.500 s{RESTORE}",
            id="cut off in its samples",
        ),
        pytest.param(
            WAV[:SAMPLES],
            f"-: cut off: 0.000 s of audio, its header declares 0.500 s{RESTORE}",
            id="cut off before its samples",
        ),
        pytest.param(
            WAV + WAV,
            "-: joined files: only the first one was read; convert it to FLAC or wav",
            id="joined",
        ),
        pytest.param(
            with_data_size(WAV[:SAMPLES], 0),
            f"-: empty: no samples{RESTORE}",
            id="no samples",
        ),
        pytest.param(
            WAV[:20],
            f"-: a WAV without samples: it ends in its header{RESTORE}",
            id="cut off in its header",
        ),
        pytest.param(
            WAV[:12] + WAV[DATA:],
            f"-: a WAV whose header does not describe its samples{RESTORE}",
            id="no chunk fmt",
        ),
        pytest.param(
            replaced(WAV, CHANNELS, bytes(2)),
            f"-: a WAV that declares 0 channels{RESTORE}",
            id="0 channels",
        ),
        pytest.param(
            replaced(WAV, SAMPLE_RATE, bytes(4)),
            f"-: a WAV that declares a sample rate of 0 Hz{RESTORE}",
            id="0 Hz",
        ),
    ],
)
def test_wavs_that_are_damaged(wav: bytes, message: str) -> None:
    assert error_of(wav) == message


def test_a_frame_that_is_not_a_whole_number_of_samples_is_refused() -> None:
    of_64_channels = replaced(WAV, CHANNELS, b"\x40\0")
    wav = replaced(of_64_channels, FRAME_SIZE, b"\x41\0")

    assert error_of(wav).startswith("-: a WAV of the encoding 0x0001, which is not read from")


def test_a_wav_of_another_rate_than_that_of_raw_samples_is_refused() -> None:
    expected = "--rate 16000: the WAV in the pipe has 8000 Hz; leave --rate out"
    assert error_of(WAV, raw_rate=16000) == expected


def test_a_wav_of_the_rate_of_raw_samples_is_read() -> None:
    pieces = list(read_pipe(pipe_of(WAV), raw_rate=8000))

    rates = {rate for _, rate in pieces}
    assert rates == {8000}


def test_a_wav_of_another_encoding_is_refused() -> None:
    assert error_of(write("WAV", "IMA_ADPCM")) == (
        "-: a WAV of the encoding 0x0011, which is not read from a pipe; give the file by its "
        "name, or put `ffmpeg -i - -f s16le -ar 16000 -ac 1 -` before this command"
    )


def test_what_arrived_of_a_wav_is_given_on_before_it_is_refused() -> None:
    wav = write("WAV", "PCM_16", channels=2)
    pieces = read_pipe(pipe_of(wav[:4001]), None)

    num_samples = 0
    with pytest.raises(DataError, match="cut off"):
        for piece, _ in pieces:
            num_samples += len(piece)

    num_sample_bytes = 4001 - wav.index(b"data") - 8
    bytes_per_frame = 4
    assert num_samples == num_sample_bytes // bytes_per_frame


def test_a_part_of_a_sample_at_the_end_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wav = write("WAV", "PCM_16", channels=2)

    with caplog.at_level(logging.WARNING):
        samples_of(pipe_of(with_data_size(wav, 0)[:-1]))
    message = "-: the pipe ends in the middle of a sample of 32 bits; its last 3 bytes are left out"
    assert message in caplog.text


MP3 = b"\xff\xfb\x90\x00" + bytes(413)
"""A frame of layer III: 128 kbit/s, 44,100 Hz."""
AAC = bytes([0xFF, 0xF1, 0x50, 0x80, 0x08, 0x1F, 0xFC]) + bytes(57)
"""A frame of ADTS, 64 bytes."""
LATM = b"\x56\xe0\x40\x20\0" + bytes(62)
"""A frame of LOAS, 67 bytes."""
AC3 = b"\x0b\x77\0\0\x14\x40" + bytes(762)
"""A frame of 192 kbit/s, 48,000 Hz."""
AC3_ODD = b"\x0b\x77\0\0\x41\x40" + bytes(134)
"""A frame of 32 kbit/s, 44,100 Hz, of the longer ones."""
EAC3 = b"\x0b\x77\0\x3f\0\x80" + bytes(122)
"""A frame of 128 bytes."""
TS = b"G\x40\x11\x10" + bytes(184)
"""A packet of a transport stream."""
MP2 = b"\xff\xfd\x84\xc0" + bytes(380)
"""A frame of layer II: 128 kbit/s, 48,000 Hz."""
OTHER_FORMATS = [
    pytest.param(write("FLAC"), "FLAC", id="flac"),
    pytest.param(write("OGG", "VORBIS"), "Ogg (Vorbis, Opus, Speex or FLAC)", id="vorbis"),
    pytest.param(write("OGG", "OPUS"), "Ogg (Vorbis, Opus, Speex or FLAC)", id="opus"),
    pytest.param(write("MP3", rate=16000), "MP3", id="mp3"),
    pytest.param(3 * MP3, "MP3", id="mp3 of three frames"),
    pytest.param(b"ID3\x04\0\0\0\0\0\0" + 3 * MP3, "MP3", id="mp3 with tags"),
    pytest.param(4 * AAC, "AAC", id="aac"),
    pytest.param(b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81" + bytes(100), "Matroska or WebM", id="webm"),
    pytest.param(write("AIFF"), "AIFF", id="aiff"),
    pytest.param(write("AU"), "AU", id="au"),
    pytest.param(write("CAF"), "CAF", id="caf"),
    pytest.param(write("NIST", "PCM_16"), "NIST SPHERE", id="sphere"),
    pytest.param(write("W64"), "Wave64", id="wave64"),
    pytest.param(b"RIFF\0\0\0\x01AVI LIST" + bytes(100), "AVI", id="avi"),
    pytest.param(
        bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + bytes(100), "WMA or ASF", id="wma"
    ),
    pytest.param(3 * MP2, "MP2", id="mp2"),
    pytest.param(3 * LATM, "AAC (LATM)", id="latm"),
    pytest.param(3 * AC3, "AC-3", id="ac-3"),
    pytest.param(3 * AC3_ODD, "AC-3", id="ac-3 at 44,100 Hz"),
    pytest.param(3 * EAC3, "AC-3", id="e-ac-3"),
    pytest.param(b"TTA1\x01\0\x01\0" + bytes(100), "True Audio", id="true audio"),
    pytest.param(b"tBaK" + bytes(100), "TAK", id="tak"),
    pytest.param(b"MP+\x07" + bytes(100), "Musepack", id="musepack 7"),
    pytest.param(b"MPCK" + bytes(100), "Musepack", id="musepack 8"),
    pytest.param(3 * TS, "MPEG transport stream", id="transport stream"),
    pytest.param(3 * (bytes(4) + TS), "MPEG transport stream", id="transport stream with times"),
    pytest.param(b"\0\0\x01\xba\x44" + bytes(100), "MPEG program stream", id="program stream"),
    pytest.param(b"#!AMR\n" + bytes(100), "AMR", id="amr"),
]
"""The content of a file, and the name of its format."""


@pytest.mark.parametrize("raw_rate", [None, 8000])
@pytest.mark.parametrize(("content", "name"), OTHER_FORMATS)
def test_other_formats_are_refused_by_their_names(
    content: bytes, name: str, raw_rate: int | None
) -> None:
    rate_of_command = 16000 if raw_rate is None else raw_rate
    assert error_of(content, raw_rate) == (
        f"-: {name} in the pipe, which takes raw samples or WAV; give the file by its name, "
        f"or put `ffmpeg -i - -f s16le -ar {rate_of_command} -ac 1 -` before this command"
    )


@pytest.mark.parametrize(("content", "name"), OTHER_FORMATS)
def test_a_sample_stream_refuses_the_bytes_of_other_formats(content: bytes, name: str) -> None:
    with pytest.raises(ValueError, match="the bytes begin a file of the format"):
        SampleStream(16000).advance(whole_samples(content), 16000)


def whole_samples(content: bytes) -> bytes:
    """The content, without its last byte if their number is odd."""
    return content[: len(content) // 2 * 2]


def test_an_mp4_is_given_by_its_name(tmp_path: Path) -> None:
    """Its index may be at its end, so no program decodes it from a pipe."""
    path = tmp_path / "a.m4a"
    write_media(path, "mp4", "aac")
    content = path.read_bytes()
    assert content.index(b"mdat") < content.index(b"moov"), "the index is at the end"
    assert error_of(content) == (
        "-: MP4, M4A or MOV in the pipe, which takes raw samples or WAV; give the file by its name"
    )
    samples, _, _ = read_audio_file(path)
    assert len(samples) >= 48000
    with pytest.raises(ValueError, match="the bytes begin a file of the format MP4"):
        SampleStream(16000).advance(whole_samples(content), 16000)


ENCODED = {
    "mp2": ("mp2", "MP2"),
    "ac3": ("ac3", "AC-3"),
    "eac3": ("eac3", "AC-3"),
    "latm": ("aac", "AAC (LATM)"),
    "adts": ("aac", "AAC"),
    "tta": ("tta", "True Audio"),
    "mpegts": ("mp2", "MPEG transport stream"),
    "mpeg": ("mp2", "MPEG program stream"),
    "wv": ("wavpack", "WavPack"),
}
"""FFmpeg's name of a format → that of a codec, and our name of the format."""


@pytest.mark.parametrize("container", ENCODED)
def test_a_pipe_and_a_file_are_of_the_same_format(container: str, tmp_path: Path) -> None:
    codec, name = ENCODED[container]
    path = tmp_path / "a"
    write_media(path, container, codec)
    content = path.read_bytes()

    assert error_of(content).startswith(f"-: {name} in the pipe")
    file_format = find_file_format(content[:MAX_BEGINNING])
    assert file_format is not None
    assert file_format.name == name
    samples, rate, _ = read_audio_file(path)
    assert rate == 48000
    assert len(samples) >= 48000


def write_media(path: Path, container: str, codec: str) -> None:
    """A second of noise at 48,000 Hz."""
    with av.open(str(path), "w", format=container) as file:
        stream = file.add_stream(codec, rate=48000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(noise(1.0, rate=48000)[None], "fltp", "mono")
        frame.sample_rate = 48000
        frame_size = stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(stream.format, "mono", 48000, frame_size=frame_size)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))


MPEG_BEGINNINGS = [bytes([0xFF, second]) for second in b"\xfb\xfa\xf3\xf2\xe3\xe2\xfd\xfc\xf5\xf4"]
AAC_BEGINNINGS = [b"\xff\xf0", b"\xff\xf1", b"\xff\xf8", b"\xff\xf9", b"\x56\xe0\x40\x20\0"]
OTHER_BEGINNINGS = [b"\x0b\x77", TS + TS[:4], bytes(4) + TS + bytes(4) + TS[:4]]
FRAME_BEGINNINGS = MPEG_BEGINNINGS + AAC_BEGINNINGS + OTHER_BEGINNINGS


def raw_heads() -> Iterator[bytes]:
    """Beginnings of raw samples, those among them that look like the frame of a format."""
    generator = np.random.default_rng(0)
    for level in (1, 30, 1000, 30000):
        for _ in range(1000):
            samples_N = (level * generator.standard_normal(300)).clip(-32768, 32767)
            yield samples_N.astype("<i2").tobytes()
    for beginning in FRAME_BEGINNINGS:
        for _ in range(100):
            yield beginning + generator.bytes(MAX_SIGNATURE)


def test_raw_samples_are_not_taken_for_a_format() -> None:
    heads = list(raw_heads())
    assert len(heads) == 4000 + 18 * 100

    for head in heads:
        assert find_pipe_format(head) is None, head
        assert not is_undecided(head), head


def test_one_or_two_frames_are_taken_for_raw_samples() -> None:
    for head in (MP3 + bytes(3000), AAC + bytes(3000), MP3 + MP3 + bytes(3000)):
        samples = samples_of(pipe_of(head), 16000)
        assert len(samples) == len(head) // 2


def test_the_frame_size_of_an_mp3() -> None:
    assert mp3_frame_size(MP3[:3]) == len(MP3)


def test_raw_samples_do_not_wait() -> None:
    """A piece is given on before the pipe is read again."""
    for head in (b"\1\0\2\0\3\0", b"RIfF\0\0", b"\xff\xfb\0\0\0\0", b"OggX\0\0", b"ID4\0\0\0"):
        reads = []

        def read(size: int, head: bytes = head, reads: list[int] = reads) -> bytes:
            reads.append(size)
            assert len(reads) == 1, "it waits for more than it needs"
            return head

        assert next(read_pipe(read, None)) == (head, 16000)


def test_a_pipe_that_is_shorter_than_a_signature_has_samples() -> None:
    for content in (b"\xff\xfb", b"\xff\xfb\x90\0", b"\0\0\0\0ft"):
        samples = samples_of(pipe_of(content), 16000)
        np.testing.assert_array_equal(samples, from_16_bits(content))


SRT = b"1\r\n00:00:00,200 --> 00:00:01,400\r\nmo sa mo\r\n"
TEXTS = {
    "srt": SRT,
    "srt in latin 1": SRT + b"ni\xf1o\r\n",
    "short": b"hello world text",
    "odd": b"hi\n",
    "begins as a format": b"RIF",
    "Tibetan, with its mark": "\ufeff\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0b".encode() * 9,
    "in the middle of a character": b"x" + "\u0f56".encode() * 40,
    "json": b'{"segments": [\n\t{"start": 0.2}]}',
}


@pytest.mark.parametrize("kind", TEXTS)
def test_text_in_the_pipe_is_refused(kind: str) -> None:
    expected = "-: text in the pipe, which takes raw samples or WAV; give the recording"
    assert error_of(TEXTS[kind]) == expected
    assert error_of(TEXTS[kind] * 100) == expected


def test_an_empty_pipe_is_refused() -> None:
    expected = "-: empty: no audio arrived; check the program that writes the audio"
    assert error_of(b"") == expected


def test_raw_samples_are_not_taken_for_text() -> None:
    for head in [*raw_heads(), b"hello, hello, hello, hello, hel\0", b"\x41\x00" * 40]:
        assert list(read_pipe(pipe_of(head), None))
