# SPDX-License-Identifier: Apache-2.0
"""Names of speakers in subtitles of meeting tools, general names such as Speaker 1, and WebVTT
without cues.
"""

from pathlib import Path
from typing import Any

import pytest
from annotation_forms import write_audio
from prepared import prepare_line, read_lists

from wenet_hs.corpus.cue_names import is_general_name
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.normalize import normalize
from wenet_hs.tree.errors import ConfigError, DataError


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
def test_names_before_a_colon_are_the_speakers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    caplog.set_level("INFO")
    write_cues(tmp_path / "a", ["Ana P: mo lu", "Beto de la R: ba mo", "ke pi"], form)
    write_cues(tmp_path / "b", ["Ana P: ti da: so", "[Beto de la R]: re"], form)
    found, _ = prepare(tmp_path)
    ana, beto = "Ana P", "Beto de la R"
    assert spoken(found) == [
        (ana, "mo lu"),
        (beto, "ba mo"),
        (None, "ke pi"),
        (ana, "ti da so"),
        (beto, "re"),
    ]
    line = "4 of 5 cues begin with a name and a colon, which is the speaker and no text: 'Ana P' (2), 'Beto de la R' (2)"
    assert f"{line}; --keep_names keeps it" in caplog.messages
    found, _ = prepare(tmp_path, "--keep_names")
    assert spoken(found)[0] == (None, "ana p mo lu")


def test_names_in_chinese_have_a_wide_colon_without_a_space(tmp_path: Path) -> None:
    write_cues(tmp_path / "a", ["张三：你好", "李四：再见", "张三：好"])
    assert spoken(prepare(tmp_path)[0]) == [("张三", "你好"), ("李四", "再见"), ("张三", "好")]


def test_general_names_are_other_people_in_each_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "A").mkdir()
    write_cues(tmp_path / "A/r", ["<v Speaker 1>mo lu</v>", "<v Ana>ba</v>"])
    write_cues(tmp_path / "b", ["Speaker 1: ke", "Ana: pi"])
    write_cues(tmp_path / "c", ["[SPEAKER_00]: ti", "[SPEAKER_01]: da", "[SPEAKER_00]: so"], "srt")
    found, _ = prepare(tmp_path)
    names = [
        "A_r_Speaker 1",
        "Ana",
        "b_Speaker 1",
        "Ana",
        "c_SPEAKER_00",
        "c_SPEAKER_01",
        "c_SPEAKER_00",
    ]
    assert spoken(found) == [
        *zip(names, ["mo lu", "ba", "ke", "pi", "ti", "da", "so"], strict=True)
    ]
    line = "'Speaker 1', 'SPEAKER_00', 'SPEAKER_01' may be other people in each file; speakers have the file in their"
    assert f"{line} name, such as 'b_Speaker 1'" in caplog.messages


@pytest.mark.parametrize(
    "name",
    [
        "Speaker 1",
        "SPEAKER_00",
        "speaker-2",
        "Speaker A",
        "spk3",
        "Unknown Speaker",
        "Host",
        "Interviewer",
        "A",
        "S1",
    ],
)
def test_general_names(name: str) -> None:
    assert is_general_name(name)


@pytest.mark.parametrize(
    "name", ["Ana", "Ana P", "AK", "Manuel", "Voicu", "Speakerman", "Host Family", "Guestová"]
)
def test_names_of_people(name: str) -> None:
    assert not is_general_name(name)


KEPT = {
    "few cues": ["Ana: mo lu", "ba mo", "ke pi", "ti da", "Ana: so re"],
    "one cue": ["Aviso: mo lu"],
    "sentences": [
        "he is coming now: mo",
        "and then they all go away home again: lu",
        "so it is. Then what: ba",
    ],
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
    assert "which is the speaker" not in caplog.text


def test_names_in_few_cues_are_kept_and_the_flag_takes_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some programs write the name only where another person begins to speak."""
    caplog.set_level("INFO")
    write_cues(tmp_path / "a", ["Ana Pérez: mo lu", "ba mo", "ke pi: so", "Beto: ti", "da", "re"])
    write_audio(tmp_path / "b.wav", 2.0)
    (tmp_path / "b.txt").write_text("Ana Pérez: na pi\nlu", "utf-8")
    found, _ = prepare(tmp_path)
    assert spoken(found)[0] == (None, "ana pérez mo lu")
    line = "3 of 7 transcripts begin with a name and a colon, which is kept as text: 'Ana Pérez' (2), 'Beto' (1)"
    assert f"{line}; --take_names makes it the speaker" in caplog.messages
    found, _ = prepare(tmp_path, "--take_names")
    ana, beto = "Ana Pérez", "Beto"
    texts = [
        (ana, "mo lu"),
        (None, "ba mo"),
        (None, "ke pi so"),
        (beto, "ti"),
        (None, "da"),
        (None, "re"),
    ]
    assert spoken(found) == [*texts, (ana, "na pi lu")]
    with pytest.raises(ConfigError, match="--keep_names excludes --take_names: give one of them"):
        prepare(tmp_path, "--take_names --keep_names")


SPOKEN = {
    "small letters": ["He said: mo", "He said: lu", "and ke"],
    "a lesson": ["Hello: mo lu", "Goodbye: ba ke"],
    "once in all files": ["Question: mo", "Answer: lu", "Da"],
}


@pytest.mark.parametrize("texts", SPOKEN.values(), ids=SPOKEN.keys())
def test_words_that_are_no_people_are_spoken(tmp_path: Path, texts: list[str]) -> None:
    for name in "ab":
        write_cues(tmp_path / name, texts)
    write_cues(tmp_path / "c", ["Thanks: re", "Bye: so"])
    found, _ = prepare(tmp_path)
    expected = [*texts, *texts, "Thanks: re", "Bye: so"]
    assert spoken(found) == [(None, normalize(text, "qaa")) for text in expected]


def test_names_with_small_letters(tmp_path: Path) -> None:
    """A particle is part of any name; a name in small letters is one where all cues have names."""
    cues = [
        "Ana de la O: mo",
        "beto: ke",
        "Ana's iPhone: lu",
        "beto: so",
        "Ana de la O: ti",
        "Ana's iPhone: pi",
    ]
    write_cues(tmp_path / "a", cues)
    found, _ = prepare(tmp_path)
    iphone = "Ana's iPhone"
    speakers = ["Ana de la O", "beto", iphone, "beto", "Ana de la O", iphone]
    assert [u.speaker for u in found] == speakers
    assert [u.txt for u in found] == ["mo", "ke", "lu", "so", "ti", "pi"]


BROADCAST = [">> ANA: mo lu", ">>> BETO: ba", ">> ke", "-ANA: ti", "&gt;&gt; ANA: re"]


@pytest.mark.parametrize("form", ["vtt", "srt"])
def test_marks_of_broadcasts_stand_before_names(tmp_path: Path, form: str) -> None:
    write_cues(tmp_path / "a", BROADCAST, form)
    expected = [("ANA", "mo lu"), ("BETO", "ba"), (None, "ke"), ("ANA", "ti"), ("ANA", "re")]
    assert spoken(prepare(tmp_path)[0]) == expected


def test_notes_in_brackets_are_part_of_a_name(tmp_path: Path) -> None:
    write_cues(
        tmp_path / "a",
        ["Carla (the host): mo", "(Beto): ba", "[Ana (M)]: ke", "Carla (the host): ti"],
    )
    found, _ = prepare(tmp_path)
    assert [u.speaker for u in found] == ["Carla (the host)", "Beto", "Ana (M)", "Carla (the host)"]


TWO_SPEAKERS = {
    "dashes": ("- Ana: mo lu\n- Bob: ba", "mo lu ba"),
    "dashes without spaces": ("-Ana: mo -lu\n-Bob: ba", "mo lu ba"),
    "lines": ("Ana: mo\nBob: ba", "mo ba"),
    "broadcast": (">> Ana: mo lu\n>> Bob: ba", "mo lu ba"),
    "brackets": ("[Ana]: mo [Bob]: ba", "mo ba"),
    "first without name": ("- Mo\n- Bob: ba", "mo ba"),
    "first without mark": ("mo lu\nBob: ba", "mo lu ba"),
    "second without name": ("- Ana: mo\n- ba", "mo ba"),
    "three": ("- Ana: mo - Bob: ba - Carla: ke", "mo ba ke"),
}


@pytest.mark.parametrize(("text", "expected"), TWO_SPEAKERS.values(), ids=TWO_SPEAKERS.keys())
def test_a_cue_of_two_speakers_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, expected: str
) -> None:
    caplog.set_level("INFO")
    write_cues(
        tmp_path / "a", ["Ana: so", "Bob: ti - da", text, "Ana: re", "Bob: na", "Ana: lu\nAna: pi"]
    )
    found, _ = prepare(tmp_path)
    before = [("Ana", "so"), ("Bob", "ti da")]
    after = [("Ana", "re"), ("Bob", "na"), ("Ana", "lu pi")]
    assert spoken(found) == [*before, (None, expected), *after]
    assert "6 of 6 cues begin with a name" in caplog.text


@pytest.mark.parametrize(
    "text", ["WEBVTT", "WEBVTT\n\n", "\ufeffWEBVTT - Zoom\r\n\r\nNOTE nobody spoke\r\n"]
)
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
    message = r"b.txt: WebVTT whose text has no times, 'mo lu'; remove the line WEBVTT if it is one transcript, or write"
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
