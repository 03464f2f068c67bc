# SPDX-License-Identifier: Apache-2.0
"""Times of an unknown form are told from the numbers of a text, also where a transcript has one
segment.
"""

import re
from pathlib import Path

import pytest
from annotation_forms import write_audio

from wenet_hs.corpus.labels import read_labels
from wenet_hs.tree.errors import DataError

AUDIO_S = 12.0

TIMED = {
    "service: name and clock above the text": "Speaker 1  0:00\nmo lu\nke ba\n\nSpeaker 2  0:04\nba mo\nlu\n",
    "service: one turn": "Ana García  0:00\nmo lu ke",
    "service: clock in brackets, one turn": "Speaker 1 (00:00:02):\nmo lu",
    "service: clock before the name": "[00:00:01] Ana: mo lu\n[00:00:04] Beto: ke",
    "service: clock after the name, one turn": "Ana [0:02]: mo lu ke",
    "service: clock alone at the end, long turns": "Ana 00:00\nmo\nlu\nBeto 00:04\nke\nba",
    "lyrics, one line": "[00:01.20] mo lu",
    "console of Whisper, one segment": "[00:00.000 --> 00:03.500]  mo lu",
    "page of YouTube": "0:00\nmo lu\n0:04\nke ba",
    "page of YouTube, one segment": "0:00\nmo lu",
    "clocks alone, several lines of text": "00:00:01.50 00:00:03.10\nmo\nlu\nke",
    "clocks alone, with a dash": "0:01 - 0:03\nmo\nlu\nke",
    "frames": "00:00:01:12 00:00:03:02 mo lu",
    "TMPlayer": "00:00:01:mo lu",
    "seconds in brackets": "[0.28-1.25] mo lu",
    "begin and end in seconds": "0.25 3.5 mo\n4.25 6.5 lu",
    "begin in seconds": "0.25 mo\n4.25 ba\n6.5 ke",
    "begin and end in seconds, a third of the lines": "0.25 3.5\nmo\nlu\n4.25 6.5\nba\nmo",
    "key, begin and end in seconds": "a-0001 0.0 2.215625 [noise]\na-0002 2.215625 9.0 mo lu",
    "columns, one segment": "default\t\t00:00:00.250\t0.25\t00:00:03.500\t3.5\tmo lu",
    "columns of seconds, one segment": "rec\tAna\t0.25\t3.5\tmo lu\nke",
    "commas, one segment": "0.25,0.56,mo,words,Ana\nlu",
    "marks at the end of paragraphs": "A: mo lu ke ba mo lu ke ba mo lu ke ba mo lu #00:00:02-5#",
    "service: short clock in brackets, one turn": "Speaker 1 (00:02):\nmo lu",
    "seconds with commas": "0,250 3,500 mo\n4,250 6,500 lu",
    "columns": "Ana\t00:00:00.250\t0.25\tmo\nAna\t00:00:04.250\t4.25\tlu",
    "tiers, each from 0 on": "a 0:00:01 mo\na 0:00:04 lu\na 0:00:06 ke\na 0:00:08 ba\nb 0:00:01 mo\nb 0:00:02 x",
}
TEXT = (
    *[
        "12:30 we left",
        "12:30",
        "12:30 - 13:15",
        "12:30 we left\nlu ke\nmo",
        "we left at 12:30\nwe came at 13:15",
    ],
    *["mo\n12:30\nlu", "12:30 we left\n13:15 we came", "12:30 - 13:15\nmo lu", "(12:30) mo lu"],
    *[
        "3.5 kilos",
        "3.5 kilos of mo\n2.5 kilos of lu\nke",
        "1,200 mo\n2,300 lu",
        "3.5",
        "3.50 4.20 5.10",
    ],
    *[
        "the score was 3:2\nthen 3:2",
        "mo 2.5 lu\nke 3.5 ba",
        "12.05.2024 mo\n13.05.2024 lu",
        "1:02:33 was the time",
    ],
    *[
        "14:20 mo\n12:30 lu\n11:10 ke",
        "mo: 80.5 kilos\nlu: 90.5 kilos",
        "1 mo lu\n2 ke ba\n3 mo",
        "room 4:12 a",
    ],
    *["Version 2.0 mo\n2.5 lu\n3.5 ke", "- mo lu?\n- 0:05", "mo (0:05):", "A 1.5 mo\nB 2.5 lu"],
    *["1.5 mo\n2.5 lu\nke\nba"],
    *["mo\nlu\nke\nba\n[note] 0:04 mo", "Kapitel 3\n0815\n4711", "1.\n2.\n3."],
)

TIMED |= {
    "whole numbers": "120 900 mo\n950 1990 sa",
    "whole numbers with commas": "120, 900, mo\n950, 1990, sa",
    "whole numbers with semicolons, one segment": "1500;3200;mo",
    "whole numbers with commas, one segment": "1500,3200,mo",
    "clocks with units": "0h00m01s mo\n0h00m04s sa",
    "clocks with short units": "0m02s mo\n0m09s sa",
    "minutes and seconds with quotes": "0'01'' mo\n0'05'' sa",
    "minutes and seconds with primes": "0′01″ mo\n0′05″ sa",
    "clocks with full stops": "00.00.01 mo\n00.00.05 sa",
    "seconds with a unit": "0.5s mo\n2.5s sa",
    "whole seconds in brackets": "[5] mo\n[9] sa",
    "whole seconds in brackets with a dash": "(1-4) mo\n(5-9) sa",
    "times at the end": "mo sa ti 0.25 3.5\nmo la 4.0 6.5",
    "items of a list with clocks": "1) 0:01 mo\n2) 0:05 sa",
    "named times, one segment": "start=0.5 end=1.2 text=mo",
    "clocks from 0 on with steps of a second": "0:04 mo\n0:05 sa\n0:06 lu",
    "names of columns, one segment": "id\tbegin\tduration\ttext\n1\t0\t1\tmo sa mo",
    "names of columns between spaces, one segment": "start end text\n0 1 mo",
    "time after 300 letters": f"{'mo lu ' * 50}#00:00:02-5#",
}
TEXT += (
    "3:10 mo\n3:11 lu\n3:12 ke",  # verses
    "3:30 mo\n3:31 lu\n4:01 ke",
    "1.1 mo\n1.2 lu",  # lists
    "1.1 mo\n1.2 lu\n2.1 ke\n2.2 ba",
    "[1] mo\n[2] lu\n[3] ke",
    "3 16 mo\n3 17 lu",  # chapter and verse
    "7 8 mo\n9 10 lu",  # counting
    "mo 10 20 lu\nke 30 40 ba",
    "200 mo\n300 lu",
    "12.05.24 mo\n13.05.24 lu",  # dates
    "1m mo\n2m lu",
    "from mo to lu\n1 2 3",
)


@pytest.mark.parametrize("name", TIMED)
def test_times_of_an_unknown_form_are_refused(name: str, tmp_path: Path) -> None:
    audio = write_audio(tmp_path / "a.wav", AUDIO_S)
    with pytest.raises(DataError) as caught:
        read_labels(tmp_path / "a.txt", TIMED[name], audio)
    first = TIMED[name].split("\n")[0][:40]
    remedy = "convert it to SRT or WebVTT, or make a table with the columns path, text, start and end, and use"
    remedy += " `wenet-hs prepare table`; remove the numbers if they are no times"
    expected = f"{tmp_path / 'a.txt'}:1: times in an unknown form, {first!r}; {remedy}"
    assert str(caught.value) == expected


@pytest.mark.parametrize("text", TEXT)
def test_a_text_with_numbers_stays_text(text: str, tmp_path: Path) -> None:
    assert read_labels(tmp_path / "a.txt", text, write_audio(tmp_path / "a.wav", AUDIO_S)) is None


def test_a_clock_without_seconds_is_a_time_only_within_the_audio(tmp_path: Path) -> None:
    text = "Ana 12:30\nmo lu\nBeto 13:15\nke ba"
    assert (
        read_labels(tmp_path / "a.txt", text, write_audio(tmp_path / "short.wav", AUDIO_S)) is None
    )
    long = write_audio(tmp_path / "long.wav", 800.0, rate=1000)
    with pytest.raises(DataError, match="a.txt:1: times in an unknown form, 'Ana 12:30'"):
        read_labels(tmp_path / "a.txt", text, long)


@pytest.mark.parametrize("name", TIMED)
def test_a_text_without_its_numbers_is_read(name: str, tmp_path: Path) -> None:
    """The remedy of the message."""
    text = re.sub(r"[\d=,;\t]", " ", TIMED[name])
    assert read_labels(tmp_path / "a.txt", text, write_audio(tmp_path / "a.wav", AUDIO_S)) is None


@pytest.mark.parametrize(
    "line", ["1.5" + " " * 30_000, "1" * 30_000, "{ a / " * 5000 + "1 2", "\t1" * 30_000]
)
def test_a_long_line_is_searched_in_linear_time(line: str, tmp_path: Path) -> None:
    assert read_labels(tmp_path / "a.txt", f"mo\n{line}\nlu", tmp_path / "none.wav") is None


@pytest.mark.parametrize(
    ("numbers", "times"),
    [
        ("3:10 mo\n3:11 lu\n3:12 ke", "3:10 mo\n3:14 lu\n3:22 ke"),
        ("3:30 mo\n3:31 lu\n4:01 ke", "3:30 mo\n3:34 lu\n4:02 ke"),
        ("1.1 mo\n1.2 lu\n2.1 ke", "1.1 mo\n1.5 lu\n2.7 ke"),
    ],
)
def test_numbers_of_verses_and_lists_within_the_audio_are_text(
    numbers: str, times: str, tmp_path: Path
) -> None:
    audio = write_audio(tmp_path / "long.wav", 800.0, rate=1000)
    assert read_labels(tmp_path / "a.txt", numbers, audio) is None
    with pytest.raises(DataError, match="a.txt:1: times in an unknown form"):
        read_labels(tmp_path / "a.txt", times, audio)
