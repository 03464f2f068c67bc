# SPDX-License-Identifier: Apache-2.0
"""Samples without a header (.pcm, .raw) get a line that says so, as audio, in a table and in a
folder.
"""

from pathlib import Path

import pytest
import soundfile
from annotation_forms import write_audio
from prepared import prepare_line, rejected

from wenet_hs.data.audio import AudioError, read_audio, read_duration
from wenet_hs.tree.errors import DataError

OPTIONS = "--lang qaa --num_workers 0 --split_by none --max_rejected 0.9"
RAW = {
    "format": "RAW",
    "samplerate": 8000,
    "channels": 1,
    "subtype": "PCM_16",
    "endian": "LITTLE",
}


FOUND = "raw samples without a header, so their rate is not known"
ADVICE = "write a header with the right rate, such as by `ffmpeg -f s16le -ar 16000 -ac 1 -i NAME.pcm NAME.wav`"


def write_raw(path: Path) -> Path:
    """A second of raw samples at 8000 Hz."""
    samples, _ = soundfile.read(write_audio(path.with_suffix(".wav"), 1.0), dtype="int16")
    path.with_suffix(".wav").unlink()
    path.write_bytes(samples.tobytes())
    return path


@pytest.mark.parametrize("suffix", [".pcm", ".raw"])
def test_raw_samples_as_audio(suffix: str, tmp_path: Path) -> None:
    path = write_raw(tmp_path / f"a{suffix}")
    with pytest.raises(AudioError) as caught:
        read_audio(path)
    assert str(caught.value) == f"{path}: {FOUND}; {ADVICE}"


def test_raw_samples_in_a_table(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.pcm")
    for name in "bcd":
        write_audio(tmp_path / f"{name}.wav", 1.0)
    (tmp_path / "t.csv").write_text("path,text\na.pcm,mo\nb.wav,lu\nc.wav,ke\nd.wav,ba\n")
    prepare_line(f"table --table {tmp_path / 't.csv'} --out {tmp_path / 'out'} {OPTIONS}")
    assert [*rejected(tmp_path / "out").values()] == [f"unreadable: {path}: {FOUND}; {ADVICE}"]


def test_a_folder_of_raw_samples_and_the_header_that_the_line_advises(tmp_path: Path) -> None:
    paths = [write_raw(tmp_path / f"{name}.pcm") for name in "abc"]
    for path in paths:
        path.with_suffix(".txt").write_text(f"mo {path.stem}")
    words = f"folder --corpus {tmp_path} --out {tmp_path / 'out'} {OPTIONS}"
    with pytest.raises(DataError) as caught:
        prepare_line(words)
    assert str(caught.value) == f"{tmp_path}: no audio file, but a.pcm: {FOUND}; {ADVICE}"
    for path in paths:
        samples, rate = soundfile.read(path, **RAW)
        soundfile.write(path.with_suffix(".wav"), samples, rate)
    utterances = prepare_line(words)["total"]["utterances"]
    assert utterances == {"train": 1, "dev": 1, "test": 1}


@pytest.mark.parametrize("form", ["double colons", "names of columns"])
def test_a_table_of_raw_samples_and_the_header_that_the_line_advises(
    form: str, tmp_path: Path
) -> None:
    """KsponSpeech has a list of raw samples, without names of columns."""
    audio = tmp_path / "KsponSpeech_01"
    paths = [write_raw(audio / f"KsponSpeech_{number}.pcm") for number in range(3)]
    path = tmp_path / "train.trn"
    pattern = "{} :: 아/ 몬 소리야{}\n" if form == "double colons" else "{}\t아/ 몬 소리야{}\n"
    rows = [
        pattern.format(f"KsponSpeech_01/{raw.name}", "야" * number)
        for number, raw in enumerate(paths)
    ]
    path.write_text("path\ttext\n" * (form == "names of columns") + "".join(rows), "utf-8")
    words = f"table --table {path} --out {tmp_path / 'out'} {OPTIONS}"
    with pytest.raises(DataError) as caught:
        prepare_line(words)
    assert str(caught.value) == f"{path}: no audio file, but KsponSpeech_0.pcm: {FOUND}; {ADVICE}"
    for raw in paths:
        samples, rate = soundfile.read(raw, **RAW)
        soundfile.write(raw.with_suffix(".wav"), samples, rate)
    assert prepare_line(words)["total"]["utterances"] == {"train": 1, "dev": 1, "test": 1}


@pytest.mark.parametrize("suffix", [".pcm", ".wav"])
def test_a_list_whose_audio_is_elsewhere_has_no_names_of_columns(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / "list" / "train.trn"
    path.parent.mkdir()
    path.write_text("".join(f"{name}{suffix} :: mo {name}\n" for name in "abc"), "utf-8")
    for name in "abc":
        write_audio(tmp_path / "audio" / f"{name}.wav", 1.0)
    words = f"table --table {path} --out {tmp_path / 'out'} {OPTIONS}"
    remedy = "if the first line has no names, write them, or put the audio beside it or give --audio_dir; otherwise"
    with pytest.raises(DataError, match=f":1: no column of audio, text; {remedy} name them"):
        prepare_line(words)
    utterances = prepare_line(f"{words} --audio_dir {tmp_path / 'audio'}")["total"]["utterances"]
    assert utterances == {"train": 1, "dev": 1, "test": 1}


def test_audio_with_a_header_is_read_whatever_its_name(tmp_path: Path) -> None:
    for suffix in (".raw", ".pcm"):
        path = write_audio(tmp_path / "a.wav", 1.0).rename(tmp_path / f"a{suffix}")
        assert read_duration(path) == 1.0
