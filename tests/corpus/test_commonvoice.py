# SPDX-License-Identifier: Apache-2.0
"""Common Voice: every row is used or rejected, Table 1 of the paper, disjoint sets, repeatable
bytes.
"""

import json
import os
import random
import re
from collections.abc import Callable, Mapping
from itertools import combinations, count
from pathlib import Path
from typing import Any

import pytest
from made_up_release import HEADER_11, HEADER_17, Row, write_language, write_table
from prepared import parse_prepare, read_lists

from wenet_hs.bin.prepare import print_statistics
from wenet_hs.corpus import audio_check, commonvoice
from wenet_hs.corpus.commonvoice import (
    find_language_folders,
    read_release_table,
)
from wenet_hs.corpus.subset import read_statistics, sampling_ratios
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("text_clips")
HEADER = b"client_id\tpath\tsentence\n"
NUM_CLIPS = 160  # per language


def write_bytes(folder: Path, content: bytes) -> Path:
    path = folder / "ca" / "validated.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("header", [HEADER_11, HEADER_17, tuple(reversed(HEADER_17))])
def test_columns_are_found_by_their_names(tmp_path: Path, header: tuple[str, ...]) -> None:
    write_table(
        tmp_path / "validated.tsv",
        [Row("common_voice_ca_7.mp3", "L’aigua, «bona»!", "anna", 2.0)],
        header,
    )
    rows = read_release_table(tmp_path / "validated.tsv", "ca")
    clip = tmp_path / "clips" / "common_voice_ca_7.mp3"
    expected = Utterance(
        key=clip.stem, wav=str(clip), txt="l'aigua bona", lang="ca", speaker="anna"
    )
    assert (rows.usable, rows.rejected) == ([expected], [])
    assert rows.removed == {",": 1, "«": 1, "»": 1, "!": 1}


def test_a_sentence_ends_at_the_tab_or_line_end_only(tmp_path: Path) -> None:
    between = ("\u2028", "\u0085", "\x0b", "\x1c", "\r")
    sentences = {
        text: "hola món"
        for text in ('"hola món', "'hola món", *(f"hola{space}món" for space in between))
    }
    sentences |= {word: word.lower() for word in ("NA", "null", "1984")}
    for bom, end in ((b"", b"\n"), (b"\xef\xbb\xbf", b"\r\n")):
        rows = [
            f"a\tc{number}.mp3\t{sentence}".encode() for number, sentence in enumerate(sentences)
        ]
        path = write_bytes(tmp_path, bom + HEADER.replace(b"\n", end) + end.join(rows))
        assert [u.txt for u in read_release_table(path, "ca").usable] == list(sentences.values())


def test_an_unusable_row_has_a_reason(tmp_path: Path) -> None:
    rows = {
        b"a\tc0.mp3\thola": None,
        b"a\tc1.mp3\thola\tmon": (
            "ca:validated.tsv:3",
            "wrong number of columns: 4, the header has 3",
        ),
        b"a\tc2.mp3": ("ca:validated.tsv:4", "wrong number of columns: 2, the header has 3"),
        b"a\tc3.mp3\thol\xe0": ("ca:validated.tsv:5", "not UTF-8: byte 12 of the line"),
        b"a\tc4.mp3\t  ": ("ca_c4", "empty transcript"),
        b"a\tc5.mp3\t?! \xe2\x80\xa6": ("ca_c5", "empty transcript after normalisation: '?! …'"),
        b"b\tc0.mp3\thola": ("ca:validated.tsv:8", "repeated: this clip is on an earlier line"),
        b"a\t\thola": ("ca:validated.tsv:9", "no path"),
        b"a\t../c6.mp3\thola": ("ca_../c6", "path is not a file name"),
        b"a\tc7.mp3\t" + b"la " * 400: (
            "ca_c7",
            "transcript too long: 1200 characters, at most 1000",
        ),
        b"\tc8.mp3\thola": None,
        b"a\tc9\tadeu": None,
    }
    table = read_release_table(write_bytes(tmp_path, HEADER + b"\n".join(rows) + b"\n"), "ca")
    assert [(u.key, u.speaker) for u in table.usable] == [
        ("ca_c0", "a"),
        ("ca_c8", None),
        ("ca_c9", "a"),
    ]
    assert table.usable[-1].wav.endswith("clips/c9.mp3")
    assert [(clip.key, clip.reason) for clip in table.rejected] == [
        reason for reason in rows.values() if reason
    ]


def test_durations_are_milliseconds(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, HEADER + b"".join(b"a\tc%d.mp3\thola\n" % n for n in range(5)))
    rows = "clip\tduration[ms]\nc0.mp3\t1234\nc1.mp3\t-5\nc2.mp3\tno\nc3.mp3\tnan\nc4.mp3\n"
    path.with_name("clip_durations.tsv").write_text(rows)
    assert [u.duration for u in read_release_table(path, "ca").usable] == [
        1.234,
        None,
        None,
        None,
        None,
    ]


def test_faulty_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"no\.tsv: cannot be read \(No such file or directory\); check that --corpus",
    ):
        read_release_table(tmp_path / "no.tsv", "ca")
    path = write_bytes(tmp_path, b"client_id\tpath\ttext\n")
    with pytest.raises(
        DataError,
        match=r"validated.tsv:1: no column 'sentence' \(has: client_id, path, text\); check",
    ):
        read_release_table(path, "ca")
    path.with_name("clip_durations.tsv").write_text("name,s\n")
    with pytest.raises(
        DataError, match=r"tsv:1: expected columns clip and duration\[ms\], found name,s; restore"
    ):
        read_release_table(path, "ca")


def test_missing_languages_are_all_named(tmp_path: Path) -> None:
    for name in ("cv-corpus-11.0/es", "cv-corpus-12.0/es", "cv-corpus-11.0/ky"):
        (tmp_path / name).mkdir(parents=True)
    write_bytes(tmp_path, HEADER)
    expected = {"ca": tmp_path / "ca", "ky": tmp_path / "cv-corpus-11.0" / "ky"}
    assert find_language_folders(tmp_path, ("ca", "ky")) == expected
    faults = rf"^{tmp_path}: language 'es' is there 2 times \(.*\n{tmp_path}: no folder 'fr' of a .*release; found: ca$"
    with pytest.raises(DataError, match=faults):
        find_language_folders(tmp_path, ("ca", "es", "fr"))
    with pytest.raises(
        DataError, match="no such folder; --corpus is the folder of a Common Voice release"
    ):
        find_language_folders(tmp_path / "nowhere", ("ca",))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = tmp_path_factory.mktemp("release")
    make_release(corpus)
    return corpus


def make_release(corpus: Path, **how: Any) -> None:
    """Speakers and sentences are shared as in a real release: a few speakers read most."""
    rng = random.Random(0)
    for lang, duration_s in (("ca", 67.5), ("tr", 22.5)):  # 3 h and 1 h
        draws = [(rng.randrange(106), int(20 * rng.random() ** 3)) for _ in range(NUM_CLIPS)]
        rows = [
            Row(
                f"common_voice_{lang}_{number}.mp3",
                f"Sentence {sentence}, {lang}.",
                f"{lang}-{speaker}",
                duration_s,
            )
            for number, (sentence, speaker) in enumerate(draws)
        ]
        write_language(corpus / lang, rows, **how)


def prepare(corpus: Path, out: Path, more: str = "--ratio 0.3") -> dict[str, Any]:
    return commonvoice.prepare(parse_prepare(line_of(corpus, more) + f" --out {out}"))


def line_of(corpus: Path, more: str) -> str:
    return (
        f"commonvoice --corpus {corpus} --langs 'ca tr' --check_audio exists --num_workers 0 {more}"
    )


def contents(out: Path) -> dict[str, bytes]:
    """The lists, rejected.tsv, implausible.tsv and stats.json, and nothing else but the cache of
    checks.
    """
    found = {
        str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()
    }
    del found[".checked_clips.jsonl"]
    assert len(found) == 3 * 2 + 3
    return found


def test_lists_are_made_without_the_clips(release: Path, tmp_path: Path) -> None:
    make_release(tmp_path / "cv", clips="none")
    with pytest.raises(DataError, match=r"320 clips cannot be used \(missing \d+\); put the audio"):
        prepare(tmp_path / "cv", tmp_path / "out")
    stats = prepare(tmp_path / "cv", tmp_path / "out", "--ratio 0.3 --check_audio none")
    prepare(release, tmp_path / "whole")
    pairs = zip(
        read_lists(tmp_path / "out").values(), read_lists(tmp_path / "whole").values(), strict=True
    )
    for found, expected in pairs:
        assert [(u.key, u.duration) for u in found] == [(u.key, u.duration) for u in expected]
    assert stats["langs"].keys() == {"ca", "tr"}


def statistics(**changes: Any) -> str:
    """Statistics of two languages: 400 clips of 9 s and 100 clips of 9 s."""
    ca = {"validDurationSecs": 3600.0, "buckets": {"validated": 400, "test": 20}}
    tr = {"validDurationSecs": 900.0, "buckets": {"validated": 100, "test": 30}}
    return json.dumps({"locales": {"ca": ca | changes, "tr": tr}})


def test_official_statistics_by_hand(tmp_path: Path) -> None:
    (tmp_path / "cv.json").write_text(statistics())
    found = read_statistics(tmp_path / "cv.json", ["ca", "tr"])
    assert found == {"ca": (1.0, 9 / 3600, 400, 20), "tr": (0.25, 9 / 3600, 100, 30)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[]",
            "cv.json: not the statistics of a Common Voice release: expected a JSON object with 'locales'; give",
        ),
        ('{"locales": {"ca": {}}}', "cv.json: contains no language tr; found: ca"),
        (
            statistics(buckets={"validated": 0, "test": 0}),
            "cv.json: language ca: ZeroDivisionError",
        ),
        (
            statistics(validDurationSecs=-1),
            "language ca: -0.000277778 hours of audio; leave it out of --langs",
        ),
    ],
)
def test_faulty_statistics_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "cv.json").write_text(content)
    with pytest.raises((DataError, ConfigError), match=re.escape(message)):
        found = read_statistics(tmp_path / "cv.json", ["ca", "tr"])
        sampling_ratios({lang: hours for lang, (hours, *_) in found.items()})


FULL = "--ratio 0.3 --check_audio full"


def test_every_clip_is_in_one_list_or_rejected_and_faulty_clips_are_replaced(
    release: Path, tmp_path: Path
) -> None:
    stats = prepare(release, tmp_path, f"{FULL} --max_rejected 1")
    sets = read_lists(tmp_path)
    kept = [u.wav for utterances in sets.values() for u in utterances]
    rejected = [
        line.split("\t")[1]
        for line in (tmp_path / "rejected.tsv").read_text("utf-8").splitlines()[1:]
    ]
    assert sorted(kept + rejected) == sorted(map(str, release.glob("*/clips/*")))
    assert stats["num_in"] == 2 * NUM_CLIPS
    assert not any(wav.endswith("9.mp3") for wav in kept)
    assert stats["total"]["rejected"].keys() == {"silent"}
    for of_lang in stats["langs"].values():
        clip_h = of_lang["hours_before"] / NUM_CLIPS
        assert abs(of_lang["hours"]["train"] - of_lang["hours_wanted"]) <= clip_h / 2 + 1e-3
    for first, second in combinations(sets, 2):
        assert not {u.speaker for u in sets[first]} & {u.speaker for u in sets[second]}
        assert not {(u.lang, u.txt) for u in sets[first]} & {(u.lang, u.txt) for u in sets[second]}
        assert stats["total"]["in_both"][f"{first}-{second}"] == {"speakers": 0, "sentences": 0}


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(release: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in release.rglob("*")}
    prepare(release, tmp_path / "a", FULL)
    first = contents(tmp_path / "a")
    assert {path: path.stat().st_mtime_ns for path in release.rglob("*")} == before
    prepare(release, tmp_path / "a", FULL)
    prepare(release, tmp_path / "b", f"{FULL} --num_workers 2")
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == first
    prepare(release, tmp_path / "c", "--ratio 0.3 --seed 1")
    assert contents(tmp_path / "c")["train/data.list"] != first["train/data.list"]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_killed_run_is_finished_by_the_next(release: Path, tmp_path: Path) -> None:
    prepare(release, tmp_path / "whole", FULL)
    calls = count()

    def die_in(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: (
            os._exit(9) if next(calls) >= 60 else function(*arguments, **named)
        )

    pid = os.fork()
    if pid == 0:
        audio_check.check_clip, os.fsync = die_in(audio_check.check_clip), die_in(os.fsync)
        try:
            prepare(release, tmp_path / "out", FULL)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert not (tmp_path / "out" / "stats.json").exists()
    prepare(release, tmp_path / "out", FULL)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_sizes_on_request(release: Path, tmp_path: Path) -> None:
    stats = prepare(release, tmp_path, "--hours 1 --alpha 1 --max_test 9 --dev_utterances 7")
    assert stats["langs"]["ca"]["hours_wanted"] == pytest.approx(0.75)
    assert stats["total"]["hours"]["train"] == pytest.approx(1.0, abs=0.02)
    assert (
        stats["langs"]["ca"]["utterances"]["test"],
        stats["langs"]["ca"]["utterances"]["dev"],
    ) == (9, 7)
    stats = prepare(release, tmp_path, "--dev_utterances 0")
    assert (
        "dev" not in stats["total"]["utterances"] and not (tmp_path / "dev" / "data.list").exists()
    )


def test_fewer_test_clips_than_wanted_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 40 clips 4 are wanted; the sentence that 25 speakers read stays in the training set."""
    rows = [
        Row(f"{n}.flac", f"Sentence {chr(97 + max(0, n - 24))}.", f"voice{n}", 36.0)
        for n in range(40)
    ]
    write_language(tmp_path / "cv" / "ca", rows)
    stats = prepare(tmp_path / "cv", tmp_path / "out", "--langs ca --ratio 1 --dev_utterances 0")
    of_lang = stats["langs"]["ca"]
    obtained = of_lang["utterances"]["test"]
    assert of_lang["test_wanted"] == 4 and 0 < obtained < 4
    message = f"ca: {obtained} of 4 test clips; the others would put their sentence into the training set, or are faulty"
    assert f"{message} (rejected.tsv)" in caplog.text
    print_statistics(stats)
    header, row, _ = capsys.readouterr().out.splitlines()[1:4]
    assert header.split()[:6] == ["language", "before", "λ", "wanted", "test", "wanted"]
    assert row.split()[6] == "4"
    caplog.clear()
    prepare(
        tmp_path / "cv", tmp_path / "out", "--langs ca --ratio 1 --dev_utterances 0 --max_test 1"
    )
    assert "test clips" not in caplog.text


def test_a_release_without_durations_is_probed_and_one_without_clips_is_refused(
    tmp_path: Path,
) -> None:
    make_release(tmp_path / "cv", durations=False)
    ca = prepare(tmp_path / "cv", tmp_path / "out", "--langs ca --ratio 0.5")["langs"]["ca"]
    assert ca["hours_before"] == pytest.approx(144 * 2.0 / 3600, abs=1e-5)
    assert ca["rejected"] == {"unreadable": 16}
    assert {u.duration for u in read_lists(tmp_path / "out")["train"]} == {2.0}
    write_table(tmp_path / "cv" / "ca" / "validated.tsv", [Row("c.mp3", "...", "a", 1.0)])
    with pytest.raises(
        DataError,
        match=r"no clip of .* \(empty transcript after normalisation 1\); leave ca out of",
    ):
        prepare(tmp_path / "cv", tmp_path / "out", "--langs ca")


def test_released_sets_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "cv" / "ca"
    rows = [Row(f"simulated_{n}.flac", f"Frase {n}", f"voice{n % 4}", 36.0) for n in range(100)]
    write_language(folder, rows)
    for name, of_set in {
        "train": [*rows[:80], rows[99]],
        "dev": rows[80:90],
        "test": rows[90:],
    }.items():
        write_table(folder / f"{name}.tsv", of_set)
    released = "--langs ca --split released --alpha 1"
    stats = prepare(tmp_path / "cv", tmp_path / "out", f"{released} --ratio 1")["langs"]["ca"]
    assert stats["utterances"] == {"train": 80, "dev": 10, "test": 10}
    assert {u.key for u in read_lists(tmp_path / "out")["test"]} == {
        f"ca_simulated_{n}" for n in range(90, 100)
    }
    assert stats["in_both"]["train-test"] == {"speakers": 4, "sentences": 0}
    assert stats["rejected"] == {"repeated": 1}
    half = prepare(tmp_path / "cv", tmp_path / "out", f"{released} --ratio 0.5")["langs"]["ca"]
    assert half["utterances"] == {"train": 40, "dev": 10, "test": 10}


def write_release(corpus: Path, sizes: Mapping[str, int], lang: str = "ca") -> None:
    """A language whose released sets have these sizes."""
    rows = [Row(f"{lang}_{n}.flac", f"Frase {n}", f"voice{n % 9}", 36.0) for n in range(60)]
    write_language(corpus / lang, rows)
    first = 0
    for name, size in sizes.items():
        write_table(corpus / lang / f"{name}.tsv", rows[first : first + size])
        first += size


@pytest.mark.parametrize("name", ["train", "dev", "test"])
def test_a_released_set_without_rows_is_named_with_what_works(tmp_path: Path, name: str) -> None:
    corpus = tmp_path / "cv"
    sizes = {"train": 40, "dev": 10, "test": 10}
    write_release(corpus, {**sizes, name: 0})
    flags = "--langs ca --split released --ratio 1"
    with pytest.raises(DataError) as caught:
        prepare(corpus, tmp_path / "out", flags)
    without_dev = "leave the dev set out with --dev_utterances 0, or " if name == "dev" else ""
    assert str(caught.value) == (
        f"{corpus / 'ca' / name}.tsv: no row, so no utterance is left for the {name} set; "
        f"{without_dev}divide validated.tsv with --split paper"
    )
    total = prepare(corpus, tmp_path / "out", "--langs ca --split paper --ratio 1")["total"]
    assert all(total["utterances"].values())
    if name == "dev":
        total = prepare(corpus, tmp_path / "out", f"{flags} --dev_utterances 0")["total"]
        assert total["utterances"] == {"train": 40, "test": 10}
    write_release(corpus, sizes, lang="ky")
    total = prepare(corpus, tmp_path / "out", flags.replace("ca", "ky"))["total"]
    assert total["utterances"] == sizes, "another language has rows"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--langs ''", "--langs: no language named; name at least one"),
        ("--langs 'ca ca'", "--langs: ca named twice; name each language once"),
        ("--test_fraction 1", "--test_fraction 1: must be between 0 and 1; the paper uses 0.1"),
        ("--max_test 0", "--max_test 0: must be at least 1"),
        ("--dev_utterances -1", "--dev_utterances -1: must be at least 0"),
        ("--alpha 2", "--alpha 2: must be between 0 and 1; the paper uses 0.5"),
        ("--ratio 0", "--ratio 0: must be above 0 and at most 1; the paper uses 0.082"),
        (
            "--hours 500",
            "--hours 500: must be above 0 and at most 4.00, the hours of all languages",
        ),
    ],
)
def test_impossible_flags_are_refused(
    release: Path, tmp_path: Path, more: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        prepare(release, tmp_path, more)
