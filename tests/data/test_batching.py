# SPDX-License-Identifier: Apache-2.0
"""The plan of an epoch: nothing lost, nothing over its limit, the same everywhere, as many batches on every rank."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.config.dataset import BatchConf
from wenet_hs.data.batching import plan_epoch
from wenet_hs.errors import DataError

LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=120)
CONFS = st.one_of(
    st.builds(BatchConf, batch_type=st.just("static"), batch_size=st.integers(1, 40)),
    st.builds(BatchConf, batch_type=st.just("dynamic"), max_frames_in_batch=st.integers(1, 20000)),
    st.just(BatchConf(batch_type="bucket", bucket_boundaries=(200, 1000), bucket_batch_sizes=(16, 8, 3))),
)


def corpus(num: int) -> list[int]:
    rng = np.random.default_rng(0)
    return np.clip(rng.lognormal(5.8, 0.4, num), 50, 1500).astype(int).tolist()


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, conf=CONFS, epoch=st.integers(0, 1000), shuffle=st.booleans())
def test_one_process_sees_every_utterance_once(lengths: list[int], conf: BatchConf, epoch: int, shuffle: bool) -> None:
    plan = plan_epoch(lengths, conf, seed=1, epoch=epoch, shuffle=shuffle)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    assert all(plan)
    assert plan == plan_epoch(lengths, conf, seed=1, epoch=epoch, shuffle=shuffle)


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, conf=CONFS, world_size=st.integers(1, 9), shuffle=st.booleans())
def test_ranks_have_equal_numbers_of_batches_and_lose_nothing(
    lengths: list[int], conf: BatchConf, world_size: int, shuffle: bool
) -> None:
    plans = [
        plan_epoch(lengths, conf, seed=3, epoch=2, rank=rank, world_size=world_size, shuffle=shuffle)
        for rank in range(world_size)
    ]
    assert len({len(plan) for plan in plans}) == 1
    seen = Counter(index for plan in plans for batch in plan for index in batch)
    assert set(seen) == set(range(len(lengths)))
    batches = [batch for plan in plans for batch in plan]
    if any(count > 1 for count in seen.values()):  # the module's stated exception
        assert all(len(batch) == 1 for batch in batches)
        assert seen.total() < len(lengths) + world_size * max(1, -(-world_size // len(lengths)))
    alone = plan_epoch(lengths, conf, seed=3, epoch=2, shuffle=shuffle)
    assert len(batches) - len(alone) < world_size  # no more is cut than is needed


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, cap=st.integers(1, 20000), world_size=st.integers(1, 4))
def test_dynamic_batches_keep_to_their_frames(lengths: list[int], cap: int, world_size: int) -> None:
    conf = BatchConf(batch_type="dynamic", max_frames_in_batch=cap)
    for rank in range(world_size):
        for batch in plan_epoch(lengths, conf, seed=0, epoch=0, rank=rank, world_size=world_size):
            assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= cap


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, conf=CONFS)
def test_batches_keep_to_their_counts(lengths: list[int], conf: BatchConf) -> None:
    for batch in plan_epoch(lengths, conf, seed=0, epoch=0):
        if conf.batch_type == "static":
            assert len(batch) <= conf.batch_size
        if conf.batch_type == "bucket":
            (bucket,) = {(lengths[i] >= 200) + (lengths[i] >= 1000) for i in batch}
            assert len(batch) <= (16, 8, 3)[bucket]


def test_static_batches_are_full_but_one() -> None:
    sizes = Counter(len(batch) for batch in plan_epoch(corpus(100), BatchConf(batch_size=16), seed=0, epoch=0))
    assert sizes == {16: 6, 4: 1}


def test_an_utterance_longer_than_the_limit_is_alone() -> None:
    conf = BatchConf(batch_type="dynamic", max_frames_in_batch=100)
    plan = plan_epoch([500, 50, 50, 10], conf, seed=0, epoch=0, shuffle=False)
    assert plan == [[0], [1, 2], [3]]


def test_seed_and_epoch_change_the_plan_and_its_batches() -> None:
    lengths, conf = corpus(400), BatchConf(batch_size=8)
    plans = [plan_epoch(lengths, conf, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    members = [{frozenset(batch) for batch in plan} for plan in plans]
    assert members[0] != members[1] != members[2] != members[0]
    firsts = [np.mean([lengths[i] for i in batch]) for batch in plans[0]]
    assert firsts != sorted(firsts, reverse=True)


def test_without_shuffling_the_longest_come_first() -> None:
    lengths = corpus(100)
    plan = plan_epoch(lengths, BatchConf(batch_size=8), seed=0, epoch=0, shuffle=False)
    order = [lengths[index] for batch in plan for index in batch]
    assert order == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    "conf",
    [
        BatchConf(batch_size=16),
        BatchConf(batch_type="dynamic", max_frames_in_batch=12000),
        BatchConf(batch_type="bucket", bucket_boundaries=(300, 600), bucket_batch_sizes=(32, 16, 8)),
    ],
    ids=lambda conf: conf.batch_type,
)
def test_little_is_padding(conf: BatchConf) -> None:
    lengths = corpus(2000)
    plan = plan_epoch(lengths, conf, seed=0, epoch=0)
    padded = sum(max(lengths[index] for index in batch) * len(batch) for batch in plan)
    assert sum(lengths) / padded > 0.95


def test_ranks_work_on_batches_of_similar_size_at_the_same_time() -> None:
    lengths = corpus(1000)
    left, right = (plan_epoch(lengths, BatchConf(batch_size=8), seed=0, epoch=0, rank=r, world_size=2) for r in (0, 1))
    longest = [(max(lengths[i] for i in a), max(lengths[i] for i in b)) for a, b in zip(left, right, strict=True)]
    assert np.mean([abs(a - b) / max(a, b) for a, b in longest]) < 0.05


def test_the_largest_batch_is_cut_for_an_odd_number() -> None:
    plans = [plan_epoch([9, 8, 7], BatchConf(batch_size=3), seed=0, epoch=0, rank=r, world_size=2) for r in (0, 1)]
    assert sorted(len(plan[0]) for plan in plans) == [1, 2]


def test_one_utterance_for_three_ranks_is_repeated() -> None:
    for rank in range(3):
        assert plan_epoch([9], BatchConf(), seed=0, epoch=0, rank=rank, world_size=3) == [[0]]


def test_no_utterances() -> None:
    with pytest.raises(DataError, match="no utterances to make batches of"):
        plan_epoch([], BatchConf(), seed=0, epoch=0)


def test_a_rank_outside_the_world_is_a_wrong_call() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        plan_epoch([1], BatchConf(), seed=0, epoch=0, rank=2, world_size=2)
