# SPDX-License-Identifier: Apache-2.0
"""Common Voice on made-up releases: Table 1, disjoint sets, repeatable bytes, nothing lost."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from made_up_release import OFFICIAL_HOURS, Row, make_rows, write_language, write_table

from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.corpus.commonvoice import CommonVoiceOptions, prepare_commonvoice
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance, read_data_list

FILES = ["dev/data.list", "dev/text", "rejected.tsv", "stats.json", "test/data.list", "test/text", "train/data.list",
         "train/text"]  # fmt: skip


def check(path: Path, expected_duration_s: float | None) -> str | None:
    """Each clip whose number ends with 9 is silent."""
    return "silent" if path.stem.endswith("9") else None


def probe(path: Path) -> float:
    if path.stem.endswith("8"):
        raise DataError(f"{path}: not audio")
    return 2.0


def prepare(
    options: CommonVoiceOptions, *, mode: Literal["full", "exists"] = "exists", num_workers: int = 0
) -> dict[str, Any]:
    cache = options.out / ".checked.jsonl"
    checker = ClipChecker(cache, mode=mode, num_workers=num_workers, check=check, probe=probe)
    return prepare_commonvoice(options, checker)


def make_release(corpus: Path, sizes: dict[str, float], num_clips: int, **how: Any) -> None:
    for lang, hours in sizes.items():
        rows = make_rows(lang, num_clips, hours, num_speakers=num_clips // 8, num_sentences=num_clips * 2 // 3)
        write_language(corpus / lang, rows, **how)


def read(out: Path) -> dict[str, list[Utterance]]:
    return {name: read_data_list(out / name / "data.list") for name in ("train", "dev", "test")}


def contents(out: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    found.pop(".checked.jsonl", None)
    assert sorted(found) == FILES
    return found


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = tmp_path_factory.mktemp("release")
    make_release(corpus, {"ca": 3.0, "tr": 1.0}, 600)
    return corpus


def options_for(release: Path, out: Path, **changes: Any) -> CommonVoiceOptions:
    return replace(CommonVoiceOptions(corpus=release, langs=("ca", "tr"), out=out, ratio=0.3), **changes)


def test_the_official_hours_give_table_1(tmp_path: Path) -> None:
    num_clips = 250
    make_release(tmp_path / "cv", OFFICIAL_HOURS, num_clips)
    stats = prepare(CommonVoiceOptions(corpus=tmp_path / "cv", langs=tuple(OFFICIAL_HOURS), out=tmp_path / "out"))
    wanted = {lang: round(of_lang["hours_wanted"], 1) for lang, of_lang in stats["langs"].items()}
    assert wanted == pytest.approx(
        {"ca": 77.7, "es": 38.3, "fr": 56.8, "it": 34.1, "pt": 21.1, "be": 64.2, "cs": 14.5, "pl": 23.4,
         "ru": 25.3, "uk": 16.1, "ba": 30.2, "ky": 11.6, "tr": 17.2, "tt": 10.3, "uz": 18.6}, abs=0.11
    )  # fmt: skip
    for lang, hours in OFFICIAL_HOURS.items():
        of_lang = stats["langs"][lang]
        assert of_lang["hours_before"] == pytest.approx(hours, rel=1e-3)
        assert of_lang["lambda"] == pytest.approx(of_lang["hours_wanted"] / hours, rel=1e-3)
        # To the nearest clip; and a clip of this release is long.
        assert abs(of_lang["hours"]["train"] - of_lang["hours_wanted"]) <= hours / num_clips / 2 + 1e-3
        assert of_lang["utterances"]["test"] == num_clips // 10
        assert of_lang["in_both"]["train-test"] == {"speakers": 0, "sentences": 0}


@pytest.mark.slow
def test_the_official_hours_give_table_1_to_a_tenth_of_an_hour(tmp_path: Path) -> None:
    make_release(tmp_path / "cv", OFFICIAL_HOURS, 10_000)
    stats = prepare(CommonVoiceOptions(corpus=tmp_path / "cv", langs=tuple(OFFICIAL_HOURS), out=tmp_path / "out"))
    train = {lang: of_lang["hours"]["train"] for lang, of_lang in stats["langs"].items()}
    assert train == pytest.approx(
        {"ca": 77.7, "es": 38.3, "fr": 56.8, "it": 34.1, "pt": 21.1, "be": 64.2, "cs": 14.5, "pl": 23.4,
         "ru": 25.3, "uk": 16.1, "ba": 30.2, "ky": 11.6, "tr": 17.2, "tt": 10.3, "uz": 18.6}, abs=0.2
    )  # fmt: skip


def test_no_speaker_and_no_sentence_is_in_two_sets(release: Path, tmp_path: Path) -> None:
    stats = prepare(options_for(release, tmp_path))
    sets = read(tmp_path)
    for first, second in (("train", "test"), ("train", "dev"), ("dev", "test")):
        assert not {u.speaker for u in sets[first]} & {u.speaker for u in sets[second]}
        assert not {(u.lang, u.txt) for u in sets[first]} & {(u.lang, u.txt) for u in sets[second]}
        assert stats["total"]["in_both"][f"{first}-{second}"] == {"speakers": 0, "sentences": 0}
    for lang in ("ca", "tr"):
        assert sum(u.lang == lang for u in sets["test"]) == 60
        assert stats["langs"][lang]["utterances"]["dev"] >= 1


def test_every_clip_is_in_a_list_or_rejected(release: Path, tmp_path: Path) -> None:
    stats = prepare(options_for(release, tmp_path, max_rejected=1.0), mode="full")
    kept = {u.wav for utterances in read(tmp_path).values() for u in utterances}
    lines = [line.split("\t") for line in (tmp_path / "rejected.tsv").read_text("utf-8").splitlines()[1:]]
    rejected = {path for _, path, _ in lines}
    everything = {str(path) for lang in ("ca", "tr") for path in (release / lang / "clips").iterdir()}
    assert kept | rejected == everything
    assert not kept & rejected
    assert len(kept) + len(lines) == stats["num_in"] == 1200
    assert not any(wav.endswith("9.mp3") for wav in kept)
    assert stats["total"]["rejected"].keys() == {"silent"}
    first_sound = next(place for place, line in enumerate(lines) if line[2] != "silent")
    assert all(line[2] != "silent" for line in lines[first_sound:])  # what is faulty stands first


def test_a_faulty_clip_is_replaced_up_to_the_hours(release: Path, tmp_path: Path) -> None:
    stats = prepare(options_for(release, tmp_path, max_rejected=1.0), mode="full")
    for of_lang in stats["langs"].values():
        clip_h = of_lang["hours_before"] / 600
        assert abs(of_lang["hours"]["train"] - of_lang["hours_wanted"]) <= clip_h / 2 + 1e-3


def test_the_same_input_gives_the_same_bytes(release: Path, tmp_path: Path) -> None:
    prepare(options_for(release, tmp_path / "a"), mode="full")
    first = contents(tmp_path / "a")
    prepare(options_for(release, tmp_path / "a"), mode="full", num_workers=2)
    assert contents(tmp_path / "a") == first
    prepare(options_for(release, tmp_path / "b"), mode="full", num_workers=2)
    assert contents(tmp_path / "b") == first
    prepare(options_for(release, tmp_path / "c", seed=1), mode="full")
    assert contents(tmp_path / "c")["train/data.list"] != first["train/data.list"]


def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    rows = make_rows("ca", 200, 1.0, num_speakers=40, num_sentences=150)
    for name, ordered in (("a", rows), ("b", rows[::-1])):
        write_language(tmp_path / "cv" / "ca", ordered)
        prepare(CommonVoiceOptions(corpus=tmp_path / "cv", langs=("ca",), out=tmp_path / name, ratio=0.3))
    for file in ("train/data.list", "dev/data.list", "test/data.list"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_commonvoice as tests
from wenet_hs import files
calls = 0
def dying(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls > int(sys.argv[4]):
            os._exit(9)
        return function(*args, **kwargs)
    return call
files.os.fsync = dying(os.fsync)
tests.check = dying(tests.check)
tests.prepare(tests.options_for(Path(sys.argv[2]), Path(sys.argv[3])), mode="full")
"""


@pytest.mark.parametrize("num_calls", [300, pytest.param(600, marks=pytest.mark.slow)])
def test_a_killed_run_is_finished_by_the_next(release: Path, tmp_path: Path, num_calls: int) -> None:
    prepare(options_for(release, tmp_path / "whole"), mode="full")
    arguments = [str(Path(__file__).parent), str(release), str(tmp_path / "out"), str(num_calls)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True)
    assert killed.returncode == 9, killed.stderr.decode()
    assert not (tmp_path / "out" / "stats.json").exists()
    prepare(options_for(release, tmp_path / "out"), mode="full")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_hours_may_be_asked_for(release: Path, tmp_path: Path) -> None:
    stats = prepare(options_for(release, tmp_path, hours=1.0, alpha=1.0))
    assert stats["langs"]["ca"]["hours_wanted"] == pytest.approx(0.75)
    assert stats["total"]["hours"]["train"] == pytest.approx(1.0, abs=0.01)


def test_a_release_without_durations_is_probed(tmp_path: Path) -> None:
    make_release(tmp_path / "cv", {"ca": 1.0}, 100, durations=False)
    stats = prepare(CommonVoiceOptions(corpus=tmp_path / "cv", langs=("ca",), out=tmp_path / "out", ratio=0.5))
    assert stats["langs"]["ca"]["hours_before"] == pytest.approx(90 * 2.0 / 3600, abs=1e-5)
    assert stats["langs"]["ca"]["rejected"] == {"unreadable": 10}
    assert {u.duration for u in read(tmp_path / "out")["train"]} == {2.0}


def test_the_test_set_is_the_lesser_of_both(release: Path, tmp_path: Path) -> None:
    stats = prepare(options_for(release, tmp_path, max_test=25, dev_utterances=7))
    assert stats["langs"]["ca"]["utterances"]["test"] == 25
    assert stats["langs"]["ca"]["utterances"]["dev"] == 7


def test_no_dev_set_is_made_when_none_is_wanted(release: Path, tmp_path: Path) -> None:
    stats = prepare(options_for(release, tmp_path, dev_utterances=0))
    assert "dev" not in stats["total"]["utterances"]
    assert not (tmp_path / "dev").exists()


def test_released_sets_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "cv" / "ca"
    rows = [Row(f"simulated_{n}.flac", f"Frase {n}", f"voice{n % 4}", 36.0) for n in range(100)]
    write_language(folder, rows)
    write_table(folder / "train.tsv", [*rows[:80], rows[99]])
    write_table(folder / "dev.tsv", rows[80:90])
    write_table(folder / "test.tsv", rows[90:])
    options = CommonVoiceOptions(
        corpus=tmp_path / "cv", langs=("ca",), out=tmp_path / "out", split="released", alpha=1.0, ratio=1.0
    )
    stats = prepare(options)
    sets = read(tmp_path / "out")
    assert [len(sets[name]) for name in ("train", "dev", "test")] == [80, 10, 10]
    assert {u.key for u in sets["test"]} == {f"ca_simulated_{n}" for n in range(90, 100)}
    assert stats["langs"]["ca"]["in_both"]["train-test"] == {"speakers": 4, "sentences": 0}
    assert stats["langs"]["ca"]["rejected"] == {"repeated": 1}
    stats = prepare(replace(options, ratio=0.5))
    assert stats["langs"]["ca"]["utterances"] == {"train": 40, "dev": 10, "test": 10}


def test_nothing_is_written_into_the_corpus(release: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in release.rglob("*")}
    prepare(options_for(release, tmp_path), mode="full")
    assert {path: path.stat().st_mtime_ns for path in release.rglob("*")} == before


def test_a_corpus_with_too_many_faults_is_refused(release: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rejected\.tsv: \d+ of 1200 clips cannot be used \(silent \d+\); repair the"):
        prepare(options_for(release, tmp_path, max_rejected=0.001), mode="full")
    assert (tmp_path / "rejected.tsv").exists()
    assert not (tmp_path / "stats.json").exists()


def test_a_language_without_a_usable_clip_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "ca" / "validated.tsv", [Row("c.mp3", "...", "a", 1.0)])
    message = "no clip of this language can be used (empty transcript after normalisation 1); leave ca out of --langs"
    with pytest.raises(DataError, match=re.escape(message)):
        prepare(CommonVoiceOptions(corpus=tmp_path, langs=("ca",), out=tmp_path / "out"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"langs": ()}, '--langs: no language named; name at least one, such as --langs "ca es"'),
        ({"langs": ("ca", "ca")}, "--langs: ca named twice; name each language once"),
        ({"test_fraction": 1.0}, "--test_fraction 1: must be between 0 and 1; the paper uses 0.1"),
        ({"max_test": 0}, "--max_test 0: must be at least 1"),
        ({"dev_utterances": -1}, "--dev_utterances -1: must be at least 0"),
        ({"alpha": 2.0}, "--alpha 2: must be between 0 and 1"),
        ({"hours": 500.0}, "--hours 500: the languages have 4.00 hours together; ask for at most that"),
    ],
)
def test_impossible_options_are_refused(release: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        prepare(options_for(release, tmp_path, **changes))
