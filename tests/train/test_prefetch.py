# SPDX-License-Identifier: Apache-2.0
"""Batches sent ahead arrive in order, one ahead, and leave nothing behind; on a CPU nothing is done."""

import threading
from collections.abc import Iterator

import pytest
import torch
from small_models import small_batch

from wenet_hs.data.batching import Batch
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.train.prefetch import Arrival, on_device, one_ahead

BATCHES = [small_batch([30 + i], [2], seed=i) for i in range(4)]


class Device:
    """Stands for a GPU: who sent what, and what was waited for."""

    def __init__(self) -> None:
        self.sent: list[Batch] = []
        self.waited: list[Batch] = []
        self.threads: set[str] = set()

    def __call__(self, batch: Batch) -> Arrival:
        self.sent.append(batch)
        self.threads.add(threading.current_thread().name)

        def arrive() -> Batch:
            self.waited.append(batch)
            return batch

        return arrive


def source(fails_at: int | None = None, closed: list[bool] | None = None) -> Iterator[Batch]:
    try:
        for number, batch in enumerate(BATCHES):
            if number == fails_at:
                raise DataError("clip.wav: cannot be read")
            yield batch
    finally:
        if closed is not None:
            closed.append(True)


def test_one_is_sent_while_the_one_before_it_is_in_use() -> None:
    device = Device()
    closed: list[bool] = []
    for number, batch in enumerate(one_ahead(source(closed=closed), device)):
        assert batch is BATCHES[number]
        assert device.waited == BATCHES[: number + 1], "the stream that computes waits for each copy"
        assert len(device.sent) <= number + 2
    assert device.sent == BATCHES
    assert all(name.startswith("to-device") for name in device.threads)
    assert closed == [True]


def test_a_fault_comes_at_its_place_and_an_end_is_passed_on() -> None:
    arrived = []
    with pytest.raises(DataError, match=r"^clip\.wav: cannot be read$"):
        arrived.extend(one_ahead(source(fails_at=2), Device()))

    def full(batch: Batch) -> Arrival:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ConfigError, match="the next batch: out of memory with 1 utterances of up to 30 frames"):
        list(one_ahead(source(), full))
    closed: list[bool] = []
    ahead = one_ahead(source(closed=closed), Device())
    next(ahead)
    ahead.close()  # type: ignore[attr-defined]
    assert closed == [True], "the workers behind it end too"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("to-device")]
    batches = source()
    assert on_device(batches, torch.device("cpu")) is batches


@pytest.mark.gpu
def test_copies_on_a_gpu_are_the_batches() -> None:
    for batch, expected in zip(on_device(source(), torch.device("cuda")), BATCHES, strict=True):
        assert batch.features.is_cuda
        assert torch.equal(batch.features.cpu(), expected.features)
        assert batch.target_lengths.tolist() == expected.target_lengths.tolist()
        assert batch.keys == expected.keys
