# SPDX-License-Identifier: Apache-2.0
"""Examples depend only on (seed, epoch, index), and every utterance that is not used has a reason."""

import logging
import multiprocessing
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from noise_clips import (
    PLAIN,
    RANDOM,
    assert_equal_batches,
    conv2d_length,
    make_dataset,
    write_clips,
)

from wenet_hs.config.dataset import DatasetConf, FilterConf
from wenet_hs.data import dataset
from wenet_hs.data.audio import ClipError, segment_duration
from wenet_hs.data.batching import Example, collate
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.data.features import utterance_features
from wenet_hs.data.shards import open_list, write_shards
from wenet_hs.frontends import build_frontend
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    return write_clips(tmp_path, [0.5 + 0.1 * i for i in range(8)], ("a", "ab", "abc"))


def epoch_frames(data: SpeechDataset, epoch: int) -> list[int]:
    """The planned lengths of all items."""
    frames: list[int] = data.item_frames(np.arange(len(data)), epoch).tolist()
    return frames


def test_without_training_an_item_has_the_features_of_the_file(utterances: list[Utterance]) -> None:
    data = make_dataset(utterances, RANDOM, training=False)
    for index, utterance in enumerate(utterances):
        example = data.make_example(index, epoch=index)
        assert example.key == utterance.key
        assert torch.equal(example.features, utterance_features(utterance, build_frontend(RANDOM)))
        assert example.target.tolist() == [3, 4, 5][: 1 + index % 3]
        assert example.audio_seconds == utterance.duration
    assert (
        epoch_frames(data, 5)
        == data.num_frames
        == [len(data.make_example(i, 0).features) for i in range(8)]
    )


def test_an_item_is_a_function_of_seed_epoch_and_index(utterances: list[Utterance]) -> None:
    state = torch.get_rng_state()
    data, again = make_dataset(utterances), make_dataset(utterances)
    backwards = {
        (e, i): again.make_example(i, e).features for e in (1, 0) for i in reversed(range(8))
    }
    for (epoch, index), features in backwards.items():
        assert torch.equal(data.make_example(index, epoch).features, features)
        assert epoch_frames(data, epoch)[index] == len(features)
    assert epoch_frames(data, 0) != data.num_frames
    assert torch.equal(torch.get_rng_state(), state)
    other = make_dataset(utterances, seed=1)
    assert any(
        not torch.equal(other.make_example(i, 0).features, backwards[0, i]) for i in range(8)
    )
    assert any(not torch.equal(backwards[1, i], backwards[0, i]) for i in range(8))


def test_speeds_are_uniform_but_never_too_fast_for_the_label(utterances: list[Utterance]) -> None:
    data = make_dataset([utterances[7], replace(utterances[0], txt="abcabcabcab")])
    assert conv2d_length(data.num_frames[1]) == 11
    frames = [epoch_frames(data, epoch) for epoch in range(300)]
    speeds = Counter(round(data.num_frames[0] / length, 1) for length, _ in frames)
    assert set(speeds) == {0.9, 1.0, 1.1} and min(speeds.values()) > 70
    lengths = {length for _, length in frames}
    assert (
        min(lengths) == data.num_frames[1] and len(lengths) == 2
    )  # the slower speed is still used


def cached(utterances: list[Utterance], path: Path) -> SpeechDataset:
    data = make_dataset(utterances, RANDOM.model_copy(update={"cache_features": True}))
    data.cache_in(path)
    return data


def test_the_cache_reads_each_speed_once_and_masks_anew(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    data, resumed = (cached(utterances, tmp_path / name) for name in ("one", "two"))
    seen = [data.make_example(0, epoch).features for epoch in range(12)]
    assert len({len(features) for features in seen}) == 3, "all three speeds were drawn"
    assert torch.equal(resumed.make_example(0, 11).features, seen[11]), (
        "a cache filled after a resume has the same features"
    )
    Path(utterances[0].wav).unlink()
    again = [data.make_example(0, epoch).features for epoch in range(12)]
    assert all(map(torch.equal, seen, again))
    same_length = [features for features in seen if len(features) == len(seen[0])]
    assert any(not torch.equal(features, same_length[0]) for features in same_length[1:])


def test_processes_share_a_cache_of_the_stated_size(
    utterances: list[Utterance],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Worker processes fill it; the process that started them, and another data set, read from it
    without audio.
    """
    path, plan = tmp_path / "cache.bin", [[0, 1], [2]]
    long = make_dataset([replace(utterances[0], duration=601.0)], training=False)
    long.cache_in(tmp_path / "long.bin")
    assert (tmp_path / "long.bin").stat().st_size == 8, (
        "no space for a clip that is too long to be kept"
    )
    with caplog.at_level(logging.INFO), monkeypatch.context() as patch:
        patch.setattr(
            Path, "exists", lambda self: False
        )  # as two ranks that come at the same time see it
        data, other = cached(utterances, path), cached(utterances, path)
    assert "cache.bin: 0.2 MB for features" in caplog.text
    assert path.stat().st_size == pytest.approx(
        4 * 23 * 100 * 6.8 * (1 + 1 / 0.9 + 1 / 1.1), rel=0.05
    )  # 6.8 s
    assert not list(tmp_path.glob("*.tmp"))
    first = list(batches(data, plan, 0, num_workers=2))
    for utterance in utterances:
        Path(utterance.wav).unlink()
    for reader in (data, other, cached(utterances, path)):
        assert_equal_batches(first, batches(reader, plan, 0))
    with pytest.raises(ClipError):
        data.make_example(3, 0)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "spawn")
    next(batches(data, [[0]], 0, num_workers=1))
    assert "worker processes cannot share the cache here; num_workers 1 is not used" in caplog.text


def test_the_cache_and_clips_of_another_length(
    utterances: list[Utterance], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(utterances[7].wav)
    path.write_bytes(path.read_bytes()[:-640])  # 20 ms of the 1.2 s of its header
    listed = [replace(utterances[6], duration=1.06), utterances[7]]
    data, plain = cached(listed, tmp_path / "cache.bin"), make_dataset(listed)
    list(batches(data, [[0, 1]], 0, num_workers=1))
    for epoch in range(8):
        assert [data.make_example(index, epoch).is_incomplete for index in (0, 1)] == [False, True]
        assert len(data.make_example(0, epoch).features) == len(
            plain.make_example(0, epoch).features
        )
    assert not caplog.records, "the worker process has logged that the first clip is not kept"


def test_the_key_of_a_cache_changes_with_the_audio(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    list(write_shards(utterances, tmp_path, num_utts_per_shard=8))
    shard = tmp_path / "shards_000000000.tar"
    store = fsspec.filesystem("memory")
    store.pipe("/key/a.tar", shard.read_bytes())
    (tmp_path / "urls").write_text("memory://key/a.tar\n")

    def keys() -> list[str]:
        lists = (
            utterances,
            open_list(tmp_path / "data.list", "shard"),
            open_list(tmp_path / "urls", "shard"),
        )
        return [make_dataset(one).cache_key() for one in lists]

    before = keys()
    assert keys() == before and len({*before}) == 3
    for number, path in enumerate((Path(utterances[0].wav), shard)):
        os.utime(path, (1, 1))
        now = keys()
        assert [old != new for old, new in zip(before, now, strict=True)] == [
            place == number for place in range(3)
        ]
        before = now
    store.pipe("/key/a.tar", shard.read_bytes() + bytes(512))
    assert keys()[2] != before[2]


def test_every_utterance_is_kept_or_rejected_with_its_reason(utterances: list[Utterance]) -> None:
    texts = {"empty": ("", 0.5), "repeats": ("aaaaaaa", 0.5), "short": ("a", 0.05)}
    odd = [
        replace(utterances[0], key=key, txt=txt, duration=length)
        for key, (txt, length) in texts.items()
    ]
    data = make_dataset([*odd, *utterances])
    assert [data.make_example(i, 0).key for i in range(len(data))] == [u.key for u in utterances]
    assert dict(data.rejected) == {
        "empty": "empty transcript",
        "repeats": "fewer frames than labels: 11 encoder frames, CTC needs 13",
        "short": "too short: 0.050 s, filter_conf.min_length is 10 frames of 10 ms",
    }
    # A test utterance is kept unless it is too short for the encoder.
    data = make_dataset(odd, DatasetConf(filter_conf=FilterConf(min_length=60)), training=False)
    assert [data.make_example(i, 0).key for i in range(len(data))] == ["empty", "repeats"]
    assert data.rejected == [("short", "too short for the encoder: 0.050 s")]
    data = make_dataset(utterances, output_length=lambda num_frames: num_frames // 60)
    assert [key for key, _ in data.rejected] == ["u0", "u1", "u2", "u4", "u5", "u7"]
    assert data.rejected[0][1] == "fewer frames than labels: 0 encoder frames, CTC needs 1"


def test_unknown_units_are_counted_and_become_unk(utterances: list[Utterance]) -> None:
    some = [replace(utterances[0], txt=txt) for txt in ("a x xz", "qqq" * 100)]
    data = make_dataset(some, DatasetConf(max_unknown_units=0.5))
    assert data.unknown == Counter({"x": 2, "z": 1})
    assert data.make_example(0, 0).target.tolist() == [3, 7, 1, 7, 1, 1]


def test_missing_durations_are_read_from_the_header(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    bare = [Utterance(key=u.key, wav=u.wav, txt=u.txt) for u in utterances]
    assert make_dataset(bare).num_frames == make_dataset(utterances).num_frames
    segment = Utterance(key="s", wav=utterances[7].wav, txt="a", start=0.2, end=0.7)
    tail = Utterance(key="t", wav=utterances[7].wav, txt="a", start=0.7)
    data = make_dataset([segment, tail], PLAIN)
    assert data.num_frames == [48, 48] == [len(data.make_example(i, 0).features) for i in (0, 1)]
    (clip,) = write_clips(tmp_path, [0.05])
    with pytest.raises(
        DataError, match="utterance u0: .*: 3 frames of audio are too few for the encoder"
    ):
        make_dataset([replace(clip, duration=0.12)], training=False).make_example(0, 0)
    gone = Utterance(key="gone", wav="/none.wav", txt="a")
    with pytest.raises(
        DataError,
        match=r"^utterance gone: /none.wav: missing; 1 of 1 clips cannot .* allows 0.01: re",
    ):
        make_dataset([gone])
    data = make_dataset([*utterances, gone], PLAIN.model_copy(update={"max_bad_clips": 0.2}))
    assert (len(data), data.rejected) == (8, [("gone", "unreadable: missing")])


def test_headers_are_read_at_the_same_time_with_the_results_of_one_after_the_other(
    utterances: list[Utterance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.wav").write_bytes(b"no audio")
    bad = [
        Utterance(key=key, wav=str(tmp_path / name), txt="a")
        for key, name in (("x", "bad.wav"), ("y", "none.wav"))
    ]
    listed = [replace(u, duration=None) for u in utterances]
    listed = [*listed[:3], bad[0], *listed[3:], bad[1]]
    meet = threading.Barrier(2)  # two headers at a time, or BrokenBarrierError

    def read(utterance: Utterance) -> float:
        meet.wait(timeout=20)
        return segment_duration(utterance)

    monkeypatch.setattr(dataset, "segment_duration", read)
    monkeypatch.setattr(dataset, "HEADERS_AT_ONCE", 4)
    data = make_dataset(listed, PLAIN.model_copy(update={"max_bad_clips": 0.2}))
    assert data.durations.tolist() == [segment_duration(u) for u in utterances]
    (x, reason), missing = data.rejected
    assert (x, missing) == ("x", ("y", "unreadable: missing")) and reason.startswith(
        "unreadable: not audio"
    )
    with pytest.raises(
        DataError,
        match=r"^utterance y: .*/none.wav: missing; 2 of 10 clips cannot be read, .*0.15: r",
    ):
        make_dataset(listed, PLAIN.model_copy(update={"max_bad_clips": 0.15}))


def test_examples_are_padded_to_the_longest() -> None:
    examples = [
        Example(
            key=f"k{n}", features=torch.ones(n, 2), target=torch.tensor(ids), audio_seconds=0.25
        )
        for n, ids in ((2, [7]), (3, [5, 6]))
    ]
    batch = collate(examples)
    assert batch.keys == ["k2", "k3"]
    assert batch.features.tolist() == [[[1, 1], [1, 1], [0, 0]], [[1, 1]] * 3]
    assert batch.feature_lengths.tolist() == [2, 3]
    assert batch.targets.tolist() == [[7, -1], [5, 6]]
    assert batch.target_lengths.tolist() == [1, 2]
    assert (batch.num_targets, batch.audio_seconds) == (5, 0.5)
    assert batch.targets.dtype == batch.feature_lengths.dtype == torch.int64
    assert batch.to("meta").features.device.type == "meta"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_and_a_resume_change_no_batch(
    utterances: list[Utterance], num_workers: int
) -> None:
    data = make_dataset(utterances)
    plan = data.plan(1)
    expected = list(batches(data, plan, 1))
    assert [batch.keys for batch in expected] == [
        [utterances[i].key for i in indices] for indices in plan
    ]
    assert sum(batch.num_targets for batch in expected) == 15 + 8
    resumed = make_dataset(utterances)
    for start in (0, 1, len(plan)):
        assert_equal_batches(
            expected[start:], batches(resumed, plan[start:], 1, num_workers=num_workers)
        )
