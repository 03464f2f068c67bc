# SPDX-License-Identifier: Apache-2.0
"""Shards give the batches of the raw list to the bit, from disk and from URLs; each fault of a tar
is one line.
"""

import io
import math
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal

import fsspec
import pytest
import soundfile
import torch
from noise_clips import assert_equal_batches, make_dataset, noise

from wenet_hs.data.audio import read_audio
from wenet_hs.data.batching import Batch
from wenet_hs.data.dataset import batches
from wenet_hs.data.shards import DataType, UtteranceTable, open_list, write_shards
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.tree.errors import DataError


@pytest.fixture(scope="module")
def utterances(tmp_path_factory: pytest.TempPathFactory) -> list[Utterance]:
    """Two of each: wav, flac, mp3, segments; stereo and other rates among them; some without
    language or duration.
    """
    folder = tmp_path_factory.mktemp("clips")
    files = [
        write_clip(folder / "0.wav", rate=16000, seconds=0.6, channels=1, seed=0),
        write_clip(folder / "1.wav", rate=8000, seconds=0.7, channels=2, seed=1),
        write_clip(folder / "2.flac", rate=16000, seconds=0.8, channels=1, seed=2),
        write_clip(folder / "3.flac", rate=22050, seconds=0.9, channels=2, seed=3),
        write_clip(folder / "4.mp3", rate=16000, seconds=1.0, channels=1, seed=4),
    ]
    return [
        Utterance(key="k.0", wav=files[0], txt="é", lang="ca", duration=0.6),
        Utterance(key="k.1", wav=files[1], txt="é ", lang="ca"),
        Utterance(key="k.2", wav=files[2], txt="é b", lang="ca", duration=0.8),
        Utterance(key="k.3", wav=files[3], txt="é", lang="ca", duration=0.9),
        Utterance(key="k.4", wav=files[4], txt="é ", lang="ca", duration=1.0),
        Utterance(key="s/1", wav=files[3], txt="b", speaker="x", start=0.1, end=0.55),
        Utterance(key="s/2", wav=files[4], txt=" b", start=0.5),
    ]


def write_clip(path: Path, *, rate: int, seconds: float, channels: int, seed: int) -> str:
    """Writes noise, and returns the path as an utterance has it."""
    samples = noise(round(seconds * rate) * channels, seed)
    soundfile.write(path, samples.view(-1, channels).numpy(), rate)
    return str(path)


def first_epochs(utterances: UtteranceTable | list[Utterance]) -> list[Batch]:
    data = make_dataset(utterances)
    of_epochs = list[Batch]()
    for epoch in (0, 1):
        of_epochs += batches(data, data.plan(epoch), epoch)
    return of_epochs


def pack(utterances: list[Utterance], out: Path, num: int = 3) -> Path:
    list(write_shards(utterances, out, num_utts_per_shard=num))
    return out / "data.list"


def write_tar(
    path: Path, members: Iterable[tuple[str, bytes]], mode: Literal["w", "w:gz"] = "w"
) -> None:
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_shards_give_the_batches_of_the_list(utterances: list[Utterance], tmp_path: Path) -> None:
    shard_list = pack(utterances, tmp_path)
    assert shard_list.read_text() == "".join(f"{tmp_path}/shards_{i:09d}.tar\n" for i in range(3))
    raw = first_epochs(utterances)
    for _ in range(2):  # the pass over the tars, then the index
        assert_equal_batches(first_epochs(open_list(shard_list, "shard")), raw)
    table = open_list(shard_list, "shard")
    facts = [(u.key, u.txt, u.lang, u.speaker) for u in utterances]
    assert [(u.key, u.txt, u.lang, u.speaker) for u in table] == facts
    assert read_data_list(tmp_path / "data.list.index" / "data.list") == list(table), (
        "any command reads that list"
    )
    shard_list.write_text(shard_list.read_text().split("\n")[0])
    assert len(open_list(shard_list, "shard")) == 3, "another list is indexed again"
    (tmp_path / "twice").write_text(f"{tmp_path}/shards_000000000.tar\n" * 2)
    with pytest.raises(
        DataError, match=r"tar: utterance 'k.0' is also in .*tar; each needs its own key"
    ):
        open_list(tmp_path / "twice", "shard")


def test_packing_again_gives_the_same_bytes(utterances: list[Utterance], tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.aiff", noise(8000).numpy(), 16000)
    listed = [Utterance(key="a", wav=str(tmp_path / "a.aiff"), txt="x"), *utterances]
    packed = open_list(pack(listed, tmp_path / "a"), "shard")
    assert torch.equal(read_audio(packed[0].wav), read_audio(tmp_path / "a.aiff"))
    assert packed[0].duration == 0.5
    pack(listed, tmp_path / "b")
    pack(list(packed), tmp_path / "c")
    first, second, of_shards = (
        (tmp_path / name / "shards_000000000.tar").read_bytes() for name in "abc"
    )
    assert first == second == of_shards
    assert b"PEAK" not in first, "libsndfile's chunk contains the time"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_several_processes_write_the_bytes_of_one(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("one", "two", "many")]
    for folder, num_workers in zip(folders, (0, 2, 9), strict=True):
        written = list(
            write_shards(utterances, folder, num_utts_per_shard=2, num_workers=num_workers)
        )
        assert written == [folder / f"shards_{number:09d}.tar" for number in range(4)]
        assert (folder / "data.list").read_text() == "".join(f"{path}\n" for path in written)
    one, *others = (
        [path.read_bytes() for path in sorted(folder.glob("*.tar"))] for folder in folders
    )
    assert all(other == one for other in others)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shard_that_cannot_be_written_is_one_line_and_there_is_no_list(
    utterances: list[Utterance], tmp_path: Path, num_workers: int
) -> None:
    listed = [*utterances, Utterance(key="gone", wav="/none.wav", txt="a")]
    with pytest.raises(DataError, match=r"^utterance gone: /none.wav: missing; restore"):
        list(write_shards(listed, tmp_path / "out", num_utts_per_shard=2, num_workers=num_workers))
    assert not (tmp_path / "out" / "data.list").exists() and not list((tmp_path / "out").glob(".*"))


def test_wenets_own_shards_are_read(utterances: list[Utterance], tmp_path: Path) -> None:
    """KEY.txt with a line end, KEY.wav, no KEY.json."""
    texts = [(f"{u.key}.txt", u.txt.encode() + b"\n") for u in utterances[:3]]
    clips = [(u.key + Path(u.wav).suffix, Path(u.wav).read_bytes()) for u in utterances[:3]]
    write_tar(tmp_path / "w.tar", chain.from_iterable(zip(texts, clips, strict=True)))
    (tmp_path / "l").write_text(f"{tmp_path}/w.tar\n\n")
    plain = [replace(utterance, lang=None) for utterance in utterances[:3]]
    assert_equal_batches(first_epochs(open_list(tmp_path / "l", "shard")), first_epochs(plain))


def test_shards_at_a_url(utterances: list[Utterance], tmp_path: Path) -> None:
    pack(utterances, tmp_path)
    store = fsspec.filesystem("memory")
    for path in tmp_path.glob("*.tar"):
        store.pipe(f"/shards/{path.name}", path.read_bytes())
    (tmp_path / "urls").write_text(
        (tmp_path / "data.list").read_text().replace(str(tmp_path), "memory://shards")
    )
    assert_equal_batches(
        first_epochs(open_list(tmp_path / "urls", "shard")), first_epochs(utterances)
    )
    wav = open_list(tmp_path / "urls", "shard")[0].wav
    store.pipe("/shards/shards_000000000.tar", b"x" * 600)
    with pytest.raises(
        DataError,
        match=r"memory://shards/shards_000000000.tar: not a complete, uncompressed tar file",
    ):
        open_list(tmp_path / "urls", "shard")
    with pytest.raises(
        DataError, match=r"shards_0{9}.tar#\d+\+\d+: cut off: 0 of \d+ bytes are there; restore"
    ):
        read_audio(wav)
    store.rm("/shards", recursive=True)
    with pytest.raises(
        DataError, match=r"memory://shards/shards_0{9}.tar: cannot be read \(.*\); restore the s"
    ):
        open_list(tmp_path / "urls", "shard")
    store.pipe("/a.flac", Path(utterances[2].wav).read_bytes())
    assert torch.equal(read_audio("memory://a.flac"), read_audio(utterances[2].wav))
    store.rm("/a.flac")
    with pytest.raises(
        DataError, match=r"^nowhere://a.flac: cannot be read \(Protocol not known: nowhere.*\); res"
    ):
        read_audio("nowhere://a.flac")


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ({"a.txt": b"b"}, "utterance 'a': no .wav/flac/mp3/… member, only .txt"),
        ({"a.wav": b"b", "a.json": b"{}"}, "utterance 'a': no .txt member, only .wav, .json"),
        (
            {"a.wav": b"b", "a.flac": b"b", "a.txt": b""},
            "utterance 'a': two audio members: .wav, .flac, .txt",
        ),
        ({"a.wav": b"b", "a.txt": b"\xff"}, "utterance 'a': 'utf-8' codec can't decode byte 0xff"),
        (
            {"a.wav": b"b", "a.txt": b"b", "a.json": b"[]"},
            "utterance 'a': a.json is not a JSON object",
        ),
        (
            {"a.wav": b"b", "a.txt": b"b", "a.json": b'{"duration": true}'},
            "utterance 'a': 'duration' is true, exp",
        ),
        (
            {"a b.wav": b"b", "a b.txt": b"b"},
            "utterance 'a b': key 'a b' is empty or contains white space",
        ),
        (
            {"a.wav": b"b", "a.txt": b"b"},
            "utterance 'a': audio of 1 bytes: not audio that can be read",
        ),
        (
            {"a.wav": b"b", "a.txt": b"b" * 1048577},
            "utterance 'a': a.txt has 1048577 bytes, more than 1048",
        ),
        ({}, "contains no utterances"),
    ],
)
def test_an_incomplete_shard_is_refused(
    tmp_path: Path, members: dict[str, bytes], fault: str
) -> None:
    write_tar(tmp_path / "x.tar", members.items())
    (tmp_path / "l").write_text(f"{tmp_path}/x.tar\n")
    with pytest.raises(DataError) as caught:
        open_list(tmp_path / "l", "shard")

    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/x.tar: {fault}")
    assert message.endswith("; restore the shard, or make it again")
    assert "\n" not in message
    assert not list((tmp_path / "l.index").iterdir())


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_a_shard_that_is_cut_off_is_named(
    utterances: list[Utterance], tmp_path: Path, step: int
) -> None:
    shard_list = pack(utterances[:2], tmp_path)
    path = tmp_path / "shards_000000000.tar"
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        ends = [member.offset_data + member.size for member in tar]
    end_of_members = math.ceil(max(ends) / 512) * 512
    sizes = [0, 1, end_of_members, *range(256, end_of_members, 256)]

    for size in sizes[:: max(1, step // 4)]:
        path.write_bytes(whole[:size])
        with pytest.raises(
            DataError,
            match=r"shards_0{9}.tar: not a complete, uncompressed tar file \(.*\); restore",
        ):
            open_list(shard_list, "shard")


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_a_changed_bit_of_a_header_is_named(
    utterances: list[Utterance], tmp_path: Path, step: int
) -> None:
    shard_list = pack(utterances[:2], tmp_path)
    path = tmp_path / "shards_000000000.tar"
    whole = path.read_bytes()
    after_the_digits_of_the_checksum = {154, 155}  # these bytes are not read

    for position in set(range(0, 345, step)) - after_the_digits_of_the_checksum:
        changed = bytearray(whole)
        changed[position] ^= 64
        path.write_bytes(changed)
        with pytest.raises(DataError, match="shards_0{9}.tar: "):
            open_list(shard_list, "shard")


def test_changed_shards_are_indexed_again(utterances: list[Utterance], tmp_path: Path) -> None:
    shard_list = pack(utterances, tmp_path)
    open_list(shard_list, "shard")
    changed = [replace(utterance, txt="b") for utterance in utterances]

    pack(changed, tmp_path)

    transcripts = {utterance.txt for utterance in open_list(shard_list, "shard")}
    assert transcripts == {"b"}


def test_all_shards_that_were_damaged_later_are_named(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    shard_list = pack(utterances, tmp_path)
    open_list(shard_list, "shard")
    first, second, third = sorted(tmp_path.glob("*.tar"))
    with first.open("r+b") as file:
        file.truncate(2048)
    write_tar(second, [("a.txt", b"x")] * 2)
    third.unlink()
    write_tar(tmp_path / "z.tar", [("a.txt", b"x")], "w:gz")
    shard_list.write_text(f"{shard_list.read_text()}{tmp_path}/z.tar\n")
    broken = "not a complete, uncompressed tar file"
    remedy = "; restore the shard, or make it again"
    faults = (
        rf"{first}: {broken} \(.*\){remedy}",
        rf"{second}: {broken} \(member 'a.txt' is in it twice\){remedy}",
        rf"{third}: cannot be read \(No such file or directory\){remedy}",
        rf"{tmp_path}/z.tar: {broken} \(.*\){remedy}",
    )
    with pytest.raises(DataError, match="^" + "\n".join(faults) + "$"):
        open_list(shard_list, "shard")


@pytest.mark.parametrize(
    ("content", "data_type", "message"),
    [
        (
            '{"key": "a"}',
            "shard",
            "l:1: not the path of a tar; a list of utterances is read with --data_type raw",
        ),
        (
            "a/b.tar",
            "raw",
            r"l: a list of shards \(tars\), which are trained with --data_type shard; give",
        ),
        ("\n", "shard", "l: contains no shards; write the path or URL of one tar per line$"),
    ],
)
def test_a_list_of_the_other_type_is_refused(
    tmp_path: Path, content: str, data_type: DataType, message: str
) -> None:
    (tmp_path / "l").write_text(content)

    with pytest.raises(DataError, match=message):
        open_list(tmp_path / "l", data_type)


@pytest.mark.parametrize("key", ["/etc/x", "a/../../x", ".."])
def test_a_key_that_cannot_name_a_member_is_refused(
    utterances: list[Utterance], tmp_path: Path, key: str
) -> None:
    with pytest.raises(DataError, match="cannot name a member of a tar; give it a key without"):
        pack([replace(utterances[0], key=key)], tmp_path / "out")

    assert list(tmp_path.glob("**/*.tar")) == []


def test_an_utterance_without_audio_is_not_packed(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    (tmp_path / "bad.wav").write_bytes(b"no audio")
    damaged = replace(utterances[0], wav=str(tmp_path / "bad.wav"))
    segment_of_a_missing_file = replace(utterances[5], wav="/none.wav")

    for bad in (damaged, segment_of_a_missing_file):
        with pytest.raises(DataError, match=rf"^utterance {bad.key}: {bad.wav}: "):
            pack([bad], tmp_path / "out")
    assert list(tmp_path.glob("**/*.tar")) == []
