# SPDX-License-Identifier: Apache-2.0
"""Tiers of ELAN and Praat files: identifiers instead of text, speakers, words of an aligner, parts
of recordings.
"""

from pathlib import Path

import pytest
from annotation_forms import write_audio
from praatio import textgrid
from prepared import prepare_line, read_lists
from pympi import Eaf

from wenet_hs.corpus.intervals import join_tiers
from wenet_hs.corpus.output import read_rejected
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError

TEXTS = [
    "mo lu ke ba",
    "ba mo",
    "ke pi da na",
    "ti da",
    "so re lu",
    "na pi re",
    "lu so",
    "da ti mo",
    "pi ke",
    "re na",
]


def prepare(out: Path, words: str) -> list[Utterance]:
    stats = prepare_line(f"{words} --out {out} --num_workers 0 --lang qaa --split_by none")
    assert stats["total"]["rejected"] == {}, stats
    return sorted(
        (u for of_set in read_lists(out).values() for u in of_set),
        key=lambda u: (u.wav, u.start or 0),
    )


# ---- ELAN: identifiers, participants


def write_toolbox(path: Path, references: list[str], texts: list[str] = TEXTS) -> None:
    """The independent tier has references, the text is in a tier below, as Toolbox and FLEx write
    it.
    """
    write_audio(path.with_suffix(".wav"))
    eaf = Eaf()
    eaf.remove_tier("default")
    eaf.add_linguistic_type("text", "Symbolic_Association", timealignable=False)
    eaf.add_linked_file(f"./{path.stem}.wav")
    eaf.add_tier("ref", part="Ana")
    for name in ("tx", "empty", "count"):
        eaf.add_tier(name, "text", "ref")
    for n, (reference, text) in enumerate(zip(references, texts, strict=True)):
        eaf.add_annotation("ref", 1000 * n, 1000 * n + 800, reference)
        eaf.add_ref_annotation("tx", "ref", 1000 * n + 1, text)
        eaf.add_ref_annotation("count", "ref", 1000 * n + 1, str(n))
    eaf.to_file(str(path))


def test_two_tiers_below_one_are_not_taken_together(tmp_path: Path) -> None:
    """One of them has glosses, and each annotation would be there twice with one name."""
    write_toolbox(tmp_path / "a.eaf", TEXTS)
    message = r"a.eaf: tiers 'tx' and 'count' depend on one tier and have the same speech; name one of them with --tier"
    for words in ("--tier_type text", "--tier tx count"):
        with pytest.raises(DataError, match=message):
            prepare(tmp_path / "out", f"elan --corpus {tmp_path} {words}")


def test_annotations_without_audio_have_their_times_and_text_and_empty_ones_are_no_faults(
    tmp_path: Path,
) -> None:
    write_toolbox(tmp_path / "a.eaf", [*TEXTS[:5], *[""] * 5])
    (tmp_path / "a.wav").unlink()
    with pytest.raises(DataError):
        prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier ref --max_rejected 1")
    rows = read_rejected(tmp_path / "out/rejected.tsv")
    assert [(one.start, one.end, one.text, one.reason[:7]) for one in rows[:1]] == [
        (0.0, 0.8, TEXTS[0], "missing")
    ]
    assert len(rows) == 10


LABELS = {
    "underscore": "story_{letter}",
    "words": "story_{text}",
    "no sign": "story{letter}",
    "hyphen": "Story-{letter}",
    "dot": "pear.{letter}",
}


@pytest.mark.parametrize("pattern", LABELS.values(), ids=LABELS.keys())
def test_a_tier_of_labels_of_letters_is_refused(tmp_path: Path, pattern: str) -> None:
    labels = [
        pattern.format(letter=chr(ord("a") + n), text=text.replace(" ", ""))
        for n, text in enumerate(TEXTS)
    ]
    write_toolbox(tmp_path / "a.eaf", labels)
    with pytest.raises(
        DataError, match=f"^tier 'ref' seems to have no transcripts but '{labels[0]}'; name .*'tx'"
    ):
        prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    assert [
        u.txt for u in prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier tx")
    ] == TEXTS


def test_labels_begin_differently_in_each_file(tmp_path: Path) -> None:
    for name in ("pear", "frog"):
        write_toolbox(tmp_path / f"{name}.eaf", [f"{name}_{letter}" for letter in "abcdefghij"])
    with pytest.raises(DataError, match="tier 'ref' seems to have no transcripts but 'frog_a'"):
        prepare(tmp_path / "out", f"elan --corpus {tmp_path}")


PREFIXED = {
    "verbs with a prefix": [
        "nipa",
        "nika",
        "nitsosa",
        "nimoka",
        "niyola",
        "nichoka",
        "nikwisa",
        "nitata",
        "nimi",
        "niwa",
    ],
    "hyphens between morphemes": [
        "ni-pa",
        "ni-ka",
        "ni-tso",
        "ni-moka",
        *(f"ni-{a}osa" for a in "bcdfgh"),
    ],
    "short words without order": [
        "bat",
        "bad",
        "bar",
        "ban",
        "bag",
        "bal",
        "baj",
        "bas",
        "baw",
        "bak",
    ],
    "short words in order": ["bab", "bac", "bad", "bag", "baj", "bal", "ban", "bap", "bat", "baw"],
    "one word twice": ["story_a", *(f"story_{letter}" for letter in "abcdefghi")],
    "several words": [f"story_{letter} mo" for letter in "abcdefghij"],
}


@pytest.mark.parametrize("texts", PREFIXED.values(), ids=PREFIXED.keys())
def test_words_that_begin_alike_are_transcripts(tmp_path: Path, texts: list[str]) -> None:
    write_toolbox(tmp_path / "a.eaf", texts, [f"I {text} it" for text in TEXTS])
    assert len(prepare(tmp_path / "out", f"elan --corpus {tmp_path}")) == len(TEXTS)


CODES = {
    "hands": (
        ["LH", "RH", "BH", "LH", "RH"],
        "20 annotations with 3 different texts, 'LH' (8), 'RH' (8), 'BH' (4)",
    ),
    "numbers": ([f"A{n}" for n in range(20)], "20 annotations with 20 different texts, 'A0' (1), "),
}


@pytest.mark.parametrize(("codes", "counts"), CODES.values(), ids=CODES.keys())
def test_a_tier_of_codes_without_dependent_tiers_gets_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, codes: list[str], counts: str
) -> None:
    write_audio(tmp_path / "a.wav", 25.0)
    eaf = Eaf()
    eaf.add_linked_file("./a.wav")
    for n in range(20):
        eaf.add_annotation("default", 1000 * n, 1000 * n + 800, codes[n % len(codes)])
    eaf.to_file(str(tmp_path / "a.eaf"))
    assert len(prepare(tmp_path / "out", f"elan --corpus {tmp_path}")) == 20
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [
        line
        for line in warnings
        if line.startswith(f"tier 'default' seems to have codes: {counts}")
    ]
    remedy = (
        "if they are not what is said, write the transcripts into a tier and name it with --tier"
    )
    assert remedy in caplog.text
    caplog.clear()
    eaf.add_tier("tx")
    for n, text in enumerate(TEXTS):
        eaf.add_annotation("tx", 2000 * n, 2000 * n + 1800, text)
    eaf.to_file(str(tmp_path / "a.eaf"))
    assert [u.txt for u in prepare(tmp_path / "tx", f"elan --corpus {tmp_path} --tier tx")] == TEXTS
    assert "seems to have codes" not in caplog.text


RECURRING = {
    "a word list, three times": ["mo", "lu", "ke", "ba", "pi", "ti", "da"] * 3,
    "two words": ["mo lu", "ke ba"] * 10,
    "few": ["mo", "lu"] * 4,
    "pauses": ["mo lu ke", "#", "ba", "#", "pi ti", "#", "da so", "#", "re", "#", "na", "#"],
}


@pytest.mark.parametrize("texts", RECURRING.values(), ids=RECURRING.keys())
def test_transcripts_that_recur_get_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, texts: list[str]
) -> None:
    write_audio(tmp_path / "a.wav", 25.0)
    eaf = Eaf()
    eaf.add_linked_file("./a.wav")
    for n, text in enumerate(texts):
        eaf.add_annotation("default", 1000 * n, 1000 * n + 800, text)
    eaf.to_file(str(tmp_path / "a.eaf"))
    prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    assert "seems to have codes" not in caplog.text


@pytest.mark.parametrize(
    "pattern", ["mc_kurd_{:03}", "{}", "Text {}", ""], ids=["named", "number", "two words", "empty"]
)
def test_a_tier_of_identifiers_is_refused_and_the_tiers_with_text_are_listed(
    tmp_path: Path, pattern: str
) -> None:
    write_toolbox(tmp_path / "a.eaf", [pattern.format(n) for n in range(10)])
    with pytest.raises(DataError) as caught:
        prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    assert "\n" not in str(caught.value)
    first = repr(pattern.format(0))
    assert str(caught.value) == (
        f"tier 'ref' seems to have no transcripts but {first}; name the tiers of the transcripts with --tier; "
        "those that depend on it: 'tx' ('mo lu ke ba')"
    )
    found = prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier tx")
    assert [u.txt for u in found] == TEXTS
    assert {u.speaker for u in found} == {"Ana"}, "the participant of the tier that it depends on"
    assert (
        len(prepare(tmp_path / "out2", f"elan --corpus {tmp_path} --tier tx --participant Ana"))
        == 10
    )


def test_a_tier_of_identifiers_that_is_named_gets_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_toolbox(tmp_path / "a.eaf", [f"text.{n:03}" for n in range(10)])
    assert len(prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier ref")) == 10
    assert any(
        one.startswith("tier 'ref' seems to have no transcripts but 'text.000'; ")
        for one in caplog.messages
    )
    caplog.clear()
    prepare(tmp_path / "out2", f"elan --corpus {tmp_path} --tier tx")
    assert "seems to have" not in caplog.text


def test_a_file_without_the_named_tier_is_stated_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, tier in (("a", "utt"), ("b", "Utt")):
        write_audio(tmp_path / f"{name}.wav")
        eaf = Eaf()
        eaf.remove_tier("default")
        eaf.add_linked_file(f"./{name}.wav")
        eaf.add_tier(tier)
        for n, text in enumerate(TEXTS):
            eaf.add_annotation(tier, 1000 * n, 1000 * n + 800, text)
        eaf.to_file(str(tmp_path / f"{name}.eaf"))
    assert len(prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier utt")) == len(TEXTS)
    assert (
        "b.eaf: no annotation in the tiers that are used; it has: 'Utt' (default-lt, 10 annotations)"
        in caplog.text
    )
    rows = (tmp_path / "out" / "rejected.tsv").read_text("utf-8").splitlines()
    assert rows[1].startswith("b.eaf\t") and rows[1].endswith(
        "no tier: no annotation in the tiers that are used"
    )


def test_tiers_without_participants_get_a_hint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_toolbox(tmp_path / "a.eaf", TEXTS)
    eaf = Eaf(str(tmp_path / "a.eaf"))
    for begin, tier in enumerate(("K-Spch", "W-Spch")):
        eaf.add_tier(tier)
        for n, text in enumerate(TEXTS):
            eaf.add_annotation(tier, 1000 * n + begin, 1000 * n + 800, f"{text} {tier}")
    eaf.to_file(str(tmp_path / "a.eaf"))
    found = prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier *-Spch --no_normalize")
    assert {u.speaker for u in found} == {None}
    assert (
        "2 of the tiers used name no participant, so their speakers are unknown; --speaker_from tier"
        in caplog.text
    )


def test_a_short_text_with_a_long_translation_is_a_transcript(tmp_path: Path) -> None:
    chinese = [f"\u4f60\u597d{chr(0x4E00 + n)}" for n in range(10)]
    write_toolbox(tmp_path / "a.eaf", chinese, [f"{text} and so on" for text in TEXTS])
    assert [u.txt for u in prepare(tmp_path / "out", f"elan --corpus {tmp_path}")] == chinese


def test_a_title_of_the_whole_text_is_no_transcript_but_a_text_with_a_gloss_is(
    tmp_path: Path,
) -> None:
    write_toolbox(tmp_path / "a.eaf", TEXTS, [f"{text} gloss" for text in TEXTS])
    assert [u.txt for u in prepare(tmp_path / "out", f"elan --corpus {tmp_path}")] == TEXTS
    eaf = Eaf()
    eaf.add_linguistic_type("parts", "Time_Subdivision")
    eaf.add_annotation("default", 0, 12000, "The story of two")
    eaf.add_tier("phrases", "parts", "default")
    for n, text in enumerate(TEXTS):
        eaf.add_annotation("phrases", 1000 * n, 1000 * n + 1000, text)
    eaf.to_file(str(tmp_path / "a.eaf"))
    with pytest.raises(
        DataError,
        match="tier 'default' seems to have no transcripts but 'The story of two'; .*'phra",
    ):
        prepare(tmp_path / "out2", f"elan --corpus {tmp_path}")
    assert len(prepare(tmp_path / "out2", f"elan --corpus {tmp_path} --tier phrases")) == 10


# ---- speakers


def write_grid(path: Path, begin: float = 0.0, end: float = 12.0, texts: list[str] = TEXTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    spans = [(begin + n, begin + n + 0.8, text) for n, text in enumerate(texts)]
    grid = textgrid.Textgrid(begin, end)
    grid.addTier(textgrid.IntervalTier("utt", spans, begin, end))
    grid.save(str(path), format="short_textgrid", includeBlankSpaces=True)


SPEAKERS = [
    ("file", ["A/rec1", "B/rec1", "B/rec2"], ["A_rec1", "B_rec1", "rec2"]),
    ("folder", ["A/rec1", "B/rec1", "B/rec2"], ["A", "B", "B"]),
    ("folder", ["train/A/rec1", "test/A/rec1", "B/rec1"], ["B", "A", "A"]),
    ("folder", ["A/monday/rec1", "B/monday/rec1"], ["A_monday", "B_monday"]),
    ("folder", ["rec1", "A/rec2"], ["A", None]),
    ("tier", ["A/rec1", "B/rec1"], ["utt", "utt"]),
    ("none", ["A/rec1", "B/rec1"], [None, None]),
]


@pytest.mark.parametrize(("source", "names", "speakers"), SPEAKERS)
def test_one_name_in_two_folders_is_two_people(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    source: str,
    names: list[str],
    speakers: list[str | None],
) -> None:
    caplog.set_level("INFO")
    for name in names:
        write_audio(tmp_path / f"{name}.wav")
        write_grid(tmp_path / f"{name}.TextGrid")
    flags = f"--speaker_from {source} --no_normalize --ignore_sets"
    found = prepare(tmp_path / "out", f"praat --corpus {tmp_path} {flags}")
    assert list(dict.fromkeys((u.wav, u.speaker) for u in found)) == [
        (str(tmp_path / f"{name}.wav"), speaker)
        for name, speaker in zip(sorted(names), speakers, strict=True)
    ]
    qualified = any(speaker and "_" in speaker for speaker in speakers)
    assert ("speakers have the folder in their name, such as 'A_" in caplog.text) == qualified


def test_elan_files_have_the_flag_too(tmp_path: Path) -> None:
    for name in "AB":
        (tmp_path / name).mkdir()
        write_toolbox(tmp_path / name / "rec.eaf", TEXTS)
    for source, speakers in {
        "": {"Ana"},
        "tier": {"ref"},
        "file": {"A_rec", "B_rec"},
        "folder": {"A", "B"},
    }.items():
        flag = f"--speaker_from {source}" if source else ""
        found = prepare(tmp_path / f"out{source}", f"elan --corpus {tmp_path} {flag}")
        assert {u.speaker for u in found} == speakers


# ---- parts of recordings


@pytest.mark.parametrize(("audio_s", "first"), [(32.0, 20.0), (12.0, 0.0), (12.05, 0.0)])
def test_the_length_of_the_audio_decides_the_times_of_a_part(
    tmp_path: Path, audio_s: float, first: float
) -> None:
    write_audio(tmp_path / "rec.wav", seconds=audio_s)
    write_grid(tmp_path / "rec.TextGrid", 20.0, 32.0)
    found = prepare(tmp_path / "out", f"praat --corpus {tmp_path}")
    assert [(u.start, u.end) for u in found] == [
        (pytest.approx(first + n), pytest.approx(first + n + 0.8)) for n in range(10)
    ]


def test_audio_of_a_part_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    write_audio(tmp_path / "good.wav")
    write_grid(tmp_path / "good.TextGrid")
    (tmp_path / "rec.wav").write_text("no audio")
    write_grid(tmp_path / "rec.TextGrid", 20.0, 32.0)
    stats = prepare_line(
        f"praat --corpus {tmp_path} --out {tmp_path / 'out'} --num_workers 0 --split_by none"
    )
    assert stats["total"]["rejected"] == {"not audio that can be read": 10}


def test_a_part_of_other_audio_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, audio_s in {"rec": 40.0, "whole": 12.0}.items():
        write_audio(tmp_path / f"{name}.wav", seconds=audio_s)
        write_grid(tmp_path / f"{name}.TextGrid", *((20.0, 32.0) if name == "rec" else (0.0, 12.0)))
    stats = prepare_line(
        f"praat --corpus {tmp_path} --out {tmp_path / 'out'} --num_workers 0 --split_by none"
    )
    assert stats["total"]["rejected"] == {"times": 10}
    message = "times: begins at 20 s and its audio has 40.000 s; give the audio that has 32 s (with the times of the"
    [line] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert (
        line
        == f"{tmp_path / 'rec.TextGrid'}: {message} recording) or 12 s (of this part); its 10 annotations are left out"
    )


# ---- words and phones of a forced aligner

ALIGNED = [
    *[(0.5, 0.9, "mo"), (0.9, 1.3, "lu"), (1.3, 1.5, "sp"), (1.5, 1.9, "ke")],  # a pause of 0.2 s
    *[(1.9, 2.6, "SIL"), (2.6, 3.0, "ba"), (3.0, 3.4, "mo")],  # 0.7 s
    *[
        (3.4, 3.6, "spn"),
        (3.6, 4.0, "pi"),
    ],  # a word that the aligner does not know is speech, not a pause
    *[(4.6, 5.0, "da"), (5.0, 5.4, "na")],  # 0.6 s without a label
    *[(5.4, 5.89, "<eps>"), (5.89, 6.3, "ti")],  # 0.49 s
    *[(6.8, 7.2, "so"), (7.2, 7.6, "re")],  # exactly 0.5 s
]
JOINED = [
    *[
        (0.5, 1.9, "mo lu ke"),
        (2.6, 3.4, "ba mo"),
        (3.6, 4.0, "pi"),
        (4.6, 6.3, "da na ti"),
        (6.8, 7.6, "so re"),
    ],
]


@pytest.mark.parametrize("form", ["praat", "elan"])
def test_words_become_utterances_between_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    caplog.set_level("INFO")
    write_audio(tmp_path / "rec.wav")
    if form == "praat":
        grid = textgrid.Textgrid(0, 12)
        grid.addTier(textgrid.IntervalTier("words", ALIGNED, 0, 12))
        grid.save(str(tmp_path / "rec.TextGrid"), format="short_textgrid", includeBlankSpaces=True)
    else:
        eaf = Eaf()
        for begin, end, text in ALIGNED:
            eaf.add_annotation("default", round(1000 * begin), round(1000 * end), text)
        eaf.to_file(str(tmp_path / "rec.eaf"))
    found = prepare(
        tmp_path / "out", f"{form} --corpus {tmp_path} --join_intervals 0.5 --unit phone"
    )
    assert [(u.start, u.end, u.txt) for u in found] == JOINED
    counts = "15 intervals became 5 utterances; left out: sp (1), sil (1), spn (1), <eps> (1)"
    assert counts in caplog.messages
    caplog.clear()
    prepare(tmp_path / "words", f"{form} --corpus {tmp_path}")
    hint = "15 intervals touch and have one word each, as words or phones do; --join_intervals 0.5 makes utterances"
    assert any(one.startswith(hint) for one in caplog.messages)
    for wrong in ("0", "-1", "nan"):
        with pytest.raises(
            ConfigError, match=f"--join_intervals {wrong}: must be above 0, in seconds, such as 0.5"
        ):
            prepare(tmp_path / "out", f"{form} --corpus {tmp_path} --join_intervals {wrong}")


def test_pau_is_a_pause_between_phones_and_else_a_word() -> None:
    spans = [(0.0, 0.3, "ua"), (0.3, 0.9, "pau"), (0.9, 1.2, "hana")]
    assert join_tiers([spans], 0.5, "char") == [[(0.0, 1.2, "ua pau hana")]]
    assert join_tiers([spans], 0.5, "phone") == [[(0.0, 0.3, "ua"), (0.9, 1.2, "hana")]]


def test_utterances_get_no_hint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write_audio(tmp_path / "rec.wav")
    write_grid(tmp_path / "rec.TextGrid")
    prepare(tmp_path / "out", f"praat --corpus {tmp_path}")
    assert "--join_intervals" not in caplog.text
