# SPDX-License-Identifier: Apache-2.0
"""Each kind of finding is found, with what it says, and a clean list has none."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.check import (
    KINDS,
    Checked,
    Unit,
    check_lists,
    find_in_texts,
    find_letters,
    measure,
    read_lists,
)
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.text.normalize import normalize
from wenet_hs.tree.errors import DataError

RATE = 16000
LETTERS = "unusual letters"
SENTENCES = (
    "la casa roja",
    "el perro come",
    "una mesa larga",
    "dos libros rojos",
    "ella canta bien",
)


def write_wave(
    path: Path, seconds: float, *, rate: int = RATE, peak: float = 0.5, seed: int = 0
) -> Path:
    noise = np.random.default_rng(seed).uniform(-peak, peak, round(seconds * rate))
    soundfile.write(path, noise, rate)
    return path


def clean_list(folder: Path, name: str, first: int, size: int = 20) -> list[Utterance]:
    """Utterances with noise of a plausible length; no sentence and no speaker is in two sets."""
    folder.mkdir(exist_ok=True)
    made = []
    for number in range(first, first + size):
        text = f"{SENTENCES[number % 5]} {''.join('abcde'[int(digit)] for digit in np.base_repr(number, 5))}"
        seconds = round(len(text) * (0.08 + 0.002 * (number % 7)), 3)
        path = write_wave(folder / f"{name}{number}.wav", seconds, seed=number)
        made.append(
            Utterance(
                key=f"{name}{number}", wav=str(path), txt=text, duration=seconds, speaker=name
            )
        )
    return made


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Utterance]]:
    folder = tmp_path_factory.mktemp("clean")
    return {"train": clean_list(folder, "train", 0), "dev": clean_list(folder, "dev", 20, size=10)}


def check(sets: Mapping[str, list[Utterance]], **options: Any) -> Checked:
    return check_lists(sets, config=ExperimentConfig(), **{"min_count": 1, **options})


def details(checked: Checked, kind: str) -> dict[str, str]:
    return {found.key: found.details for found in checked.findings.get(kind, ())}


def test_a_clean_list_has_no_findings(clean: dict[str, list[Utterance]]) -> None:
    checked = check(clean)
    assert dict(checked.findings) == {}
    assert (checked.rates, checked.keys(is_fault=True)) == ({RATE: 30}, set())


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_of_audio(clean: dict[str, list[Utterance]], tmp_path: Path, workers: int) -> None:
    whole = write_wave(tmp_path / "whole.wav", 2.0)
    (tmp_path / "cut.wav").write_bytes(whole.read_bytes()[:20000])
    (tmp_path / "text.wav").write_text("no audio at all")
    (tmp_path / "empty.wav").write_bytes(b"")
    soundfile.write(tmp_path / "silent.wav", np.zeros(2 * RATE), RATE)
    write_wave(tmp_path / "quiet.wav", 2.0, peak=0.005, seed=1)
    loud = np.random.default_rng(2).uniform(-2, 2, 2 * RATE).repeat(4)[: 2 * RATE]
    soundfile.write(tmp_path / "clipped.wav", loud.clip(-1, 1), RATE)
    write_wave(tmp_path / "telephone.wav", 2.0, rate=8000, seed=3)
    make = {"key": "", "txt": "una casa roja muy larga"}
    of = {name: Utterance(wav=str(tmp_path / f"{name}.wav"), **{**make, "key": name}) for name in (
        "nowhere", "cut", "text", "empty", "silent", "quiet", "clipped", "telephone"
    )}  # fmt: skip
    of["outside"] = Utterance(
        wav=str(write_wave(tmp_path / "tape.wav", 2.0, seed=4)),
        start=1.5,
        end=4.0,
        **{**make, "key": "outside"},
    )
    of["longer"] = Utterance(wav=str(whole), duration=3.0, **{**make, "key": "longer"})
    checked = check({**clean, "bad": [*of.values()]}, num_workers=workers)
    kinds = {kind: [found.key for found in of_kind] for kind, of_kind in checked.findings.items()}
    assert kinds == {
        "missing audio": ["nowhere"],
        "unreadable audio": ["text", "empty"],
        "cut-off audio": ["cut"],
        "outside the audio": ["outside"],
        "other duration": ["longer"],
        "silent": ["silent"],
        "clipped": ["clipped"],
        "very quiet": ["quiet"],
        "low sample rate": ["telephone"],
        "other sample rate": ["telephone"],
    }
    assert checked.keys(is_fault=True) == {"nowhere", "cut", "text", "empty", "outside", "longer"}
    assert (
        "a segment from 1.5 to 4 s does not lie in its 2.00 s"
        in details(checked, "outside the audio")["outside"]
    )
    assert details(checked, "other duration")["longer"] == "cut off: 2.00 s, the list says 3.00 s"
    assert details(checked, "very quiet")["quiet"] == "peak -46 dB"
    assert details(checked, "low sample rate")["telephone"] == "8000 Hz, below 16000 Hz"


def test_clipped_samples_are_those_in_runs(tmp_path: Path) -> None:
    samples = np.zeros(1000)
    samples[[10, 20, 21, *range(30, 33), *range(40, 47)]] = 1.0
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    assert measure(
        Utterance(key="a", wav=str(tmp_path / "a.wav"), txt="")
    ).clipped == pytest.approx(0.010)


def test_lengths(clean: dict[str, list[Utterance]], tmp_path: Path) -> None:
    short = write_wave(tmp_path / "short.wav", 0.5)  # 48 frames, 11 after subsampling
    texts = {"fits": "abcdefghijk", "repeats": "abcdefghijj", "long": "abcdefghijkl", "none": " "}
    bad = [Utterance(key=key, wav=str(short), txt=text) for key, text in texts.items()]
    bad.append(
        Utterance(key="slow", wav=str(write_wave(tmp_path / "slow.wav", 9.0)), txt="una casa")
    )
    bad.append(
        Utterance(
            key="wordy", wav=str(write_wave(tmp_path / "wordy.wav", 20.0)), txt="una casa " * 23
        )
    )
    checked = check({**clean, "bad": bad})
    too_long = details(checked, "too long for CTC")
    assert too_long == {
        "repeats": "0.50 s are 11 encoder frames, CTC needs 12 for 11 units",
        "long": "0.50 s are 11 encoder frames, CTC needs 12 for 12 units",
    }
    assert details(checked, "length limits")["wordy"].startswith(
        "too many units: 207, filter_conf.token_max"
    )
    assert details(checked, "empty transcript") == {"none": ""}
    assert details(checked, "speaking rate")["slow"].startswith(
        "1.286 s per unit, the median is 0.10"
    )
    assert {"repeats", "long", "wordy", "none"} == checked.keys(is_fault=True)
    config = ExperimentConfig.model_validate({"encoder_conf": {"input_layer": "linear"}})
    assert "too long for CTC" not in check_lists({"bad": bad}, config=config).findings


def test_what_sets_have_in_common(clean: dict[str, list[Utterance]]) -> None:
    train = clean["train"]
    test = [
        replace(train[3], key="copy", txt="otra frase"),
        replace(clean["dev"][0], key="sentence", txt=train[5].txt, speaker="eva"),
    ]
    checked = check({"train": train, "test": test})
    assert details(checked, "speaker in two sets") == {"copy": "train is also in train"}
    assert details(checked, "sentence in two sets") == {"sentence": "also in train: train5"}
    written = [replace(clean["dev"][0], txt=f"¡{train[5].txt.capitalize()}!", speaker="TRAIN")]
    checked = check({"train": train, "test": written})
    assert details(checked, "sentence in two sets") == {written[0].key: "also in train: train5"}
    assert details(checked, "speaker in two sets") == {written[0].key: "TRAIN is also in train"}
    checked = check({"train": train, "test": test})
    assert details(checked, "same audio") == {"copy": "the samples of train3, another transcript"}


def test_overlapping_segments(tmp_path: Path) -> None:
    tape = str(write_wave(tmp_path / "tape.flac", 10.0))
    times = {"a": (0.0, 4.0), "b": (1.0, 2.0), "c": (3.0, 6.0), "d": (5.95, 8.0)}
    tapes = [
        Utterance(key=k, wav=tape, txt=f"texto {k}", start=s, end=e, speaker="ana")
        for k, (s, e) in times.items()
    ]
    other = replace(tapes[0], key="other", speaker="luz", start=0.5)
    checked = check({"train": [*tapes, other]})
    assert details(checked, "overlapping segments") == {
        "b": "1.00 s of it are also in a",
        "c": "1.00 s of it are also in a",
    }


def text_findings(
    *texts: str, unit: Unit = "char", lang: str | None = None
) -> dict[str, list[str]]:
    """Kind → details, of the transcripts only."""
    sets = {
        "train": [
            Utterance(key=str(n), wav="", txt=text, lang=lang) for n, text in enumerate(texts)
        ]
    }
    found: dict[str, list[str]] = {}
    for one in (*find_in_texts(sets, unit), *find_letters(sets, unit)[0]):
        found.setdefault(one.kind, []).append(one.details)
    return found


RUSSIAN = "мир и труд для всех людей на земле"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dos 2 y 33", {"digits": ["2 33"]}),
        ("es [risa] <unk> (ruido) así", {"tags": ["[risa] <unk> (ruido)"]}),
        ("Hola, tú", {"not normalised": ["H ,; normalised: hola tú"]}),
        ("hola  tú", {"not normalised": ["white space; normalised: hola tú"]}),
        ("'mo lu'a", {"not normalised": ["'; normalised: mo lu'a"]}),
        ("a\ue000b", {"invisible characters": ["U+E000"], "not normalised": ["\ue000; normalised: a b"]}),
        ("a\u00adb", {"invisible characters": ["U+00AD"], "not normalised": ["\xad; normalised: ab"]}),
        (f"{RUSSIAN} мiр", {LETTERS: ["мiр: i U+0069 is Latin, Cyrillic has і U+0456"]}),
        (f"{RUSSIAN} o", {LETTERS: ["o: o U+006F is Latin, Cyrillic has о U+043E"]}),
        (f"{RUSSIAN} windows мzр", {LETTERS: ["мzр: z U+007A is Latin"]}),
        ("mwana yεl", {LETTERS: ["yεl: ε U+03B5 is Greek, Latin has ɛ U+025B"]}),
        ("mwana yέl", {LETTERS: ["yέl: έ U+03AD is Greek, Latin has ɛ U+025B"]}),
        ("mwana yωl", {LETTERS: ["yωl: ω U+03C9 is Greek"]}),
        ("ako ako əko ǝko əko", {LETTERS: ["ǝ U+01DD 1 times, ə U+0259 2 times"]}),
        ("la cаsa [мiр]", {LETTERS: ["cаsa: а U+0430 is Cyrillic, Latin has a U+0061"], "tags": ["[мiр]"]}),
        ("日本語のテキスト と 漢字", {}),
        ("他用python写 tシャツ", {}),
        ("ดูyoutubeครับ", {}),
        ("faka'apa fakaʻapa fakaʻofo", {LETTERS: ["' U+0027 1 times, ʻ U+02BB 2 times"]}),
        ("l'amic d'or", {}),
        ("", {"empty transcript": [""]}),
    ],
)  # fmt: skip
def test_transcripts(text: str, found: dict[str, list[str]]) -> None:
    assert text_findings(text) == found


def test_letters_that_the_language_is_written_with_are_one_remark() -> None:
    mboshi = [f"wa yεl tw{'ωέ'[n % 2]}" for n in range(8)] + ["mwana la ngá"] * 12 + ["mwana iкa"]
    found, remarks = find_letters(
        {"train": [Utterance(key=str(n), wav="", txt=t) for n, t in enumerate(mboshi)]}, "char"
    )
    assert [(one.key, one.details) for one in found] == [
        ("20", "iкa: к U+043A is Cyrillic, Latin has k U+006B")
    ]
    scripts = "letters of several scripts: 91% Latin, 8% Greek"
    usual = "ε U+03B5 in 38%, ω U+03C9 in 19% of the transcripts, which is right if the language is written so"
    assert remarks == [f"all: {scripts}; {usual}"]


def test_letters_of_utterances_without_a_language_are_a_group_beside_those_with_one() -> None:
    mixed = [f"wa yεl tw{'ωέ'[n % 2]}" for n in range(8)] + ["mwana la ngá"] * 12
    utterances = [Utterance(key=str(n), wav="", txt=text) for n, text in enumerate(mixed)]
    with_language = Utterance(key="es", wav="", txt="hola", lang="es")
    _, remarks = find_letters({"train": [*utterances, with_language]}, "char")
    assert [remark.partition(":")[0] for remark in remarks] == ["no language"]


def test_phones_have_their_own_letters() -> None:
    assert text_findings("t͡ʃʰ a β θ ɡ", "χ o kʷ", unit="phone") == {}
    found = text_findings(*["ɡ a ɡ m"] * 9, "g a", "а T .", unit="phone")
    assert found[LETTERS] == [
        "g U+0067 1 times, ɡ U+0261 18 times",
        "а: а U+0430 is Cyrillic, Latin has a U+0061",
    ]
    assert found["not normalised"] == ["T .; normalised: а"]


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_text_ends_the_check_and_normalised_text_is_accepted(text: str) -> None:
    text_findings(text, text[::-1])
    text_findings(text, unit="phone")
    assert "not normalised" not in text_findings(normalize(text, None))


def test_rare_units_and_kinds(clean: dict[str, list[Utterance]]) -> None:
    odd = [replace(clean["train"][0], txt="la casa ŵ rŵja w"), *clean["train"][1:]]
    checked = check({"train": odd}, min_count=3)
    assert details(checked, "rare unit")["train0"] == "ŵ U+0175: 2 in all, w U+0077: 1 in all"
    assert checked.units["▁"] > 20
    assert checked.findings.keys() <= KINDS.keys()


# ---- reading


def test_names_of_sets(tmp_path: Path) -> None:
    paths = [tmp_path / name / "data.list" for name in ("train", "dev")] + [tmp_path / "extra.list"]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        txt = "si\u0301" if number == 1 else "sí"
        path.write_text(json.dumps({"key": f"k{number}", "wav": "x", "txt": txt}) + "\n\n")
    sets = read_lists(paths)
    assert [*sets] == ["train", "dev", "extra"]
    assert {u.txt for of_set in sets.values() for u in of_set} == {"sí"}
    (tmp_path / "b" / "train").mkdir(parents=True)
    other = tmp_path / "b" / "train" / "data.list"
    other.write_text(paths[0].read_text().replace("k0", "k9"))
    assert [*read_lists([paths[0], other])] == [str(paths[0]), str(other)]


def test_all_faults_of_lists_are_named(tmp_path: Path) -> None:
    one = Utterance(key="a", wav="x", txt="y")
    write_data_list(tmp_path / "a.list", [one])
    write_data_list(tmp_path / "b.list", [one, replace(one, key="b")])
    (tmp_path / "c.list").write_text('{"key": "c"\n')
    with pytest.raises(DataError) as error:
        read_lists([tmp_path / name for name in ("a.list", "b.list", "c.list", "d.list")])
    lines = str(error.value).split("\n")
    assert (
        f"b.list: 1 keys are also in {tmp_path / 'a.list'}, the first is 'a'; give each list once"
        in lines[0]
    )
    assert (
        "c.list:1: not JSON" in lines[1]
        and "d.list: cannot be read (No such file or directory)" in lines[2]
    )
