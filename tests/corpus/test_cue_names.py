# SPDX-License-Identifier: Apache-2.0
"""Names of speakers in subtitles of meeting tools, general names such as Speaker 1, and WebVTT without cues."""

from pathlib import Path
from typing import Any

import pytest
from annotation_forms import write_audio
from made_up_release import prepare_line, read_lists

from wenet_hs.corpus.cue_names import is_general_name
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.normalize import normalize


def write_cues(path: Path, texts: list[str], form: str = "vtt") -> None:
    """Cues of 0.9 s, one per second, beside a recording."""
    write_audio(path.with_suffix(".wav"))
    mark = "." if form == "vtt" else ","
    lines = ["WEBVTT\n"] if form == "vtt" else []
    for n, text in enumerate(texts):
        lines += [f"{n + 1}", f"00:00:{n:02}{mark}000 --> 00:00:{n:02}{mark}900", f"{text}\n"]
    path.with_suffix(".txt").write_text("\n".join(lines), "utf-8")


def prepare(folder: Path, words: str = "") -> tuple[list[Utterance], dict[str, Any]]:
    line = f"folder --corpus {folder} --out {folder / 'out'} --num_workers 0 --lang qaa --split_by none {words}"
    total = prepare_line(line)["total"]
    found = [u for of_set in read_lists(folder / "out").values() for u in of_set]
    return sorted(found, key=lambda u: (u.wav, u.start or 0)), total


def spoken(utterances: list[Utterance]) -> list[tuple[str | None, str]]:
    return [(u.speaker, u.txt) for u in utterances]


@pytest.mark.parametrize("form", ["vtt", "srt"])
def test_names_before_a_colon_are_the_speakers(tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str) -> None:
    caplog.set_level("INFO")
    write_cues(tmp_path / "a", ["Ana P: mo lu", "Beto de la R: ba mo", "ke pi"], form)
    write_cues(tmp_path / "b", ["Ana P: ti da: so", "[Beto de la R]: re"], form)
    found, _ = prepare(tmp_path)
    ana, beto = "Ana P", "Beto de la R"
    assert spoken(found) == [(ana, "mo lu"), (beto, "ba mo"), (None, "ke pi"), (ana, "ti da so"), (beto, "re")]
    line = (
        "4 of 5 cues begin with a name and a colon, which is the speaker and no text: 'Ana P' (2), 'Beto de la R' (2)"
    )
    assert f"{line}; --keep_names keeps it" in caplog.messages
    found, _ = prepare(tmp_path, "--keep_names")
    assert spoken(found)[0] == (None, "ana p mo lu")


def test_names_in_chinese_have_a_wide_colon_without_a_space(tmp_path: Path) -> None:
    write_cues(tmp_path / "a", ["张三：你好", "李四：再见", "张三：好"])
    assert spoken(prepare(tmp_path)[0]) == [("张三", "你好"), ("李四", "再见"), ("张三", "好")]


def test_general_names_are_other_people_in_each_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "A").mkdir()
    write_cues(tmp_path / "A/r", ["<v Speaker 1>mo lu</v>", "<v Ana>ba</v>"])
    write_cues(tmp_path / "b", ["Speaker 1: ke", "Ana: pi"])
    write_cues(tmp_path / "c", ["[SPEAKER_00]: ti", "[SPEAKER_01]: da", "[SPEAKER_00]: so"], "srt")
    found, _ = prepare(tmp_path)
    names = ["A_r_Speaker 1", "Ana", "b_Speaker 1", "Ana", "c_SPEAKER_00", "c_SPEAKER_01", "c_SPEAKER_00"]
    assert spoken(found) == [*zip(names, ["mo lu", "ba", "ke", "pi", "ti", "da", "so"], strict=True)]
    line = "'Speaker 1', 'SPEAKER_00', 'SPEAKER_01' may be other people in each file; speakers have the file in their"
    assert f"{line} name, such as 'b_Speaker 1'" in caplog.messages


@pytest.mark.parametrize(
    "name",
    ["Speaker 1", "SPEAKER_00", "speaker-2", "Speaker A", "spk3", "Unknown Speaker", "Host", "Interviewer", "A", "S1"],
)
def test_general_names(name: str) -> None:
    assert is_general_name(name)


@pytest.mark.parametrize("name", ["Ana", "Ana P", "AK", "Manuel", "Voicu", "Speakerman", "Host Family", "Guestová"])
def test_names_of_people(name: str) -> None:
    assert not is_general_name(name)


KEPT = {
    "few cues": ["Ana: mo lu", "ba mo", "ke pi", "ti da", "Ana: so re"],
    "one cue": ["Aviso: mo lu"],
    "sentences": ["he is coming now: mo", "and then they all go away home again: lu", "so it is. Then what: ba"],
    "many words": [f"{word}: so" for word in ("Mo", "Lu", "Ke", "Ba", "Pi", "Ti", "Da", "Re")],
    "numbers": ["1: mo", "2: lu", "2: ke"],
    "clocks": ["12:30 mo", "12:45 lu"],
}


@pytest.mark.parametrize("texts", KEPT.values(), ids=KEPT.keys())
def test_other_words_before_a_colon_are_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, texts: list[str]
) -> None:
    caplog.set_level("INFO")
    write_cues(tmp_path / "a", [*texts])
    write_cues(tmp_path / "b", ["mo", "lu", "ke"])
    found, _ = prepare(tmp_path)
    assert [u.txt for u in found][: len(texts)] == [normalize(text, "qaa") for text in texts]
    assert {u.speaker for u in found} == {None}
    line = "2 cues begin with a name and a colon, which is kept as text, because most cues of their files do not: 'Ana'"
    assert (f"{line} (2)" in caplog.messages) == (texts == KEPT["few cues"])


@pytest.mark.parametrize("text", ["WEBVTT", "WEBVTT\n\n", "\ufeffWEBVTT - Zoom\r\n\r\nNOTE nobody spoke\r\n"])
def test_webvtt_without_cues_is_empty(tmp_path: Path, text: str) -> None:
    write_cues(tmp_path / "a", ["mo", "lu", "ke"])
    write_audio(tmp_path / "b.wav")
    (tmp_path / "b.txt").write_text(text, "utf-8")
    found, total = prepare(tmp_path)
    assert [u.txt for u in found] == ["mo", "lu", "ke"]
    assert (total["rejected"], total["left_out"]) == ({}, {"empty transcript": 1})


def test_webvtt_with_text_without_times_is_refused(tmp_path: Path) -> None:
    write_audio(tmp_path / "b.wav")
    (tmp_path / "b.txt").write_text("WEBVTT\n\nNOTE x\n\nmo lu\n")
    message = (
        r"b.txt: WebVTT whose text has no times, 'mo lu'; remove the line WEBVTT if it is one transcript, or write"
    )
    with pytest.raises(DataError, match=message):
        prepare(tmp_path)
    write_cues(tmp_path / "a", ["mo", "lu"])
    (tmp_path / "b.txt").write_text("mo lu\n")
    assert [u.txt for u in prepare(tmp_path)[0]] == ["mo", "lu", "mo lu"]


def test_a_transcript_may_begin_with_the_word(tmp_path: Path) -> None:
    write_cues(tmp_path / "a", ["mo", "lu"])
    write_audio(tmp_path / "b.wav")
    (tmp_path / "b.txt").write_text("WEBVTTs are files")
    assert [u.txt for u in prepare(tmp_path)[0]] == ["mo", "lu", "webvtts are files"]
