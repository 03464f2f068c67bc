# SPDX-License-Identifier: Apache-2.0
"""The network against real WeNet models at random weights: each module on its own, one by one and as one batch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wenet_hs.heads.ctc import Ctc
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.nn.attention import MultiHeadAttention, RelPositionAttention
from wenet_hs.nn.conformer import ConformerLayer, Encoder, GlobalCmvn
from wenet_hs.nn.convolution import ConvolutionModule
from wenet_hs.nn.layers import FeedForward
from wenet_hs.nn.positional import AbsolutePositionalEncoding, RelativePositionalEncoding
from wenet_hs.nn.subsampling import Conv2dSubsampling
from wenet_hs.nn.transformer import TransformerDecoder, TransformerDecoderLayer

NAMES = ("conformer_transformer", "conformer_layernorm_old_eos")
UNITS, SIZE, HEADS, HIDDEN = 40, 32, 4, 64


def small_encoder(norm: str) -> Encoder:
    layers = [
        ConformerLayer(
            RelPositionAttention(HEADS, SIZE),
            FeedForward(SIZE, HIDDEN, dropout_rate=0.1, activation="swish"),
            feed_forward_macaron=FeedForward(SIZE, HIDDEN, dropout_rate=0.1, activation="swish"),
            conv_module=ConvolutionModule(SIZE, 15, norm=norm),
        )
        for _ in range(2)
    ]
    embed = Conv2dSubsampling("conv2d", 80, SIZE, RelativePositionalEncoding(SIZE, 0.1))
    cmvn = GlobalCmvn(torch.zeros(80), torch.ones(80))
    return Encoder(embed, layers, output_size=SIZE, global_cmvn=cmvn)


def small_decoder() -> TransformerDecoder:
    layers = [
        TransformerDecoderLayer(
            MultiHeadAttention(HEADS, SIZE),
            MultiHeadAttention(HEADS, SIZE),
            FeedForward(SIZE, HIDDEN, dropout_rate=0.1, activation="relu"),
        )
        for _ in range(2)
    ]
    return TransformerDecoder(UNITS, AbsolutePositionalEncoding(SIZE, 0.1), layers)


@dataclass
class Golden:
    arrays: dict[str, Tensor]
    encoder: Encoder
    decoder: TransformerDecoder
    output: nn.Linear
    ctc: Ctc

    def all(self, name: str) -> list[Tensor]:
        return [self.arrays[f"{index}.{name}"] for index in range(3)]


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, shared_dir: Path) -> Golden:
    with np.load(shared_dir / "golden" / "wenet" / f"{request.param}.npz", allow_pickle=False) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    parts = {
        "encoder": small_encoder("layer_norm" if "layernorm" in request.param else "batch_norm"),
        "decoder": small_decoder(),
        "output": nn.Linear(SIZE, UNITS),
        "ctc": Ctc(SoftmaxHead(SIZE, UNITS)),
    }
    state = {name.removeprefix("param."): value for name, value in arrays.items() if name.startswith("param.")}
    renames = (("decoder.output_layer.", "output."), ("ctc.ctc_lo.", "ctc.head.output."))
    for theirs, ours in renames:
        state = {name.replace(theirs, ours): value for name, value in state.items()}
    for name, module in parts.items():
        own = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
        module.load_state_dict(own, strict=True)
        module.eval()
    return Golden(arrays, **parts)  # type: ignore[arg-type]


def one_by_one(count: int) -> list[list[int]]:
    return [[index] for index in range(count)]


GROUPINGS: tuple[Callable[[int], list[list[int]]], ...] = (one_by_one, lambda count: [list(range(count))])


@pytest.mark.parametrize("grouping", GROUPINGS, ids=("singly", "batched"))
def test_encoder_ctc_and_decoder_are_wenets(golden: Golden, grouping: Callable[[int], list[list[int]]]) -> None:
    for group in grouping(3):
        features = [golden.all("feats")[index] for index in group]
        units = [golden.all("decoder_in")[index] for index in group]
        lengths = torch.tensor([len(frames) for frames in features])
        unit_lengths = torch.tensor([len(ids) for ids in units])
        with torch.inference_mode():
            memory, memory_lengths = golden.encoder(nn.utils.rnn.pad_sequence(features, batch_first=True), lengths)
            units_in = nn.utils.rnn.pad_sequence(units, batch_first=True, padding_value=2)
            ctc = golden.ctc.log_probs(memory)
            hidden = golden.decoder(memory, memory_lengths, units_in, unit_lengths)
            decoder = golden.output(hidden).log_softmax(-1)
        for row, index in enumerate(group):
            frames, labels = int(memory_lengths[row]), int(unit_lengths[row])
            assert frames == golden.encoder.subsampled_length(len(features[row]))
            assert_near(memory[row, :frames], golden.all("encoder_out")[index])
            assert_near(ctc[row, :frames], golden.all("ctc_log_probs")[index])
            assert_near(decoder[row, :labels], golden.all("decoder_log_probs")[index])


@pytest.mark.parametrize("grouping", GROUPINGS, ids=("singly", "batched"))
def test_ctc_loss_is_wenets(golden: Golden, grouping: Callable[[int], list[list[int]]]) -> None:
    for group in grouping(3):
        memory = [golden.all("encoder_out")[index] for index in group]
        targets = [golden.all("target")[index] for index in group]
        loss = golden.ctc.loss(
            nn.utils.rnn.pad_sequence(memory, batch_first=True),
            torch.tensor([len(frames) for frames in memory]),
            nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-1),
            torch.tensor([len(ids) for ids in targets]),
        )
        assert float(loss.detach()) == pytest.approx(
            sum(float(golden.all("loss_ctc")[index]) for index in group), abs=1e-4
        )


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
