# SPDX-License-Identifier: Apache-2.0
"""More training speech (OUT/added.tsv): it never enters dev or test, and the other lists stay the
same.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile
from annotation_forms import Annotation, write_audio, write_table
from prepared import prepare_line, read_lists, rejected

from wenet_hs.corpus.edits import ADDED, EXCLUDED, leave_out_held, read_added, write_added
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError


def prepare(out: Path, words: str) -> dict[str, Any]:
    return prepare_line(f"{words} --out {out} --num_workers 0 --lang qaa")


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Three recordings, each of one speaker and one set."""
    sets = {"a": ("X", "train"), "bb": ("Y", "dev"), "ccc": ("Z", "test")}
    annotations = [
        Annotation(recording, speaker, 900 * n, 900 * n + 800, f"{'abcdef'[n]} word", "", split)
        for recording, (speaker, split) in sets.items()
        for n in range(6)
    ]
    for recording in sets:
        write_audio(tmp_path / f"{recording}.wav")
    return write_table(tmp_path, annotations)


def row(
    audio: Path, text: str = "New, words!", start: float = 0.0, **values: str
) -> dict[str, str]:
    return {
        "audio": str(audio),
        "text": text,
        "start": f"{start:g}",
        "end": f"{start + 0.8:g}",
        **values,
    }


def test_rows_are_added_to_the_training_set_and_the_others_say_why_not(
    tmp_path: Path, corpus: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = prepare(tmp_path / "old", corpus)
    old = read_lists(tmp_path / "old")
    new = write_audio(tmp_path / "new/dddd.wav")
    copy = Path(shutil.copy(tmp_path / "ccc.wav", tmp_path / "new/copied.wav"))
    rows = [
        row(new, speaker="W"),
        row(new, "More", 2.0, speaker="V"),
        row(tmp_path / "a.wav", "again", 6.0, speaker="X"),
    ]
    rows += [
        row(tmp_path / "bb.wav", start=8.0),
        row(new, "x", 3.0, speaker="Z"),
        row(copy),
        row(new, "long", 99.0),
    ]
    rows += [
        row(new, "", 4.0),
        row(new, "no", 5.0) | {"end": "soon"},
        row(new, "excluded", 6.0),
        row(tmp_path / "no.wav"),
    ]
    out = tmp_path / "out"
    write_added(out / ADDED, rows)
    (out / EXCLUDED).write_text("added-dddd-0006000-0006800\n")
    with caplog.at_level("INFO"):
        stats = prepare(out, corpus)
    lists = read_lists(out)
    assert (lists["dev"], lists["test"]) == (old["dev"], old["test"])
    assert lists["train"][: len(old["train"])] == old["train"]
    added = lists["train"][len(old["train"]) :]
    assert [(u.key, u.txt, u.speaker, u.start) for u in added] == [
        ("added-dddd-0000000-0000800", "new words", "W", 0.0),
        ("added-dddd-0002000-0002800", "more", "V", 2.0),
        ("added-a-0006000-0006800", "again", "X", 6.0),
    ]
    assert stats["num_added"] == 3 and "num_added" not in before
    assert "added.tsv: 3 utterances are added to the training set" in caplog.text
    reasons = rejected(out)
    assert reasons["added-bb-0008000-0008800"] == "its recording is in the dev set"
    assert reasons["added-copied-0000000-0000800"] == "its recording is in the test set"
    assert reasons["added-dddd-0003000-0003800"] == "its speaker is in the test set"
    assert reasons["added-dddd-0006000-0006800"] == "excluded: listed in exclude.txt"
    assert reasons["added-dddd-0099000-0099800"].startswith("outside the audio")
    assert reasons["added.tsv:9"] == "empty transcript"
    assert reasons["added.tsv:10"] == "times: start and end must be numbers of seconds"
    assert reasons["added.tsv:12"].startswith("missing: no no.wav")


def test_names_of_old_utterances_do_not_depend_on_added_recordings(
    tmp_path: Path, corpus: str
) -> None:
    out = tmp_path / "out"
    prepare(out, corpus)
    old = read_lists(out)
    same_name = write_audio(tmp_path / "elsewhere/a.wav", seconds=5.0)
    write_added(out / ADDED, [row(same_name, speaker="W"), row(same_name, speaker="W")])
    prepare(out, corpus)
    lists = read_lists(out)
    assert [u.key for u in lists["train"]] == [
        *(u.key for u in old["train"]),
        "added-a-0000000-0000800",
    ]
    assert rejected(out)["added.tsv:3"].startswith("repeated")
    write_added(out / ADDED, [])
    prepare(out, corpus)
    assert read_lists(out) == old


def held_reasons(added: list[Utterance], *test: Utterance) -> list[str]:
    kept, left_out = leave_out_held(added, {"test": test})
    return ["" for _ in kept] + [one.reason for one in left_out]


@pytest.mark.parametrize("speaker", ["Anna", "anna", " ANNA ", "Anna\u0301", "Ann\u00e1"])
def test_a_speaker_of_the_test_set_is_recognised_in_other_writings(
    tmp_path: Path, speaker: str
) -> None:
    test = Utterance(key="t", wav=str(write_audio(tmp_path / "t.wav")), txt="a", speaker="Anna")
    accented = Utterance(key="u", wav=test.wav, txt="a", speaker="Ann\u00e1")
    new = Utterance(
        key="n", wav=str(write_audio(tmp_path / "new.wav", seconds=3)), txt="b", speaker=speaker
    )
    assert held_reasons([new], test, accented) == ["its speaker is in the test set"]


def test_a_row_without_a_speaker_is_used_only_where_no_speaker_of_dev_and_test_is_named(
    tmp_path: Path,
) -> None:
    wav, new = (
        str(write_audio(tmp_path / "t.wav")),
        str(write_audio(tmp_path / "new.wav", seconds=3)),
    )
    added = [Utterance(key="n", wav=new, txt="b")]
    expected = "no speaker: it may be one of dev or test, which have names; name who speaks"
    assert held_reasons(added, Utterance(key="t", wav=wav, txt="a", speaker="Anna")) == [expected]
    assert held_reasons(added, Utterance(key="t", wav=wav, txt="a")) == [""]


def test_a_recording_of_the_test_set_is_recognised_in_another_form(tmp_path: Path) -> None:
    wav = write_audio(tmp_path / "R\u00e9cit.wav")
    flac = tmp_path / "converted/re\u0301cit.flac"
    flac.parent.mkdir()
    samples, rate = soundfile.read(wav)
    soundfile.write(flac, samples, rate)
    test = Utterance(key="t", wav=str(wav), txt="a", speaker="Anna")
    added = [Utterance(key="n", wav=str(flac), txt="b", speaker="Beto")]
    assert held_reasons(added, test) == ["its recording is in the test set"]


def test_rows_of_other_recordings_stay(tmp_path: Path) -> None:
    path = tmp_path / ADDED
    path.write_text(
        "text\taudio\tspeaker\nby hand\t/home/me/x.wav\tW\nold\t/y.wav\t\n\n \t\n", "utf-8"
    )
    for text in ("new", "newer"):
        write_added(path, [{"audio": "/y.wav", "text": text}], recordings={"/y.wav"})
    rows = [{name: value for name, value in row.items() if value} for _, row in read_added(path)]
    by_hand = {"audio": "/home/me/x.wav", "text": "by hand", "speaker": "W"}
    assert rows == [by_hand, {"audio": "/y.wav", "text": "newer"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "text\nx\n",
            "1: has the columns text; write audio and text, and any of start end speaker lang channel",
        ),
        ("audio\ttext\twho\n", "1: has the columns audio text who"),
        ("audio\ttext\ttext\n", "1: has the columns audio text text"),
        ("audio\ttext\na.wav\n", "2: 1 cells, the first line has 2; separate the cells by tabs"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / ADDED).write_text(content)
    with pytest.raises(DataError, match=message):
        read_added(tmp_path / ADDED)
