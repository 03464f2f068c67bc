# SPDX-License-Identifier: Apache-2.0
"""Whether the speeds of experiments can be compared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from made_up_experiment import write_experiment

from wenet_hs.results.experiment import ExperimentResults, read_experiments
from wenet_hs.results.folder import DecodingRecord
from wenet_hs.results.speeds import WorkTime, find_unequal_work, names_without_encoder_time


def timed(
    experiment: ExperimentResults, name: str, audio_seconds: float, **seconds: float
) -> ExperimentResults:
    record: dict[str, Any] = {
        "modes": {"attention": {}},
        "audio_seconds": audio_seconds,
        "seconds": seconds,
    }
    return replace(experiment, name=name, decoding=DecodingRecord.model_validate(record))


def test_equal_work_per_second_of_audio_must_take_equal_time(tmp_path: Path) -> None:
    (experiment,) = read_experiments([write_experiment(tmp_path / "a")])
    first = timed(experiment, "a", 100.0, features=2.0, encoder=8.0, ctc=1.0)
    longer_test = timed(experiment, "b", 200.0, features=4.0, encoder=17.0, ctc=2.0)
    assert find_unequal_work([first, longer_test]) is None
    slow = timed(experiment, "c", 100.0, features=2.0, encoder=8.0, ctc=2.5)
    unequal = find_unequal_work([first, longer_test, slow])
    assert unequal is not None
    assert unequal.stages == ["features", "encoder", "ctc"]
    assert (unequal.fast, unequal.slow) == (WorkTime(0.11, "a"), WorkTime(0.125, "c"))
    other_ctc = replace(slow, settings=slow.settings | {"ctc_conf": {"head": "hsoftmax"}})
    assert find_unequal_work([first, other_ctc]) is None, "CTC is other work"


def test_experiments_without_encoder_time(tmp_path: Path) -> None:
    (experiment,) = read_experiments([write_experiment(tmp_path / "a")])
    complete = timed(experiment, "a", 100.0, encoder=8.0)
    without_encoder = timed(experiment, "b", 100.0, features=1.0)
    without_audio = timed(experiment, "c", 0.0, encoder=8.0)
    not_decoded = replace(experiment, decoding=DecodingRecord(modes={}))
    assert names_without_encoder_time([complete, without_encoder, without_audio, not_decoded]) == [
        "b",
        "c",
    ]
