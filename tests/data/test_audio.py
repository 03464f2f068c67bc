# SPDX-License-Identifier: Apache-2.0
"""Reading of valid and invalid audio: correct samples, or one line that names the file and the
fault.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from noise_clips import encoded

from wenet_hs.corpus import audio_check
from wenet_hs.corpus.audio_check import CheckedClip, check_clip
from wenet_hs.data.audio import (
    SourceError,
    accept_missing_audio,
    length_fault,
    read_audio,
    read_audio_file,
    read_duration,
    read_utterance,
)
from wenet_hs.data.containers import SizeComparison, compare_sizes
from wenet_hs.data.frame_headers import mp3_frame_size
from wenet_hs.frontends import Fbank
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError


def tone(seconds: float, rate: int = 16000, hz: float = 440.0) -> np.ndarray:
    times_s = np.arange(round(seconds * rate)) / rate
    samples = 0.3 * np.sin(2 * np.pi * hz * times_s)
    return samples.astype(np.float32)


def noisy(seconds: float, rate: int = 16000) -> np.ndarray:
    samples = tone(seconds, rate)
    noise = np.random.default_rng(0).normal(size=len(samples))
    return (samples + 0.05 * noise).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate: int = 16000, **options: str) -> Path:
    soundfile.write(path, samples, rate, **options)
    return path


def clip(path: Path, duration: float | None = None) -> Utterance:
    return Utterance(key="a", wav=str(path), txt="x", duration=duration)


def wav_header(
    data_size: int = 100, *, channels: int = 1, rate: int = 16000, payload: bytes = bytes(100)
) -> bytes:
    form = struct.pack(
        "<IHHIIHH",
        16,
        1,
        channels,
        rate,
        rate * channels * 2 & 0xFFFFFFFF,
        channels * 2 & 0xFFFF,
        16,
    )
    riff = b"RIFF" + struct.pack("<I", 36 + data_size & 0xFFFFFFFF) + b"WAVEfmt " + form
    return riff + b"data" + struct.pack("<I", data_size) + payload


def float_wav(*samples: float) -> bytes:
    return encoded(np.array(samples, np.float32), 16000, "WAV", subtype="FLOAT")


def test_sixteen_bit_wav_comes_back_exactly(tmp_path: Path) -> None:
    samples = np.array([0, 1, -1, 16384, 32767, -32768], dtype=np.int16)
    path = write(tmp_path / "a.wav", samples)
    expected = torch.from_numpy(samples.astype(np.float32) / 32768)

    for source in (path, str(path), path.read_bytes()):
        assert torch.equal(read_audio(source), expected)


@pytest.mark.parametrize(
    "name", ["a.mp3", "a.ogg", "a.flac", "été x.wav", "-y.wav", "$(touch marker).wav", "a\nb.wav"]
)
def test_every_format_and_file_name_is_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, tone(1.0))

    waveform = read_audio(path).numpy()

    assert len(waveform) == 16000
    assert len(read_audio(path, sample_rate=8000)) == 8000
    assert np.corrcoef(waveform, tone(1.0))[0, 1] > 0.99
    assert read_duration(path) == 1.0
    assert not list(tmp_path.glob("marker"))


def test_channels_are_averaged_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tone(0.2)
    right = tone(0.2, hz=1000.0)
    path = write(tmp_path / "a.wav", np.stack([left, right], axis=1), subtype="FLOAT")
    whole = read_audio(path)
    np.testing.assert_allclose(whole.numpy(), (left + right) / 2, atol=1e-6)
    monkeypatch.setattr("wenet_hs.data.audio._BLOCK_SAMPLES", 1000)
    assert torch.equal(read_audio(path), whole)


@pytest.mark.parametrize(
    ("right_over_left", "read_over_left"),
    [
        pytest.param(-1.0, 1.0, id="cancels"),
        pytest.param(-0.98, 1.0, id="almost cancels"),
        pytest.param(0.0, 1 / 2, id="silent"),
        pytest.param(-0.5, 1 / 4, id="half"),
    ],
)
def test_channels_that_cancel_each_other_are_not_averaged(
    tmp_path: Path, right_over_left: float, read_over_left: float
) -> None:
    left = noisy(1.0)
    channels = np.stack([left, right_over_left * left], axis=1)
    path = write(tmp_path / "a.wav", channels, subtype="FLOAT")

    waveform = read_audio(path)

    torch.testing.assert_close(waveform, torch.from_numpy(read_over_left * left))


def test_two_silent_channels_are_silent(tmp_path: Path) -> None:
    path = write(tmp_path / "zeros.wav", np.zeros((100, 2), np.float32))
    assert read_audio(path).tolist() == [0.0] * 100


def test_every_rate_is_resampled(tmp_path: Path) -> None:
    for rate in (8000, 22050, 48000):
        waveform = read_audio(write(tmp_path / "a.wav", tone(1.0, rate), rate)).numpy()
        assert len(waveform) == pytest.approx(16000, abs=1)
        np.testing.assert_allclose(waveform[2000:14000], tone(1.0)[2000:14000], atol=2e-3)


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3"])
def test_a_segment_is_the_slice_of_the_whole(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.{suffix}", noisy(2.0))
    whole = read_audio(path)
    torch.testing.assert_close(
        read_audio(path, start=0.5, end=1.25), whole[8000:20000], atol=1e-6, rtol=0
    )
    torch.testing.assert_close(read_audio(path, start=1.5), whole[24000:], atol=1e-6, rtol=0)
    torch.testing.assert_close(read_audio(path, end=0.25), whole[:4000], atol=1e-6, rtol=0)
    assert len(read_audio(path, start=1.5, end=2.05)) == 8000  # annotated ends are rounded
    for start, end in ((-0.5, 1.0), (0.5, 0.5), (0.8, 0.2), (2.0, None), (0.0, 2.2), (3.0, 4.0)):
        with pytest.raises(
            DataError,
            match=r"a\..*: a segment from .* s does not lie in its 2\.0\d s; correct start",
        ):
            read_audio(path, start=start, end=end)


RESTORE = "restore the file, or leave it out"
CONVERT = "convert it to FLAC or wav"
NOT_AUDIO = "convert it to FLAC or wav if it is audio, or restore it, or leave it out"


@dataclass(frozen=True)
class UnreadableFile:
    name: str
    content: bytes | None
    """None: the file is not written."""
    message: str
    remedy: str = RESTORE
    is_refused_without_decoding: bool = False


def with_declared_length(flac: bytes, num_samples: int) -> bytes:
    """A FLAC whose header declares this number of samples."""
    fields = int.from_bytes(flac[18:26], "big")  # rate, channels, bits, and 36 bits of length
    other_fields = fields >> 36 << 36
    return flac[:18] + (other_fields | num_samples).to_bytes(8, "big") + flac[26:]


def unreadable_files() -> list[UnreadableFile]:
    wav = encoded(noisy(2.0), 16000, "WAV")
    flac = encoded(noisy(2.0), 16000, "FLAC")
    mp3 = encoded(noisy(2.0), 16000, "MP3")
    return [
        UnreadableFile("empty.wav", b"", "empty: 0 bytes", is_refused_without_decoding=True),
        UnreadableFile("no_samples.wav", wav_header(0, payload=b""), "empty: no samples"),
        UnreadableFile(
            "page.mp3",
            b"<html>404 Not Found</html>" * 20,
            "not audio that can be read: no known format",
            NOT_AUDIO,
        ),
        UnreadableFile("zeros.wav", bytes(1000), "not audio that can be read", NOT_AUDIO),
        UnreadableFile(
            "cut.wav",
            wav[: len(wav) // 2],
            r"cut off: 0\.999 s of audio, its header declares 2\.000 s",
        ),
        UnreadableFile(
            "a_tenth_missing.wav",
            wav[:-3300],
            r"cut off: 1\.897 s of audio, its header declares 2\.000 s",
        ),
        UnreadableFile("cut.flac", flac[: len(flac) // 2], "damaged or cut off"),
        UnreadableFile(
            "cut.mp3",
            mp3[: len(mp3) // 2],
            r"cut off: 0\.\d\d\d s of audio, its header declares 2\.\d\d\d s",
        ),
        UnreadableFile("nan.wav", float_wav(np.nan), "not finite"),
        UnreadableFile("inf.wav", float_wav(np.inf), "not finite"),
        UnreadableFile("2e+37.wav", float_wav(2e37), r"a sample of 2e\+37, where 1 is"),
        UnreadableFile("-2e+37.wav", float_wav(-2e37), r"a sample of 2e\+37, where 1 is"),
        UnreadableFile(
            "channels.wav",
            wav_header(130, channels=65, payload=bytes(130)),
            "declares 65 channels",
        ),
        UnreadableFile("slow.wav", wav_header(rate=1), "declares a sample rate of 1 Hz"),
        UnreadableFile(
            "fast.wav",
            wav_header(rate=2**31 - 1),
            "declares a sample rate of 2147483647 Hz",
        ),
        UnreadableFile(
            "days.flac",
            with_declared_length(flac, num_samples=2**36 - 1),
            "declares 1193 hours of audio, more than 24",
            "divide it into shorter files, or restore it",
            is_refused_without_decoding=True,
        ),
        UnreadableFile(
            "pipe.flac",
            with_declared_length(flac, num_samples=0),
            "no length in its header, as after writing to a pipe",
            CONVERT,
        ),
        UnreadableFile("missing.wav", None, "missing", is_refused_without_decoding=True),
        UnreadableFile("", None, "not a file", "give the path of an audio file"),
        UnreadableFile("x" * 300, None, "cannot be read"),
    ]


@pytest.mark.parametrize("file", unreadable_files(), ids=lambda file: file.name[:20] or "folder")
def test_an_unreadable_file_is_refused_in_one_line(tmp_path: Path, file: UnreadableFile) -> None:
    path = tmp_path / file.name
    if file.content is not None:
        path.write_bytes(file.content)

    with pytest.raises(DataError, match=file.message) as caught:
        read_audio(path)

    error = str(caught.value)
    assert error.startswith(f"{path}: ")
    assert error.endswith(f"; {file.remedy}")
    assert "\n" not in error
    reason = check_clip(clip(path)).reason
    assert reason
    assert str(tmp_path) not in reason
    if file.is_refused_without_decoding:
        with pytest.raises(DataError, match=file.message):
            read_duration(path)


def test_the_loudest_clip_that_is_read_has_finite_features() -> None:
    signs = np.sign(np.random.default_rng(0).normal(size=16000)).astype(np.float32)
    waveform = read_audio(float_wav(*(signs * 1e10)))
    assert waveform.max() == 1e10
    assert torch.isfinite(Fbank().compute(waveform)).all()


def test_a_relative_path_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for read in (read_audio, read_duration):
        with pytest.raises(
            DataError,
            match=rf"bad/x.flac: missing \(looked for in the current folder {tmp_path}\); r",
        ):
            read("bad/x.flac")


@pytest.mark.parametrize(
    ("container", "short", "cut"), [("WAV", 2 * 192, 2 * 14400), ("MP3", 1, 3000)]
)
def test_a_clip_that_lacks_a_little_is_used_and_counted(
    tmp_path: Path, container: str, short: int, cut: int
) -> None:
    whole = encoded(noisy(2.4, 48000), 48000, container)
    for name, num_bytes in {"whole": 0, "short": short, "cut": cut}.items():
        (tmp_path / name).write_bytes(whole[: len(whole) - num_bytes])
    incomplete: list[str] = []
    for name, expected in (("whole", 0), ("short", 1)):
        utterance = Utterance(key=name, wav=str(tmp_path / name), txt="x", duration=2.4)
        assert 2.37 * 16000 < len(read_utterance(utterance, 16000, incomplete)) <= 2.4 * 16000
        assert len(incomplete) == expected
        assert check_clip(clip(tmp_path / name, 2.4)) == CheckedClip(
            2.4, is_incomplete=bool(expected)
        )
    samples, rate, missing_s = read_audio_file(tmp_path / "short")
    assert len(samples) / rate + missing_s == pytest.approx(2.4, abs=0.01)
    end = Utterance(
        key="end", wav=str(tmp_path / "short"), txt="x", start=2.3
    )  # the rule is that of the whole file
    assert 0 < len(read_utterance(end, 48000, incomplete)) < 0.1 * 48000
    reason = check_clip(clip(tmp_path / "cut", 2.4)).reason
    assert reason is not None and re.fullmatch(
        r"cut off: 2\.\d+ s of audio, its header declares 2\.400 s", reason
    )


def test_the_length_of_mp3_and_ogg_files_is_that_of_their_audio() -> None:
    samples = np.concatenate([0.001 * noisy(1.0, 44100), noisy(2.0, 44100)])
    stated = encoded(samples, 44100, "MP3")  # of a variable bit rate
    constant = encoded(samples, 44100, "MP3", compression_level=0.5, bitrate_mode="CONSTANT")
    unstated = constant[mp3_frame_size(constant[:3]) :]  # as streams and some recorders write it
    picture = b"ID3\x03\0\0\0\x03\x06\x50" + b"\xff\xfb" * 25_000
    for content in (stated, encoded(samples, 44100, "OGG"), constant, unstated, picture + unstated):
        assert read_duration(content) == pytest.approx(3.0, abs=0.06)
        assert len(read_audio_file(content)[0]) / 44100 == pytest.approx(3.0, abs=0.06)


@pytest.mark.parametrize("container", ["RF64", "AIFF", "AU"])
def test_other_containers_that_are_cut_off(container: str) -> None:
    content = encoded(noisy(2.0), 16000, container)
    assert read_duration(content) == 2.0
    with pytest.raises(
        DataError,
        match=r"cut off: 1\.\d+ s of audio, its header declares (1\.99|2\.00)\d s; restore",
    ):
        read_duration(content[: 2 * len(content) // 3])


def test_an_mp3_with_a_gap_is_refused() -> None:
    """libsndfile stops at a gap.

    The next block would repeat earlier samples, and the length would seem complete.
    """
    whole = encoded(noisy(1.3), 16000, "MP3")
    with pytest.raises(
        DataError, match=r"cut off: 0\.79\d s of audio, its header declares 1\.300 s"
    ):
        read_audio(whole[:3804] + whole[3804 + 1700 :])


def test_results_of_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_check, "_MAX_DURATION_S", 2.5)
    for samples, expected_s, result in (
        (tone(0.05), None, CheckedClip(None, "shorter than 0.1 s: 0.050 s")),
        (tone(3.0), None, CheckedClip(None, "longer than 2.5 s: 3.0 s")),
        (tone(2.0), 2.05, CheckedClip(2.05)),
        (tone(2.0), 3.0, CheckedClip(None, "cut off: 2.00 s, the corpus says 3.00 s")),
        (tone(2.0), 1.0, CheckedClip(None, "too long: 2.00 s, the corpus says 1.00 s")),
        (0 * tone(1.0) + 0.25, None, CheckedClip(None, "silent")),
        (1e-3 * tone(1.0), None, CheckedClip(1.0)),
    ):
        assert check_clip(clip(write(tmp_path / "a.wav", samples), expected_s)) == result


RIGHT = SizeComparison()
TO_THE_END = SizeComparison(samples_begin=44)


@pytest.mark.parametrize(
    ("data_size", "present", "expected"),
    [
        (100, bytes(100), RIGHT),
        (200, bytes(100), SizeComparison(declared_over_present=2.0)),
        (2**32 - 1, bytes(100), RIGHT),  # of a pipe: it means nothing
        (100, bytes(100) + b"LIST" + bytes(4), RIGHT),
        (100, bytes(100 + 3200), RIGHT),  # 0.1 s of padding
        (100, bytes(100 + 3201), TO_THE_END),
        (0, bytes(100), TO_THE_END),  # of a pipe: the samples go on
    ],
)
def test_sizes_in_the_header_of_a_wav_are_compared_with_its_bytes(
    data_size: int, present: bytes, expected: SizeComparison
) -> None:
    assert compare_sizes(wav_header(data_size, payload=present)) == expected


def test_sizes_in_other_headers_are_compared_with_all_bytes() -> None:
    aiff = (
        b"FORM" + (32).to_bytes(4, "big") + b"AIFF" + bytes(28)
    )  # 8 + 32 bytes declared, 40 there
    assert compare_sizes(aiff) == RIGHT
    assert compare_sizes(aiff[:20]) == SizeComparison(declared_over_present=2.0)
    assert compare_sizes(b"fLaC" + bytes(4)) == RIGHT  # no such size


def test_what_a_clip_may_lack() -> None:
    for present_s, declared_s in ((1.901, 2.0), (59.91, 60.0), (2.1, 2.0)):  # a twentieth, 0.1 s
        assert accept_missing_audio(present_s, declared_s) == max(0.0, declared_s - present_s)
    for present_s, declared_s in ((1.89, 2.0), (59.89, 60.0), (0.0, 0.05)):
        with pytest.raises(SourceError, match="cut off"):
            accept_missing_audio(present_s, declared_s)
    for actual_s, expected_s, fault in (
        (1.0, 1.09, 0),
        (1.0, 1.11, 1),
        (98.1, 100, 0),
        (97.9, 100, 1),
    ):  # 0.1 s or 2 %
        assert bool(length_fault(actual_s, expected_s, "the corpus")) == fault
