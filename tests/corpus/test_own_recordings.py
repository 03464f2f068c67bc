# SPDX-License-Identifier: Apache-2.0
"""A user's own recordings: all forms give the same lists; faults of each form; audio of another
computer.
"""

import json
import math
import os
import random
import re
import tempfile
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from annotation_forms import FORMS, Annotation, write_audio, write_elan, write_table
from hypothesis import given, settings
from hypothesis import strategies as st
from praatio import textgrid
from prepared import prepare_line, read_lists, rejected
from pympi import Eaf

from wenet_hs.annotation.eaf import read_elan
from wenet_hs.annotation.textgrid import read_textgrid
from wenet_hs.corpus import delimited_text, edits, entries, output, table
from wenet_hs.data.media import MediaFinder
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError


def prepare(out: Path, words: str) -> dict[str, Any]:
    return prepare_line(f"{words} --out {out} --num_workers 0 --lang qaa")


@st.composite
def made_up_annotations(draw: st.DrawFn) -> list[Annotation]:
    words = st.lists(st.text("abɛŋʔ’,\"'é", min_size=1, max_size=6), min_size=1, max_size=4).map(
        " ".join
    )
    found = [
        Annotation("ab", "X", 0, 500, "aa"),
        Annotation("ab", "X", 600, 1100, "bb"),
        Annotation("ab", "Y", 0, 700, "a b"),
        Annotation("ab", "Zoë", 600, 1100, "at the same times as X"),
    ]
    for recording in ("ab", "c d"):
        for speaker in ("X", "Y", "Zoë"):
            times = sorted(
                draw(st.lists(st.integers(1200, 11_900), min_size=2, max_size=8, unique=True))
            )
            for start, end in zip(times[::2], times[1::2], strict=False):
                if end - start >= 150:
                    found.append(Annotation(recording, speaker, start, end, "a" + draw(words)))
    return found


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(made_up_annotations(), st.sampled_from(["auto", "sentence", "none"]))
def test_the_same_content_gives_the_same_lists_in_every_form(
    annotations: list[Annotation], split_by: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        check_equal_lists(Path(name), annotations, [*FORMS], f"--split_by {split_by}")


@settings(max_examples=6, deadline=None)
@given(made_up_annotations(), st.randoms(use_true_random=False))
def test_languages_sets_and_names_are_the_same_in_the_forms_that_have_them(
    annotations: list[Annotation], draw: random.Random
) -> None:
    splits = ["train", "dev", "test"]
    named = [
        replace(
            a,
            lang=draw.choice(["aa", "ab", ""]),
            split=(splits + draw.choices(splits, k=99))[n],
            name=f"u{n}",
        )
        for n, a in enumerate(annotations)
    ]
    with tempfile.TemporaryDirectory() as name:
        lists = check_equal_lists(Path(name), named, ["table", "kaldi", "folder"], "")
    assert {u.key: (u.lang, of) for of, us in lists.items() for u in us} == {
        a.name: (a.lang or "qaa", a.split) for a in named
    }


def check_equal_lists(
    folder: Path, annotations: list[Annotation], forms: list[str], options: str
) -> dict[str, list[Utterance]]:
    """The lists of the annotations, which must be equal in all forms."""
    for recording in {a.recording for a in annotations}:
        write_audio(folder / f"{recording}.wav")
    lists = {}
    for form in forms:
        out = folder / "lists" / form
        stats = prepare(out, f"{FORMS[form](folder, annotations)} {options}")
        assert stats["num_in"] == len(annotations), form
        lists[form] = read_lists(out)
        assert sum(map(len, lists[form].values())) + len(rejected(out)) == len(annotations), form
        assert lists[form] == lists["table"], form
    return lists["table"]


def rows_of(count: int) -> list[Annotation]:
    texts = random.Random(0).sample(
        [f"{a} {b}" for a in "ptkbdg" for b in ("a", "e", "i", "o", "u")], count
    )
    return [
        Annotation("rec", f"s{n % 3}", 400 * n, 400 * n + 390, text) for n, text in enumerate(texts)
    ]


def test_media_of_another_computer_is_found_by_name_and_the_rest_is_listed(tmp_path: Path) -> None:
    write_audio(tmp_path / "deep" / "er" / "REC.WAV")
    write_elan(
        tmp_path,
        [
            *rows_of(20),
            Annotation("gone", "s1", 0, 400, "x"),
            Annotation("rec", "s0", 8000, 8400, ""),
        ],
    )
    stats = prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier utt@*")
    assert (stats["num_in"], sum(stats["total"]["utterances"].values())) == (22, 20)
    assert stats["total"]["rejected"] == {"missing": 1}
    assert stats["total"]["left_out"] == {"empty transcript": 1}
    [wav] = {u.wav for of_set in read_lists(tmp_path / "out").values() for u in of_set}
    assert wav == str(tmp_path / "deep" / "er" / "REC.WAV")
    write_audio(tmp_path / "other" / "rec.wav")
    with pytest.raises(DataError, match="ambiguous 21"):
        prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier utt@*")
    write_audio(tmp_path / "linked" / "Daten" / "rec.wav")  # the link is D:/Daten/rec.wav
    (tmp_path / "linked" / "loop").symlink_to(tmp_path, target_is_directory=True)
    prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier utt@*")
    [wav] = {u.wav for of_set in read_lists(tmp_path / "out").values() for u in of_set}
    assert wav == str(tmp_path / "linked" / "Daten" / "rec.wav")
    with pytest.raises(DataError, match="--audio_dir .*: no such folder"):
        prepare(
            tmp_path / "out", f"elan --corpus {tmp_path} --tier utt@* --audio_dir {tmp_path}/none"
        )


@pytest.mark.parametrize(
    ("folders", "rejected_where"),
    [
        (("s1", "s1"), set()),
        (("D:/x/s1", "D:/x/s2"), {1}),  # s2 was not copied
        (("D:/x/s2", "D:/x/s1"), {0}),
        (("s1", "D:/x/s2"), {1}),
        (("D:/x/a", "D:/x/b"), {0, 1}),  # which one it is, nobody knows
        (("D:/x/a", "D:/x/a"), set()),
    ],
)
def test_files_of_several_sessions_have_one_name(
    tmp_path: Path, folders: tuple[str, str], rejected_where: set[int]
) -> None:
    write_audio(tmp_path / "s1" / "ZOOM0001.wav")
    rows = [(n, f"{folders[n % 2]}/ZOOM0001.wav,text {n},{n / 2},{n / 2 + 0.5}") for n in range(20)]
    (tmp_path / "t.csv").write_text(
        "path,text,start,end\n" + "\n".join(row for _, row in rows) + "\n"
    )
    wrong = {f"t.csv:{n + 2}" for n, _ in rows if n % 2 in rejected_where}
    if len(rejected_where) == 2:
        with pytest.raises(DataError, match="0 usable utterances .* ambiguous 20"):
            prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
    else:
        prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
    found = rejected(tmp_path / "out")
    assert found.keys() == wrong
    assert all("another path leads to it too, in the folder" in reason for reason in found.values())


def test_elan_files_of_several_sessions(tmp_path: Path) -> None:
    write_audio(tmp_path / "audio" / "s1" / "rec.wav")
    for session in ("s1", "s2"):
        (tmp_path / session).mkdir()
        write_elan(
            tmp_path / session, [replace(a, text=f"{a.text} {session}") for a in rows_of(10)]
        )
        path = tmp_path / session / "rec.eaf"
        links = re.sub(
            r'MEDIA_URL="[^"]*"',
            f'MEDIA_URL="file:///D:/x/{session}/rec.wav"',
            path.read_text("utf-8"),
        )
        path.write_text(re.sub(r' RELATIVE_MEDIA_URL="[^"]*"', "", links), "utf-8")
    prepare(tmp_path / "out", f"elan --corpus {tmp_path} --tier utt@*")
    texts = {u.txt.split()[-1] for of_set in read_lists(tmp_path / "out").values() for u in of_set}
    assert texts == {"s1"} and len(rejected(tmp_path / "out")) == 10


def test_many_files_of_one_name_are_found_by_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / "data" / f"u{n}" / "audio.wav" for n in range(30)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    finder = MediaFinder(tmp_path)
    for path in paths:
        written = f"D:\\field\\{path.parent.name.upper()}\\audio.mp3"
        assert finder.find([written], tmp_path) == path
        assert finder.describe_doubt([written], path) is None


def test_tiers_are_chosen_by_name_type_and_participant(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    eaf = Eaf()
    eaf.remove_tier("default")
    eaf.add_linguistic_type("words", "Symbolic_Subdivision", timealignable=False)
    eaf.add_linked_file("C:\\x\\rec.mp4", mimetype="video/mp4")
    for who in "AB":
        eaf.add_tier(f"utt@{who}", part=f" {who} ")
        eaf.add_tier(f"words@{who}", "words", f"utt@{who}", part=who)
        for n in range(5):
            begin = 1000 * n + 500 * (who == "B")
            eaf.add_annotation(f"utt@{who}", begin, begin + 400, f"free text {who} {n}")
            eaf.add_ref_annotation(f"words@{who}", f"utt@{who}", begin + 100, f"w{who}{n}")
    eaf.to_file(str(tmp_path / "rec.eaf"))
    out, corpus = tmp_path / "out", f"elan --corpus {tmp_path / 'rec.eaf'}"
    two = r"2 independent tiers have annotations: 'utt@A', 'utt@B'; name one .*'utt@A' \(A, default-lt, 5 annotations\)"
    with pytest.raises(DataError, match=two):
        prepare(out, corpus)
    for tiers in ("--tier uttA --participant A", "--tier utt@* uttA"):
        with pytest.raises(
            DataError, match="rec.eaf: no file has a tier of --tier 'uttA'; there are: 'utt@A'"
        ):
            prepare(out, f"{corpus} {tiers}")
    with pytest.raises(
        DataError, match="no file has annotations in a tier of --tier utt@A --participant B"
    ):
        prepare(out, f"{corpus} --tier utt@A --participant B")
    with pytest.raises(
        DataError,
        match=r"tier 'words@A' depends on tier 'utt@A', so .*; name one of them with --tier",
    ):
        prepare(out, f"{corpus} --tier *@A")
    stats = prepare(out, f"{corpus} --tier_type words")
    texts = sorted(u.txt for of_set in read_lists(out).values() for u in of_set)
    assert texts == [f"w{who}{n}" for who in "ab" for n in range(5)]
    assert stats["total"]["rejected"] == {}
    prepare(out, f"{corpus} --tier utt@A --tier utt@B")
    assert {u.speaker for of_set in read_lists(out).values() for u in of_set} == {"A", "B"}
    stats = prepare(out, f"{corpus} --tier ' utt@*' --participant 'A '")
    assert stats["tiers"] == {
        "used": {"utt@A": 5},
        "not_used": {"words@A": 5, "utt@B": 5, "words@B": 5},
    }
    assert prepare(out, f"{corpus} --participant A")["tiers"] == stats["tiers"], (
        "not the words, which depend on it"
    )
    assert {u.speaker for of_set in read_lists(out).values() for u in of_set} == {"A"}


def test_overlapping_annotations_are_listed_and_left_out_on_request(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    words = write_table(tmp_path, [*rows_of(12), Annotation("rec", "s9", 100, 550, "both")])
    stats = prepare(tmp_path / "out", words)
    overlapping = (tmp_path / "out" / "overlapping.tsv").read_text("utf-8").splitlines()[1:]
    assert overlapping == [
        "rec-0000000-0000390\trec-0000100-0000550\t0.100\t0.390",
        "rec-0000100-0000550\trec-0000400-0000790\t0.400\t0.550",
    ]
    assert stats["total"]["left_out"].get("overlaps another annotation") is None
    stats = prepare(tmp_path / "out", f"{words} --drop_overlaps")
    assert stats["total"]["left_out"]["overlaps another annotation"] == 3
    by_hand = [
        replace(one, end_ms=one.end_ms + 110) for one in rows_of(12)
    ]  # 0.1 s of the next one
    assert (
        prepare(tmp_path / "out", f"{write_table(tmp_path, by_hand)} --drop_overlaps")["total"][
            "left_out"
        ]
        == {}
    )


@pytest.mark.parametrize(
    ("options", "shared"), [("", 0), ("--split_by sentence", 14), ("--split_by none", 14)]
)
def test_sets_share_audio_only_on_request_and_it_is_counted(
    tmp_path: Path, options: str, shared: int
) -> None:
    """Utterances and their words: two tiers of one speaker."""
    write_audio(tmp_path / "rec.wav", seconds=48)
    utterances = [
        Annotation("rec", "s", 1500 * n, 1500 * n + 1200, f"na{n} ba{n}") for n in range(30)
    ]
    halves = ((0, 0), (1, 600))
    words = [
        Annotation("rec", "s", a.start_ms + b, a.start_ms + b + 590, a.text.split()[n])
        for n, b in halves
        for a in utterances
    ]
    stats = prepare(tmp_path / "out", f"{write_table(tmp_path, [*utterances, *words])} {options}")
    assert f"{shared} of 30 overlaps in several sets" in stats["sets"]
    sets = read_lists(tmp_path / "out")
    spans = {name: [(u.start or 0, u.end or 0) for u in of_set] for name, of_set in sets.items()}
    common = [a for a in spans["test"] for b in spans["train"] if a[0] < b[1] and b[0] < a[1]]
    assert bool(common) == bool(shared)


def test_prompts_that_unknown_speakers_repeat_are_in_one_set(tmp_path: Path) -> None:
    for name in "abc":
        write_audio(tmp_path / f"{name}.wav")
    rows = "".join(f"{name}.wav,{n},{n + 0.5},prompt {n}\n" for name in "abc" for n in range(6))
    (tmp_path / "t.csv").write_text(f"path,start,end,text\n{rows}")
    stats = prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
    assert stats["sets"].startswith("sets (auto: sentence): no known speakers, 0 of 6 sentences, ")
    assert sum(stats["total"]["utterances"].values()) == 18


def test_few_overlaps_with_a_held_out_set_are_left_out(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    both = [
        replace(one, start_ms=one.start_ms + 100, text=f"x {one.text}", speaker="t")
        for one in rows_of(30)[:1]
    ]
    stats = prepare(tmp_path / "out", write_table(tmp_path, [*rows_of(30), *both]))
    assert stats["sets"].startswith("sets (auto): ") and "no overlaps" in stats["sets"]
    assert stats["total"]["left_out"]["its audio is in the test set"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "path,uttered\na.wav,x\n",
            r'bad.csv:1: no column of text; name them: --columns "text=…", of: path, uttered',
        ),
        (
            "fille,tekst,speaker\nrec.wav,x,y\n",
            r"no column of audio, text; did you mean fille, tekst\? name them: .*, of: fille, tekst, speaker",
        ),
        (
            "path,text,text\nrec.wav,x,y\n",
            r"bad.csv:1: several columns have the name text; rename them",
        ),
        (
            "sep=,\r\npath,sentence,text\r\nrec.wav,x,y\r\n",
            r"several columns can be the transcript: 'text', 'sentence'; name it: --columns \"text=…\"",
        ),
        (
            b"PK\x03\x04\x14\x00",
            r"bad.csv: a ZIP archive, or a file of a spreadsheet or word processor; unpack it, or save it there as CSV",
        ),
        ("path,text\nhttps://x.org/a.wav,x\n", r"0 usable utterances .* left out: URL 1"),
        (
            "path\na.wav\n",
            r"bad.csv:1: found one column, 'path'; separate columns by tabs, commas or semicolons",
        ),
        (
            "path,text\nrec.wav,é\n".encode() + b"rec.wav,\xe9\n",
            r"bad.csv:3: not utf-8: byte 0xe9; save it as UTF-8, or name its encoding",
        ),
        (
            "path,text\nrec.wav,x\n",
            r"1 usable utterances for train, test, dev: too few for a recogniser; give more data",
        ),
        (
            "path,text,start,end\nrec.wav,x,0,1\nrec.wav,x,1,2\nrec.wav,x,2,3\n",
            r"bad.csv: all 3 transcripts are 'x'; name the column of the transcripts: --columns",
        ),
    ],
)
def test_a_table_that_cannot_be_used_gets_one_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    write_audio(tmp_path / "rec.wav")
    (tmp_path / "bad.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message) as caught:
        prepare(tmp_path / "out", f"table --table {tmp_path / 'bad.csv'}")
    assert "\n" not in str(caught.value)


def test_a_corpus_is_prepared_from_python_as_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_audio(tmp_path / "recordings" / "rec.wav")
    FORMS["table"](tmp_path, rows_of(12))
    monkeypatch.chdir(tmp_path)
    tables = [path for path in Path().iterdir() if path.is_file()]
    options = table.TableOptions(
        corpus=tables[0],
        audio_dir=Path("recordings"),
        lang="qaa",
        out=Path("python"),
        num_workers=0,
    )
    stats = table.prepare(options)
    assert stats == prepare(
        tmp_path / "command", f"table --table {tables[0]} --audio_dir recordings"
    )
    assert (tmp_path / "python/train/data.list").read_bytes() == (
        tmp_path / "command/train/data.list"
    ).read_bytes()
    with pytest.raises(ValueError, match=r"^dev_share 0.5: must be above 0 and below 0.5"):
        replace(options, dev_share=0.5)
    with pytest.raises(
        ValueError, match=r"^split_by 'words': must be one of auto, speaker, sentence, none"
    ):
        replace(options, split_by="words")


def test_wrong_columns_name_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("File name\tOrthography\nrec\tx\n")
    for columns, message in {
        "text=Ortography": r"did you mean Orthography\? t.tsv has the columns: File name, Orthography",
        "txt=Orthography": r"expected CONTENT=NAME with a content of audio, text, speaker",
    }.items():
        with pytest.raises(ConfigError, match=message):
            prepare(tmp_path / "out", f"table --table {tmp_path / 't.tsv'} --columns '{columns}'")


def test_rows_that_cannot_be_used_are_counted_with_their_reason(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [f"u{n}\trec\tgood {n}\t{n}\t{n + 0.5}" for n in range(8)]
    rows += [
        "u0\trec\ttwice\t1\t2",
        "u9\trec\tbackwards\t2\t1",
        "u10\trec\tpast the end\t11\t13",
        "u11\trec\t?!\t1\t2",
    ]
    rows += [
        "u12\trec\tno number\tone\t2",
        "u13\trec\tcolumns",
        "u14\tnone.wav\tgone\t1\t2",
        'u15\trec\t"quote in" text\t1,5\t2',
    ]
    (tmp_path / "t.tsv").write_text(
        "﻿id\tpath\tSentence\tbegin\tend\n" + "\n".join(rows) + "\n", "utf-8"
    )
    stats = prepare(tmp_path / "out", f"table --table {tmp_path / 't.tsv'}")
    assert stats["num_in"] == 16
    assert sum(stats["total"]["utterances"].values()) == 9
    found = rejected(tmp_path / "out")
    assert found["t.tsv:10"] == "repeated: t.tsv:2 has the name u0 too; rename or remove one"
    assert found["u9"] == "times: from 2 to 1 s; the start must be before the end, and not below 0"
    assert "a segment from 11 to 13 s does not lie in its 12.00 s" in found["u10"]
    assert found["u11"] == "empty transcript after normalisation: '?!'"
    assert found["u12"] == "times: 'one' is not a number of seconds, mm:ss or h:mm:ss"
    assert found["t.tsv:15"] == "wrong number of columns: 3, the header has 5"
    assert found["u14"].startswith("missing: no none.wav in")
    texts = {
        u.key: (u.txt, u.start) for of_set in read_lists(tmp_path / "out").values() for u in of_set
    }
    assert texts["u15"] == ("quote in text", 1.5)


def test_times_in_other_columns_and_times_that_are_no_segment(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [
        {"audio_filepath": "rec.wav", "text": f"t{n}", "offset": n, "duration": 0.5}
        for n in range(8)
    ]
    rows += [
        {**rows[0], "text": "nan", "offset": math.nan},
        {**rows[0], "text": "inf", "duration": math.inf},
    ]
    (tmp_path / "nemo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stats = prepare(tmp_path / "out", f"table --table {tmp_path / 'nemo.jsonl'}")
    assert stats["total"]["rejected"] == {"times": 2}
    found = [u for of_set in read_lists(tmp_path / "out").values() for u in of_set]
    assert {(u.end or 0) - (u.start or 0) for u in found} == {0.5} and len(found) == 8
    write_audio(tmp_path / "whole.wav")
    rows_of_file = (
        "".join(f"rec.wav,t{n},{n},{n + 1},1\n" for n in range(5)) + "whole.wav,whole,,,\n"
    )
    faulty = "rec.wav,no end,1,,\nrec.wav,no start,,2,\nrec.wav,no start,,,2\n"
    (tmp_path / "t.csv").write_text(f"path,text,start,end,duration\n{rows_of_file}{faulty}")
    stats = prepare(tmp_path / "csv", f"table --table {tmp_path / 't.csv'}")
    assert (stats["num_in"], stats["total"]["rejected"]) == (9, {"times": 3})
    assert rejected(tmp_path / "csv")["t.csv:8"].startswith("times: the row has no end; add it")
    [whole] = [
        u for of_set in read_lists(tmp_path / "csv").values() for u in of_set if u.txt == "whole"
    ]
    assert (whole.start, whole.end) == (None, None)
    # A duration without a start is the length of the file, and is not read.
    (tmp_path / "t.csv").write_text(
        "path,text,duration\n" + "".join(f"{n}.wav,t{n},8 s\n" for n in range(5))
    )
    for n in range(5):
        write_audio(tmp_path / f"{n}.wav")
    assert prepare(tmp_path / "csv", f"table --table {tmp_path / 't.csv'}")["num_in"] == 5
    for one, other in (("start", "end or duration"), ("end", "start")):
        (tmp_path / "t.csv").write_text(f"path,text,{one}\nrec.wav,x,1\n")
        flag = f'--columns "{other.split()[0]}=…"'
        with pytest.raises(DataError, match=f"t.csv:1: no column of {other}; name them: {flag}"):
            prepare(tmp_path / "csv", f"table --table {tmp_path / 't.csv'}")


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_missing_offset_of_nemo_is_zero(tmp_path: Path, form: str) -> None:
    """Beside a duration; without one the row is the whole file."""
    write_audio(tmp_path / "rec.wav", seconds=6.0)
    row = {"audio_filepath": "rec.wav", "duration": 0.5}
    rows: list[dict[str, Any]] = [{**row, "text": f"t{n}", "offset": n} for n in range(1, 5)]
    rows.append({**row, "text": "first"})
    rows.append({**row, "text": "null", "offset": None, "duration": 0.25})
    rows.append({"audio_filepath": "rec.wav", "text": "whole"})
    path = tmp_path / f"manifest.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        names = ("audio_filepath", "text", "offset", "duration")
        cells = [[str(row.get(name) or "") for name in names] for row in rows]
        path.write_text("".join(",".join(line) + "\n" for line in [names, *cells]))
    stats = prepare(tmp_path / "out", f"table --table {path}")
    assert stats["total"]["rejected"] == {}
    utterances = [u for of_set in read_lists(tmp_path / "out").values() for u in of_set]
    times = {u.txt: (u.start, u.end, u.duration) for u in utterances}
    assert times["first"] == (0.0, 0.5, 0.5)
    assert times["null"] == (0.0, 0.25, 0.25)
    assert times["whole"] == (None, None, 6.0)
    assert times["t3"] == (3.0, 3.5, 0.5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("83.5", 83.5), ("83,5", 83.5), ("1:23.5", 83.5), ("0:01:23,5", 83.5), ("1:00:00", 3600.0)]
    + [(wrong, None) for wrong in ("1:75", "0:0:0:1", "1:-5", "1 s", ":5", "-0:30", "-1:00:00")],
)
def test_times_are_seconds_or_clock_times(text: str, seconds: float | None) -> None:
    if seconds is not None:
        assert table.read_seconds(text) == seconds
        return
    with pytest.raises(ValueError, match=f"{text!r} is not a number of seconds, mm:ss or h:mm:ss"):
        table.read_seconds(text)


@pytest.mark.parametrize(("header_end", "row_end"), [(",", ","), ("", ",,"), (",,", "")])
def test_delimiters_at_line_ends_are_no_column(
    tmp_path: Path, header_end: str, row_end: str
) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = "".join(f"rec.wav,t{n},{n},{n + 0.5}{row_end}\n" for n in range(5))
    (tmp_path / "t.csv").write_text(f"path,text,start,end{header_end}\n{rows}rec.wav,t,5,6,more\n")
    stats = prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
    assert (sum(stats["total"]["utterances"].values()), stats["total"]["rejected"]) == (
        5,
        {"wrong number of columns": 1},
    )


def test_what_normalisation_would_hide_is_stated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    texts = ["mir [laughs]", "mir 12", "mir (x) yεl", "мир один", "mwana yεl", "ε yεl", "mi <b>"]
    annotations = [
        Annotation("rec", "s", 400 * n, 400 * n + 390, text) for n, text in enumerate(texts)
    ]
    write_audio(tmp_path / "rec.wav")
    stats = prepare(tmp_path / "out", write_table(tmp_path, annotations))
    assert (
        "3 transcripts have notes in brackets, such as '[laughs]' in all.csv:2; what is in them"
        in caplog.text
    )
    assert (
        "1 transcripts have digits, such as '12' in all.csv:3; write numbers as they are spoken"
        in caplog.text
    )
    common = "1 of 1 speakers, 0 of 7 sentences, no overlaps"
    assert stats["sets"] == f"sets (auto): {common} in several sets; 0 utterances left out for that"
    assert caplog.messages[-1] == stats["sets"]


def test_removed_punctuation_is_stated_and_apostrophes_may_be_letters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    texts = ["ja' b'e'", "‘oku, 'aq'ab'", "bá’.", *(f"plain {n}" for n in range(6))]
    words = write_table(
        tmp_path, [Annotation("rec", "s", 400 * n, 400 * n + 390, t) for n, t in enumerate(texts)]
    )
    write_audio(tmp_path / "rec.wav")
    found = []
    for number, options in enumerate(
        ("", "--letter_apostrophe", "--letter_apostrophe --no_normalize")
    ):
        prepare(tmp_path / str(number), f"{words} {options}")
        utterances = [u for of_set in read_lists(tmp_path / str(number)).values() for u in of_set]
        found.append({u.txt for u in utterances if not u.txt.startswith("plain")})
    assert found == [
        {"ja b'e", "oku aq'ab", "bá"},
        {"jaʼ bʼeʼ", "ʼoku ʼaqʼabʼ", "báʼ"},
        {"jaʼ bʼeʼ", "ʼoku, ʼaqʼabʼ", "báʼ."},
    ]
    stated = [
        message for message in caplog.messages if message.startswith("removed from the transcripts")
    ]
    advice = "; are apostrophes letters? --letter_apostrophe keeps them"
    assert stated == [
        f"removed from the transcripts as punctuation: ' (4), ‘ (1), , (1), ’ (1), . (1){advice}",
        "removed from the transcripts as punctuation: , (1), . (1)",
    ]


def test_names_in_two_forms_of_unicode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """macOS and some keyboards write é as two characters."""
    caplog.set_level("INFO")
    speakers = [unicodedata.normalize(form, "Đứcbé") for form in ("NFC", "NFD")]
    for number, speaker in enumerate(speakers):
        write_audio(tmp_path / f"s{number}" / f"{speaker}.wav")
        annotations = [
            Annotation(speaker, speaker, 400 * n, 400 * n + 390, f"t{number} {n}")
            for n in range(10)
        ]
        write_elan(tmp_path / f"s{number}", annotations)
        assert len(speaker) == (5, 8)[number]
    for number, speaker in enumerate(speakers):
        tier = f"--tier utt@{speaker} --participant {speaker}"
        stats = prepare(tmp_path / f"out{number}", f"elan --corpus {tmp_path} {tier}")
        assert sum(stats["total"]["utterances"].values()) == stats["num_in"] == 20
        assert stats["total"]["speakers"]["train"] == 1 and [*stats["tiers"]["used"].values()] == [
            20
        ]
    assert f"tiers used: 'utt@{speakers[0]}' (default-lt, {speakers[0]}, 20" in caplog.text
    rows = [f"s{n}/{speaker}.wav\tt{n}" for n, speaker in enumerate(speakers)] + [
        "s0/x.wav\tx",
        "s0/y.wav\ty",
    ]
    for name in "xy":
        write_audio(tmp_path / "s0" / f"{name}.wav")
    names = [unicodedata.normalize(form, "Tệp") for form in ("NFC", "NFD")]
    for header, column in (names, names[::-1]):
        (tmp_path / "t.tsv").write_text("\n".join([f"{header}\ttext", *rows]), "utf-8")
        stats = prepare(
            tmp_path / "of_table", f"table --table {tmp_path}/t.tsv --columns audio={column}"
        )
        assert sum(stats["total"]["utterances"].values()) == 4, (
            "two recordings of one name have two keys"
        )


def test_folders_that_are_linked_hidden_or_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    corpus, closed = tmp_path / "corpus", tmp_path / "corpus" / "closed"
    for folder in (corpus, tmp_path / "other disk", closed, corpus / ".stversions"):
        for n in range(3):
            write_audio(folder / f"{folder.name}{n}.wav")
            (folder / f"{folder.name}{n}.txt").write_text(f"{folder.name} {n}")
    (corpus / "z").symlink_to(tmp_path / "other disk", target_is_directory=True)
    (corpus / "a").symlink_to(corpus, target_is_directory=True)
    Path(os.fsdecode(os.fsencode(corpus) + b"/caf\xe9.wav")).touch()
    scandir = os.scandir

    def scan(path: str) -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", scan)
    prepare(tmp_path / "out", f"folder --corpus {corpus} --split_by none")
    texts = {u.txt for of_set in read_lists(tmp_path / "out").values() for u in of_set}
    assert texts == {f"{name} {n}" for name in ("corpus", "other disk") for n in range(3)}
    assert f"{closed}: cannot be read (Permission denied); its files are not used" in caplog.text
    assert (
        f"'{corpus}/caf\\udce9.wav': the name is not UTF-8; rename it, or it is not used"
        in caplog.text
    )


def test_recordings_that_are_named_in_an_unusual_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("s1\\rec.wav", "rec.wav", "VID.wav", "A.wav", "B.wav"):
        write_audio(tmp_path / name)
    for name in ("VID.MTS", "phone.m4a"):
        (tmp_path / name).touch()

    def find(*audio: str) -> Path | str:
        return MediaFinder(tmp_path).find(audio, tmp_path)

    assert find("s1\\rec.wav") == tmp_path / "s1\\rec.wav", (
        "unpacked by a program that knows no folders"
    )
    assert find("D:\\x\\rec.wav") == tmp_path / "rec.wav"
    assert find("file:///D:/x/VID.MTS") == tmp_path / "VID.wav"
    assert find("x/phone.m4a") == tmp_path / "phone.m4a"
    assert find("gone.m4a") == f"missing: no gone.m4a in {tmp_path} and its subfolders"
    assert not caplog.messages
    assert find("D:/A.wav", "./A.wav", "D:/B.wav", "./B.wav", "session") == tmp_path / "A.wav"
    assert caplog.messages == [f"links to 2 recordings, A.wav, B.wav: {tmp_path}/A.wav is used"]


def test_files_whose_names_differ_in_case_or_by_a_folded_letter(tmp_path: Path) -> None:
    for name in ("Maße", "Masse", "KIZ", "kiz"):
        write_audio(tmp_path / "audio" / f"{name}.wav")
        found = MediaFinder(tmp_path).find([f"D:/x/{name}.wav"], tmp_path)
        assert found == tmp_path / "audio" / f"{name}.wav"
    assert "ambiguous" in str(MediaFinder(tmp_path).find(["D:/x/Kiz.wav"], tmp_path))


def test_lists_of_another_corpus_are_not_replaced(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    words = write_table(tmp_path, rows_of(6))
    prepare(tmp_path / "out", words)
    (tmp_path / "sub").mkdir()
    prepare(tmp_path / "out", f"{words.replace('all.csv', 'sub/../all.csv')} --seed 3")
    before = read_lists(tmp_path / "out")
    (tmp_path / "other.csv").write_text((tmp_path / "all.csv").read_text())
    with pytest.raises(
        DataError,
        match="out: has lists of another corpus .table .*all.csv.; give another --out, or",
    ):
        prepare(tmp_path / "out", f"table --table {tmp_path}/other.csv")
    assert read_lists(tmp_path / "out") == before


def test_files_that_prepare_did_not_write_are_not_replaced(tmp_path: Path) -> None:
    """A Kaldi folder data/train, with --out data: its `text` would become that of the training set."""
    write_audio(tmp_path / "rec.wav")
    words = FORMS["kaldi"](tmp_path, rows_of(12))
    corpus = Path(words.partition("--corpus ")[2].split()[0])
    files = {path: path.read_bytes() for path in corpus.rglob("*") if path.is_file()}
    for out in (corpus, corpus.parent):
        (corpus / "train").mkdir(exist_ok=True)
        (corpus / "train" / "text").write_text("mine\n")
        (corpus.parent / "train").mkdir(exist_ok=True)
        (corpus.parent / "train" / "text").write_text("mine\n")
        with pytest.raises(
            DataError,
            match="train/text: exists, and was not made by this command; give another --out",
        ):
            prepare(out, words)
        assert (out / "train" / "text").read_text() == "mine\n"
    assert {path: path.read_bytes() for path in files} == files
    for name in (
        "test/data.list",
        "stats.json",
        "rejected.tsv",
        "overlapping.tsv",
        "implausible.tsv",
    ):
        path = tmp_path / "lists" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine\n")
        with pytest.raises(
            DataError, match=f"{name}: exists, and was not made by this command; give another --out"
        ):
            prepare(tmp_path / "lists", words)
        path.unlink()
    with pytest.raises(DataError, match="--out .*rec.wav: not a folder; name another one"):
        prepare(tmp_path / "rec.wav", words)


def test_a_run_that_fails_leaves_the_lists_to_their_corpus(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    words = write_table(tmp_path, rows_of(6))
    prepare(tmp_path / "out", words)
    (tmp_path / "other.csv").write_text((tmp_path / "all.csv").read_text())
    (tmp_path / "rec.wav").unlink()
    with pytest.raises(DataError, match="0 usable utterances"):
        prepare(tmp_path / "out", words)
    write_audio(tmp_path / "rec.wav")
    with pytest.raises(DataError, match="out: has lists of another corpus .table .*all.csv."):
        prepare(tmp_path / "out", f"table --table {tmp_path}/other.csv")
    prepare(tmp_path / "out", words)


def test_one_quotation_mark_that_is_not_closed_costs_one_row(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    lines = ["path,text,start,end", *(f'rec.wav,"a, b{n}",{n},{n + 0.5}' for n in range(6))]
    lines[3] = 'rec.wav,"a, b2,2,2.5'
    for quote_all in (False, True):
        if quote_all:
            lines = [
                ",".join(f'"{cell}"' for cell in line.replace('"', "").split(",")) for line in lines
            ]
            lines[1:] = [line.replace('"a"," b', '"a, b') for line in lines[1:]]
            lines[3] = '"rec.wav","a, b2","2","2.5'
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        stats = prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
        assert (stats["num_in"], stats["total"]["rejected"]) == (6, {"quotation mark": 1})
        assert rejected(tmp_path / "out")["t.csv:4"].startswith("quotation mark: one is not closed")


def test_quotation_marks_around_cells_of_several_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_audio(tmp_path / "rec.wav")
    rows = [f'rec.wav,"one\ntwo {n}",{n},{n + 0.5}' for n in range(6)]
    (tmp_path / "t.csv").write_text("\n".join(["path,text,start,end", *rows]) + "\n")
    assert prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")["num_in"] == 6
    assert "6 rows with cells of several lines (the first in line 2)" in caplog.text
    rows = [f"rec.wav,plain {n},{n},{n + 0.5}" for n in range(4, 11)] + rows[:3]
    rows[-1] = rows[-1].replace('"', "", 2).replace("one", '"one')  # never closed
    (tmp_path / "t.csv").write_text("\n".join(["path,text,start,end", *rows]) + "\n")
    prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
    texts = {u.txt for of_set in read_lists(tmp_path / "out").values() for u in of_set}
    assert texts == {f"plain {n}" for n in range(4, 11)}, "no half of a cell becomes a transcript"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"\n", "t.csv: empty; give a table with the names of the columns"),
        ("t.jsonl", b"", "t.jsonl: empty; give a table with"),
        ("t.jsonl", b"{\n", "t.jsonl: no row can be read, line 1: not JSON"),
        (
            "t.csv",
            "path,text".encode("utf-16-le"),
            "t.csv: has zero bytes; if it is UTF-16 .*, give --encoding utf-16-le",
        ),
    ],
)
def test_tables_without_content(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "out", f"table --table {tmp_path / name}")


def test_messages_name_the_tier_the_interval_and_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = 'Object class = "TextGrid"\n0 2 <exists> 1 "IntervalTier" "words" 0 2 2 0 1 "{}" 1 {} "{}"\n'
    (tmp_path / "rec.TextGrid").write_text(grid.format("", "2", ""))
    with pytest.raises(
        DataError,
        match="no file has annotations in a tier of --tier words; there are: 'words', without",
    ):
        prepare(tmp_path / "out", f"praat --corpus {tmp_path} --tier words")
    (tmp_path / "rec.TextGrid").write_text(grid.format("a", "2,5", "b"))
    with pytest.raises(
        DataError, match="tier 'words', number 2: could not convert string to float: '2,5'"
    ):
        prepare(tmp_path / "out", f"praat --corpus {tmp_path} --tier words")
    (tmp_path / "rec.TextGrid").unlink()
    words = FORMS["elan"](tmp_path, rows_of(6))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/rec.eaf").write_bytes((tmp_path / "rec.eaf").read_bytes())
    with pytest.raises(DataError, match="0 usable utterances"):
        prepare(tmp_path / "out", words)
    (named,) = [line for line in caplog.messages if "sub/rec.eaf: missing: " in line]
    assert named.partition(" missing: ")[2].startswith("no rec.wav in "), (
        "the file's own name is not repeated"
    )
    assert any(key.startswith("sub/rec.eaf: ") for key in rejected(tmp_path / "out"))


def test_most_annotation_files_unreadable(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    words = FORMS["elan"](tmp_path, rows_of(12))
    for name in ("a", "b"):
        (tmp_path / f"{name}.eaf").write_text("nothing")
    with pytest.raises(
        DataError,
        match=r"2 of 3 .eaf files cannot be read; repair them, or allow it with --max_rejected",
    ):
        prepare(tmp_path / "out", words)
    prepare(tmp_path / "out", f"{words} --max_rejected 0.7")
    for share in ("9", "-1", "nan"):
        with pytest.raises(ConfigError, match=rf"^--max_rejected {share}: must be from 0 to 1"):
            prepare(tmp_path / "out", f"{words} --max_rejected={share}")


def test_quotation_marks_that_open_and_close_in_different_rows_lose_no_row(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    texts = ['"come here', 'he said"', "three", "four", "five", "six"]
    lines = [f"rec.wav\t{text}\t{n}\t{n + 0.5}" for n, text in enumerate(texts)]
    (tmp_path / "t.tsv").write_text("path\ttext\tstart\tend\n" + "\n".join(lines) + "\n")
    assert prepare(tmp_path / "out", f"table --table {tmp_path / 't.tsv'}")["num_in"] == 6


def test_a_cell_may_have_a_transcript_of_hours(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [f'rec.wav,"{"word " * 40_000 * (n == 2)}{n}",{n},{n + 0.5}' for n in range(6)]
    (tmp_path / "t.csv").write_text("\n".join(["path,text,start,end", *rows]) + "\n")
    assert (
        prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'} --lang es")["total"][
            "rejected"
        ]
        == {}
    )


def test_why_nothing_is_left_is_written(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,text\n.,a\n/,b\n" + "x" * 300 + ",c\n")
    with pytest.raises(
        DataError, match="0 usable utterances .* left out: no audio is named 2, missing 1"
    ):
        prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'}")
    assert len(rejected(tmp_path / "out")) == 3


def test_given_sets_are_kept_and_absent_ones_are_held_out(tmp_path: Path) -> None:
    for name in ("train", "Validation"):
        for n in range(12):
            write_audio(tmp_path / name / f"{name}{n}.wav", seconds=0.3)
            (tmp_path / name / f"{name}{n}.txt").write_text(f"words of {name} {n}\n")
    stats = prepare(tmp_path / "out", f"folder --corpus {tmp_path} --test_share 0.25")
    assert stats["total"]["utterances"] == {"train": 9, "dev": 12, "test": 3}
    assert {u.key[:10] for u in read_lists(tmp_path / "out")["dev"]} == {"Validation"}


@pytest.mark.parametrize("layout", ["pairs", "metadata"])
def test_folders_names_in_any_unicode_form_and_files_without_partner(
    tmp_path: Path, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    names = {
        form: [unicodedata.normalize(form, f"é{n}") for n in range(6)] for form in ("NFC", "NFD")
    }
    for disk, text in zip(
        names["NFC"][:3] + names["NFD"][3:], names["NFD"][:3] + names["NFC"][3:], strict=True
    ):
        write_audio(tmp_path / f"{disk}.wav", seconds=0.3)
        (tmp_path / f"{text}.txt").write_text(f"one {text}\n\ntwo\n")
    write_audio(tmp_path / "alone.wav", seconds=0.3)
    (tmp_path / "alone too.txt").write_text("x")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "._é1.wav").write_text("of macOS")
    if layout == "metadata":
        rows = "".join(
            f"{name}.wav,text {n}\n" for n, name in enumerate(names["NFD"][:3] + names["NFC"][3:])
        )
        (tmp_path / "metadata.csv").write_text(f"file_name,transcription\n{rows}")
    stats = prepare(tmp_path / "out", f"folder --corpus {tmp_path} --text_suffix txt")
    assert (sum(stats["total"]["utterances"].values()), stats["total"]["rejected"]) == (6, {})
    expected = {"alone.wav": "no transcript: no table names it"}
    if layout == "pairs":
        expected = {"alone.wav": "no transcript: no alone.txt beside it"}
        expected["alone too.txt"] = "no audio: none of its name beside it"
        assert (
            "6 transcripts have several lines, which are joined, such as é3.txt" in caplog.messages
        )
        assert {u.txt for u in read_lists(tmp_path / "out")["train"]} >= {"one é5 two"}
    assert rejected(tmp_path / "out") == expected


def test_transcripts_in_another_encoding(tmp_path: Path) -> None:
    for n in range(4):
        write_audio(tmp_path / f"{n}.wav", seconds=0.3)
        (tmp_path / f"{n}.txt").write_bytes(b"a\xe9" + str(n).encode())
    message = (
        r"0.txt:1: not utf-8: .* --encoding cp1252 \(the first of 4 files that cannot be read\)$"
    )
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "out", f"folder --corpus {tmp_path}")
    prepare(tmp_path / "out", f"folder --corpus {tmp_path} --encoding cp1252")
    assert {u.txt for of in read_lists(tmp_path / "out").values() for u in of} == {
        f"aé{n}" for n in range(4)
    }


def test_auto_leaves_out_at_most_a_tenth_in_all(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    lines = [f"rec.wav,t{n % 20},{n / 20},{n / 20 + 0.2}" for n in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["path,text,start,end", *lines]))
    stats = prepare(tmp_path / "out", f"table --table {tmp_path}/t.csv --check_audio exists")
    assert stats["total"]["utterances"] == {"train": 160, "dev": 20, "test": 20}
    common = "no known speakers, 0 of 20 sentences, 1 of 1 overlaps"
    assert (
        stats["sets"]
        == f"sets (auto: sentence): {common} in several sets; 0 utterances left out for that"
    )


def test_utterances_of_unknown_speaker_are_for_training(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [replace(one, speaker=one.speaker if n % 4 else "") for n, one in enumerate(rows_of(30))]
    prepare(tmp_path / "out", f"{write_table(tmp_path, rows)} --split_by speaker")
    speakers = {
        name: {u.speaker for u in of_set} for name, of_set in read_lists(tmp_path / "out").items()
    }
    assert None in speakers["train"] and sum(map(len, speakers.values())) == 4


def test_unknown_speakers_may_be_one_person_beside_known_ones(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [replace(one, speaker="Ana" if n % 3 else "") for n, one in enumerate(rows_of(30))]
    prepare(tmp_path / "out", write_table(tmp_path, rows))
    sets = read_lists(tmp_path / "out")
    with_unknown = [name for name, of_set in sets.items() if None in {u.speaker for u in of_set}]
    assert with_unknown == ["train"]


def test_a_speaker_in_upper_and_lower_case_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [replace(one, speaker="Ana" if n % 2 else "ANA") for n, one in enumerate(rows_of(30))]
    with caplog.at_level("INFO"):
        prepare(tmp_path / "out", write_table(tmp_path, rows))
    assert {u.speaker for of_set in read_lists(tmp_path / "out").values() for u in of_set} == {
        "ANA"
    }
    assert "speakers whose names differ only in case are one: 'Ana' as 'ANA'" in caplog.text


def test_a_set_of_the_data_without_a_usable_utterance_is_not_made_anew(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [
        f"{'none' if n < 3 else 'rec'}.wav,t{n},{n / 4},{n / 4 + 0.2},{'test' if n < 3 else 'train'}"
        for n in range(30)
    ]
    (tmp_path / "t.csv").write_text("path,text,start,end,split\n" + "\n".join(rows))
    prepared = f"table --table {tmp_path / 't.csv'}"
    message = r"no utterance of the test set of the data can be used; see .*rejected.tsv, or make sets with --ignore_sets"
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "out", prepared)
    assert (
        prepare(tmp_path / "out2", f"{prepared} --ignore_sets")["total"]["utterances"]["test"] > 0
    )


def test_a_recording_in_two_forms_is_one(tmp_path: Path) -> None:
    for n in range(12):
        write_audio(tmp_path / f"r{n}.wav", seconds=0.3)
        write_audio(tmp_path / f"r{n}.flac", seconds=0.3)
        (tmp_path / f"r{n}.txt").write_text(f"words {n}\n")
    stats = prepare(tmp_path / "out", f"folder --corpus {tmp_path}")
    assert sum(stats["total"]["utterances"].values()) == 12
    assert (
        len(
            {Path(u.wav).suffix for of_set in read_lists(tmp_path / "out").values() for u in of_set}
        )
        == 1
    )
    assert (
        sum(
            "another form: r" in line
            for line in (tmp_path / "out/rejected.tsv").read_text().splitlines()
        )
        == 12
    )


def test_a_channel_and_the_mean_of_all_channels_overlap() -> None:
    both = [
        Utterance(key=f"u{n}", wav="a.wav", txt="a", start=0.0, end=2.0, channel=n) for n in (0, 1)
    ]
    assert list(output.find_overlaps(both)) == []
    whole = Utterance(key="u2", wav="a.wav", txt="a", start=0.0, end=2.0)
    assert len(list(output.find_overlaps([*both, whole]))) == 2


def test_a_transcript_may_begin_with_a_tag_and_a_table_with_a_mark_of_its_encoding(
    tmp_path: Path,
) -> None:
    for n in range(12):
        write_audio(tmp_path / f"r{n}.wav", seconds=0.3)
        (tmp_path / f"r{n}.txt").write_text(f"<laugh> words {n}\n")
    assert (
        sum(
            prepare(tmp_path / "out", f"folder --corpus {tmp_path}")["total"]["utterances"].values()
        )
        == 12
    )
    rows = "".join(f"r{n}.wav,words {n}\n" for n in range(12))
    (tmp_path / "t.csv").write_text(f"\ufeffpath,text\n{rows}", "utf-8")
    line = f"table --table {tmp_path / 't.csv'} --encoding utf-8 --columns audio=path"
    assert sum(prepare(tmp_path / "out2", line)["total"]["utterances"].values()) == 12


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("test1", "test"),
        ("train-clean-100", "train"),
        ("train_clean", "train"),
        (" dev_other ", "dev"),
    ]
    + [
        ("Validation", "dev"),
        ("val.2", "dev"),
        ("eval", "test"),
        ("trainer", None),
        ("val smith", None),
        ("", None),
    ],
)
def test_usual_names_of_sets(name: str, found: str | None) -> None:
    assert entries.find_split(name) == found


def test_sets_of_a_table_are_kept_or_ignored(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    names = ["dev_other"] * 2 + ["test1"] * 3 + ["train-clean-100"] * 7
    rows = "".join(f"rec.wav,t{n},{n},{n + 0.5},{name}\n" for n, name in enumerate(names))
    (tmp_path / "t.csv").write_text(f"path,text,start,end,subset\n{rows}")
    prepared = f"table --table {tmp_path / 't.csv'}"
    assert prepare(tmp_path / "out", prepared)["total"]["utterances"] == {
        "train": 7,
        "dev": 2,
        "test": 3,
    }
    stats = prepare(tmp_path / "out", f"{prepared} --columns split=")
    assert stats["total"]["utterances"] == {"train": 10, "dev": 1, "test": 1}


def test_recordings_of_one_stem_have_different_names(tmp_path: Path) -> None:
    names = {"a.wav": "a", "x/b.wav": "x_b", "y/b.wav": "y_b", "3.wav": "3.wav", "3.flac": "3.flac"}
    names |= {"c_d.wav": "c_d", "x/c d.wav": "x_c_d"}
    names |= {
        "p/q_r.wav": "p_q_r.wav-1",
        "p_q/r.wav": "p_q_r.wav-2",
        "q_r.wav": "q_r",
        "r.wav": "r",
    }
    found = output.name_recordings({tmp_path / name for name in names})
    assert {str(path.relative_to(tmp_path)): name for path, name in found.items()} == names


def test_json_lines_in_another_encoding_and_lines_that_are_no_objects(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    rows = [
        json.dumps({"path": "rec", "text": f"é{n}", "start": n, "end": n + 0.5}, ensure_ascii=False)
        for n in range(5)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join([*rows, '"text"', "[" * 20_000]), "cp1252")
    words = f"table --table {tmp_path / 't.jsonl'}"
    with pytest.raises(DataError, match="t.jsonl:1: not utf-8: byte 0xe9"):
        prepare(tmp_path / "out", words)
    prepare(tmp_path / "out", f"{words} --encoding cp1252")
    assert {u.txt for of_set in read_lists(tmp_path / "out").values() for u in of_set} == {
        f"é{n}" for n in range(5)
    }
    found = rejected(tmp_path / "out")
    assert found["t.jsonl:6"] == "not a JSON object" and found["t.jsonl:7"].startswith("not JSON: ")


@pytest.mark.parametrize(
    ("options", "text"),
    [("", "hola tú"), ("--no_normalize", "Hola, tú"), ("--unit phone", "Hola, tú")],
)
def test_text_is_normalised_unless_it_is_phones(tmp_path: Path, options: str, text: str) -> None:
    write_audio(tmp_path / "rec.wav")
    both = [Annotation("rec", who, 0, 300, f"{who} Hola,  tú") for who in "yx"]
    prepare(tmp_path / "out", f"{write_table(tmp_path, [*rows_of(5)[1:], *both])} {options}")
    texts = {u.key: u.txt for of_set in read_lists(tmp_path / "out").values() for u in of_set}
    assert [texts[f"rec-0000000-0000300-{who}"] for who in "xy"] == [
        f"{who} {text}" for who in "xy"
    ]


def test_stats_of_an_earlier_run_do_not_outlive_a_failed_one(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    prepare(tmp_path / "out", write_table(tmp_path, rows_of(6)))
    with pytest.raises(DataError, match="too few for a recogniser"):
        prepare(
            tmp_path / "out",
            write_table(tmp_path, [replace(one, recording="gone") for one in rows_of(6)]),
        )
    assert not (tmp_path / "out" / "stats.json").exists() and len(rejected(tmp_path / "out")) == 6


def test_a_table_is_parsed_once_if_it_has_one_delimiter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, calls = delimited_text._parse, list[tuple[str, str]]()
    monkeypatch.setattr(
        delimited_text, "_parse", lambda *args: calls.append(args[1:]) or parse(*args)
    )
    write_audio(tmp_path / "rec.wav")
    prepare(tmp_path / "out", write_table(tmp_path, rows_of(6)))
    assert calls == [(",", "whole")]


def test_kaldi_languages_relative_paths_and_open_ends(tmp_path: Path) -> None:
    for name in ("train_clean", "test1"):
        folder = tmp_path / "data" / name
        write_audio(folder / f"{name}.wav")
        ends = [*range(1, 8), -1]
        lines = {
            "wav.scp": [f"r {name}.wav"],
            "text": [f"{name}{n} text {n} {name}" for n in range(8)],
        }
        lines["segments"] = [f"{name}{n} r {n} {end}" for n, end in enumerate(ends)]
        lines["utt2lang"] = [f"{name}{n} ca" for n in range(8)]
        for file, of_file in lines.items():
            (folder / file).write_text("\n".join(of_file) + "\n")
    stats = prepare(tmp_path / "out", f"kaldi --corpus {tmp_path / 'data'}")
    assert (
        stats["total"]["utterances"] == {"train": 7, "dev": 1, "test": 8}
        and stats["total"]["rejected"] == {}
    )
    last = next(u for u in read_lists(tmp_path / "out")["test"] if u.key == "test17")
    assert (last.lang, last.start, last.end, last.duration) == ("ca", 7.0, None, 5.0)


def test_kaldi_recordings_without_transcript_are_no_faults(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", seconds=0.5)
    (tmp_path / "wav.scp").write_text("".join(f"u{n} {tmp_path}/a.wav\n" for n in range(20)))
    (tmp_path / "text").write_text("".join(f"u{n} text {n}\n" for n in range(10)))
    stats = prepare(tmp_path / "out", f"kaldi --corpus {tmp_path}")
    assert (stats["total"]["left_out"], stats["total"]["rejected"]) == ({"no transcript": 10}, {})
    assert [*rejected(tmp_path / "out")] == [f"u{n}" for n in range(10, 20)]


def test_one_name_or_sentence_in_two_spellings_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_audio(tmp_path / "rec.wav")
    names = [unicodedata.normalize(form, "José") for form in ("NFC", "NFD")]
    rows = [
        f"rec.wav,{'A b' if n % 2 else 'a b.'} {n // 2},{n / 3},{n / 3 + 0.3},{names[n % 2]}"
        for n in range(30)
    ]
    (tmp_path / "t.csv").write_text(
        "path,text,start,end,speaker\n" + "\n".join(rows) + "\n", "utf-8"
    )
    prepare(tmp_path / "out", f"table --table {tmp_path / 't.csv'} --no_normalize --split_by none")
    lists = read_lists(tmp_path / "out")
    assert {u.speaker for of_set in lists.values() for u in of_set} == {names[0]}
    assert {u.txt[:3] for of_set in lists.values() for u in of_set} == {"A b", "a b"}, (
        "the text stays as it is"
    )
    sentences = [{u.txt.replace(".", "").lower() for u in of_set} for of_set in lists.values()]
    num_common = sum(sum(one in of for of in sentences) > 1 for one in set.union(*sentences))
    assert num_common > 0 and f"{num_common} of 15 sentences" in caplog.text
    prepare(
        tmp_path / "out", f"table --table {tmp_path / 't.csv'} --no_normalize --split_by sentence"
    )
    assert "0 of 15 sentences" in caplog.text


def test_sets_by_the_names_of_folders_are_stated_and_can_be_ignored(tmp_path: Path) -> None:
    for session in ("Session1", "Test"):
        for n in range(8):
            write_audio(tmp_path / session / f"{session}{n}.wav")
            (tmp_path / session / f"{session}{n}.txt").write_text(f"{session} {n}")
    message = "the data give sets .train 0, dev 0, test 8.; --ignore_sets makes others; 0 usable .* left out: no set 8"
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "out", f"folder --corpus {tmp_path}")
    assert len(rejected(tmp_path / "out")) == 8
    stats = prepare(tmp_path / "out", f"folder --corpus {tmp_path} --ignore_sets")
    assert sum(stats["total"]["utterances"].values()) == 16 and stats["total"]["rejected"] == {}


def test_speakers_stay_whole_on_request(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    words = write_table(tmp_path, rows_of(30))
    stats = prepare(tmp_path / "out", f"{words} --split_by speaker")
    assert stats["total"]["utterances"] == {"train": 10, "dev": 10, "test": 10}
    assert all(pair["speakers"] == 0 for pair in stats["total"]["in_both"].values())
    uneven = [
        Annotation("rec", f"s{min(n, 2)}", a.start_ms, a.end_ms, a.text)
        for n, a in enumerate(rows_of(30))
    ]
    stats = prepare(tmp_path / "out", f"{write_table(tmp_path, uneven)} --split_by speaker")
    assert stats["total"]["utterances"] == {"train": 28, "dev": 1, "test": 1}
    with pytest.raises(
        ConfigError,
        match="--split_by speaker: 1 known speakers for 3 sets; use another way, such as none",
    ):
        words = write_table(
            tmp_path, [Annotation("rec", "s", a.start_ms, a.end_ms, a.text) for a in rows_of(30)]
        )
        prepare(tmp_path / "out", f"{words} --split_by speaker")


def test_unknown_speakers_are_stated_and_the_case_of_a_language_code_is_no_difference(
    tmp_path: Path,
) -> None:
    write_audio(tmp_path / "rec.wav")
    half = [
        Annotation("rec", "s" * (n % 2), a.start_ms, a.end_ms, a.text)
        for n, a in enumerate(rows_of(20))
    ]
    (tmp_path / "t.tsv").write_text(
        "audio\ttext\tspeaker\tstart\tend\tlang\n"
        + "".join(
            f"rec.wav\t{a.text}\t{a.speaker}\t{a.start_ms / 1000}\t{a.end_ms / 1000}\t{('mdw', 'MDW')[n % 3 == 0]}\n"
            for n, a in enumerate(half)
        )
    )
    stats = prepare(tmp_path / "out", f"table --table {tmp_path / 't.tsv'}")
    assert "of 1 speakers (10 utterances have no speaker), " in stats["sets"]
    assert list(stats["langs"]) == ["MDW"]


def test_one_recording_by_two_paths_is_one_recording(tmp_path: Path) -> None:
    """A corrected copy in a folder below, as `transcribe --elan transcribed` makes it, links to
    `../rec.wav`.
    """
    write_audio(tmp_path / "rec.wav")
    write_elan(tmp_path, rows_of(20))
    (tmp_path / "transcribed").mkdir()
    again = (tmp_path / "rec.eaf").read_text("utf-8").replace("D:/Daten/rec.wav", "../rec.wav")
    (tmp_path / "transcribed" / "rec.eaf").write_text(
        again.replace("./rec.wav", "../rec.wav"), "utf-8"
    )
    (tmp_path / "linked").symlink_to(tmp_path / "transcribed", target_is_directory=True)
    stats = prepare(
        tmp_path / "out", f"elan --corpus {tmp_path / 'linked'} --audio_dir {tmp_path} --tier utt@*"
    )
    assert {u.wav for of_set in read_lists(tmp_path / "out").values() for u in of_set} == {
        str(tmp_path / "rec.wav")
    }
    stats = prepare(tmp_path / "both", f"elan --corpus {tmp_path} --tier utt@*")
    assert stats["total"]["rejected"] == {"repeated": 20}


def test_values_of_json_that_are_no_text_are_rejected(tmp_path: Path) -> None:
    for n in range(5):
        write_audio(tmp_path / f"{n}.wav")
    rows: list[dict[str, Any]] = [{"path": f"{n}.wav", "text": f"t{n}"} for n in range(4)]
    rows += [{"path": "4.wav", "text": ["pa", "na"]}, {"path": {"bytes": None}, "text": "x"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stats = prepare(tmp_path / "out", f"table --table {tmp_path / 't.jsonl'}")
    assert stats["total"]["rejected"] == {"text": 1, "path": 1}
    assert rejected(tmp_path / "out")["t.jsonl:5"] == "text: ['pa', 'na'] is no text or number"


def test_the_sets_of_metadata_are_those_of_the_audio(tmp_path: Path) -> None:
    rows = [(name, n) for name in ("train", "validation", "test") for n in range(3)]
    for name, n in rows:
        write_audio(tmp_path / name / f"{n}.wav", seconds=0.5)
    content = "".join(f"{name}/{n}.wav,{name} {n}\n" for name, n in rows)
    (tmp_path / "metadata.csv").write_text(f"file_name,transcription\n{content}")
    prepare(tmp_path / "out", f"folder --corpus {tmp_path}")
    sets = {
        name: {u.txt.split()[0] for u in of_set}
        for name, of_set in read_lists(tmp_path / "out").items()
    }
    assert sets == {"train": {"train"}, "dev": {"validation"}, "test": {"test"}}


def test_kaldi_refuses_commands_and_counts_what_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data" / "train"
    write_audio(tmp_path / "a b.wav", seconds=0.5)
    folder.mkdir(parents=True)
    (folder / "wav.scp").write_text(
        "".join(f"u{n} {tmp_path}/a b.wav\n" for n in range(6))
        + "v sox x.mp3 -t wav - trim 0 9 |\n"
    )
    (folder / "text").write_text("".join(f"u{n} text {n}\n" for n in range(5)) + "w lost\n")
    with pytest.raises(
        DataError,
        match=r"wav.scp: 1 of 7 recordings are commands, such as v: 'sox .* \|'; run each once",
    ):
        prepare(tmp_path / "out", f"kaldi --corpus {folder}")
    (folder / "wav.scp").write_text("u0 /data/raw.ark:1234\n")
    with pytest.raises(
        DataError,
        match=r"1 of 1 recordings are pieces of Kaldi archives, such as u0: '/data/raw.ark:1234';",
    ):
        prepare(tmp_path / "out", f"kaldi --corpus {folder}")
    (folder / "segments").write_text("")
    (folder / "wav.scp").write_text(f"u0 {tmp_path}/a b.wav\n")
    with pytest.raises(
        DataError, match="segments: empty; remove it if each recording is one utterance"
    ):
        prepare(tmp_path / "out", f"kaldi --corpus {folder}")
    (folder / "segments").unlink()
    (folder / "wav.scp").write_text("".join(f"u{n} {tmp_path}/a b.wav\n" for n in range(6)))
    (folder / "utt2spk").write_text("u0 A\nu1\nnobody B\n")
    stats = prepare(tmp_path / "out", f"kaldi --corpus {folder}")
    assert "utt2spk: 1 lines have no speaker, such as that of 'u1'" in caplog.text
    assert "utt2spk: 1 lines are not used, such as that of 'nobody'" in caplog.text
    assert stats["total"]["rejected"] == {"missing": 1}
    assert stats["total"]["left_out"] == {"no transcript": 1}
    for name in ("utt2spk", "wav.scp"):
        content = (folder / name).read_text()
        (folder / name).write_text(f"{content}u1 again\n")
        with pytest.raises(
            DataError, match=rf"{name}:\d+: 'u1' occurs twice; keep one of the two lines"
        ):
            prepare(tmp_path / "out", f"kaldi --corpus {folder}")
        (folder / name).write_text(content)
    with pytest.raises(
        DataError, match="nothing: no such folder; --corpus is a data folder of Kaldi"
    ):
        prepare(tmp_path / "none", f"kaldi --corpus {tmp_path / 'nothing'}")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("form", ["short_textgrid", "long_textgrid"])
def test_textgrids_in_every_form(tmp_path: Path, encoding: str, form: str) -> None:
    write_audio(tmp_path / "rec.wav")
    grid = textgrid.Textgrid(0, 12)
    spans = [(n, n + 0.5, f"ŋa {n}") for n in range(10)]
    grid.addTier(textgrid.IntervalTier("sentence", spans, 0, 12))
    grid.addTier(textgrid.PointTier("events", [(1.0, "x")], 0, 12))
    grid.save(str(tmp_path / "rec.TextGrid"), format=form, includeBlankSpaces=True)
    text = (tmp_path / "rec.TextGrid").read_text("utf-8")
    (tmp_path / "rec.TextGrid").write_text(text, encoding=encoding)
    stats = prepare(tmp_path / "out", f"praat --corpus {tmp_path} --speaker_from file")
    assert sum(stats["total"]["utterances"].values()) == 10
    assert {u.speaker for u in read_lists(tmp_path / "out")["train"]} == {"rec"}
    (tmp_path / "rec.TextGrid").write_text("ooBinaryFile")
    with pytest.raises(
        DataError, match="rec.TextGrid: a binary file of Praat; save it as text file in Praat"
    ):
        prepare(tmp_path / "out", f"praat --corpus {tmp_path}")


def test_intervals_that_are_none_are_rejected_and_points_are_counted(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    spans = [(-0.5, 0, "x"), (3.0, 3.0, "y"), *((n, n + 0.5, f"t{n}") for n in range(4, 10))]
    tier = "".join(f'{a}\n{b}\n"{text}"\n' for a, b, text in spans)
    points = '"TextTier"\n"events"\n0\n12\n1\n1.5\n"x"\n'
    head = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n12\n<exists>\n2\n'
    (tmp_path / "rec.TextGrid").write_text(
        f'{head}{points}"IntervalTier"\n"s"\n0\n12\n{len(spans)}\n{tier}'
    )
    stats = prepare(tmp_path / "out", f"praat --corpus {tmp_path} --tier *")
    assert stats["total"]["rejected"] == {"times": 2}
    assert stats["tiers"] == {"used": {"s": 8}, "not_used": {"events": 1}}


def test_codes_of_praat_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_audio(tmp_path / "rec.wav")
    spans = "".join(f'{n}\n{n + 0.5}\n"ba{n} \\ng\\ae"\n' for n in range(5))
    text = f'"ooTextFile"\n"TextGrid"\n0\n9\n<exists>\n1\n"IntervalTier"\n"s"\n0\n9\n5\n{spans}'
    (tmp_path / "rec.TextGrid").write_text(text)
    prepare(tmp_path / "out", f"praat --corpus {tmp_path}")
    assert r"5 texts have codes of Praat, such as ba0 \ng\ae; use Convert to Unicode" in caplog.text


def test_a_textgrid_loses_no_interval(tmp_path: Path) -> None:
    intervals = [(n, n + 1, f'say ""item [{n}]"" x') for n in range(4)]
    tier = '"IntervalTier"\n"s"\n0\n4\n4\n' + "\n".join(
        f'{a}\n{b}\n"{text}"' for a, b, text in intervals
    )
    short = (
        f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n4\n<exists>\n2\n{tier}\n{tier}'
    )
    (tmp_path / "rec.TextGrid").write_text(short)  # no last line end, two tiers of one name
    grid = read_textgrid(tmp_path / "rec.TextGrid")
    assert [(one.name, one.is_interval, len(one.spans)) for one in grid.tiers] == [
        ("s", True, 4)
    ] * 2
    assert grid.tiers[1].spans[3] == (3.0, 4.0, 'say "item [3]" x')
    for length in (40, 120, len(short) - 30):
        (tmp_path / "rec.TextGrid").write_text(short[:length])
        with pytest.raises(
            DataError, match="rec.TextGrid: (cut off, or not|not) a TextGrid"
        ) as caught:
            read_textgrid(tmp_path / "rec.TextGrid")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("video", "sound", "shift"), [(0, 2000, 2.0), (3000, 0, 0.0)])
def test_times_are_those_of_the_sound(tmp_path: Path, video: int, sound: int, shift: float) -> None:
    eaf = Eaf()
    eaf.add_linked_file("file:///x.mp4", mimetype="video/mp4", time_origin=video)
    eaf.add_linked_file("file:///x.wav", mimetype="audio/x-wav", time_origin=sound)
    eaf.add_annotation("default", 1000, 1500, "a")
    eaf.to_file(str(tmp_path / "x.eaf"))
    [tier] = read_elan(tmp_path / "x.eaf").tiers
    assert list(tier.spans) == [(1.0 + shift, 1.5 + shift, "a")]
    assert read_elan(tmp_path / "x.eaf").media == ("file:///x.wav",)  # the video has other times


def reference(name: str, parent: str, text: str, previous: str = "") -> str:
    chain = f' PREVIOUS_ANNOTATION="{previous}"' if previous else ""
    value = f"<ANNOTATION_VALUE>{text}</ANNOTATION_VALUE>"
    return (
        f'<ANNOTATION><REF_ANNOTATION ANNOTATION_ID="{name}" ANNOTATION_REF="{parent}"{chain}>{value}'
        "</REF_ANNOTATION></ANNOTATION>"
    )


EAF = f"""<ANNOTATION_DOCUMENT FORMAT="3.0"><!-- no schema --><HEADER/><TIME_ORDER>
<TIME_SLOT TIME_SLOT_ID="begin" TIME_VALUE="100"/><TIME_SLOT TIME_SLOT_ID="end" TIME_VALUE="900"/></TIME_ORDER>
<TIER TIER_ID="morphs" PARENT_REF="words">
{reference("m3", "w2", "3")}{reference("m2", "w1", "2", "m1")}{reference("m1", "w1", "1")}</TIER>
<TIER TIER_ID="words" PARENT_REF="utt">{reference("w2", "u", "b", "w1")}{reference("w1", "u", "a")}</TIER>
<TIER TIER_ID="utt"><?note?>
<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="u" TIME_SLOT_REF1="begin" TIME_SLOT_REF2="end">
<ANNOTATION_VALUE>a<!-- comment -->\n\tb</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION>
</TIER></ANNOTATION_DOCUMENT>"""


def test_slots_without_a_time_divide_the_span_evenly(tmp_path: Path) -> None:
    def word(name: str, begin: str, end: str) -> str:
        times = f'ANNOTATION_ID="{name}" TIME_SLOT_REF1="{begin}" TIME_SLOT_REF2="{end}"'
        value = f"<ANNOTATION_VALUE>{name}</ANNOTATION_VALUE>"
        return (
            f"<ANNOTATION><ALIGNABLE_ANNOTATION {times}>{value}</ALIGNABLE_ANNOTATION></ANNOTATION>"
        )

    words = (
        word("v", "s1", "s2")
        + word("w", "s2", "end")
        + word("x", "s3", "s4")
        + word("u2", "begin", "s1")
    )
    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="s{n}"/>' for n in (1, 2, 3, 4))
    text = EAF.replace("</TIME_ORDER>", f"{slots}</TIME_ORDER>")
    tier = f'<TIER TIER_ID="subdivision">{words}</TIER></ANNOTATION_DOCUMENT>'
    (tmp_path / "x.eaf").write_text(text.replace("</ANNOTATION_DOCUMENT>", tier))
    begins = {text: begin for begin, _, text in read_elan(tmp_path / "x.eaf").tiers[-1].spans}
    assert begins == {
        "u2": 0.1,
        "v": pytest.approx(0.1 + 0.8 / 3),
        "w": pytest.approx(0.1 + 1.6 / 3),
        "x": None,
    }


def test_recordings_of_one_name_are_those_beside_their_files(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "session2"):
        folder.mkdir(exist_ok=True)
        write_audio(folder / "rec.wav", seconds=6 if folder == tmp_path else 5)
        eaf = Eaf()
        eaf.add_linked_file("./rec.wav")
        for n in range(5):
            eaf.add_annotation(
                "default", 1000 * n, 1000 * n + 500 + len(folder.name), f"{folder.name} {n}"
            )
        eaf.to_file(str(folder / "rec.eaf"))
    prepare(tmp_path / "out", f"elan --corpus {tmp_path} --no_normalize")
    found = {
        (Path(u.wav).parent.name, u.txt.split()[0])
        for of in read_lists(tmp_path / "out").values()
        for u in of
    }
    assert found == {(tmp_path.name, tmp_path.name), ("session2", "session2")}


def test_words_are_in_the_order_of_their_chain(tmp_path: Path) -> None:
    (tmp_path / "x.eaf").write_text(EAF)
    tiers = {tier.name: list(tier.spans) for tier in read_elan(tmp_path / "x.eaf").tiers}
    assert tiers == {
        "morphs": [(0.1, 0.9, "1 2 3")],
        "words": [(0.1, 0.9, "a b")],
        "utt": [(0.1, 0.9, "a\n\tb")],
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"w1" ANNOTATION_REF="u"',
            '"w1" ANNOTATION_REF="m1"',
            r"wrong ones: \('nodes are in a cycle', \['",
        ),
        ('"w1" ANNOTATION_REF="u"', '"w1" ANNOTATION_REF="x"', "wrong ones: 'x'"),
        ('REF2="end"', 'REF2="gone"', "wrong ones: 'gone'"),
        ('ID="m2"', 'ID="m1"', "wrong ones: two annotations have one ANNOTATION_ID"),
        ('"900"', '"0:09"', "'0:09' is no time in milliseconds; open it in ELAN and save it again"),
        (
            "<ANNOTATION_DOCUMENT",
            '<?xml version="1.0" encoding="gone"?><ANNOTATION_DOCUMENT',
            "not XML",
        ),
    ],
)
def test_elan_files_whose_references_are_wrong(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    (tmp_path / "x.eaf").write_text(EAF.replace(old, new))
    with pytest.raises(DataError, match=f"x.eaf: .*{message}") as caught:
        read_elan(tmp_path / "x.eaf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("form", "suffix"), [("elan", ".eaf"), ("praat", ".TextGrid")])
def test_files_that_cannot_be_used_do_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, suffix: str
) -> None:
    write_audio(tmp_path / "rec.wav")
    words = FORMS[form](
        tmp_path, [*rows_of(12), *(replace(one, recording="gone") for one in rows_of(3))]
    )
    (tmp_path / f"bad{suffix}").write_text("nothing")
    (tmp_path / f"._rec{suffix}").write_bytes(b"\0")
    stats = prepare(tmp_path / "out", words)
    assert (stats["num_in"], stats["total"]["rejected"]) == (16, {"missing": 3, "unreadable": 1})
    assert rejected(tmp_path / "out")[f"bad{suffix}"].startswith("unreadable: not ")
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [one.partition(": ")[0] for one in warnings] == [
        str(tmp_path / f"{name}{suffix}") for name in ("bad", "gone")
    ]
    assert warnings[1].endswith(
        "and its subfolders; its 3 annotations are left out; name its folder with --audio_dir"
    )
    (tmp_path / f"rec{suffix}").write_text("")
    (tmp_path / f"gone{suffix}").unlink()
    with pytest.raises(DataError, match=rf"(?s)bad{suffix}: .*\n.*rec{suffix}: "):
        prepare(tmp_path / "out", words)


def test_elan_files_that_cannot_be_read_get_one_line(tmp_path: Path) -> None:
    begin = "<ANNOTATION_DOCUMENT FORMAT='3.0' VERSION='3.0'><HEADER/><TIME_ORDER/>"
    for content, message in {
        "": "not XML",
        "<html/>": "not an ELAN file",
        begin.replace("3.0", "9.0")
        + "</ANNOTATION_DOCUMENT>": "EAF format 9.0; only 2 and 3 can be read",
    }.items():
        (tmp_path / "x.eaf").write_text(content)
        with pytest.raises(DataError, match=f"x.eaf: {message}"):
            prepare(tmp_path / "out", f"elan --corpus {tmp_path}")
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match="no .eaf file; --corpus is a .eaf file, or a folder with them"
    ):
        prepare(tmp_path / "out", f"elan --corpus {empty}")
    with pytest.raises(
        DataError, match="empty: no wav.scp here or in its subfolders; --corpus is a data folder of"
    ):
        prepare(tmp_path / "out", f"kaldi --corpus {empty}")
    for form in ("elan", "kaldi"):
        with pytest.raises(DataError, match="nothing: no such (file or )?folder; --corpus is a "):
            prepare(tmp_path / "out", f"{form} --corpus {tmp_path / 'nothing'}")


def test_elan_files_of_other_people(shared_dir: Path) -> None:
    example = read_elan(shared_dir / "data/annotation/example.eaf")
    assert example.media == (
        "file:///D:/Data/elan/elan-example1.wav",
        "file:///D:/Data/elan/elan-example1.mpg",
        "example",
    )
    tiers = {tier.name: tier for tier in example.tiers}
    assert all(start < end and text for start, end, text in tiers["W-Spch"].spans)
    assert tiers["W-IPA"].parent
    assert len(tiers["W-POS"].spans) == len({span[:2] for span in tiers["W-Words"].spans})
    turkish = {
        tier.name: tier for tier in read_elan(shared_dir / "data/annotation/turkish.eaf").tiers
    }
    assert [span[:2] for span in turkish["P-Word"].spans] == [
        span[:2] for span in turkish["P-Trans"].spans
    ]


def test_keys_in_exclude_txt_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"{'abcdefghijkl'[n]} word" for n in range(12)]
    annotations = [
        Annotation("ab", "X", 900 * n, 900 * n + 800, text) for n, text in enumerate(texts)
    ]
    words = write_elan(tmp_path, annotations)
    write_audio(tmp_path / "ab.wav")
    out = tmp_path / "out"
    out.mkdir()
    (out / edits.EXCLUDED).write_text(f"{annotations[3].key}\n\nno-such-key\n")
    with caplog.at_level("INFO"):
        stats = prepare(out, words)
    assert stats["total"]["left_out"] == {"excluded": 1}
    assert "exclude.txt: 1 utterances left out; 1 of its keys are not in the data" in caplog.text
    assert annotations[3].key not in {u.key for us in read_lists(out).values() for u in us}
