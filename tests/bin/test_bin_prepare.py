# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs prepare`: what it prints and writes, with real audio files."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from command_line import Capsys, error_line
from lock_holder import holder
from sample_extension import importable, install_sample, write_metadata

from wenet_hs.bin import prepare as command
from wenet_hs.bin.main import run_command
from wenet_hs.manifest.data_list import read_data_list

RATE = 8000


def write_tone(path: Path, duration_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.3 * np.sin(0.2 * np.arange(round(RATE * duration_s))), RATE)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """60 clips of half a second; one is cut off, one is silent, one is no audio, one is missing."""
    folder = tmp_path / "été cv" / "ca"
    (folder / "clips").mkdir(parents=True)
    names = [f"common_voice_ca_{n}.wav" for n in range(60)]
    rows = "".join(f"speaker{n % 20}\t{name}\tFrase número {n}\n" for n, name in enumerate(names))
    (folder / "validated.tsv").write_text(f"client_id\tpath\tsentence\n{rows}", encoding="utf-8")
    durations = "".join(f"{name}\t500\n" for name in names)
    (folder / "clip_durations.tsv").write_text(f"clip\tduration[ms]\n{durations}", encoding="utf-8")
    for name in names[:-1]:
        write_tone(folder / "clips" / name, 0.5)
    write_tone(folder / "clips" / names[0], 0.2)
    soundfile.write(folder / "clips" / names[1], np.zeros(RATE // 2), RATE)
    (folder / "clips" / names[2]).write_text("<html>not found</html>")
    return folder.parent


def call(*arguments: object) -> int:
    return run_command(command, [str(argument) for argument in arguments])


def test_a_second_run_with_the_same_folder_is_refused(
    release: Path, tmp_path: Path, capsys: Capsys
) -> None:
    with holder(tmp_path / "out"):
        code = call("commonvoice", "--corpus", release, "--langs", "ca", "--out", tmp_path / "out")
    error = error_line(code, capsys)
    other = "another prepare writes here (process 17 on elsewhere)"
    assert error == f"{tmp_path}/out: {other}; wait for it or use another --out"


def test_commonvoice(release: Path, tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "out"
    flags = ("--corpus", release, "--langs", "ca", "--out", out, "--ratio", 1, "--num_workers", 2)
    assert call("commonvoice", *flags) == 0
    printed = capsys.readouterr().out
    assert "commonvoice: audio and utterances" in printed
    assert re.search(r"\nca +0\.50 min  1\.0000 ", printed)
    faults = ("cut off", "silent", "missing", "not audio that can be read")
    assert all(f"faulty: 1 {fault}" in printed for fault in faults)
    assert f"{out / 'stats.json'}: prepared" in printed
    train = read_data_list(out / "train" / "data.list")
    assert all(
        Path(u.wav).is_absolute() and Path(u.wav).exists() and u.duration == 0.5 for u in train
    )


def test_ucla(tmp_path: Path, capsys: Capsys) -> None:
    for lang, phone in (("abk", "ʃʲ"), ("xxa", "a")):
        for n in range(4):
            write_tone(tmp_path / "ucla" / lang / "audio" / f"{lang}-{n}.flac", 0.3)
        (tmp_path / "ucla" / lang / "text.txt").write_text(
            "".join(f"{lang}-{n} {phone} k\n" for n in range(4))
        )
    out = tmp_path / "out"
    assert (
        call(
            "ucla",
            "--corpus",
            tmp_path / "ucla",
            "--out",
            out,
            "--test_langs",
            "abk",
            "--num_workers",
            0,
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "phones of the test set that no training utterance has: 1: ʃʲ" in printed
    stats = json.loads((out / "stats.json").read_text("utf-8"))
    assert stats["total"]["utterances"] == {"train": 3, "dev": 1, "test": 4}
    assert stats["total"]["hours"]["test"] == pytest.approx(4 * 0.3 / 3600, abs=1e-4)


def test_a_fault_is_one_line(tmp_path: Path, capsys: Capsys) -> None:
    code = call("commonvoice", "--corpus", "/no", "--langs", "ca", "--out", tmp_path)
    assert error_line(code, capsys).startswith(
        "/no: no such folder; --corpus is the folder of a Common Voice"
    )
    code = call("ucla", "--corpus", "no", "--out", tmp_path, "--num_workers", -1)
    assert error_line(code, capsys) == "--num_workers -1: must be at least 0"


@pytest.mark.parametrize("corpus", command.find_corpora())
def test_each_corpus_explains_its_flags(corpus: str, capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(command, [corpus, "--help"])
    assert ended.value.code == 0 and "--num_workers" in capsys.readouterr().out


# ---- corpora of installed packages


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    folder = install_sample(tmp_path / "site")
    with importable(folder):
        yield folder


def test_a_corpus_of_a_package(installed: Path, tmp_path: Path, capsys: Capsys) -> None:
    for number in range(4):
        write_tone(tmp_path / f"wavs/xx/s{number}/a.wav", 0.5)
        if number < 3:
            (tmp_path / f"wavs/xx/s{number}/a.txt").write_text(f"a  b{number}\n", "utf-8")
    assert (
        call(
            "wav_txt", "--corpus", tmp_path / "wavs", "--out", tmp_path / "data", "--num_workers", 0
        )
        == 0
    )
    assert "faulty: 1 missing" in capsys.readouterr().out
    (clip,) = read_data_list(tmp_path / "data/train/data.list")
    assert (clip.key, clip.txt, clip.lang, clip.speaker) == ("xx-s2-a", "a b2", "xx", "s2")


def test_a_corpus_of_a_package_is_imported_when_it_is_named(
    installed: Path, capsys: Capsys
) -> None:
    with pytest.raises(SystemExit):
        run_command(command, ["--help"])
    assert "of an installed package" in capsys.readouterr().out
    assert "wenet_hs_sample" not in sys.modules
    with pytest.raises(SystemExit):
        run_command(command, ["wav_txt", "--help"])
    shown = capsys.readouterr().out
    assert "Folders of recordings with a text beside each" in shown and "--max_rejected" in shown


def test_a_corpus_of_a_package_that_cannot_be_used(
    installed: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (installed / "untyped_corpus.py").write_text("def prepare(options):\n    return {}\n", "utf-8")
    corpora = {"number": "math:pi", "absent": "absent_module", "untyped": "untyped_corpus"}
    write_metadata(installed, "broken-corpora", "1", {"wenet_hs.corpora": corpora})
    where = "corpus number of the package broken-corpora 1: is no module with `prepare`"
    assert (
        error_line(call("number", "--out", tmp_path), capsys)
        == f"{where}; install another version of broken-corpora"
    )
    assert "cannot be imported (ModuleNotFoundError" in error_line(call("absent"), capsys)
    assert "has no `prepare(options: C)` with a dataclass C; install" in error_line(
        call("untyped"), capsys
    )


def test_the_name_of_a_corpus_of_a_package(
    installed: Path, tmp_path: Path, capsys: Capsys, caplog: pytest.LogCaptureFixture
) -> None:
    write_metadata(
        installed,
        "odd-corpora",
        "1",
        {"wenet_hs.corpora": {"my corpus": "absent", "ucla": "absent"}},
    )
    where = "corpus my corpus of the package odd-corpora 1"
    rule = "the name must be of letters, digits and . _ + ! -, at most 100, the first a letter or digit"
    line = error_line(call("my corpus", "--out", tmp_path), capsys)
    assert line == f"{where}: {rule}; install another version of odd-corpora"
    with pytest.raises(SystemExit):
        call("--help")
    assert "my corpus" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        call("ucla", "--help")
    assert caplog.messages == [
        "corpus ucla of the package odd-corpora 1: not used; wenet_hs has a corpus of this name"
    ]


CORPUS = """
from dataclasses import dataclass
from pathlib import Path
from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.output import OutputOptions

@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    {field}

def prepare(options: {type}):
    return {result}
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            CORPUS.format(field="lang: str = 'ca'", type="Options", result="{}"),
            "Options has fields that are not made by `option`: lang",
        ),
        (
            CORPUS.format(field="pass", type="'Options | Absent'", result="{}"),
            "the types of `prepare` are not known (NameError: name 'Absent' is not defined)",
        ),
        (
            CORPUS.format(
                field="x: 'list[int' = option(0, 'a number')", type="Options", result="{}"
            ),
            "its options cannot be declared (ValueError: 'list[int' is not callable)",
        ),
        (
            CORPUS.format(field="pass", type="int", result="{}"),
            "has no `prepare(options: C)` with a dataclass C",
        ),
        (
            CORPUS.replace("(OutputOptions)", "").format(
                field="x: int = option(0, '')", type="Options", result="{}"
            ),
            "Options has no option `out`",
        ),
        (
            CORPUS.format(field="pass", type="Options", result="None"),
            "`prepare` returned NoneType, not what `write_corpus` returns",
        ),
        (
            CORPUS.format(field="pass", type="Options", result="{'langs': {}}"),
            "`prepare` returned dict, not what `write_corpus` returns",
        ),
    ],
)
def test_mistakes_of_a_corpus_of_a_package(
    installed: Path, tmp_path: Path, capsys: Capsys, text: str, found: str
) -> None:
    (installed / "faulty_corpus.py").write_text(text, "utf-8")
    write_metadata(installed, "faulty", "1", {"wenet_hs.corpora": {"faulty": "faulty_corpus"}})
    line = error_line(call("faulty", "--out", tmp_path / "out"), capsys)
    assert line.startswith(
        f"corpus faulty of the package faulty 1: {found}; install another version of faulty"
    )
