# SPDX-License-Identifier: Apache-2.0
"""Recordings of phones and cameras, every suffix that can be read, and files that Git LFS has not
fetched.
"""

import io
import json
import sys
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest
import soundfile
from annotation_forms import write_audio
from prepared import prepare_line, read_lists, rejected
from pympi import Eaf

from wenet_hs.annotation.eaf import read_eaf
from wenet_hs.annotation.textgrid import read_textgrid
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.audio_check import CheckMode, ClipChecker
from wenet_hs.corpus.check import KINDS, NO_AUDIO, check_lists
from wenet_hs.corpus.table_files import decode_text
from wenet_hs.data import audio
from wenet_hs.data.audio import AudioError, read_duration
from wenet_hs.data.media import MediaFinder
from wenet_hs.data.shards import open_list, write_shards
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.tree.errors import DataError

TEXTS = [f"{a}{b}" for a in ("pa", "ta", "ka") for b in ("me", "ne")]


def prepare(out: Path, words: str) -> tuple[dict[str, Utterance], dict[str, str]]:
    """The utterances by text, and name → reason of those that are rejected."""
    prepare_line(
        f"{words} --out {out} --num_workers 0 --lang qaa --split_by none --max_rejected 0.9"
    )
    return {u.txt: u for of_set in read_lists(out).values() for u in of_set}, rejected(out)


def write_m4a(path: Path, seconds: float = 1.5) -> Path:
    return write_media(path, seconds, codec="aac", container="mp4")


def write_media(path: Path, seconds: float, *, codec: str, container: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, (1, round(16000 * seconds)))
    with av.open(str(path), "w", format=container) as file:
        stream = file.add_stream(codec, rate=16000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(noise.astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        resampler = av.AudioResampler(stream.codec_context.format or "fltp", "mono", 16000)
        for converted in resampler.resample(frame):
            converted.pts = 0
            file.mux(stream.encode(converted))
        file.mux(stream.encode(None))
    return path


def test_a_folder_of_phone_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, text in enumerate(TEXTS):
        path = tmp_path / "phone" / f"r{number}.m4a"
        write_m4a(path) if number % 2 else write_audio(path.with_suffix(".wav"), 1.5)
        path.with_suffix(".txt").write_text(text)
    write_m4a(tmp_path / "phone" / "r0.m4a", 2.0)
    (tmp_path / "phone" / "r0.MP4").write_bytes(b"the picture of r0.wav")
    found, rejected = prepare(tmp_path / "out", f"folder --corpus {tmp_path / 'phone'}")
    assert {txt: Path(u.wav).suffix for txt, u in found.items()} == {
        text: ".m4a" if number % 2 else ".wav" for number, text in enumerate(TEXTS)
    }
    assert {u.duration for u in found.values()} == {1.5} and not rejected
    monkeypatch.setitem(sys.modules, "av", None)
    found, rejected = prepare(tmp_path / "without", f"folder --corpus {tmp_path / 'phone'}")
    assert len(found) == 3
    [reason] = {*rejected.values()}
    assert (
        reason
        == "MP4, M4A or MOV: libsndfile cannot read it; PyAV reads it: pip install 'wenet_hs[media]'"
    )
    monkeypatch.undo()
    found, rejected = prepare(tmp_path / "without", f"folder --corpus {tmp_path / 'phone'}")
    assert len(found) == len(TEXTS) and not rejected, "PyAV was installed"


def test_what_is_not_a_fault_of_the_file_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = Utterance(key="a", wav=str(write_audio(tmp_path / "a.wav", 1.0)), txt="")
    modes: tuple[CheckMode, ...] = ("full", "exists")
    with monkeypatch.context() as patched:
        patched.setattr(
            audio, "open_decoder", Mock(side_effect=PermissionError(13, "Permission denied"))
        )
        for mode in modes:
            _, [found] = ClipChecker(tmp_path / "cache").check([clip], "clips", mode)
            assert "cannot be read (Permission denied)" in found.reason
    assert [ClipChecker(tmp_path / "cache").check([clip], "clips", mode)[1] for mode in modes] == [
        [],
        [],
    ]


@pytest.mark.parametrize("mode", ["full", "exists"])
def test_what_no_decoder_could_read_is_checked_again(tmp_path: Path, mode: CheckMode) -> None:
    path = write_media(tmp_path / "a.wv", 1.0, codec="wavpack", container="wv")
    clip = Utterance(key="a", wav=str(path), txt="")
    cache = tmp_path / "cache"
    ClipChecker(cache).check([clip], "clips", mode)
    [cache_key, *_] = json.loads(cache.read_text())
    reason = f"unreadable: {path}: not audio that can be read: no known format; restore the file"
    cache.write_text(json.dumps([cache_key, None, reason, False]) + "\n")
    usable, rejected = ClipChecker(cache).check([clip], "clips", mode)
    assert ([u.duration for u in usable], rejected) == ([1.0], [])


def test_the_file_at_the_path_is_used_not_audio_of_its_name_in_another_folder(
    tmp_path: Path,
) -> None:
    rows = ["path,text"]
    for number, text in enumerate(TEXTS):
        write_m4a(tmp_path / "first" / f"r{number}.m4a")
        write_audio(tmp_path / "second" / f"r{number}.wav", 2.0)
        rows.append(f"first/r{number}.m4a,{text}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    found, rejected = prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
    assert [u.wav for u in found.values() if not u.wav.endswith(".m4a")] == [] and not rejected


def test_elan_links_to_video_and_audio_beside_it_is_preferred(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_m4a(tmp_path / "media" / f"{name}.mp4", 12.0)
        eaf = Eaf()
        eaf.add_linked_file(f"file:///D:/x/{name}.mp4", mimetype="video/mp4")
        for number, text in enumerate(TEXTS):
            eaf.add_annotation("default", 1000 * number, 1000 * number + 900, f"{text} {name}")
        eaf.to_file(str(tmp_path / f"{name}.eaf"))
    write_audio(tmp_path / "media" / "b.flac")
    found, _ = prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    assert {(txt[-1], Path(u.wav).name) for txt, u in found.items()} == {
        ("a", "a.mp4"),
        ("b", "b.flac"),
    }
    assert len(found) == 2 * len(TEXTS)


def test_a_video_does_not_decide_between_two_recordings(tmp_path: Path) -> None:
    for name in ("s1/Z1.WAV", "s2/Z1.WAV", "camera/Z1.MOV"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    finder, folder = MediaFinder(tmp_path), tmp_path / "eaf"
    assert str(finder.find(("Z1.WAV", "Z1"), folder)).startswith("ambiguous: ")
    links = (r"C:\rec\audio\Z1.WAV", r"C:\rec\video\Z1.MOV")
    assert (found := finder.find(links, folder)) == tmp_path / "camera/Z1.MOV", "it is named"
    assert isinstance(found, Path) and finder.describe_doubt(links, found) is None
    (tmp_path / "eaf").mkdir()
    (tmp_path / "eaf/talk3.mp4").touch()
    assert MediaFinder(tmp_path).find(("Z1.WAV", "talk3"), folder) == tmp_path / "eaf/talk3.mp4", (
        "beside the file"
    )


def test_every_suffix_that_can_be_read_is_found(tmp_path: Path) -> None:
    forms = {
        **{
            ".sph": "NIST",
            ".nist": "NIST",
            ".oga": "OGG",
            ".caf": "CAF",
            ".wave": "WAV",
            ".snd": "AU",
            ".rf64": "RF64",
        },
        **{".mp2": "MP3", ".aifc": "AIFF", ".w64": "W64", ".opus": "OGG"},
    }
    samples = np.random.default_rng(0).uniform(-0.3, 0.3, 16000)
    rows = ["path\ttext"]
    for number, (suffix, container) in enumerate(forms.items()):
        path = tmp_path / "audio" / "deep" / f"r{number}{suffix.upper() if number % 2 else suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, 16000, format=container)
        path.write_bytes(buffer.getvalue())
        written = (path, f"D:\\x\\{path.name}", path.stem)[number % 3]
        rows.append(f"{written}\t{'abcdefghijkl'[number]} a")
    (tmp_path / "t.tsv").write_text("\n".join(rows) + "\n")
    found, rejected = prepare(
        tmp_path / "out", f"table --table {tmp_path / 't.tsv'} --audio_dir {tmp_path / 'audio'}"
    )
    assert (len(found), rejected) == (len(forms), {})


FORMS_OF_FFMPEG = (("a.oga", "flac", "ogg"), ("b.wv", "wavpack", "wv"), ("c.tta", "tta", "tta"))


def test_forms_that_only_ffmpeg_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole files of a folder, parts of files in a table, and the check of the lists."""
    rows = ["path,text,start,end"]
    for number, (name, codec, container) in enumerate(FORMS_OF_FFMPEG):
        path = write_media(tmp_path / "tapes" / name, 3.0, codec=codec, container=container)
        path.with_suffix(".txt").write_text(TEXTS[number])
        rows.append(f"{name},{TEXTS[number]},0.5,1.25")
    found, rejected = prepare(tmp_path / "whole", f"folder --corpus {tmp_path / 'tapes'}")
    assert sorted(Path(u.wav).name for u in found.values()) == ["a.oga", "b.wv", "c.tta"]
    assert ({u.duration for u in found.values()}, rejected) == ({3.0}, {})
    table = tmp_path / "tapes" / "parts.csv"
    table.write_text("\n".join(rows))
    found, rejected = prepare(tmp_path / "parts", f"table --table {table}")
    assert ({u.duration for u in found.values()}, rejected) == ({0.75}, {})
    lists = {"train": [*found.values()]}
    checked = check_lists(lists, config=ExperimentConfig())
    assert not checked.findings.keys() & {*NO_AUDIO}
    monkeypatch.setitem(sys.modules, "av", None)
    checked = check_lists(lists, config=ExperimentConfig())
    assert len(checked.findings["audio for PyAV"]) == 3
    remedy = "pip install 'wenet_hs[media]', or convert the files to FLAC or wav"
    assert KINDS["audio for PyAV"] == remedy
    assert "WavPack: libsndfile cannot read it" in str(checked.findings["audio for PyAV"])


def test_shards_of_media_have_their_samples(tmp_path: Path) -> None:
    utterance = Utterance(key="a", wav=str(write_m4a(tmp_path / "a.m4a")), txt="a", duration=1.5)
    assert len([*write_shards([utterance], tmp_path / "shards", num_utts_per_shard=1)]) == 1
    [member] = open_list(tmp_path / "shards" / "data.list", "shard")
    assert read_duration(member.wav) == 1.5


def test_a_missing_recording_is_called_missing(tmp_path: Path) -> None:
    found = MediaFinder(tmp_path).find(["video.mp4"], tmp_path)
    assert found == f"missing: no video.mp4 in {tmp_path} and its subfolders"


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"


def test_pointers_of_git_lfs_are_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "pointer"
    path.write_text(POINTER)
    for read in (
        read_eaf,
        read_textgrid,
        read_data_list,
        lambda path: decode_text(path, None, "prepare table"),
    ):
        with pytest.raises(DataError) as caught:
            read(path)
        found = "a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
        assert str(caught.value) == f"{path}: {found}"
    with pytest.raises(
        AudioError,
        match="a Git LFS pointer, not the audio: run `git lfs pull` in its folder; or leave",
    ):
        read_duration(path)
    for name in ("x.txt", "x.wav"):
        (tmp_path / "folder" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "folder" / name).write_text(POINTER)
    for number, text in enumerate(TEXTS):
        write_audio(tmp_path / "folder" / f"r{number}.wav", 1.5)
        (tmp_path / "folder" / f"r{number}.txt").write_text(text)
    (tmp_path / "folder" / "y.txt").write_text("y")
    (tmp_path / "folder" / "y.wav").write_text(POINTER)
    _, rejected = prepare(tmp_path / "out", f"folder --corpus {tmp_path / 'folder'}")
    assert {name: reason.partition(": ")[0] for name, reason in rejected.items()} == {
        "x.txt": "unreadable",
        "y": "a Git LFS pointer, not the audio",
    }
    (tmp_path / "corpus" / "xx").mkdir(parents=True)
    for table in ("train.tsv", "validated.tsv"):
        (tmp_path / "corpus" / "xx" / table).write_text(POINTER)
    line = f"commonvoice --corpus {tmp_path / 'corpus'} --langs xx --out {tmp_path / 'cv'}"
    with pytest.raises(DataError, match=r"\.tsv: a Git LFS pointer"):
        prepare_line(line)
