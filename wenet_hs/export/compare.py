# SPDX-License-Identifier: Apache-2.0
"""Exported files against PyTorch, on clips.

Dimension key: T frames, F features, D width, V units.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.decode.rescoring import score_sequences
from wenet_hs.encoders.stack import EncoderStack
from wenet_hs.encoders.stream import EncoderStream
from wenet_hs.export.graphs import MODEL, RESCORER, WENET_CTC, WENET_DECODER, WENET_ENCODER, chunk_window
from wenet_hs.export.onnx_files import OnnxFile, run_chunks
from wenet_hs.model import AsrModel
from wenet_hs.nn.layers import Chunk
from wenet_hs.nn.transformer import BiTransformerDecoder

TOLERANCE = 1e-4
"""Largest difference of a log-probability or score; of those below -1 as a fraction of them."""

Pairs = Iterator[tuple[Tensor, Tensor]]
"""What PyTorch computes, and what onnxruntime computes from the file."""


def largest_difference(pairs: Pairs) -> float:
    """Of all values; NaN if one is NaN."""
    worst = torch.zeros(())
    for expected, found in pairs:
        worst = torch.maximum(worst, ((found - expected).abs() / expected.abs().clamp(min=1)).max())
    return float(worst)


def log_probs_of(file: OnnxFile, features: Tensor, window: tuple[int, int] | None) -> Tensor:
    """features (T, F) or samples (N,) → (T', V) of MODEL. `window`: as `run_chunks`, of a streaming file."""
    if window is not None:
        return run_chunks(file, features, *window)
    lengths = [torch.tensor([len(features)])] if len(file.inputs) == 2 else []
    return file.run(features[None], *lengths)[0][0]


def greedy_ids(log_probs: Tensor, blank: int) -> list[int]:
    """The units of the best alignment: log_probs (T, V)."""
    return [unit for unit in torch.unique_consecutive(log_probs.argmax(-1)).tolist() if unit != blank]


@torch.no_grad()
def compare(folder: Path, model: AsrModel, clips: Sequence[Tensor], chunk: Chunk | None) -> Pairs:
    """The pairs of all files of `offline_graphs`, `waveform_graph` or `online_graphs`. `clips`: features (T, F)."""
    file = OnnxFile(folder / MODEL)
    if chunk is not None:
        encoder = cast(EncoderStack, model.encoder)
        for features in clips:
            expected_TD = _stream(encoder, features, chunk)
            if len(expected_TD):
                found_TV = run_chunks(file, features, *chunk_window(encoder, chunk))
                yield model.ctc.log_probs(expected_TD[None])[0], found_TV
    elif len(file.inputs) == 1:
        for features in clips:
            memory_1TD, _ = model.encode(features[None], torch.tensor([len(features)]))
            yield model.ctc.log_probs(memory_1TD)[0], file.run(features[None])[0][0]
    else:
        for pair in zip(clips, [*clips[1:], clips[0]], strict=True):  # two at a time: one of them is padded
            features, lengths = pad_sequence(list(pair), batch_first=True), torch.tensor([len(one) for one in pair])
            memory, memory_lengths = model.encode(features, lengths)
            expected, found = model.ctc.log_probs(memory), file.run(features, lengths)[0]
            for row, length in enumerate(memory_lengths.tolist()):
                yield expected[row, :length], found[row, :length]
    if (folder / RESCORER).exists():
        rescorer = OnnxFile(folder / RESCORER)
        for memory_1TD, ids in _hypotheses(model, clips):
            length, units = torch.tensor([memory_1TD.size(1)]), torch.tensor([ids])
            scores = rescorer.run(memory_1TD, length, units, torch.tensor([len(ids)]))
            yield from zip(_decoder_scores(model, memory_1TD, ids), scores, strict=True)


@torch.no_grad()
def compare_wenet(folder: Path, model: AsrModel, clips: Sequence[Tensor], chunk: Chunk | None) -> Pairs:
    """The pairs of the files of `wenet_graphs`."""
    encoder, encoder_file = cast(EncoderStack, model.encoder), OnnxFile(folder / WENET_ENCODER)
    ctc_file, decoder_file = OnnxFile(folder / WENET_CTC), OnnxFile(folder / WENET_DECODER)
    for features in clips:
        if chunk is None:
            expected_TD = model.encode(features[None], torch.tensor([len(features)]))[0][0]
            found_TD = encoder_file.run(features[None])[0][0]
        elif len(expected_TD := _stream(encoder, features, chunk)):
            found_TD = run_chunks(encoder_file, features, *chunk_window(encoder, chunk))
        else:
            continue
        yield model.ctc.log_probs(expected_TD[None]), ctc_file.run(found_TD[None])[0]
    for memory_1TD, ids in _hypotheses(model, clips):
        units = torch.tensor([[model.special.sos, *ids]])
        outputs = decoder_file.run(units, torch.tensor([len(ids) + 1]), memory_1TD)
        expected = _decoder_scores(model, memory_1TD, ids)
        for one, log_probs, targets in zip(expected, outputs, (ids, ids[::-1]), strict=False):
            yield one, log_probs[0, range(len(ids) + 1), [*targets, model.special.eos]].sum()[None]


def _stream(encoder: EncoderStack, features: Tensor, chunk: Chunk) -> Tensor:
    return EncoderStream(encoder, chunk).advance(features)


def _hypotheses(model: AsrModel, clips: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[int]]]:
    """Per clip the encoder output (1, T, D) and what greedy search finds, or one unit where it finds nothing."""
    for features in clips:
        memory_1TD, _ = model.encode(features[None], torch.tensor([len(features)]))
        found = greedy_ids(model.ctc.log_probs(memory_1TD)[0], model.ctc.blank)
        yield memory_1TD, found or [model.num_units - 1]


def _decoder_scores(model: AsrModel, memory_1TD: Tensor, ids: Sequence[int]) -> list[Tensor]:
    """Per direction (1,): the log-probability of the units and the end."""
    decoder, head = model.left
    encoded = memory_1TD, torch.tensor([memory_1TD.size(1)])
    scores = [score_sequences(decoder, head, encoded, [(0, ids)], model.special)]
    if isinstance(model.decoder, BiTransformerDecoder) and model.right_head is not None:
        right = model.decoder.right_decoder
        scores.append(score_sequences(right, model.right_head, encoded, [(0, ids[::-1])], model.special))
    return [torch.tensor(one) for one in scores]
