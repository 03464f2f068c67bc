# SPDX-License-Identifier: Apache-2.0
"""Bad clips in a training: they are left out and counted, and end the run above the allowed share."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_corpus import TinyCorpus, cut_back, metrics, outcome, write_tiny_corpus

from wenet_hs.errors import DataError
from wenet_hs.train.state import read_progress

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def rows(folder: Path) -> list[str]:
    return [line.split("\t")[0] for line in (folder / "quarantine.tsv").read_text().splitlines()]


@pytest.mark.slow
def test_a_training_with_bad_clips_resumes_with_the_same_bits(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    clips = [tmp_path / "corpus" / "clips" / f"{key}.wav" for key in ("train3", "cv1")]
    contents = [clip.read_bytes() for clip in clips]
    for clip in clips:
        clip.write_bytes(b"")
    short = clips[0].with_name("train4.wav")
    short.write_bytes(short.read_bytes()[:-32])  # 1 or 2 ms
    shape = ("max_epoch=1", "save_interval=2")
    whole = corpus.train(tmp_path / "whole", "dataset_conf.max_bad_clips=0.4", *shape)
    assert rows(whole)[0] == "key" and sorted(rows(whole)[1:]) == ["cv1", "train3"]
    records: list[dict[str, Any]] = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["kind"] == "valid" and records[-1]["bad_clips"] == 1
    assert [record["bad_clips"] for record in records if record["kind"] == "train"][-1] == 1
    progress = read_progress(whole / "checkpoints" / "step-00000004")
    assert (progress.bad_clips, progress.incomplete_clips, progress.clips_drawn) == (1, 1, 10)
    resumed = cut_back(whole, tmp_path / "resumed", 2)
    corpus.train(resumed, "dataset_conf.max_bad_clips=0.5", *shape)
    assert outcome(resumed) == outcome(whole)
    assert sorted(rows(resumed)) == sorted(rows(whole))
    for clip, content in zip(clips, contents, strict=True):  # restored: what was bad before the resume ends no run
        clip.write_bytes(content)
    corpus.train(cut_back(whole, tmp_path / "mended", 2), "dataset_conf.max_bad_clips=0", *shape)


@pytest.mark.parametrize(("clip", "count"), [("train3", "1 of 10"), ("cv0", "1 of 3")])
def test_training_ends_above_the_allowed_share_of_bad_clips(tmp_path: Path, clip: str, count: str) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    (tmp_path / "corpus" / "clips" / f"{clip}.wav").write_bytes(b"")
    with pytest.raises(DataError, match=rf"quarantine\.tsv: {count} clips cannot be read, more than the share 0\.02"):
        corpus.train(tmp_path / "m", "dataset_conf.max_bad_clips=0.02", "save_interval=100", "max_epoch=1")
    assert rows(tmp_path / "m") == ["key", clip]


def test_features_computed_on_the_device_are_equal_up_to_rounding(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    plain = ("max_epoch=1", "save_interval=4", "dataset_conf.fbank_conf.dither=0")
    worker = tiny_corpus.train(tmp_path / "worker", *plain)
    device = tiny_corpus.train(tmp_path / "device", *plain, "dataset_conf.features_on=device")
    losses = [[record["loss"] for record in metrics(folder)] for folder in (worker, device)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
