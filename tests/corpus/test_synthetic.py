# SPDX-License-Identifier: Apache-2.0
"""A simulated corpus from sentences to lists."""

import csv
import json
from collections import Counter
from functools import partial
from itertools import combinations, islice
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_release import HEADER_11
from prepared import parse_prepare, read_lists

from wenet_hs.corpus import espeak, synthetic
from wenet_hs.corpus.espeak import voice_name
from wenet_hs.corpus.synthetic import VOICES, choose_voices, draw_sentences, read_sentence_lists
from wenet_hs.tree.errors import ConfigError, DataError

WORDS = {"es": "casa perro gato lago cielo mesa", "it": "casa cane gatto lago cielo tavolo"}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve short sentences per language, an empty line and a repetition."""
    folder = tmp_path_factory.mktemp("sentences")
    for lang, words in WORDS.items():
        lines = [
            f"{first} {second}." for first, second in islice(combinations(words.split(), 2), 12)
        ]
        (folder / f"{lang}.txt").write_text(
            "\n".join([*lines, "", lines[0].upper()]) + "\n", "utf-8"
        )
    return folder


@pytest.fixture(scope="module")
def out(sentences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    synthetic.prepare(arguments(sentences, folder))
    return folder


def arguments(sentences: Path, out: Path, more: str = "") -> synthetic.SyntheticOptions:
    line = f"synthetic --langs 'es it' --sentences {sentences} --out {out} --hours 0.005 --num_workers 0"
    return parse_prepare(f"{line} --test_sentences 3 --dev_sentences 2 {more}")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_corpus_has_the_layout_of_common_voice(out: Path) -> None:
    for lang in WORDS:
        folder = out / "corpus" / lang
        assert (folder / "train.tsv").read_text("utf-8").split("\n")[0].split("\t") == list(
            HEADER_11
        )
        parts = {
            name: table(folder / f"{name}.tsv") for name in ("train", "dev", "test", "validated")
        }
        assert parts["validated"] == parts["train"] + parts["dev"] + parts["test"]
        assert (len(parts["dev"]), len(parts["test"])) == (2, 3)
        names = [row["path"] for row in parts["validated"]]
        assert sorted(names) == sorted(path.name for path in (folder / "clips").iterdir())
        durations = {
            row["clip"]: int(row["duration[ms]"]) for row in table(folder / "clip_durations.tsv")
        }
        for name in names:
            info = soundfile.info(folder / "clips" / name)
            assert (info.samplerate, info.channels) == (16000, 1)
            assert durations[name] == pytest.approx(1000 * info.duration, abs=0.51)
        for row in parts["validated"]:
            assert (row["locale"], row["accents"]) == (lang, "simulated")
            assert row["client_id"].startswith(f"{lang}-") and row["gender"] in ("male", "female")


def test_no_sentence_and_no_voice_of_dev_and_test_is_in_training(out: Path) -> None:
    lists = read_lists(out)
    for lang in WORDS:
        of = {part: [u for u in utterances if u.lang == lang] for part, utterances in lists.items()}
        held_out = of["dev"] + of["test"]
        assert (
            len({u.txt for u in held_out}) == 2 + 3
            and len({u.txt for u in held_out + of["train"]}) == 7 + 2 + 3
        )
        assert {u.speaker for u in held_out}.isdisjoint(u.speaker for u in of["train"])
        assert len({(u.speaker, u.txt) for u in of["train"]}) == len(of["train"])
        times = Counter(u.txt for u in of["train"]).values()
        assert len(times) == 7 and max(times) - min(times) <= 1, (
            "in turn; the hours need more clips than sentences"
        )


def test_lists_and_statistics(out: Path) -> None:
    stats = json.loads((out / "stats.json").read_text("utf-8"))
    assert (
        stats["simulated"] is True
        and stats["engine"].startswith("espeak-ng 1.")
        and "simulated" in stats["corpus"]
    )
    train = read_lists(out)["train"]
    assert all(Path(u.wav).is_file() for u in train)
    for lang in WORDS:  # as long as asked, to the clip that fills it up
        durations = [u.duration or 0.0 for u in train if u.lang == lang]
        assert 9.0 <= sum(durations) < 9.0 + max(durations)
        of_lang = stats["langs"][lang]
        assert (
            of_lang["left_out"] == {"duplicate": 1, "empty line": 1} and of_lang["rejected"] == {}
        )
        assert of_lang["sentences"] == {"train": 7, "train_unused": 0}
        assert of_lang["hours"]["train"] == pytest.approx(sum(durations) / 3600, abs=1e-4)
    rejected = table(out / "rejected.tsv")
    assert [row["key"] for row in rejected] == [
        "es:es.txt:13",
        "es:es.txt:14",
        "it:it.txt:13",
        "it:it.txt:14",
    ]
    assert rejected[1]["reason"] == "duplicate: the same sentence is on line 1"


@pytest.mark.slow
def test_workers_and_interruptions_change_nothing(sentences: Path, out: Path) -> None:
    """A killed run that continues with two processes gives the files of an undisturbed run in one
    process.
    """
    expected, folder = files(out), out / "corpus" / "es" / "clips"
    clips = sorted(folder.iterdir())
    for path in [*clips[::2], out / "stats.json"]:
        path.unlink()
    kept = {path: path.stat().st_mtime_ns for path in clips[1::2]}
    # An incomplete clip, one of an earlier request, and a file of somebody else.
    for name in (".simulated_0.flac.1.tmp", "simulated_0.flac", "notes.txt"):
        (folder / name).write_bytes(b"x")
    synthetic.prepare(arguments(sentences, out, "--num_workers 2"))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    (folder / "notes.txt").unlink()
    assert files(out) == expected


def test_more_hours_keep_clips(
    sentences: Path, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stats = synthetic.prepare(arguments(sentences, tmp_path, "--hours 0.002"))
    clips = Path("corpus", "it", "clips")
    assert files(tmp_path / clips).items() < files(out / clips).items()
    num_used = stats["langs"]["es"]["sentences"]["train"]
    assert (
        f"es: only {num_used} of 7 training sentences are spoken; more --hours would use them all"
        in caplog.text
    )
    synthetic.prepare(arguments(sentences, tmp_path, "--hours 0.002 --seed 5"))
    assert set(files(tmp_path / clips)).isdisjoint(files(out / clips))


def test_silent_sentences_are_replaced(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak, silent = espeak.speak, (sentences / "es.txt").read_text("utf-8").split("\n")[:12:3]
    no_sound = np.zeros(100, np.float32)
    monkeypatch.setattr(
        espeak, "speak", lambda text, **how: no_sound if text in silent else speak(text, **how)
    )
    es = synthetic.prepare(arguments(sentences, tmp_path / "out"))["langs"]["es"]
    assert es["rejected"] == {"silent": 4} and es["hours"]["train"] >= 0.0025
    reasons = {row["reason"] for row in table(tmp_path / "out" / "rejected.tsv")}
    assert {f"silent: espeak-ng gives no sound for it: {line}" for line in silent} <= reasons
    monkeypatch.setattr(espeak, "speak", lambda *_, **__: no_sound)
    with pytest.raises(
        DataError, match=r"^es: espeak-ng gives no sound for any sentence, such as '\w+ \w+\.'$"
    ):
        synthetic.prepare(arguments(sentences, tmp_path / "none"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--langs 'es spa'", "it has no language 'spa'; it has"),
        (
            "--test_sentences 10",
            "12 different sentences of 'es', but 10 for test and 2 for dev leave none to train on",
        ),
        ("--hours 0", "^--hours 0: must be above 0"),
        ("--test_sentences 0", "^--test_sentences 0: must be at least 1"),
        ("--dev_sentences 0", "^--dev_sentences 0: must be at least 1"),
        ("--test_repeats 0", "^--test_repeats 0: must be at least 1"),
        ("--test_voices 24", "^--test_voices: 24 of 24 voices; give 1 to 23"),
        ("--noise_snr 15", "^--noise_snr '15': expected two numbers in dB"),
        ("--noise_snr '40 15'", "^--noise_snr '40 15': the first number must be the smaller"),
    ],
)
def test_impossible_options_are_refused_first(
    sentences: Path, tmp_path: Path, more: str, message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        synthetic.prepare(arguments(sentences, tmp_path / "out", more))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_real_sentences_of_every_language_of_the_paper(shared_dir: Path, tmp_path: Path) -> None:
    langs = "ca es fr it pt be cs pl ru uk ba ky tr tt uz"
    folder = shared_dir / "data" / "cv_sentences"
    stats = synthetic.prepare(
        arguments(folder, tmp_path, f"--langs '{langs}' --hours 0.05 --num_workers 2")
    )
    assert list(stats["langs"]) == langs.split()
    for of_lang in stats["langs"].values():
        assert (
            of_lang["hours"]["train"] == pytest.approx(0.05 / 15, abs=0.003)
            and not of_lang["rejected"]
        )
        assert all(not shared["sentences"] for shared in of_lang["in_both"].values())


def test_lines_are_cleaned_and_every_one_left_out_is_named(tmp_path: Path) -> None:
    lines = (
        "\ufeffÁrbol\tviejo \u2028 y  alto\n\nHola!\n ¡HOLA!\n...\n—\nA\u0301rbol viejo, y alto\n"
    )
    (tmp_path / "es.txt").write_text(lines, "utf-8")
    (tmp_path / "it.txt").write_text("Ciao bella.\n", "utf-8")
    read = read_sentence_lists(tmp_path, ["it", "es"])
    assert list(read) == ["it", "es"] and read["it"].kept == ("Ciao bella.",)
    assert read["es"].kept == ("Árbol viejo y alto", "Hola!")
    assert [(line.key, line.reason, line.is_fault) for line in read["es"].rejected] == [
        ("es:es.txt:2", "empty line", False),
        ("es:es.txt:4", "duplicate: the same sentence is on line 3", False),
        ("es:es.txt:5", "no letter: ...", True),
        ("es:es.txt:6", "no letter: —", True),
        ("es:es.txt:7", "duplicate: the same sentence is on line 1", False),
    ]
    (tmp_path / "all.tsv").write_text("es\tHola.\n\nit\tCiao.\nfr\tSalut.\nes\tAdiós.\n", "utf-8")
    read = read_sentence_lists(tmp_path / "all.tsv", ["es", "it"])
    assert read["es"].kept == ("Hola.", "Adiós.") and read["it"].kept == ("Ciao.",)


@pytest.mark.parametrize(
    ("name", "content", "langs", "message"),
    [
        (
            "all.tsv",
            "es\tHola.\n",
            ["es", "pt"],
            r"all\.tsv: contains no sentence of 'pt'; add some, or drop the lang",
        ),
        (
            "all.tsv",
            "es\tHola.\nCiao.\n",
            ["es"],
            r"all\.tsv:2: no tab in 'Ciao\.'; write lang<TAB>sentence on each",
        ),
        (
            ".",
            "Hola.\n",
            ["es", "it"],
            r"it\.txt: no such file; write its sentences.*\(found: es\)",
        ),
        ("nowhere", "", ["es"], "nowhere: no such file or folder; give --sentences a folder"),
        (".", "\n...\n", ["es"], r"es\.txt: contains no sentence of 'es'"),
    ],
)
def test_faulty_sentences_are_named(
    tmp_path: Path, name: str, content: str, langs: list[str], message: str
) -> None:
    if content:
        (tmp_path / ("es.txt" if name == "." else name)).write_text(content, "utf-8")
    with pytest.raises(DataError, match=message):
        read_sentence_lists(tmp_path / name, langs)


SENTENCES = tuple(f"frase número {number}" for number in range(7))
TRAIN_VOICES, TEST_VOICES = choose_voices(2, seed=1)
draw = partial(draw_sentences, seed=1, lang="es", snr_db=(15.0, 40.0))


@settings(max_examples=25, deadline=None)
@given(num_test=st.integers(1, len(VOICES) - 1), seed=st.integers(0, 999))
def test_held_out_voices_are_not_in_training(num_test: int, seed: int) -> None:
    train, test = choose_voices(num_test, seed=seed)
    assert len(test) == num_test and sorted(train + test) == sorted(VOICES)
    assert (train, test) == choose_voices(num_test, seed=seed)
    assert num_test == 1 or {VOICES[voice] for voice in test} == {"male", "female"}


def test_training_repeats_all_sentences_with_another_voice_each_time() -> None:
    requests = list(islice(draw(SENTENCES, TRAIN_VOICES), len(TRAIN_VOICES) * len(SENTENCES)))
    assert tuple(request.sentence for request in requests) == SENTENCES * len(TRAIN_VOICES)
    assert len({(request.sentence, request.voice) for request in requests}) == len(requests)
    assert len(
        {(r.rate_wpm, r.pitch, r.pitch_range, r.snr_db, r.noise_seed) for r in requests}
    ) == len(requests)
    for request in requests:
        assert (
            140 <= request.rate_wpm <= 200
            and 30 <= request.pitch <= 70
            and 30 <= request.pitch_range <= 70
        )
        assert 0.05 <= request.lead_s <= 0.15 and 0.05 <= request.trail_s <= 0.15
        assert -15 <= request.peak_db <= -1 and 15 <= request.snr_db <= 40


def test_held_out_sentences_are_spoken_as_often_as_requested_wherever_they_are_in_the_list() -> (
    None
):
    once, twice = (
        list(islice(draw(SENTENCES, TEST_VOICES), rounds * len(SENTENCES))) for rounds in (1, 2)
    )
    assert tuple(request.sentence for request in once) == SENTENCES
    assert {request.voice for request in once} == set(TEST_VOICES)
    assert twice[: len(once)] == once and len(twice) == 2 * len(once)
    assert all(
        first.voice != second.voice
        for first, second in zip(twice, twice[len(once) :], strict=False)
    )
    assert once == list(islice(draw(SENTENCES[::-1], TEST_VOICES), len(SENTENCES)))[::-1]
    for change in ({"seed": 2}, {"lang": "it"}):
        others = {
            request.noise_seed
            for request in islice(draw(SENTENCES, TEST_VOICES, **change), len(SENTENCES))
        }
        assert others.isdisjoint(request.noise_seed for request in once)


@pytest.mark.slow
def test_every_voice_is_a_voice() -> None:
    """Not ignored, not clipped, not much slower or faster than espeak-ng's own."""
    for lang, text in (
        ("es", "Regalamos otra información"),
        ("ru", "Сегодня утром мы пошли в лес"),
    ):
        plain = espeak.speak(text, voice=voice_name(lang))
        for voice in VOICES:
            samples = espeak.speak(text, voice=voice_name(lang, voice))
            assert not np.array_equal(samples, plain), (
                voice
            )  # espeak-ng ignores a variant that it does not have
            assert 0.5 < len(samples) / len(plain) < 2.0, voice
            assert np.abs(samples).max() > 0.2 and (np.abs(samples) > 0.999).mean() < 1e-3, voice
            assert 0.03 < np.sqrt(np.square(samples).mean()) < 0.3, voice


def test_languages_share_the_hours_as_in_a_release(
    sentences: Path, out: Path, tmp_path: Path
) -> None:
    def record(hours: float) -> dict[str, object]:
        return {"validDurationSecs": 3600 * hours, "buckets": {"validated": 1000, "test": 10}}

    statistics = tmp_path / "cv-corpus.json"
    statistics.write_text(json.dumps({"locales": {"es": record(900), "it": record(100)}}))
    options = arguments(sentences, out, f"--hours 2 --statistics {statistics}")
    # λ_i · hours_i is in proportion to p_i^0.5: √0.9 to √0.1.
    assert synthetic.hours_by_language(options) == pytest.approx({"es": 1.5, "it": 0.5})
    assert synthetic.hours_by_language(arguments(sentences, out, "--hours 2")) == {
        "es": 1.0,
        "it": 1.0,
    }
