# SPDX-License-Identifier: Apache-2.0
"""Tables of utterances, reasons of rejected ones, balanced languages and lists."""

import logging
import pickle
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from noise_clips import make_dataset

from wenet_hs.config.dataset import BatchConf, DatasetConf, FilterConf, SamplingConf
from wenet_hs.data import sampling as sampling_module
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.data.sampling import Sampler, UtteranceTable, make_sampler, reason_to_reject
from wenet_hs.data.shards import open_lists
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.tree.errors import ConfigError, DataError

# Two lists: 60 of "big" and 6 of "small" of 4 s, then 12 of "small" of 2 s.
LIST_1 = [
    Utterance(key=f"k{row}", wav="w", txt="a", lang=lang, duration=4.0)
    for row, lang in enumerate((["big"] * 10 + ["small"]) * 6)
]
LIST_2 = [
    Utterance(key=f"k{row}", wav="w", txt="a", lang="small", duration=2.0)
    for row in range(len(LIST_1), len(LIST_1) + 12)
]
UTTERANCES = LIST_1 + LIST_2


def dataset(
    sampling: SamplingConf | None, utterances: list[Utterance] = UTTERANCES, **options: Any
) -> SpeechDataset:
    conf = DatasetConf(speed_perturb=True, sampling=sampling, batch_conf=BatchConf(batch_size=7))
    table = UtteranceTable(utterances, list_starts=(0, len(LIST_1)))
    return make_dataset(table, conf, **{"seed": 4, **options})


def drawn(data: SpeechDataset, epoch: int) -> Counter[int]:
    """The count of each virtual item in an epoch."""
    return Counter(item for batch in data.plan(epoch) for item in batch)


@pytest.mark.parametrize(
    ("conf", "big_s", "small_s", "list_2_s"),
    [
        pytest.param(
            SamplingConf(temperature=1.0),
            240.0,
            24.0,
            24.0,
            id="the durations of the utterances",
        ),
        pytest.param(
            SamplingConf(temperature=2.0),
            200.6,
            63.4,
            24.0,
            id="264 s of list 1 in the proportion of the roots of 240 and 24",
        ),
        pytest.param(
            SamplingConf(temperature=1e9, weights=(3.0, 1.0)),
            108.0,
            108.0,
            72.0,
            id="equal languages, and lists of 3/4 and 1/4 of 288 s",
        ),
    ],
)
def test_shares_of_languages_and_lists_by_hand(
    conf: SamplingConf, big_s: float, small_s: float, list_2_s: float
) -> None:
    drawn_s = Counter[str]()
    for item, count in drawn(dataset(conf), 0).items():
        row = item % len(UTTERANCES)
        if row < len(LIST_1):
            lang = LIST_1[row].lang
            drawn_s[f"{lang} of list 1"] += count * 4
        else:
            drawn_s["list 2"] += count * 2

    expected_s = {"big of list 1": big_s, "small of list 1": small_s, "list 2": list_2_s}
    assert drawn_s == pytest.approx(expected_s, abs=3.0)


def test_an_epoch_is_a_function_of_seed_and_epoch() -> None:
    conf = SamplingConf(temperature=3.0)
    data = dataset(conf)
    backwards = [data.plan(epoch) for epoch in (5, 1, 0)]
    assert backwards == [dataset(conf).plan(epoch) for epoch in (5, 1, 0)]
    assert drawn(data, 1) != drawn(data, 0) != drawn(dataset(conf, seed=5), 0)
    for same in (SamplingConf(), SamplingConf(weights=(264.0, 24.0))):
        assert dataset(same).plan(2) == dataset(None).plan(2), (
            "temperature 1 draws each utterance once"
        )
    assert set(drawn(dataset(conf, training=False), 0).values()) == {1}, "validation is not sampled"


@pytest.mark.parametrize("quota", [4, 25])
def test_every_utterance_is_drawn_before_one_is_drawn_again(quota: int) -> None:
    """Of a group of ten: after e epochs each was drawn e * quota / 10 times, rounded down or up."""
    sampler = Sampler(np.zeros(10, np.int64), np.array([quota]), seed=0)
    times_drawn = np.zeros(10, np.int64)
    for epoch in range(13):
        items = sampler.items(epoch)
        assert items.tolist() == sorted(set(items.tolist())) and len(items) == quota, (
            "no item twice in an epoch"
        )
        times_drawn += np.bincount(items % 10, minlength=10)
        assert times_drawn.max() - times_drawn.min() <= 1


def test_copies_are_augmented_apart() -> None:
    data = dataset(SamplingConf(temperature=1e9))
    items = sorted(drawn(data, 0))
    lengths = dict(zip(items, data.item_frames(np.array(items), 0).tolist(), strict=True))
    assert any(
        lengths[item] != lengths[item % 78] for item in items if item >= 78 and item % 78 in lengths
    )


def test_faults_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    nameless = [replace(utterance, lang=None) for utterance in UTTERANCES]
    with pytest.raises(
        DataError,
        match=r"^dataset_conf.sampling: by lang, but 78 utterances have no 'lang' in their",
    ):
        dataset(SamplingConf(temperature=2.0), nameless)
    assert len(dataset(SamplingConf(weights=(1.0, 1.0)), nameless)) == 78
    with pytest.raises(
        ConfigError,
        match=r"^dataset_conf.sampling.weights: 3 weights for 2 lists in --train_data; g",
    ):
        dataset(SamplingConf(weights=(1.0, 1.0, 1.0)))
    with caplog.at_level(logging.INFO):
        dataset(SamplingConf(temperature=2.0))
    expected = r"sampling: an epoch draws \d+ times from 78 utterances: list 1 big 0.07 -> 0.06 h, list 1 small 0.01"
    assert re.search(expected, caplog.text)


def test_a_list_without_usable_utterances_has_no_share() -> None:
    utterances = [Utterance(key=f"k{i}", wav="w", txt="a", lang="ca") for i in range(5)]
    table = UtteranceTable(utterances, list_starts=(0, 2, 3))
    rows_of_lists_1_and_3 = np.array([0, 1, 3, 4])
    conf = SamplingConf(weights=(1.0, 5.0, 3.0))

    sampler = make_sampler(conf, table, rows_of_lists_1_and_3, np.ones(4), seed=0)

    items = sampler.items(0) % 4
    assert np.sum(items < 2) == 1, "of list 1"
    assert np.sum(items >= 2) == 3, "of list 3"


def varied_utterances() -> list[Utterance]:
    """60 utterances; optional fields are missing in some of them."""
    utterances = list[Utterance]()
    for i in range(60):
        utterance = Utterance(key=f"u{i}", wav=f"{i}.wav", txt="é x " * (i % 5))
        if i % 7 != 0:
            utterance = replace(utterance, lang=("ca", "es", "fr")[i % 3])
        if i % 11 != 0:
            utterance = replace(utterance, duration=0.05 + i / 7)
        if i % 2 != 0:
            utterance = replace(utterance, speaker="s")
        if i % 5 == 0:
            utterance = replace(utterance, start=0.5)
        utterances.append(utterance)
    return utterances


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 60 rows has several blocks, and the last one is not full."""
    monkeypatch.setattr(sampling_module, "_BLOCK_ROWS", 7)


@pytest.mark.usefixtures("small_blocks")
def test_a_table_returns_its_utterances() -> None:
    utterances = varied_utterances()

    table = UtteranceTable(iter(utterances))

    assert list(table) == utterances
    assert list(pickle.loads(pickle.dumps(table))) == utterances
    assert table[-1] == utterances[-1]
    with pytest.raises(IndexError):
        table[60]


@pytest.mark.usefixtures("small_blocks")
def test_a_table_has_languages_in_the_order_of_their_first_utterances() -> None:
    utterances = varied_utterances()

    table = UtteranceTable(iter(utterances))

    assert table.lang_names == ("es", "fr", "ca")
    for lang_id, utterance in zip(table.langs, utterances, strict=True):
        if utterance.lang is None:
            assert lang_id < 0, utterance
        else:
            assert lang_id >= 0, utterance
            assert table.lang_names[lang_id] == utterance.lang, utterance


def test_an_empty_table_has_no_utterances() -> None:
    assert len(UtteranceTable([])) == 0


def test_the_digest_of_a_table_does_not_depend_on_paths_and_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utterances = varied_utterances()
    moved = [replace(utterance, wav="w") for utterance in utterances]
    last_is_changed = [*utterances[:-1], replace(utterances[-1], txt="y")]
    digest_in_one_block = UtteranceTable(utterances).digest
    monkeypatch.setattr(sampling_module, "_BLOCK_ROWS", 7)

    digest = UtteranceTable(iter(utterances)).digest

    assert digest == digest_in_one_block
    assert UtteranceTable(moved).digest == digest
    assert UtteranceTable(last_is_changed).digest != digest


def test_several_lists_are_one_table(tmp_path: Path) -> None:
    write_data_list(tmp_path / "a", UTTERANCES[:30])
    write_data_list(tmp_path / "b", UTTERANCES[30:])
    table = open_lists([tmp_path / "a", tmp_path / "b"])

    assert list(table) == UTTERANCES
    assert table.list_starts == (0, 30)
    with pytest.raises(
        DataError, match="^--cv_data: utterance 'k0' is in two lists; remove it from one, or rename"
    ):
        open_lists([tmp_path / "a", tmp_path / "b", tmp_path / "a"], flag="--cv_data")


@pytest.mark.parametrize(
    ("ids", "duration_s", "num_encoder_frames", "reason"),
    [
        ([5, 6, 7], 1.0, 24, None),
        ([], 1.0, 24, "empty transcript"),
        ([5, 6], 0.19, 4, "too short: 0.190 s, filter_conf.min_length is 20 frames of 10 ms"),
        ([5, 6], 10.5, 260, "too long: 10.5 s, filter_conf.max_length is 1000 frames of 10 ms"),
        ([5], 1.0, 24, "too few units: 1, filter_conf.token_min_length is 2"),
        ([5, 6] * 5, 1.0, 24, "too many units: 10, filter_conf.token_max_length is 8"),
        ([5, 5, 5], 0.2, 4, "fewer frames than labels: 4 encoder frames, CTC needs 5"),
        ([5, 6, 5], 0.2, 4, None),
        (
            [5, 6, 7, 8, 9],
            0.2,
            5,
            "too many units for its length: 0.2500 per frame, at most 0.21 wanted",
        ),
        ([5, 6], 9.0, 224, "too few units for its length: 0.0022 per frame, at least 0.005 wanted"),
    ],
)
def test_reasons_to_reject(
    ids: list[int], duration_s: float, num_encoder_frames: int, reason: str | None
) -> None:
    limits = {"max_length": 1000, "min_length": 20, "token_max_length": 8, "token_min_length": 2}
    conf = FilterConf(**limits, min_output_input_ratio=0.005, max_output_input_ratio=0.21)
    assert reason_to_reject(ids, duration_s, num_encoder_frames, conf) == reason
