# SPDX-License-Identifier: Apache-2.0
"""Folders of Kaldi beside the sets: each line says what works."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from annotation_forms import write_audio
from prepared import prepare_line, read_lists

from wenet_hs.tree.errors import DataError

Caplog = pytest.LogCaptureFixture

SIZES = {"train": 8, "dev": 2, "test": 2}


def write_folder(folder: Path, keys: Sequence[str], command: str = "") -> Path:
    """A data folder whose utterances have the same audio, decoded by a command if there is one."""
    audio = write_audio(folder.parent.parent / "a.wav", seconds=0.5)
    entry = command.format(audio) if command else str(audio)
    folder.mkdir(parents=True)
    (folder / "wav.scp").write_text("".join(f"{key} {entry}\n" for key in keys))
    (folder / "text").write_text("".join(f"{key} text of {key}\n" for key in keys))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with three sets and one without recordings."""
    for name, size in SIZES.items():
        write_folder(tmp_path / "data" / name, [f"{name}{number}" for number in range(size)])
    (tmp_path / "data" / "lang").mkdir()
    return tmp_path / "data"


def prepare(corpus: Path, flags: str = "") -> dict[str, Any]:
    out = corpus.parent / "out"
    line = f"kaldi --corpus {corpus} --lang mdw --out {out} --num_workers 0 {flags}"
    return prepare_line(line)["total"]


def message_of(corpus: Path, flags: str = "") -> str:
    with pytest.raises(DataError) as caught:
        prepare(corpus, flags)
    return str(caught.value)


@pytest.mark.parametrize("has_text", [True, False])
def test_a_folder_that_is_no_set(data: Path, caplog: Caplog, has_text: bool) -> None:
    other = write_folder(data / "local", ["a", "b"])
    if not has_text:
        (other / "text").unlink()
    total = prepare(data)
    assert (total["utterances"], total["rejected"]) == (SIZES, {})
    reason = "not named as a set (train, dev or test); --ignore_sets uses it; it is not used"
    assert f"{other}: {reason}" in caplog.text
    total = prepare(data, "--ignore_sets")
    assert sum(total["utterances"].values()) == sum(SIZES.values()) + 2 * has_text
    is_stated = f"{other}: no transcripts, it has no file text; it is not used" in caplog.text
    assert is_stated != has_text


def test_one_list_of_a_folder(tmp_path: Path) -> None:
    """As WeNet's make_raw_list.py."""
    folder = write_folder(tmp_path / "data/train", [f"utterance{number}" for number in range(5)])
    total = prepare(folder, "--split_by off")
    assert total["utterances"] == {"train": 5}
    assert not (folder.parent / "out/dev").exists() and not (folder.parent / "out/test").exists()


def test_one_list_of_a_corpus_with_sets_is_refused(data: Path) -> None:
    line = message_of(data, "--split_by off")
    assert line.endswith(
        "--split_by off: the data give sets (dev 2, test 2, train 8); leave it out, or add "
        "--ignore_sets for one list of all"
    )
    assert prepare(data, "--split_by off --ignore_sets")["utterances"] == {"train": 12}


def test_folders_without_any_set_are_named_with_what_works(tmp_path: Path) -> None:
    corpus = tmp_path / "data"
    write_folder(corpus / "all", [f"a{number}" for number in range(8)])
    write_folder(corpus / "male", ["m1", "m2"])
    assert message_of(corpus) == (
        f"{corpus}: no folder is named as a set (train, dev or test): all, male; use all of them "
        f"with --ignore_sets, or one of them: --corpus {corpus / 'all'}"
    )
    assert sum(prepare(corpus, "--ignore_sets")["utterances"].values()) == 10
    shutil.rmtree(tmp_path / "out")
    assert sum(prepare(corpus / "all")["utterances"].values()) == 8
    for name in ("all", "male"):
        (corpus / name / "text").unlink()
    assert message_of(corpus, "--ignore_sets").startswith(f"{corpus / 'all'}: no transcripts")


def test_a_copy_of_a_set_is_not_used(data: Path, caplog: Caplog) -> None:
    copy = write_folder(data / "train_hires", [f"train{number}" for number in range(8)])
    total = prepare(data)
    assert (total["utterances"], total["rejected"]) == (SIZES, {})
    assert f"{copy}: {data / 'train'} has all its utterances; it is not used" in caplog.text
    write_folder(data / "train_other", ["other1", "other2"])
    assert prepare(data)["utterances"]["train"] == 10, "other utterances are used"
    write_folder(data / "test_leak", ["train1"])
    assert prepare(data)["rejected"] == {"repeated": 1}, "of another set"


def test_a_part_of_a_set_is_not_used_whatever_its_name(data: Path, caplog: Caplog) -> None:
    """LibriSpeech's train_100 is a part of train_960."""
    whole = (data / "train").rename(data / "train_960")
    keys = [f"train{number}" for number in range(8)]
    parts = [write_folder(data / "train_100", keys[:3]), write_folder(data / "train_20", keys[:2])]
    parts.append(write_folder(data / "train_981", keys))
    total = prepare(data)
    assert (total["utterances"], total["rejected"]) == (SIZES, {})
    for part in parts:
        assert f"{part}: {whole} has all its utterances; it is not used" in caplog.text
    shutil.rmtree(data.parent / "out")
    total = prepare(data, "--ignore_sets")
    assert (sum(total["utterances"].values()), total["rejected"]) == (12, {})


def test_a_set_without_transcripts_is_named(data: Path) -> None:
    text = data / "test" / "text"
    content = text.read_text()
    text.unlink()
    assert message_of(data) == (
        f"{data / 'test'}: no transcripts, it has no file text; write `key transcript` lines "
        "there, or move the folder away if it is no set"
    )
    text.write_text(content)
    assert prepare(data)["utterances"] == SIZES
    text.unlink()
    (data / "test").rename(data.parent / "away")
    assert sum(prepare(data)["utterances"].values()) == 10


def test_changed_copies_may_be_moved_away(data: Path) -> None:
    keys = [f"sp0.9-train{number}" for number in range(8)]
    changed = write_folder(data / "train_sp", keys, "sox {} -t wav - speed 0.9 |")
    message = message_of(data)
    assert "8 of 8 recordings are commands" in message
    assert message.endswith(
        "run each once, and write the path of the file that it makes; or move the folder away, "
        "if it only has changed copies of another one (train_sp)"
    )
    changed.rename(data.parent / "away")
    assert prepare(data)["utterances"] == SIZES


def test_the_folder_above_names_the_one_with_the_sets(data: Path) -> None:
    above = data.parent
    found = "no wav.scp here or in its subfolders"
    assert message_of(above) == f"{above}: {found}, but below {data}; give --corpus {data}"
    assert prepare(data)["utterances"] == SIZES
    lang = data / "lang"
    assert message_of(lang) == f"{lang}: {found}; --corpus is a data folder of Kaldi"
    assert [*read_lists(above / "out")] == ["train", "dev", "test"]
