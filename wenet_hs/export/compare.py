# SPDX-License-Identifier: Apache-2.0
"""Exported files against PyTorch, on clips.

Dimension key: T frames, F features, D width, V units.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.decode.rescoring import score_sequences
from wenet_hs.export.graphs import CTC, DECODER, ENCODER, MODEL, chunk_window
from wenet_hs.export.onnx_files import OnnxFile, run_chunks
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.encoders.stream import encode_streamed
from wenet_hs.nn.layers import Chunk
from wenet_hs.nn.transformer import BiTransformerDecoder

Pairs = Iterator[tuple[Tensor, Tensor]]
"""What PyTorch computes, and what onnxruntime computes from the file."""

open_onnx = lru_cache(maxsize=4)(OnnxFile)
"""A file is opened once."""


def largest_difference(pairs: Pairs) -> float:
    """Of all values, those beyond ±1 as a fraction of them; NaN if one is NaN."""
    worst = torch.zeros(())
    for expected, found in pairs:
        worst = torch.maximum(worst, ((found - expected).abs() / expected.abs().clamp(min=1)).max())
    return float(worst)


def log_probs_of(
    folder: Path, model: AsrModel, features: Tensor, chunk: Chunk | None, name: str = MODEL
) -> Tensor:
    """features (T, F) or samples (N,) → (T', V) by the file NAME, or WeNet's two; of a stream all
    whole chunks.
    """
    is_wenet = not (folder / name).exists()
    file = open_onnx(folder / (ENCODER if is_wenet else name))
    if chunk is not None:
        found = run_chunks(file, features, *chunk_window(cast(EncoderStack, model.encoder), chunk))
    else:
        lengths = [torch.tensor([len(features)])] if len(file.inputs) == 2 else []
        found = file.run(features[None], *lengths)[0][0]
    return open_onnx(folder / CTC).run(found[None])[0][0] if is_wenet else found


def greedy_ids(log_probs: Tensor, blank: int) -> list[int]:
    """The units of the best alignment: log_probs (T, V)."""
    return [
        unit for unit in torch.unique_consecutive(log_probs.argmax(-1)).tolist() if unit != blank
    ]


@torch.no_grad()
def compare_outputs(
    folder: Path, model: AsrModel, clips: Sequence[Tensor], chunk: Chunk | None
) -> Pairs:
    """The pairs of all files of a folder.

    `clips`: features (T, F) or samples; of a stream each of a chunk or more.
    """
    for features in clips:
        given = features[None], torch.tensor([len(features)])
        memory_1TD, _ = (
            model.encode(*given) if chunk is None else encode_streamed(model.encoder, *given, chunk)
        )
        expected_TV, found_TV = (
            model.ctc.log_probs(memory_1TD)[0],
            log_probs_of(folder, model, features, chunk),
        )
        yield expected_TV[: len(found_TV)], found_TV  # of a stream its whole chunks
        if (folder / DECODER).exists():
            ids = greedy_ids(expected_TV, model.ctc.blank) or [model.num_units - 1]
            yield from _scores(open_onnx(folder / DECODER), model, memory_1TD, ids)
    if (folder / MODEL).exists() and len(
        (file := open_onnx(folder / MODEL)).inputs
    ) == 2:  # batches, with padding
        shorter = [clips[-1][: max(len(clips[-1]) // 2, model.encoder.min_frames)]] * (
            len(clips) % 2
        )
        for pair in zip(clips[::2], [*clips[1::2], *shorter], strict=True):
            features, lengths = (
                pad_sequence(list(pair), batch_first=True),
                torch.tensor([len(one) for one in pair]),
            )
            memory, memory_lengths = model.encode(features, lengths)
            expected, found = (model.ctc.log_probs(memory), memory), file.run(features, lengths)
            yield memory_lengths.float(), found[1].float()
            for row, length in enumerate(memory_lengths.tolist()):
                for values, other in zip(expected, (found[0], *found[2:]), strict=False):
                    yield values[row, :length], other[row, :length]


def _scores(file: OnnxFile, model: AsrModel, memory_1TD: Tensor, ids: list[int]) -> Pairs:
    """Per direction the log-probability of the units and the end, 0-dim."""
    directions = [(*model.left, ids)]
    if isinstance(model.decoder, BiTransformerDecoder) and model.right_head is not None:
        directions.append((model.decoder.right_decoder, model.right_head, ids[::-1]))
    encoded, units = (
        (memory_1TD, torch.tensor([memory_1TD.size(1)])),
        torch.tensor([[model.special.sos, *ids]]),
    )
    outputs = file.run(units, torch.tensor([units.size(1)]), memory_1TD)
    for (decoder, head, targets), log_probs_1MV in zip(directions, outputs, strict=False):
        expected = score_sequences(decoder, head, encoded, [(0, targets)], model.special)[0]
        yield (
            torch.tensor(expected),
            log_probs_1MV[0, range(units.size(1)), [*targets, model.special.eos]].sum(),
        )
