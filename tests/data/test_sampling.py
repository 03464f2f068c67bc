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
LANGS = [*(["big"] * 10 + ["small"]) * 6, *["small"] * 12]
UTTERANCES = [
    Utterance(key=f"k{i}", wav="w", txt="a", lang=lang, duration=4.0 if i < 66 else 2.0)
    for i, lang in enumerate(LANGS)
]


def dataset(
    sampling: SamplingConf | None, utterances: list[Utterance] = UTTERANCES, **options: Any
) -> SpeechDataset:
    conf = DatasetConf(speed_perturb=True, sampling=sampling, batch_conf=BatchConf(batch_size=7))
    return make_dataset(UtteranceTable(utterances, (0, 66)), conf, **{"seed": 4, **options})


def drawn(data: SpeechDataset, epoch: int) -> Counter[int]:
    """The count of each virtual item in an epoch."""
    return Counter(item for batch in data.plan(epoch) for item in batch)


@pytest.mark.parametrize(
    (
        "conf",
        "seconds",
    ),  # of "big" and "small" in list 1, and of list 2, as drawn; 240, 24 and 24 are there
    [
        (SamplingConf(temperature=1.0), (240.0, 24.0, 24.0)),
        (
            SamplingConf(temperature=2.0),
            (200.6, 63.4, 24.0),
        ),  # 264 s in the proportion of the roots of 240 and 24
        (
            SamplingConf(temperature=1e9, weights=(3.0, 1.0)),
            (108.0, 108.0, 72.0),
        ),  # 3/4 and 1/4 of 288 s
    ],
)
def test_shares_of_languages_and_lists_by_hand(
    conf: SamplingConf, seconds: tuple[float, ...]
) -> None:
    found: Counter[tuple[bool, str | None]] = Counter()
    for item, count in drawn(dataset(conf), 0).items():
        row = item % 78
        found[row >= 66, LANGS[row]] += count * (4 if row < 66 else 2)
    groups = ((False, "big"), (False, "small"), (True, "small"))
    assert found == pytest.approx(dict(zip(groups, seconds, strict=True)), abs=3.0)


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
    table = UtteranceTable(
        [Utterance(key=f"k{i}", wav="w", txt="a", lang="ca") for i in range(5)], (0, 2, 3)
    )
    conf = SamplingConf(weights=(1.0, 5.0, 3.0))
    sampler = make_sampler(conf, table, np.array([0, 1, 3, 4]), np.ones(4), seed=0)
    items = sampler.items(0) % 4
    assert (np.sum(items < 2), np.sum(items >= 2)) == (1, 3)


def test_a_table_returns_its_utterances_and_their_digest_without_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utterances = [
        Utterance(
            key=f"u{i}",
            wav=f"{i}.wav",
            txt="é x " * (i % 5),
            lang=None if i % 7 == 0 else ("ca", "es", "fr")[i % 3],
            duration=None if i % 11 == 0 else 0.05 + i / 7,
            speaker="s" if i % 2 else None,
            start=0.5 if i % 5 == 0 else None,
        )
        for i in range(60)
    ]
    digest = UtteranceTable(utterances).digest
    monkeypatch.setattr(sampling_module, "_BLOCK_ROWS", 7)
    table = UtteranceTable(iter(utterances))
    assert list(table) == utterances == list(pickle.loads(pickle.dumps(table)))
    assert table[-1] == utterances[-1]
    with pytest.raises(IndexError):
        table[60]
    assert table.lang_names == ("es", "fr", "ca")  # in the order of their first utterances
    assert [table.lang_names[i] if i >= 0 else None for i in table.langs] == [
        u.lang for u in utterances
    ]
    assert len(UtteranceTable([])) == 0
    moved, changed = (
        [replace(u, wav="w") for u in utterances],
        [*utterances[:-1], replace(utterances[-1], txt="y")],
    )
    assert table.digest == digest == UtteranceTable(moved).digest != UtteranceTable(changed).digest


def test_several_lists_are_one_table(tmp_path: Path) -> None:
    write_data_list(tmp_path / "a", UTTERANCES[:30])
    write_data_list(tmp_path / "b", UTTERANCES[30:])
    table = open_lists([tmp_path / "a", tmp_path / "b"])
    assert list(table) == UTTERANCES and table.list_starts == (0, 30)
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
