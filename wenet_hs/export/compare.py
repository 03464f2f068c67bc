# SPDX-License-Identifier: Apache-2.0
"""Exported files against PyTorch: the outputs of both on clips, and their largest difference.

Dimension key: B batch, T input frames, F features, N samples, D width, V units, M positions of the
decoder. T' are encoder frames.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.decode.rescoring import score_sequences
from wenet_hs.export.graphs import CTC, DECODER, ENCODER, MODEL, chunk_window
from wenet_hs.export.onnx_files import OnnxFile, run_chunks
from wenet_hs.heads.base import OutputHead
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.encoders.stream import encode_streamed
from wenet_hs.nn.layers import Chunk
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder
from wenet_hs.text.units import SpecialIds

open_onnx = lru_cache(maxsize=4)(OnnxFile)
"""A file is opened once."""


@dataclass(frozen=True)
class OutputPair:
    """One output, as PyTorch and as onnxruntime compute it. Both have the same shape."""

    expected: Tensor
    """By PyTorch."""
    actual: Tensor
    """By onnxruntime, from the file."""


@torch.no_grad()
def compare_outputs(
    folder: Path, model: AsrModel, clips: Sequence[Tensor], chunk: Chunk | None
) -> Iterator[OutputPair]:
    """The outputs of all files of a folder on clips, each beside that of PyTorch.

    These are the log-probabilities of CTC for each clip, followed by the scores of its best units
    if the folder has a decoder. Then come those of two clips at a time, with padding, if the file
    reads batches.

    Args:
        clips: at least one: features (T, F) or samples (N,); for a stream each of a chunk or more.
        chunk: the chunks of a stream; None: whole utterances.
    """
    for features in clips:
        memory_1TD = _encode(model, features, chunk)
        expected_TV = model.ctc.log_probs(memory_1TD)[0]
        actual_TV = run_exported_ctc(folder, model, features, chunk)
        # PyTorch also computes the incomplete last chunk of a stream.
        yield OutputPair(expected_TV[: len(actual_TV)], actual_TV)
        if (folder / DECODER).exists():
            last_unit = model.num_units - 1  # for a clip in which CTC finds no unit
            ids = greedy_ids(expected_TV, model.ctc.blank) or [last_unit]
            yield from _compare_decoder(open_onnx(folder / DECODER), model, memory_1TD, ids)
    if (folder / MODEL).exists():
        file = open_onnx(folder / MODEL)
        if _reads_batches(file):
            for two_clips in _pair_clips(clips, model.encoder.min_frames):
                yield from _compare_batch(file, model, two_clips)


def largest_difference(pairs: Iterable[OutputPair]) -> float:
    """The largest difference between a value of PyTorch and that of onnxruntime, at least 0.

    The difference is absolute for values of PyTorch within ±1, and relative to the value beyond.
    The result is NaN if a value is NaN.
    """
    largest = torch.zeros(())
    for pair in pairs:
        scale = pair.expected.abs().clamp(min=1)
        differences = (pair.actual - pair.expected).abs() / scale
        largest = torch.maximum(largest, differences.max())
    return float(largest)


def run_exported_ctc(
    folder: Path, model: AsrModel, features: Tensor, chunk: Chunk | None, name: str = MODEL
) -> Tensor:
    """The log-probabilities (T', V) of CTC for one clip, by the files of an export.

    The file NAME computes them. A folder for WeNet's runtime has no such file: there ENCODER and
    CTC compute them one after the other.

    Args:
        features: (T, F) or samples (N,).
        chunk: the chunks of a stream, of which the whole ones are computed; None: whole utterances.
    """
    if (folder / name).exists():
        return _run_encoder(open_onnx(folder / name), model, features, chunk)
    memory_TD = _run_encoder(open_onnx(folder / ENCODER), model, features, chunk)
    (log_probs_1TV,) = open_onnx(folder / CTC).run(memory_TD[None])
    return log_probs_1TV[0]


def _run_encoder(file: OnnxFile, model: AsrModel, features: Tensor, chunk: Chunk | None) -> Tensor:
    """The first output of a file with an encoder for one clip, (T', D) or (T', V)."""
    if chunk is not None:
        window = chunk_window(model.encoder, chunk)
        return run_chunks(file, features, window.length, window.shift)
    inputs = [features[None]]
    if _reads_batches(file):
        inputs.append(torch.tensor([len(features)]))
    first_output, *_ = file.run(*inputs)
    return first_output[0]  # of the only clip


def _reads_batches(file: OnnxFile) -> bool:
    """Whether a file reads batches of whole utterances: its inputs are `x` and `x_lens`."""
    return len(file.inputs) == 2


def greedy_ids(log_probs: Tensor, blank: int) -> list[int]:
    """The units of the best alignment: the best of each frame, without repetitions and blanks.

    log_probs: (T', V).
    """
    best_of_frames = log_probs.argmax(-1)
    without_repetitions = torch.unique_consecutive(best_of_frames).tolist()
    return [unit for unit in without_repetitions if unit != blank]


def _encode(model: AsrModel, features: Tensor, chunk: Chunk | None) -> Tensor:
    """The memory (1, T', D) of one clip by PyTorch; `chunk`: as a stream of such chunks."""
    batch = features[None]
    lengths_1 = torch.tensor([len(features)])
    if chunk is None:
        memory_1TD, _ = model.encode(batch, lengths_1)
    else:
        memory_1TD, _ = encode_streamed(model.encoder, batch, lengths_1, chunk)
    return memory_1TD


def _compare_decoder(
    file: OnnxFile, model: AsrModel, memory_1TD: Tensor, ids: list[int]
) -> Iterator[OutputPair]:
    """The score of a hypothesis by the decoder.

    If the model has a second decoder, that of the reversed hypothesis follows.
    """
    hyps_1M = torch.tensor([[model.special.sos, *ids]])
    hyps_lens_1 = torch.tensor([hyps_1M.size(1)])
    score_1MV, r_score_1MV = file.run(hyps_1M, hyps_lens_1, memory_1TD)
    left_decoder, left_head = model.left
    yield _compare_score(left_decoder, left_head, memory_1TD, ids, model.special, score_1MV)
    if isinstance(model.decoder, BiTransformerDecoder) and model.right_head is not None:
        yield _compare_score(
            model.decoder.right_decoder,
            model.right_head,
            memory_1TD,
            ids[::-1],
            model.special,
            r_score_1MV,
        )


def _compare_score(
    decoder: TransformerDecoder,
    head: OutputHead,
    memory_1TD: Tensor,
    ids: list[int],
    special: SpecialIds,
    log_probs_1MV: Tensor,
) -> OutputPair:
    """The log-probability of a hypothesis and its end, both 0-dim.

    `log_probs_1MV`: of all units at each position, by the file.
    """
    memory = memory_1TD, torch.tensor([memory_1TD.size(1)])
    only_row = 0
    score = score_sequences(decoder, head, memory, [(only_row, ids)], special)[0]
    targets = [*ids, special.eos]
    log_probs_of_targets = log_probs_1MV[0, range(len(targets)), targets]
    return OutputPair(torch.tensor(score), log_probs_of_targets.sum())


def _pair_clips(clips: Sequence[Tensor], min_frames: int) -> Iterator[Sequence[Tensor]]:
    """Two successive clips at a time.

    Of an odd number, the last one is paired with its own first half, of at least `min_frames`.
    """
    paired = list(clips)
    if len(clips) % 2 == 1:
        last = clips[-1]
        length_of_half = max(len(last) // 2, min_frames)
        paired.append(last[:length_of_half])
    for index in range(0, len(paired), 2):
        yield paired[index : index + 2]


def _compare_batch(
    file: OnnxFile, model: AsrModel, clips: Sequence[Tensor]
) -> Iterator[OutputPair]:
    """The outputs for a padded batch: the lengths, then the log-probabilities of each clip.

    The memory of each clip follows if the file has that output. Padding is not compared.
    """
    features = pad_sequence(list(clips), batch_first=True)
    lengths_B = torch.tensor([len(clip) for clip in clips])
    memory_BTD, memory_lengths_B = model.encode(features, lengths_B)
    log_probs_BTV = model.ctc.log_probs(memory_BTD)
    actual_BTV, actual_lengths_B, *more_outputs = file.run(features, lengths_B)
    actual_memory_BTD = more_outputs[0] if more_outputs else None
    yield OutputPair(memory_lengths_B.float(), actual_lengths_B.float())
    for row, length in enumerate(memory_lengths_B.tolist()):
        yield OutputPair(log_probs_BTV[row, :length], actual_BTV[row, :length])
        if actual_memory_BTD is not None:
            yield OutputPair(memory_BTD[row, :length], actual_memory_BTD[row, :length])
