# SPDX-License-Identifier: Apache-2.0
"""Clips that cannot be read are skipped, recorded once and counted each time; too many of them end
the run.
"""

import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
from noise_clips import RANDOM, assert_equal_batches, make_dataset, write_clips

from wenet_hs.config.dataset import NoiseConf
from wenet_hs.data.batching import Quarantine
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.manifest.data_list import BadClip
from wenet_hs.tree.errors import DataError

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*use of fork:DeprecationWarning"
)


def dataset_of(folder: Path, **options: Any) -> SpeechDataset:
    """Six clips of 0.5 s, which the tests then damage."""
    return make_dataset(write_clips(folder, [0.5] * 6), RANDOM.model_copy(update=options))


def bad(number: int) -> BadClip:
    return BadClip(key=f"k{number}", wav=f"/{number}.wav", reason="missing")


def test_a_batch_skips_its_bad_clips_and_is_never_empty(tmp_path: Path) -> None:
    data, plan = dataset_of(tmp_path), [[0, 1], [2, 3], [4, 5]]
    (tmp_path / "1.wav").write_bytes(b"")
    (tmp_path / "2.wav").unlink()
    (tmp_path / "3.wav").write_bytes((tmp_path / "3.wav").read_bytes()[:9000])
    soundfile.write(
        tmp_path / "4.wav", np.full(4000, 0.1), 16000
    )  # whole, but of another length than listed
    made = list(batches(data, plan, 1))
    assert [batch.keys for batch in made] == [["u0"], ["u5"], ["u5"]]
    assert [f"{clip.key} {clip.reason}" for batch in made[:2] for clip in batch.quarantined] == [
        "u1 empty: 0 bytes",
        "u2 missing",
        "u3 cut off: 0.280 s of audio, its header declares 0.500 s",
        "u4 cut off: 0.25 s, the data list says 0.50 s",
    ]
    assert [batch.num_drawn for batch in made] == [2, 4, 2]
    assert made[0].num_targets == 2
    for num_workers in (0, 1):
        assert_equal_batches(batches(data, plan[1:], 1, num_workers=num_workers), made[1:])
    (tmp_path / "5.wav").unlink()
    (last,) = batches(data, [[5]], 0)
    assert last.keys == ["u0"], "the item after the last one is another copy of the first"
    (tmp_path / "0.wav").unlink()
    with pytest.raises(
        DataError, match=r"^7 clips in a row cannot be read, the first is utterance u4: .*4"
    ):
        list(batches(data, [[4]], 0))


def test_other_errors_are_not_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noises").write_text("/no/such/noise.wav\n")
    data = dataset_of(tmp_path, noise_conf=NoiseConf(list=str(tmp_path / "noises"), prob=1.0))
    with pytest.raises(DataError, match=r"noises:1: /no/such/noise.wav: missing"):
        list(batches(data, [[0]], 0))
    data = dataset_of(tmp_path, max_bad_clips=0.0)
    fault = OSError(24, "Too many open files")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open files"):
        patch.setattr("wenet_hs.data.containers.compare_sizes", Mock(side_effect=fault))
        list(batches(data, [[0]], 0))
    (tmp_path / "0.wav").unlink()
    for num_workers in (0, 1):  # with max_bad_clips 0 the error arrives unchanged from a worker
        with pytest.raises(
            DataError, match=r"^utterance u0: .*0\.wav: missing; restore the file, or leave it out$"
        ):
            list(batches(data, [[0]], 0, num_workers=num_workers))


def test_each_clip_is_written_once_and_the_first_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "quarantine.tsv"
    with caplog.at_level(logging.WARNING):
        quarantine = Quarantine(tmp_path, fresh=True)
        quarantine.record(())
        assert not path.exists()
        quarantine.record([bad(n) for n in range(3)])
        quarantine.record([bad(2), BadClip(key="k\t3", wav="a\nb\x1b[31m", reason="x")])
    assert path.read_text() == (
        "key\tpath\treason\nk0\t/0.wav\tmissing\nk1\t/1.wav\tmissing\nk2\t/2.wav\tmissing\nk\\t3\ta\\nb\\x1b[31m\tx\n"
    )
    assert len(caplog.messages) == 4
    assert caplog.messages[-1] == "utterance k\\t3: a\\nb\\x1b[31m: x; it is skipped"
    with path.open("ab") as file:
        file.write("k4\t/é".encode()[:-1])  # what a killed run leaves
    caplog.clear()
    resumed = Quarantine(tmp_path, fresh=False)
    resumed.record([BadClip(key="k\t3", wav="", reason=""), *(bad(n) for n in range(12))])
    assert caplog.messages == [
        "utterance k3: /3.wav: missing; it is skipped",
        f"{path} lists these 5 clips and all further ones that cannot be read",
    ]
    assert len(path.read_text().splitlines()) == 14
    assert Quarantine(tmp_path, fresh=True) and not path.exists()
    assert Quarantine(tmp_path, fresh=True, rank=3, num_ranks=4).path.name == "quarantine-rank3.tsv"


@pytest.mark.parametrize(("num_ranks", "name"), [(1, "quarantine.tsv"), (2, r"quarantine\*.tsv")])
def test_the_share_of_bad_clips_is_limited(num_ranks: int, name: str) -> None:
    quarantine = Quarantine(Path("m"), fresh=False, num_ranks=num_ranks)
    for num_bad, num_drawn, at_end in ((5, 500, False), (6, 499, False), (0, 0, True)):
        quarantine.check_share(num_bad, num_drawn, 0.01, at_end=at_end)
    for num_drawn, at_end in ((500, False), (499, True)):
        fault = rf"{name}: 6 of {num_drawn} clips cannot be read, more than the share 0\.01; .*max_bad_clips"
        with pytest.raises(DataError, match=fault):
            quarantine.check_share(6, num_drawn, 0.01, at_end=at_end)
