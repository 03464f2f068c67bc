# SPDX-License-Identifier: Apache-2.0
"""A simulated corpus from sentences to lists."""

import argparse
import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from wenet_hs.corpus import espeak, synthetic
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import read_data_list, read_text

WORDS = {
    "es": "casa perro gato lago cielo mesa silla libro verde rojo",
    "it": "casa cane gatto lago cielo tavolo libro rosso",
}


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """Twelve short sentences a language, an empty line and a repetition."""
    folder = tmp_path / "sentences"
    folder.mkdir()
    for lang, words in WORDS.items():
        chosen = words.split()
        lines = [f"{chosen[n % len(chosen)]} {chosen[(n * 3 + n // 8 + 1) % len(chosen)]}." for n in range(12)]
        assert len(set(lines)) == 12
        (folder / f"{lang}.txt").write_text("\n".join([*lines, "", lines[0].upper()]) + "\n", "utf-8")
    return folder


def arguments(sentences: Path, out: Path, more: str = "") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    synthetic.add_arguments(parser)
    line = f"--langs 'es it' --sentences {sentences} --out {out} --hours 0.01 --test_sentences 3 --dev_sentences 2"
    return parser.parse_args(shlex.split(f"{line} --num_workers 0 {more}"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_corpus_looks_like_a_release_of_common_voice(sentences: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    synthetic.run(arguments(sentences, out))
    for lang in WORDS:
        folder = out / "corpus" / lang
        header = (folder / "train.tsv").read_text("utf-8").split("\n")[0]
        assert header == (
            "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tlocale\tsegment"  # release 11
        )
        parts = {name: table(folder / f"{name}.tsv") for name in ("train", "dev", "test", "validated")}
        assert parts["validated"] == parts["train"] + parts["dev"] + parts["test"]
        assert (len(parts["dev"]), len(parts["test"])) == (2, 3)
        names = [row["path"] for row in parts["validated"]]
        assert sorted(names) == sorted(path.name for path in (folder / "clips").iterdir())
        durations = {row["clip"]: int(row["duration[ms]"]) for row in table(folder / "clip_durations.tsv")}
        for name in names:
            info = soundfile.info(folder / "clips" / name)
            assert (info.samplerate, info.channels) == (16000, 1)
            assert durations[name] == pytest.approx(1000 * info.duration, abs=0.51)
        for row in parts["validated"]:
            assert row["locale"] == lang and row["client_id"].startswith(f"{lang}-")
            assert row["gender"] in ("male", "female") and row["accents"] == "simulated"


def test_no_sentence_and_no_voice_of_dev_and_test_is_in_training(sentences: Path, tmp_path: Path) -> None:
    synthetic.run(arguments(sentences, tmp_path / "out"))
    lists = {part: read_data_list(tmp_path / "out" / part / "data.list") for part in ("train", "dev", "test")}
    for lang in WORDS:
        of = {part: [u for u in utterances if u.lang == lang] for part, utterances in lists.items()}
        said = {part: {u.txt for u in utterances} for part, utterances in of.items()}
        assert len(said["train"]) == 7  # each of them, though the hours need more clips than that
        assert not said["train"] & said["test"] and not said["train"] & said["dev"] and not said["dev"] & said["test"]
        held_out = {u.speaker for part in ("dev", "test") for u in of[part]}
        assert held_out.isdisjoint(u.speaker for u in of["train"])
        by_sentence = [[u.speaker for u in of["train"] if u.txt == sentence] for sentence in said["train"]]
        assert all(len(speakers) == len(set(speakers)) for speakers in by_sentence)
        times = [len(speakers) for speakers in by_sentence]
        assert min(times) >= 1 and max(times) - min(times) <= 1  # in turn


def test_lists_and_statistics(sentences: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    returned = synthetic.run(arguments(sentences, out))
    stats = json.loads((out / "stats.json").read_text("utf-8"))
    assert stats == {"format": stats["format"], **json.loads(json.dumps(returned))}
    assert stats["simulated"] is True and stats["engine"].startswith("espeak-ng 1.") and "simulated" in stats["corpus"]
    train = read_data_list(out / "train" / "data.list")
    text = read_text(out / "train" / "text")
    assert {u.key: u.txt for u in train} == text and all(Path(u.wav).is_file() for u in train)
    for lang in WORDS:  # as long as asked, to the clip that fills it up
        durations = [u.duration or 0.0 for u in train if u.lang == lang]
        assert 18.0 <= sum(durations) < 18.0 + max(durations)
        of_lang = stats["langs"][lang]
        assert of_lang["left_out"] == {"duplicate": 1, "empty line": 1} and of_lang["rejected"] == {}
        assert of_lang["sentences"] == {"train": 7, "train_unused": 0}
        assert of_lang["hours"]["train"] == pytest.approx(sum(durations) / 3600, abs=1e-4)
    rejected = table(out / "rejected.tsv")
    assert [row["key"] for row in rejected] == ["es:es.txt:13", "es:es.txt:14", "it:it.txt:13", "it:it.txt:14"]
    assert rejected[1]["reason"] == "duplicate: the same sentence stands on line 1"


def test_workers_and_interruptions_change_nothing(sentences: Path, tmp_path: Path) -> None:
    """A run with two processes that was killed before and goes on, against one undisturbed run in one process."""
    out = tmp_path / "out"
    synthetic.run(arguments(sentences, out))
    expected = files(out)
    clips = sorted((out / "corpus" / "es" / "clips").iterdir())
    for path in clips[::2]:
        path.unlink()
    (out / "stats.json").unlink()
    kept = {path: path.stat().st_mtime_ns for path in clips[1::2]}
    (clips[0].parent / ".simulated_0.flac.1.tmp").write_bytes(b"half a clip")
    (clips[0].parent / "simulated_0.flac").write_bytes(b"a clip of an earlier request")
    (clips[0].parent / "notes.txt").write_bytes(b"not ours")
    synthetic.run(arguments(sentences, out, "--num_workers 2"))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert files(out) == expected | {"corpus/es/clips/notes.txt": b"not ours"}


def test_more_hours_keep_the_clips_there_are(sentences: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    synthetic.run(arguments(sentences, out, "--hours 0.005"))
    before = files(out / "corpus" / "it" / "clips")
    synthetic.run(arguments(sentences, out, "--hours 0.01"))
    after = files(out / "corpus" / "it" / "clips")
    assert before.items() < after.items()


def test_another_seed_is_another_corpus(sentences: Path, tmp_path: Path) -> None:
    synthetic.run(arguments(sentences, tmp_path / "a", "--hours 0.003"))
    synthetic.run(arguments(sentences, tmp_path / "b", "--hours 0.003 --seed 5"))
    assert set(files(tmp_path / "a" / "corpus" / "it" / "clips")).isdisjoint(
        files(tmp_path / "b" / "corpus" / "it" / "clips")
    )


def test_few_hours_are_warned_of(sentences: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stats = synthetic.run(arguments(sentences, tmp_path / "out", "--hours 0.001"))
    used = stats["langs"]["es"]["sentences"]["train"]
    assert f"es: only {used} of 7 training sentences are spoken; more --hours would use them all" in caplog.text


def test_silent_sentences_are_rejected_and_the_hours_reached_without_them(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak = espeak.speak
    lines = (sentences / "es.txt").read_text("utf-8").split("\n")[:12]

    def without_some(text: str, **kwargs: Any) -> np.ndarray:
        return np.zeros(100, np.float32) if text in lines[::3] else speak(text, **kwargs)

    monkeypatch.setattr(espeak, "speak", without_some)
    stats = synthetic.run(arguments(sentences, tmp_path / "out"))
    assert stats["langs"]["es"]["rejected"] == {"silent": 4}
    reasons = [row["reason"] for row in table(tmp_path / "out" / "rejected.tsv")]
    assert sorted(reason for reason in reasons if reason.startswith("silent")) == sorted(
        f"silent: espeak-ng gives no sound for it: {line}" for line in lines[::3]
    )
    assert stats["langs"]["es"]["hours"]["train"] >= 0.005


def test_a_language_without_any_sound_is_a_fault(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(espeak, "speak", lambda *_, **__: np.zeros(100, np.float32))
    with pytest.raises(DataError, match=r"^es: espeak-ng gives no sound for any dev sentence, such as '\w+ \w+\.'$"):
        synthetic.run(arguments(sentences, tmp_path / "out"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--langs ''", "^--langs: no language named; give codes of espeak-ng"),
        ("--langs 'es it es'", "^--langs: es named twice"),
        ("--hours 0", "^--hours 0: must be above 0"),
        ("--hours nan", "^--hours nan: must be above 0"),
        ("--num_workers -1", "^--num_workers -1: must be at least 0"),
        ("--test_sentences 0", "^--test_sentences 0: must be at least 1"),
        ("--dev_sentences 0", "^--dev_sentences 0: must be at least 1"),
        ("--test_repeats 0", "^--test_repeats 0: must be at least 1"),
        ("--test_voices 99", "^--test_voices: 99 of 24 voices"),
        ("--noise_snr 15", "^--noise_snr '15': expected two numbers in dB"),
        ("--noise_snr '40 15'", "^--noise_snr '40 15': the first number must be the smaller"),
    ],
)
def test_impossible_options(sentences: Path, tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        synthetic.run(arguments(sentences, tmp_path / "out", more))


def test_faults_of_languages_and_sentences_come_before_any_work(sentences: Path, tmp_path: Path) -> None:
    for more, message in (
        ("--langs 'es spa'", "it has no language 'spa'; near ones are"),
        ("--langs 'es ru'", r"ru\.txt: no such file"),
        ("--test_sentences 10", "12 different sentences of 'es', but 10 for test and 2 for dev leave none to train on"),
    ):
        with pytest.raises(DataError, match=message):
            synthetic.run(arguments(sentences, tmp_path / "out", more))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_real_sentences_of_every_language_of_the_paper(shared_dir: Path, tmp_path: Path) -> None:
    langs = "ca es fr it pt be cs pl ru uk ba ky tr tt uz"
    folder = shared_dir / "data" / "cv_sentences"
    args = arguments(folder, tmp_path, f"--langs '{langs}' --hours 0.05 --num_workers 2")
    stats = synthetic.run(args)
    assert list(stats["langs"]) == langs.split()
    for of_lang in stats["langs"].values():
        assert of_lang["hours"]["train"] == pytest.approx(0.05 / 15, abs=0.003) and not of_lang["rejected"]
        assert all(not shared["sentences"] for shared in of_lang["in_both"].values())
