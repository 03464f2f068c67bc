# SPDX-License-Identifier: Apache-2.0
"""The UCLA Phonetic Corpus: its layout, its faults, and the corpus itself where it is at hand."""

import re
from pathlib import Path
from typing import Any

import pytest
from prepared import parse_prepare, read_lists

from wenet_hs.corpus import ucla
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError


def prepare(corpus: Path, more: str = "--test_langs abk") -> dict[str, Any]:
    return ucla.prepare(
        parse_prepare(
            f"ucla --corpus {corpus} --out {corpus.parent / 'out'} --num_workers 0 {more}"
        )
    )


def write_language(folder: Path, text: str, *, ending: str = ".wav", silent: str = "") -> None:
    (folder / "audio").mkdir(parents=True)
    (folder / "text.txt").write_text(text, encoding="utf-8", newline="")
    for line in text.split("\n"):
        if line.strip():
            name = line.split()[0]
            (folder / "audio" / f"{name}{ending}").write_text(
                "silent" if name == silent else "0.75"
            )


@pytest.fixture
def corpus(tmp_path: Path, text_clips: list[str]) -> Path:
    folder = tmp_path / "ucla"
    write_language(folder / "abk", "abk-1 a d͡ʒ ʃʲ\nabk-2\tkʷʼ ɜ\r\n")
    write_language(
        folder / "xxa", "".join(f"xxa-{n:03} a\u0303 kʰ a\n" for n in range(60)), ending=".flac"
    )
    write_language(folder / "xxb", "".join(f"w{n:03} t͡ʃ a d͡ʒ\n" for n in range(40)))
    return folder


def test_test_languages_are_in_no_other_set_and_phones_stay_as_they_are(corpus: Path) -> None:
    stats = prepare(corpus)
    sets = read_lists(corpus.parent / "out")
    assert {u.key for u in sets["test"]} == {"abk-1", "abk-2"}
    assert {u.lang for u in sets["train"] + sets["dev"]} == {"xxa", "xxb"}
    assert (len(sets["dev"]), len(sets["train"]), stats["num_in"]) == (5, 95, 102)
    assert stats["phones"]["unseen_in_test"] == ["kʷʼ", "ɜ", "ʃʲ"]
    assert stats["phones"]["unseen_tokens_in_test"] == 3
    assert stats["licence"].startswith("CC BY-NC")
    wav = str(corpus / "abk/audio/abk-1.wav")
    assert sets["test"][0] == Utterance(
        key="abk-1", wav=wav, txt="a d͡ʒ ʃʲ", lang="abk", duration=0.75
    )
    assert all(u.key.startswith(f"{u.lang}-") for u in sets["train"])
    assert {u.txt for u in sets["train"]} == {"ã kʰ a", "t͡ʃ a d͡ʒ"}
    prepare(corpus)
    assert read_lists(corpus.parent / "out") == sets
    prepare(corpus, "--test_langs abk --seed 1")
    assert read_lists(corpus.parent / "out")["dev"] != sets["dev"]
    with pytest.raises(
        ConfigError, match=r"--dev_fraction 1.5: must be between 0 and 1; the default is 0\.05"
    ):
        prepare(corpus, "--dev_fraction 1.5")


def test_dev_languages_are_the_dev_set(corpus: Path) -> None:
    stats = prepare(corpus, "--test_langs abk --dev_langs xxb")
    sets = read_lists(corpus.parent / "out")
    langs = {name: {u.lang for u in of} for name, of in sets.items()}
    assert langs == {"train": {"xxa"}, "dev": {"xxb"}, "test": {"abk"}}
    assert (stats["options"]["dev_langs"], stats["total"]["utterances"]["dev"]) == (("xxb",), 40)
    with pytest.raises(
        ConfigError,
        match="--dev_langs: abk also in --test_langs; a language belongs to one set only",
    ):
        prepare(corpus, "--test_langs abk --dev_langs 'xxa abk'")
    with pytest.raises(
        DataError, match="does not contain xxq xxz of --dev_langs; choose from: xxa xxb"
    ):
        prepare(corpus, "--test_langs abk --dev_langs 'xxq xxa xxz'")


def test_shares_of_the_training_utterances_contain_each_other(corpus: Path) -> None:
    keys: dict[str, set[str]] = {}
    for share in ("1", "0.5", "0.25"):
        prepare(corpus, f"--test_langs abk --train_share {share}")
        sets = read_lists(corpus.parent / "out")
        keys[share] = {utterance.key for utterance in sets["train"]}
        keys[f"dev {share}"] = {utterance.key for utterance in sets["dev"]}
    assert keys["0.25"] < keys["0.5"] < keys["1"]
    assert [len(keys[share]) for share in ("0.5", "0.25")] == [
        round(f * len(keys["1"])) for f in (0.5, 0.25)
    ]
    assert keys["dev 0.25"] == keys["dev 1"]
    with pytest.raises(ConfigError, match="--train_share 0: must be above 0 and at most 1"):
        prepare(corpus, "--test_langs abk --train_share 0")


def test_every_line_is_used_or_rejected(corpus: Path) -> None:
    text = "xxc-1 a b\nxxc-2\nxxc-3 a\nxxc-1 b\n\n\u00a0\u2003\nxxc-4 c\n../abk-1 a\n"
    write_language(corpus / "xxc", text, silent="xxc-3")
    (corpus / "xxc/audio/xxc-4.wav").unlink()
    with (corpus / "xxc/text.txt").open("ab") as file:
        file.write(b"xxc-5 \xff\n")
    stats = prepare(corpus)
    lines = (corpus.parent / "out" / "rejected.tsv").read_text("utf-8").splitlines()[1:]
    reasons = {line.split("\t")[0]: line.split("\t")[2] for line in lines}
    assert reasons == {
        "xxc-2": "empty transcript",
        "xxc-3": "silent",
        "xxc:text.txt:4": "repeated: this utterance is on an earlier line",
        "xxc-4": "missing: no audio/xxc-4.wav or .flac",
        "xxc-../abk-1": "missing: no audio/../abk-1.wav or .flac",
        "xxc:text.txt:9": "not UTF-8: byte 6 of the line",
    }
    assert stats["langs"]["xxc"]["num_in"] == 7
    assert stats["num_in"] == 102 + 7


def test_absent_test_languages_are_named_in_a_warning(
    corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stats = prepare(corpus, "")
    absent = "bin sbc mal kea klu aeb mak fin ace"
    assert f"missing test languages: {absent}; testing on 1" in caplog.text
    assert stats["test_langs_absent"] == absent.split()


@pytest.mark.parametrize(
    ("name", "folders", "message"),
    [
        ("nowhere", (), "nowhere: no such folder; --corpus is the folder with <lang>/text.txt"),
        ("new", (), "of the UCLA Phonetic Corpus, found an empty folder; check --corpus"),
        (
            "new",
            ("wav48",),
            "expected <lang>/text.txt and <lang>/audio/ of the UCLA Phonetic Corpus, found wav48; ch",
        ),
        ("new", ("ca/validated.tsv",), "found Common Voice; use `prepare commonvoice`"),
        (
            "ucla",
            (),
            "contains none of the test languages fin mak; choose --test_langs from: abk xxa xxb",
        ),
    ],
)
def test_a_wrong_corpus_is_refused(
    corpus: Path, name: str, folders: tuple[str, ...], message: str
) -> None:
    (corpus.parent / "new").mkdir()
    for folder in folders:
        (corpus.parent / name / folder).mkdir(parents=True)
    with pytest.raises(DataError, match=re.escape(message)):
        prepare(corpus.parent / name, "--test_langs 'fin mak'")


def test_the_real_corpus(shared_dir: Path, tmp_path: Path) -> None:
    stats = prepare(shared_dir / "data" / "ucla", f"--check_audio exists --out {tmp_path}")
    assert (stats["num_in"], stats["total"]["utterances"]["test"], stats["total"]["rejected"]) == (
        2031,
        256,
        {},
    )
    assert stats["test_langs_absent"] == ["klu", "mak", "fin"]
    assert len(stats["phones"]["unseen_in_test"]) == 30
    assert sum(stats["phones"]["tokens"].values()) == 8626
    named = [
        line.split("\t")
        for line in (tmp_path / "implausible.tsv").read_text("utf-8").splitlines()[1:]
    ]
    assert named[0] == ["abk-002-053", "6.45", "4", "1.613"] and len(named) < 0.01 * 2031
