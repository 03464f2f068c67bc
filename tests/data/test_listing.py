# SPDX-License-Identifier: Apache-2.0
"""A long list through its index says what the same list in memory says; the index belongs to one state of the list."""

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data import list_index, listing
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.data.listing import IndexedList, ListedUtterances, open_list, open_lists
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance, read_data_list, write_data_list
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable


@pytest.fixture
def as_long(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes every list a long one, indexed in blocks of so many bytes by this process."""

    def patch(block_bytes: int = 1 << 20) -> None:
        monkeypatch.setattr(listing, "IN_MEMORY_BYTES", -1)
        monkeypatch.setattr(list_index, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(list_index, "num_processes", lambda num_blocks: 0)

    return patch


def made_up(num: int, prefix: str = "u") -> list[Utterance]:
    rng = np.random.default_rng(num)
    return [
        Utterance(
            key=f"{prefix}{i}",
            wav=f"{i}.wav",
            txt="".join(rng.choice(list("abé x"), rng.integers(0, 40))),
            lang=None if i % 7 == 0 else ("ca", "es", "fr")[i % 3],
            duration=float(rng.uniform(0.05, 8)),
            start=0.5 if i % 5 == 0 else None,
        )
        for i in range(num)
    ]


def dataset(table: object) -> SpeechDataset:
    tokenizer = make_tokenizer("char", UnitTable.from_units("abé▁"))
    conf = DatasetConf(speed_perturb=True)
    return SpeechDataset(table, tokenizer, conf, training=True, seed=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("block_bytes", [64, 1000, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n\r\n \n"])
def test_an_index_says_what_memory_says(
    tmp_path: Path, as_long: Callable[[int], None], block_bytes: int, end: str
) -> None:
    path = tmp_path / "data.list"
    write_data_list(path, made_up(60))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", end.encode())[:-1])
    plain = open_list(path)
    assert isinstance(plain, ListedUtterances)
    as_long(block_bytes)
    for _ in range(2):  # made, then read
        table = open_list(path)
        assert isinstance(table, IndexedList)
        assert list(table) == list(plain) == made_up(60)
        assert table[3:9] == plain[3:9]
        assert table[-1] == plain[-1]
        assert np.array_equal(table.durations, plain.durations)
        assert np.array_equal(table.langs, plain.langs)
        assert np.array_equal(table.key_hashes(), plain.key_hashes())
        assert (table.lang_names, table.digest) == (plain.lang_names, plain.digest)
    with pytest.raises(IndexError):
        table[60]


def test_a_dataset_of_an_index_is_that_of_the_list(tmp_path: Path, as_long: Callable[[int], None]) -> None:
    write_data_list(tmp_path / "data.list", made_up(300))
    plain = dataset(made_up(300))
    as_long(4000)
    for _ in range(2):
        long = dataset(open_list(tmp_path / "data.list"))
        assert long.rejected == plain.rejected != []
        assert long.unknown == plain.unknown != {}
        assert long.utterances == plain.utterances
        assert all(
            long.plan(epoch, rank=1, world_size=2) == plain.plan(epoch, rank=1, world_size=2) for epoch in (0, 1)
        )
    assert len(list(tmp_path.glob("data.list.index-*"))) == 1
    other = make_tokenizer("char", UnitTable.from_units("ab"))
    SpeechDataset(open_list(tmp_path / "data.list"), other, DatasetConf(), training=True, seed=3)
    assert len(list(tmp_path.glob("data.list.index-*"))) == 2, "another tokenizer has its own columns"


def test_several_long_lists_are_one(tmp_path: Path, as_long: Callable[[int], None]) -> None:
    write_data_list(tmp_path / "a", made_up(30, "a"))
    write_data_list(tmp_path / "b", made_up(41, "b"))
    paths = [tmp_path / "a", tmp_path / "b"]
    plain = open_lists(paths)
    assert isinstance(plain, ListedUtterances)
    as_long(1 << 20)
    table = open_lists(paths)
    assert list(table) == list(plain) == made_up(30, "a") + made_up(41, "b")
    assert table.list_starts == plain.list_starts == (0, 30)
    names = [[t.lang_names[i] if i >= 0 else None for i in t.langs] for t in (plain, table)]
    assert names[0] == names[1]
    assert dataset(table).plan(1) == dataset(plain).plan(1)
    with pytest.raises(
        DataError, match="^--cv_data: utterance 'a0' stands in more than one list; give each a unique k"
    ):
        open_lists([*paths, tmp_path / "a"], flag="--cv_data")


def test_faults_are_those_of_a_short_list(tmp_path: Path, as_long: Callable[[int], None]) -> None:
    path = tmp_path / "data.list"
    lines = [json.dumps({"key": f"k{i}", "wav": "w", "txt": "x"}).encode() for i in range(20)]
    lines[4], lines[9], lines[11], lines[15] = b"{", b'{"key": "b", "wav": "w"}', b'{"key": "\xe9"}', lines[2]
    for content in (lines, lines[:4] + lines[12:], [b"", b" "]):
        path.write_bytes(b"\n".join(content))
        as_long(100)
        with pytest.raises(DataError) as long:
            open_list(path)
        if b"\xe9" in path.read_bytes():  # a short list stops there
            assert f"{path}:12: not UTF-8 at byte 9; convert the file to UTF-8" in str(long.value).split("\n")
            assert len(str(long.value).split("\n")) == 3
        else:
            with pytest.raises(DataError) as short:
                read_data_list(path)
            assert str(long.value) == str(short.value)
    with pytest.raises(DataError, match=r"none: cannot be read \(No such file or directory\); check the path$"):
        open_list(tmp_path / "none")


def test_a_list_that_changed_is_indexed_again(tmp_path: Path, as_long: Callable[[int], None]) -> None:
    as_long(1 << 20)
    path = tmp_path / "data.list"
    write_data_list(path, made_up(5))
    old = open_list(path)
    write_data_list(path, made_up(6))
    (tmp_path / ".data.list.index.1.tmp").mkdir()  # of a process that was killed
    assert list(open_list(path)) == made_up(6)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".data.list.index.lock", "data.list", "data.list.index"]
    (tmp_path / "data.list.index" / "offsets.npy").write_bytes(b"damaged")
    assert list(open_list(path)) == made_up(6)
    assert len(old) == 5


def test_a_list_changed_under_a_run_is_told(tmp_path: Path, as_long: Callable[[int], None]) -> None:
    as_long(1 << 20)
    path = tmp_path / "data.list"
    for change in (b'"u3"', b'"wa v"'):
        write_data_list(path, made_up(5))
        table = open_list(path)
        content = path.read_bytes()
        old = b'"u1"' if change == b'"u3"' else b'"wav":'
        with path.open("r+b") as file:
            file.write(content.replace(old, change))
        with pytest.raises(
            DataError, match=r"data.list: is not what was indexed any more; leave it alone, or start ag"
        ):
            table[1]


def test_an_index_that_cannot_be_kept_is_made_at_every_start(
    tmp_path: Path, as_long: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    as_long(1 << 20)
    path = tmp_path / "data.list"
    write_data_list(path, made_up(5))

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(listing, "one_at_a_time", refuse)
    with caplog.at_level(logging.WARNING):
        assert list(open_list(path)) == made_up(5)
    assert f"data.list.index: cannot be written (Permission denied); {path} is indexed at every start" in caplog.text
    assert dataset(open_list(path)).plan(0) == dataset(made_up(5)).plan(0)


def test_a_table_goes_to_a_worker(tmp_path: Path, as_long: Callable[[int], None]) -> None:
    as_long(1 << 20)
    write_data_list(tmp_path / "l", made_up(4))
    table = open_list(tmp_path / "l")
    assert table[0].key == "u0"
    assert list(pickle.loads(pickle.dumps(table))) == made_up(4)
    assert num_open(tmp_path / "l") == 1
    del table
    assert num_open(tmp_path / "l") == 0


def num_open(path: Path) -> int:
    """How often this process has a file open."""
    links = [Path("/proc/self/fd") / name for name in map(str, range(256))]
    return sum(link.is_symlink() and link.readlink() == path for link in links)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_processes_make_the_same_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.list"
    write_data_list(path, made_up(3000))
    monkeypatch.setattr(list_index, "BLOCK_BYTES", 20_000)
    alone = list_index.index_list(path)
    monkeypatch.setattr(list_index, "num_processes", lambda num_blocks: 2)
    both = list_index.index_list(path)
    assert both.digest == alone.digest
    assert np.array_equal(both.offsets, alone.offsets)
    assert np.array_equal(both.langs, alone.langs)
