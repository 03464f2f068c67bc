# SPDX-License-Identifier: Apache-2.0
"""Batches on the device before they are asked for, so that a GPU does not wait for the copy.

A thread takes the next batch, pins it and starts its copy on a stream of its own, while the step before it computes.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from wenet_hs.data.batching import Batch
from wenet_hs.train.guard import naming_batch

TENSORS = ("features", "feature_lengths", "targets", "target_lengths")

Arrival = Callable[[], Batch]
"""Gives the batch on the device, once the computing stream is made to wait for its copy."""


def on_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches in the same order: on a GPU sent there one ahead of the step, on a CPU as they are.

    Raises whatever `batches` raises, at its place in the order.
    """
    return batches if device.type != "cuda" else one_ahead(batches, CudaSender(device))


def one_ahead(batches: Iterator[Batch], send: Callable[[Batch], Arrival]) -> Iterator[Batch]:
    """Each batch is taken and sent by a thread while the one before it is in use.

    Raises ConfigError with the batch for which the device has no memory.
    """

    def next_sent() -> Arrival | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with naming_batch(batch, "the next batch"):
            return send(batch)

    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="to-device")
    try:
        coming = pool.submit(next_sent)
        while (arrival := coming.result()) is not None:
            coming = pool.submit(next_sent)
            yield arrival()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(batches, Generator):
            batches.close()


class CudaSender:
    """Copies on a stream beside the one that computes, from pinned memory, so that neither waits for the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> Arrival:
        pinned = {name: getattr(batch, name).pin_memory() for name in TENSORS}
        with torch.cuda.stream(self._stream):
            sent = {name: value.to(self._device, non_blocking=True) for name, value in pinned.items()}
            copied = self._stream.record_event()

        def arrive() -> Batch:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(copied)
            for value in sent.values():  # or its memory goes to the next copy while the step still reads it
                value.record_stream(computing)
            return replace(batch, **sent)

        return arrive
