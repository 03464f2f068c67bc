# SPDX-License-Identifier: Apache-2.0
"""Labels of pauses and segments to be ignored: left out in every form, and never a word of the
language.
"""

from pathlib import Path
from typing import Any

import pytest
from annotation_forms import write_audio
from praatio import textgrid
from prepared import prepare_line, read_lists, rejected
from pympi import Eaf

from wenet_hs.corpus.intervals import join_tiers
from wenet_hs.corpus.pauses import is_pause_label, remove_pauses
from wenet_hs.manifest.data_list import Utterance

WORDS = ["mo lu", "ba mo", "ke pi", "ti da", "so re", "na pi", "lu so", "da ti", "pi ke", "re na"]


def prepare(out: Path, words: str) -> tuple[list[Utterance], dict[str, Any]]:
    """The utterances in the order of their times, and the counts.

    `--max_rejected 0`: no pause is a fault.
    """
    stats = prepare_line(
        f"{words} --out {out} --num_workers 0 --lang qaa --split_by none --max_rejected 0"
    )
    found = [u for of_set in read_lists(out).values() for u in of_set]
    return sorted(found, key=lambda u: (u.wav, u.start or 0)), stats["total"]


def write_grid(path: Path, spans: list[tuple[float, float, str]]) -> None:
    write_audio(path.with_suffix(".wav"))
    grid = textgrid.Textgrid(0, 12)
    grid.addTier(textgrid.IntervalTier("utt", spans, 0, 12))
    grid.save(str(path), format="short_textgrid", includeBlankSpaces=True)


def write_eaf(path: Path, spans: list[tuple[float, float, str]]) -> None:
    write_audio(path.with_suffix(".wav"))
    eaf = Eaf()
    eaf.add_linked_file(f"./{path.stem}.wav")
    for begin, end, text in spans:
        eaf.add_annotation("default", round(1000 * begin), round(1000 * end), text)
    eaf.to_file(str(path))


def with_pauses(labels: list[str]) -> list[tuple[float, float, str]]:
    """Utterances of 0.8 s that touch pauses of 0.3 s."""
    spans = []
    for n, text in enumerate(WORDS):
        spans += [
            (1.1 * n, 1.1 * n + 0.8, text),
            (1.1 * n + 0.8, 1.1 * (n + 1), labels[n % len(labels)]),
        ]
    return [(round(begin, 3), round(end, 3), text) for begin, end, text in spans]


# ---- labels

PAUSES = [
    *[
        "#",
        "##",
        "_",
        "__",
        "+",
        "h#",
        "<sil>",
        "<SIL>",
        "<sp>",
        "<p:>",
        "<P>",
        "<eps>",
        "<s>",
        "</s>",
        "!SIL",
        "(.)",
    ],
    *[
        "(..)",
        "(...)",
        "(…)",
        "(-)",
        "(---)",
        "(0.7)",
        "(0,7)",
        "(.7)",
        "(1.5 s)",
        "(2s)",
        "((1,2s))",
        "[0.7]",
    ],
    *[
        "(1:05.15)",
        "(2)",
        "[silence]",
        "(Pause)",
        "((pause))",
        "<pause>",
        "[pause: 1.5s]",
        "(long pause)",
        "[пауза]",
    ],
    *["(2 sec pause)", "(pausa larga)", "{SIL}", "[sil]", "(.) (0.7)", " # ", "<no-speech>"],
]
TEXTS = [
    *[
        "sil",
        "sp",
        "pau",
        "pause",
        "silence",
        "p",
        "s",
        "(p)",
        "[p]",
        "[laughs]",
        "(2) mo",
        "mo (0.7)",
        "# mo",
        "mo_lu",
    ],
    *[
        "0.7",
        "2",
        "...",
        "?",
        "-",
        "C#",
        "<unk>",
        "spn",
        "(1984)",
        "[sp]",
        "(sil)",
        "(a)",
        "<laugh>",
        "%ignore%",
        "",
        " ",
    ],
]


@pytest.mark.parametrize("text", PAUSES)
def test_labels_that_are_pauses_in_any_data(text: str) -> None:
    assert is_pause_label(text)


@pytest.mark.parametrize("text", TEXTS)
def test_labels_that_may_be_text(text: str) -> None:
    assert not is_pause_label(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mo (0.7) lu (.) ke", "mo lu ke"),
        ("mo(1,5s)lu", "mo lu"),
        ("mo <sp> lu <p:> [silence] ke", "mo lu ke"),
        ("mo (-) lu ((pause)) (2.0)", "mo lu"),
        ("!SIL mo !sil lu !sile", "mo lu !sile"),
        ("mo # lu _ ke + ba", "mo # lu _ ke + ba"),  # normalisation removes signs
        (
            "room (2) [laughs] (1984) (10,000) <unk> sp",
            "room (2) [laughs] (1984) (10,000) <unk> sp",
        ),
    ],
)
def test_pauses_inside_a_transcript(text: str, expected: str) -> None:
    assert remove_pauses(text)[0] == expected


# ---- forms


@pytest.mark.parametrize("form", ["praat", "elan"])
def test_pauses_of_tiers_are_left_out_and_are_no_faults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    caplog.set_level("INFO")
    spans = with_pauses(["#", "<p:>", "(0.7)", "_", "__"])
    if form == "praat":
        write_grid(tmp_path / "a.TextGrid", spans)
    else:
        write_eaf(tmp_path / "a.eaf", spans)
    found, total = prepare(tmp_path / "out", f"{form} --corpus {tmp_path}")
    assert [u.txt for u in found] == WORDS
    assert (total["rejected"], total["left_out"]) == ({}, {"pause": 10})
    assert (
        "annotations left out as pauses: '#' (2), '<p:>' (2), '(0.7)' (2), '_' (2), '__' (2)"
        in caplog.messages
    )
    assert "removed from the transcripts as punctuation" not in caplog.text
    rows = (tmp_path / "out/rejected.tsv").read_text("utf-8").splitlines()
    assert rows[1].split("\t")[2:] == ["pause: '#'", "0.800", "1.100", "#"]


def test_utterances_of_words_end_at_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    spans = [
        (0.0, 0.6, "__"),
        (0.6, 1.0, "mo"),
        (1.0, 1.4, "lu"),
        (1.4, 2.0, "<sp>"),
        (2.0, 2.4, "ke"),
        (2.4, 3.0, "#"),
    ]
    spans += [
        (3.0, 3.4, "ba"),
        (3.4, 3.6, "#"),
        (3.6, 4.0, "pi"),
        (4.0, 4.3, "@"),
        (4.3, 4.7, "da"),
        (4.7, 5.0, "_"),
    ]
    spans += [(5.0, 5.3, "%ignore%"), (5.3, 5.7, "na")]
    write_grid(tmp_path / "a.TextGrid", spans)
    found, _ = prepare(tmp_path / "out", f"praat --corpus {tmp_path} --join_intervals 0.5")
    expected = [
        "mo lu",
        "ke",
        "ba pi",
        "da",
        "na",
    ]  # at laughter and ignored speech too, not at a pause of 0.2 s
    assert [u.txt for u in found] == expected
    assert (found[2].start, found[2].end) == (3.0, 4.0)
    counts = "14 intervals became 5 utterances; left out: # (2), __ (1), <sp> (1), @ (1), _ (1), %ignore%"
    assert counts in caplog.text


def test_punctuation_between_words_ends_no_utterance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tiers of tokens have punctuation in intervals of its own, also at the beginning and without a
    word.
    """
    caplog.set_level("INFO")
    texts = [
        "¿",
        "ko",
        "?",
        "Mo",
        ",",
        "ba",
        "...",
        "@@",
        "ke",
        ".",
        "spn",
        ".",
        "pi",
        "-",
        "da",
        "!",
    ]
    spans = [(round(0.4 * n, 1), round(0.4 * (n + 1), 1), text) for n, text in enumerate(texts)]
    write_grid(tmp_path / "a.TextGrid", spans)
    words = f"praat --corpus {tmp_path} --join_intervals 0.5"
    found, _ = prepare(tmp_path / "out", words)
    assert [u.txt for u in found] == ["ko mo ba", "ke", "pi da"]
    assert (found[0].start, found[0].end) == (0.0, 2.8)
    assert "16 intervals became 3 utterances; left out: @@ (1), spn (1)" in caplog.messages
    found, _ = prepare(tmp_path / "as_it_is", f"{words} --no_normalize")
    assert [u.txt for u in found] == ["¿ ko ? Mo , ba ...", "ke .", ". pi - da !"]


@pytest.mark.parametrize("sign", ["...", "…", ",", "-"])
def test_punctuation_that_lasts_as_long_as_a_pause_ends_an_utterance(sign: str) -> None:
    tier = [(0.0, 0.4, "mo"), (0.4, 0.8, "lu"), (0.8, 1.3, sign), (1.3, 1.7, "ke")]
    assert join_tiers([tier], 0.5, "char") == [[(0.0, 0.8, "mo lu"), (1.3, 1.7, "ke")]]
    assert join_tiers([tier], 0.6, "char") == [[(0.0, 1.7, f"mo lu {sign} ke")]]


def test_punctuation_without_a_word_is_no_utterance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_grid(
        tmp_path / "a.TextGrid",
        [(0.0, 0.4, "mo"), (1.0, 1.4, "."), (2.0, 2.4, "lu"), (3.0, 3.4, "ke")],
    )
    found, _ = prepare(
        tmp_path / "out", f"praat --corpus {tmp_path} --join_intervals 0.5 --no_normalize"
    )
    assert [u.txt for u in found] == ["mo", "lu", "ke"]
    assert "4 intervals became 3 utterances; left out: . (1)" in caplog.messages


def test_segments_to_be_ignored_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_eaf(tmp_path / "a.eaf", with_pauses(["%ignore%"]))
    found, total = prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    assert [u.txt for u in found] == WORDS and total["left_out"] == {"marked as not to be used": 10}
    line = "annotations left out because they are marked as not to be used: '%ignore%' (10)"
    assert line in caplog.messages


def test_annotations_of_signs_are_no_faults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SPPAS writes @ for laughter and * for noise."""
    caplog.set_level("INFO")
    write_grid(tmp_path / "a.TextGrid", with_pauses(["@", "*"]))
    found, total = prepare(tmp_path / "out", f"praat --corpus {tmp_path}")
    assert [u.txt for u in found] == WORDS and total["left_out"] == {
        "empty transcript after normalisation": 10
    }
    assert "annotations left out because they have only signs: '@' (5), '*' (5)" in caplog.messages


@pytest.mark.parametrize(
    "lost", ["????? ???", "?????", "? ??? ??", "\ufffd\ufffd\ufffd", "\ufffd?"]
)
def test_texts_whose_letters_are_lost_are_faults(
    tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_eaf(tmp_path / "a.eaf", with_pauses([lost, "???", "?", "@"]))
    line = f"elan --corpus {tmp_path} --out {tmp_path / 'out'} --num_workers 0 --lang qaa --split_by none"
    total = prepare_line(line)["total"]
    assert total["rejected"] == {"lost letters": 3}
    assert total["left_out"] == {"empty transcript after normalisation": 7}
    signs = "annotations left out because they have only signs: '???' (3), '?' (2), '@' (2)"
    assert signs in caplog.messages
    reasons = {
        reason for reason in rejected(tmp_path / "out").values() if reason.startswith("lost")
    }
    assert reasons == {f"lost letters: {lost!r}; write the text again, in UTF-8"}


@pytest.mark.parametrize("form", ["audacity", "srt", "table", "kaldi"])
def test_pauses_of_other_forms(tmp_path: Path, form: str) -> None:
    write_audio(tmp_path / "a.wav")
    spans = with_pauses(["(.)", "#"])
    words = f"folder --corpus {tmp_path}"
    if form == "audacity":
        (tmp_path / "a.txt").write_text(
            "".join(f"{begin}\t{end}\t{text}\n" for begin, end, text in spans)
        )
    elif form == "srt":
        cues = (
            f"00:00:{begin:06.3f} --> 00:00:{end:06.3f}\n{text}\n\n" for begin, end, text in spans
        )
        (tmp_path / "a.txt").write_text("".join(cues))
    elif form == "table":
        rows = (f"a.wav,{begin},{end},{text}\n" for begin, end, text in spans)
        (tmp_path / "t.csv").write_text("path,start,end,text\n" + "".join(rows))
        words = f"table --table {tmp_path / 't.csv'}"
    else:
        (tmp_path / "wav.scp").write_text(f"a {tmp_path / 'a.wav'}\n")
        (tmp_path / "segments").write_text(
            "".join(f"u{n:02} a {b} {e}\n" for n, (b, e, _) in enumerate(spans))
        )
        (tmp_path / "text").write_text(
            "".join(f"u{n:02} {text}\n" for n, (*_, text) in enumerate(spans))
        )
        words = f"kaldi --corpus {tmp_path}"
    found, total = prepare(tmp_path / "out", words)
    assert [u.txt for u in found] == WORDS
    assert (total["rejected"], total["left_out"]) == ({}, {"pause": 10})


def test_pauses_of_words_of_timit_are_no_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for n in range(3):
        write_audio(tmp_path / f"{n}.wav", 1.5)
        (tmp_path / f"{n}.WRD").write_text(
            f"0 1600 h#\n1600 4000 mo\n4000 6000 sp\n6000 9000 lu{n}\n9000 12000 #\n"
        )
    found, _ = prepare(tmp_path / "out", f"folder --corpus {tmp_path} --text_suffix .WRD")
    assert [u.txt for u in found] == [f"mo lu{n}" for n in range(3)]
    assert "removed from the transcripts as pauses: '<sil>' (9)" in caplog.messages


def test_pauses_inside_transcripts_are_removed_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_eaf(
        tmp_path / "a.eaf",
        [(n, n + 0.9, f"{text} (0.7) so (.) {text}") for n, text in enumerate(WORDS)],
    )
    found, _ = prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    assert [u.txt for u in found] == [f"{text} so {text}" for text in WORDS]
    assert "removed from the transcripts as pauses: '(0.7)' (10), '(.)' (10)" in caplog.messages
    assert "transcripts have digits" not in caplog.text and "notes in brackets" not in caplog.text
    for flag in ("--no_normalize", "--unit phone"):
        found, _ = prepare(tmp_path / flag.split()[0], f"elan --corpus {tmp_path} {flag}")
        assert found[0].txt == "mo lu (0.7) so (.) mo lu", "as it is"


# ---- labels of letters


def test_a_label_of_letters_between_utterances_is_a_pause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_grid(tmp_path / "a.TextGrid", with_pauses(["sil", "SIL"]))
    found, total = prepare(tmp_path / "out", f"praat --corpus {tmp_path}")
    assert [u.txt for u in found] == WORDS and total["left_out"] == {"pause": 10}
    assert "annotations left out as pauses: 'sil' (5), 'SIL' (5)" in caplog.messages
    found, total = prepare(tmp_path / "words", f'praat --corpus {tmp_path} --pauses ""')
    assert len(found) == 20 and total["left_out"] == {}


@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_a_word_of_the_language_is_kept_and_the_flag_leaves_it_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gap: float
) -> None:
    """`sil` is Turkish: delete it."""
    caplog.set_level("INFO")
    texts = [*WORDS, "Sil!", "sil"]
    write_eaf(tmp_path / "a.eaf", [(n, n + 1 - gap, text) for n, text in enumerate(texts)])
    found, _ = prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    assert [u.txt for u in found] == [*WORDS, "sil", "sil"]
    hint = "transcripts that may be labels of pauses are kept as text: 'sil' (1); --pauses \"sil\" leaves them out"
    assert hint in caplog.messages
    found, total = prepare(tmp_path / "named", f'elan --corpus {tmp_path} --pauses "sil"')
    assert [u.txt for u in found] == [*WORDS, "sil"] and total["left_out"] == {"pause": 1}


def test_labels_that_the_user_names(tmp_path: Path) -> None:
    write_grid(tmp_path / "a.TextGrid", with_pauses(["pausa", "dummy"]))
    words = f'praat --corpus {tmp_path} --pauses "pausa dummy"'
    assert [u.txt for u in prepare(tmp_path / "out", words)[0]] == WORDS
    joined, _ = prepare(tmp_path / "joined", f"{words} --join_intervals 0.2")
    assert [u.txt for u in joined] == WORDS


def test_between_phones_labels_of_letters_are_pauses_and_signs_may_be_phones(
    tmp_path: Path,
) -> None:
    spans = with_pauses(["sil", "sp", "pau", "#", "@"])
    write_grid(
        tmp_path / "a.TextGrid",
        [(begin, end, f"{text} # {text}" if " " in text else text) for begin, end, text in spans],
    )
    found, total = prepare(tmp_path / "out", f"praat --corpus {tmp_path} --unit phone")
    assert [u.txt for u in found if u.txt != "@"] == [f"{text} # {text}" for text in WORDS], (
        "# may be a word boundary"
    )
    assert total["left_out"] == {"pause": 8} and sum(u.txt == "@" for u in found) == 2, (
        "a vowel of SAMPA"
    )
    assert join_tiers([[(0.0, 0.2, "t"), (0.2, 0.4, "@"), (0.4, 0.6, "?")]], 0.5, "phone") == [
        [(0.0, 0.6, "t @ ?")]
    ]
