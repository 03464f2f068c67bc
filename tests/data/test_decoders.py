# SPDX-License-Identifier: Apache-2.0
"""Audio that libsndfile does not read rightly: sizes of wav files, m4a and video, joined files,
unusual Ogg pages.
"""

import gc
import io
import os
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from noise_clips import encoded

from wenet_hs.data.audio import AudioError, read_audio_file, read_duration, read_num_channels
from wenet_hs.data.frame_headers import mp3_frame_size

RATE = 16000


@pytest.fixture(scope="module", autouse=True)
def free_encoders() -> Iterator[None]:
    """Frees PyAV's encoders here: a worker forked later would wait without end for their threads,
    which it has not.
    """
    yield
    gc.collect()


def speech_like(seconds: float = 3.0, rate: int = RATE) -> np.ndarray:
    """Noise of the lower frequencies whose level rises and falls, so that every time can be
    recognised.
    """
    noise = np.random.default_rng(0).normal(size=round(seconds * rate))
    level = np.sin(3.0 * np.arange(len(noise)) / rate) ** 2
    return (0.3 * level * np.convolve(noise, np.ones(8) / 8, "same")).astype(np.float32)


def delay(found: np.ndarray, expected: np.ndarray) -> int:
    """By how many samples `found` is later than `expected`."""
    size = 2 * max(len(found), len(expected))
    products = np.fft.irfft(np.fft.rfft(found, size) * np.conj(np.fft.rfft(expected, size)), size)
    best = int(products.argmax())
    return best - size if best > size // 2 else best


def with_size(wav: bytes, size: int) -> bytes:
    at = wav.index(b"data") + 4
    return wav[:at] + struct.pack("<I", size) + wav[at + 4 :]


UNKNOWN = (
    0,
    0x7FFFF000,
    0x7FFFFFFF,
    0x7FFFFF00,
    0x7FFFFFDB,
    0x80000000,
    0x80000024,
    0xFFFFFFFF,
    0xFFFFFFDB,
)


@pytest.mark.parametrize("size", [*UNKNOWN, 16000, 48002])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_U8", "FLOAT", "ULAW"])
def test_all_samples_of_a_wav_are_read_whatever_size_a_recorder_states(
    tmp_path: Path, size: int, subtype: str
) -> None:
    samples = np.stack([speech_like(2.0), -0.5 * speech_like(2.0)], axis=1)
    right = encoded(samples, RATE, "WAV", subtype=subtype)
    path = tmp_path / "a.wav"
    path.write_bytes(with_size(right, size))
    expected, _, _ = read_audio_file(right)
    for source in (path, path.read_bytes()):
        assert (read_duration(source), read_num_channels(source)) == (2.0, 2)
        assert np.array_equal(read_audio_file(source)[0], expected)
        assert np.array_equal(read_audio_file(source, start=1.2, end=1.7)[0], expected[19200:27200])
        left = read_audio_file(source, channel=0)[0]
        assert np.abs(left - samples[:, 0]).max() < 0.05


LIST = b"LIST" + struct.pack("<I", 8000) + bytes(8000)
TAG = b"TAG" + b"a" * 125


@pytest.mark.parametrize(
    "rest",
    [
        LIST,
        LIST[:5000],
        LIST + b"id3 " + struct.pack("<I", 2) + b"xx",
        b"_PMX" + struct.pack("<I", 1) + b"x\0",
    ]
    + [
        b"LGWV" + struct.pack("<I", 9000) + b"\x12" * 9000,
        TAG,
        b"ID3\x03" + b"\x80" * 50_000,
        b"\xff" * 1500,
        b"",
    ],
)
@pytest.mark.parametrize("num_samples", [16000, 16001])
def test_chunks_and_tags_after_the_samples_are_no_samples(rest: bytes, num_samples: int) -> None:
    wav = encoded(
        speech_like(2.0)[:num_samples], RATE, "WAV", subtype="PCM_U8"
    )  # an odd number of bytes is padded
    assert len(read_audio_file(wav + rest)[0]) == num_samples


def test_wavs_that_cannot_be_read_to_their_end_are_refused() -> None:
    wav = encoded(speech_like(1.0), RATE, "WAV")
    with pytest.raises(AudioError, match="joined files: only the first one can be read; convert"):
        read_duration(wav + wav)
    compressed = encoded(speech_like(1.0), RATE, "WAV", subtype="IMA_ADPCM")
    with pytest.raises(
        AudioError, match="more samples than its header states, in a compressed wav; convert"
    ):
        read_duration(with_size(compressed, 2048))
    with pytest.raises(AudioError, match="cut off: 1.000 s of audio, its header declares 2.000 s"):
        read_duration(with_size(wav, 2 * len(wav[44:])))
    with pytest.raises(AudioError, match="empty: no samples"):
        read_duration(with_size(wav[:44], 0))


def test_a_wav_too_long_for_its_header_is_read_from_the_disk(tmp_path: Path) -> None:
    """The bytes of a longer recording are counted from 0."""
    path = tmp_path / "long.wav"
    path.write_bytes(encoded(speech_like(1.0, 96_000), 96_000, "WAV", subtype="FLOAT"))
    os.truncate(path, 2**32 + path.stat().st_size)  # takes no space on the disk
    with path.open("r+b") as file:
        file.seek(-4 * 96_000, os.SEEK_END)
        file.write(speech_like(1.0, 96_000).tobytes())
    duration_s = read_duration(path)
    assert duration_s == pytest.approx(1 + 2**32 / 4 / 96_000, abs=1e-3)
    assert np.array_equal(read_audio_file(path, start=duration_s - 1)[0], speech_like(1.0, 96_000))


# ---- Ogg pages


def checksum(page: bytes) -> int:
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ 0x04C11DB7 if value & 0x80000000 else value << 1) & 0xFFFFFFFF
    return value


def join_pages(ogg: bytes, number: int) -> bytes:
    """The stream with the packets of two successive pages on one page."""
    found, position = [], 0
    while position < len(ogg):
        lacing = ogg[position + 27 : position + 27 + ogg[position + 26]]
        end = position + 27 + len(lacing) + sum(lacing)
        found.append((ogg[position : position + 26], lacing, ogg[end - sum(lacing) : end]))
        position = end
    (_, lacing, body), (head, other_lacing, other_body) = found[number : number + 2]
    found[number : number + 2] = [(head, lacing + other_lacing, body + other_body)]
    joined = b""
    for index, (head, lacing, body) in enumerate(found):
        rest = bytes([len(lacing)]) + lacing + body
        head = head[:18] + struct.pack("<I", index)
        joined += head + struct.pack("<I", checksum(head + bytes(4) + rest)) + rest
    return joined


def test_vorbis_with_audio_on_the_page_of_its_headers_keeps_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ogg = encoded(speech_like(), RATE, "OGG", subtype="VORBIS")
    unusual = join_pages(ogg, 1)
    expected, _, _ = read_audio_file(ogg)
    found, _, _ = read_audio_file(unusual)
    assert len(found) == len(expected) and np.abs(found - expected).max() < 1e-5
    opus = encoded(speech_like(), RATE, "OGG", subtype="OPUS")  # libsndfile reads it rightly
    monkeypatch.setitem(sys.modules, "av", None)
    assert len(read_audio_file(join_pages(opus, 1))[0]) == len(read_audio_file(opus)[0])
    with pytest.raises(
        AudioError,
        match="Vorbis with audio on the page of its headers: .* pip install 'wenet_hs.media.'",
    ):
        read_duration(unusual)


# ---- PyAV


def write_media(
    path: Path, samples: np.ndarray, rate: int, codec: str, late_s: float = 0.0, **options: Any
) -> Path:
    """Encode with FFmpeg; `late_s`: a picture begins so much earlier than the sound."""
    with av.open(str(path), "w", **options) as file:
        sound = file.add_stream(codec, rate=rate)
        sound.layout = "mono" if samples.ndim == 1 else "stereo"
        if late_s:
            picture = file.add_stream("mpeg4", rate=10)
            picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
            for number in range(40):
                image = av.VideoFrame(64, 64, "yuv420p")
                image.pts = number
                file.mux(picture.encode(image))
            file.mux(picture.encode(None))
        planes = np.ascontiguousarray(np.atleast_2d(samples.T))
        frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout=sound.layout.name)
        frame.sample_rate, frame.time_base, frame.pts = (
            rate,
            Fraction(1, rate),
            round(late_s * rate),
        )
        resampler = av.AudioResampler(
            format=sound.codec_context.format or "fltp", layout=sound.layout, rate=rate
        )
        for one in resampler.resample(frame):
            one.pts = round(late_s * rate)
            file.mux(sound.encode(one))
        file.mux(sound.encode(None))
    return path


@pytest.mark.parametrize(
    ("name", "codec", "rate", "delayed", "longer"),
    [
        ("a.m4a", "aac", 44100, 0, 0),
        ("a.mp4", "aac", 16000, 0, 0),
        ("a.mov", "pcm_s16le", 44100, 0, 0),
        ("a.webm", "libopus", 48000, 0, 0),
        ("a.mkv", "aac", 16000, 0, 1024),
        ("a.avi", "pcm_s16le", 16000, 0, 16),
        ("a.aac", "aac", 16000, 1024, 2048),  # states no delay of the encoder
        ("a.mts", "aac", 16000, 1024, 2048),
        ("a.mpg", "mp2", 44100, 481, 1152),
        ("a.amr", "libopencore_amrnb", 8000, 40, 160),
    ],
)
def test_media_are_read_from_their_first_sample_to_the_last(
    tmp_path: Path, name: str, codec: str, rate: int, delayed: int, longer: int
) -> None:
    samples = speech_like(3.0, rate)
    path = write_media(
        tmp_path / name, samples, rate, codec, **({"format": "mpegts"} if name == "a.mts" else {})
    )
    whole, found_rate, missing_s = read_audio_file(path)
    assert (found_rate, read_num_channels(path)) == (rate, 1)
    assert 0 <= len(whole) - len(samples) <= longer and missing_s < 0.002
    assert read_duration(path) == pytest.approx(len(whole) / rate, abs=0.002)
    assert abs(delay(whole, samples) - delayed) <= 2
    part, _, _ = read_audio_file(path.read_bytes(), start=1.5, end=2.25)
    assert len(part) == round(0.75 * rate)
    assert (
        abs(delay(part, whole[round(1.5 * rate) : round(2.25 * rate)])) <= rate / 500
    )  # webm states milliseconds


def test_times_of_a_video_are_those_of_its_picture(tmp_path: Path) -> None:
    path = write_media(tmp_path / "a.mp4", speech_like(), RATE, "aac", late_s=0.5)
    found, _, _ = read_audio_file(path)
    assert read_duration(path) == pytest.approx(3.5, abs=0.07)
    assert abs(delay(found, speech_like()) - RATE / 2) <= 32
    assert np.abs(found[: RATE // 2 - 1100]).max() == 0
    part, _, _ = read_audio_file(path, start=0.25, end=1.25)
    assert np.array_equal(part, found[RATE // 4 : RATE // 4 + RATE])


def test_channels_of_media(tmp_path: Path) -> None:
    both = np.stack([speech_like(), speech_like()[::-1]], axis=1)
    path = write_media(tmp_path / "a.m4a", both, RATE, "aac")
    for channel in (0, 1):
        found, _, _ = read_audio_file(path, channel=channel)
        assert np.corrcoef(found, both[:, channel])[0, 1] > 0.95


def test_joined_files_and_a_variable_rate_without_a_header_are_read_whole() -> None:
    samples = np.concatenate([speech_like(2.0, 44100)[20_000:], 0.001 * speech_like(1.0, 44100)])
    variable, ogg = encoded(samples, 44100, "MP3"), encoded(samples, 44100, "OGG")
    first = mp3_frame_size(variable[:3])  # has no audio, and states the length
    for content, times in ((variable + variable, 2), (ogg + ogg, 2), (variable[first:], 1)):
        found, _, _ = read_audio_file(content)
        for seconds in (read_duration(content), len(found) / 44100):
            assert seconds == pytest.approx(times * len(samples) / 44100, abs=0.1)
        assert abs(delay(found[-len(samples) :], samples)) < 3 * 1152
        assert np.array_equal(read_audio_file(content, start=1.0, end=2.0)[0], found[44100:88200])


def test_media_that_cannot_be_read_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_media(tmp_path / "a.m4a", speech_like(), RATE, "aac")
    content = path.read_bytes()
    with av.open(str(tmp_path / "silent.mp4"), "w") as file:
        picture = file.add_stream("mpeg4", rate=10)
        picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
        image = av.VideoFrame(64, 64, "yuv420p")
        file.mux(picture.encode(image))
        file.mux(picture.encode(None))
    for source, reason in {
        content[: len(content) // 2]: "damaged or cut off",
        (tmp_path / "silent.mp4").read_bytes(): "no sound: a video without an audio stream",
        content[:8] + bytes(1000): "damaged or cut off",
        b"#!AMR\n": "empty: no samples|damaged",
    }.items():
        with pytest.raises(AudioError, match=reason) as caught:
            read_audio_file(source)
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "av", None)
    command = r"MP4, M4A or MOV: libsndfile cannot read it; PyAV reads it: pip install 'wenet_hs\[media\]'; or convert"
    with pytest.raises(AudioError, match=command):
        read_duration(path)
    mp3 = encoded(speech_like(), RATE, "MP3")
    with pytest.raises(
        AudioError,
        match=r"joined files.* can be read; PyAV reads it: pip install 'wenet_hs\[media\]'",
    ):
        read_duration(mp3 + mp3)


# ---- forms that libsndfile refuses


WHOLE_BLOCKS = 12 * 4096 / RATE
"""Seconds: FFmpeg reads no more than whole blocks of the ALAC that it wrote into CAF."""


def write_bw64(path: Path, samples: np.ndarray) -> Path:
    """RF64 has the same chunks."""
    path.write_bytes(b"BW64" + encoded(samples, RATE, "RF64")[4:])
    return path


@pytest.fixture(scope="module")
def only_ffmpeg(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same samples in forms that libsndfile refuses, by the name of the form."""
    folder = tmp_path_factory.mktemp("only_ffmpeg")
    samples = speech_like(WHOLE_BLOCKS)
    adts = write_media(folder / "plain.aac", samples, RATE, "aac").read_bytes()
    (folder / "tagged.aac").write_bytes(b"ID3\x04\0\0\0\0\x01\x00" + bytes(128) + adts)
    return {
        "Ogg FLAC": write_media(folder / "a.oga", samples, RATE, "flac", format="ogg"),
        "WavPack": write_media(folder / "a.wv", samples, RATE, "wavpack"),
        "True Audio": write_media(folder / "a.tta", samples, RATE, "tta"),
        "ALAC in CAF": write_media(folder / "a.caf", samples, RATE, "alac"),
        "G.722": write_media(folder / "g722.wav", samples, RATE, "g722"),
        "ADPCM of Yamaha": write_media(folder / "yamaha.wav", samples, RATE, "adpcm_yamaha"),
        "AU with G.722": write_media(folder / "a.au", samples, RATE, "g722"),
        "BW64": write_bw64(folder / "bw64.wav", samples),
        "AC-3": write_media(folder / "a.ac3", speech_like(3.0, 48000), 48000, "ac3"),
        "AAC with a tag": folder / "tagged.aac",
    }


@pytest.mark.parametrize(
    ("form", "delayed", "longer"),
    [
        ("Ogg FLAC", 0, 0),
        ("WavPack", 0, 0),
        ("True Audio", 0, 0),
        ("ALAC in CAF", 0, 0),
        ("G.722", 22, 0),
        ("ADPCM of Yamaha", 0, 1024),
        ("AU with G.722", 22, 0),
        ("BW64", 0, 0),
        ("AC-3", 256, 1536),  # its encoder is late by this, and states it nowhere
        ("AAC with a tag", 1024, 2048),
    ],
)
def test_what_libsndfile_refuses_is_read_by_ffmpeg(
    only_ffmpeg: dict[str, Path], form: str, delayed: int, longer: int
) -> None:
    path = only_ffmpeg[form]
    whole, rate, missing_s = read_audio_file(path)
    samples = speech_like(3.0, rate) if form == "AC-3" else speech_like(WHOLE_BLOCKS)
    assert (read_num_channels(path), missing_s) == (1, 0.0)
    assert 0 <= len(whole) - len(samples) <= longer
    assert read_duration(path) == len(whole) / rate
    assert abs(delay(whole, samples) - delayed) <= 2
    for source in (path, path.read_bytes()):
        part, _, _ = read_audio_file(source, start=1.5, end=2.25)
        assert np.array_equal(part, whole[round(1.5 * rate) : round(2.25 * rate)])


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("WavPack", "damaged or cut off: no samples"),
        ("True Audio", "damaged or cut off: Invalid data"),
        ("ALAC in CAF", "damaged or cut off: Invalid data"),
        ("G.722", r"cut off: 1.5\d\d s of audio, its header declares 3.07"),
        ("BW64", r"cut off: 1.5\d\d s of audio, its header declares 3.0[67]"),
    ],
)
def test_a_cut_off_file_is_named(only_ffmpeg: dict[str, Path], form: str, reason: str) -> None:
    content = only_ffmpeg[form].read_bytes()
    with pytest.raises(AudioError, match=reason):
        read_audio_file(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("Ogg FLAC", r"cut off: [12]\.\d+ s of audio, its header declares 3.07"),
        ("WavPack", "damaged or cut off: Invalid data"),
        ("True Audio", "damaged or cut off: Invalid data"),
        ("AC-3", "damaged or cut off: its decoder refuses it"),
    ],
)
def test_a_damaged_file_is_named(only_ffmpeg: dict[str, Path], form: str, reason: str) -> None:
    content = bytearray(only_ffmpeg[form].read_bytes())
    content[len(content) // 2] ^= 0xFF
    with pytest.raises(AudioError, match=reason):
        read_audio_file(bytes(content))


G722_HEADER = b"RIFF\0\0\x01\0WAVEfmt \x12\0\0\0\x28\x02"
BEGINNINGS = "wvpk", "MAC ", "TTA1", "tBaK", "MPCK", "\x0bw", "OggS", "caff", "BW64", "ID3", ""


@pytest.mark.parametrize("beginning", [G722_HEADER, *map(str.encode, BEGINNINGS)])
def test_noise_is_no_audio_however_it_begins(beginning: bytes) -> None:
    random = np.random.default_rng(3)
    for _ in range(5):
        with pytest.raises(AudioError, match="damaged or cut off|not audio that can be read|empty"):
            read_audio_file(beginning + random.bytes(3000))


def test_a_damaged_wav_is_not_given_to_ffmpeg() -> None:
    """FFmpeg would read it, with other samples than it had."""
    wav = bytearray(encoded(speech_like(1.0), RATE, "WAV"))
    wav[32:36] = bytes(4)  # bytes per sample
    with av.open(io.BytesIO(bytes(wav))) as file:
        assert file.streams.audio
    with pytest.raises(AudioError, match="not audio that can be read"):
        read_audio_file(bytes(wav))


def test_without_pyav_the_form_and_the_extra_are_named(
    only_ffmpeg: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    forms = {
        "Ogg FLAC": "Ogg with other audio than Vorbis and Opus",
        "WavPack": "WavPack",
        "ALAC in CAF": "CAF with compressed audio",
        "G.722": "wav with the codec 0x028f",
    }
    for form, name in forms.items():
        with pytest.raises(AudioError) as caught:
            read_duration(only_ffmpeg[form])
        assert str(caught.value) == (
            f"{only_ffmpeg[form]}: {name}: libsndfile cannot read it; PyAV reads it: "
            "pip install 'wenet_hs[media]'; or convert it to FLAC or wav"
        )
        assert not caught.value.is_of_file
    monkeypatch.undo()
    samples, rate, _ = read_audio_file(only_ffmpeg["WavPack"])
    converted = tmp_path / "a.flac"
    converted.write_bytes(encoded(samples, rate, "FLAC"))
    monkeypatch.setitem(sys.modules, "av", None)
    assert read_duration(converted) == read_duration(converted) == len(samples) / rate


def test_what_no_program_reads_is_to_be_converted_or_restored() -> None:
    message = (
        "not audio that can be read: no known format; convert it to FLAC or wav if it is audio, "
        "or restore it, or leave it out"
    )
    with pytest.raises(AudioError, match=message):
        read_duration(b"\xfa" * 4000)  # the samples of a raw file
