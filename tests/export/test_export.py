# SPDX-License-Identifier: Apache-2.0
"""torch.export of encoder, decoder and output heads: batch and time dynamic, equal to eager mode
within 1e-5.

Dimension key: B batch, T frames, F features, L labels, D width.
"""

from typing import Any

import pytest
import torch
from small_models import CTC_ONLY, NUM_BINS, NUM_UNITS, small_model
from torch import Tensor, nn
from torch.export import Dim

from wenet_hs.config.heads import HEADS, has_tree
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.ctc import Ctc
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder

WIDTH = 16
SIZES = [(1, 60), (5, 131)]
"""Batches and lengths that differ from those of the export, (3, 90)."""
LONG = (2, 9000)
"""90 s: 2,249 encoder frames, more than the table of positions has after a short batch."""
ENCODERS: dict[str, dict[str, Any]] = {
    "rel_pos": {},
    "abs_pos": {"pos_enc_layer_type": "abs_pos", "selfattention_layer_type": "selfattn"},
    "conv2d6": {
        "input_layer": "conv2d6",
        "cnn_module_norm": "layer_norm",
        "normalize_before": False,
    },
    "conv2d8": {"input_layer": "conv2d8", "use_cnn_module": False, "macaron_style": False},
    "linear": {
        "input_layer": "linear",
        "pos_enc_layer_type": "no_pos",
        "selfattention_layer_type": "selfattn",
    },
}
slow = pytest.mark.slow


class LogProbs(nn.Module):
    """`log_probs` of a head or of CTC as a module, which torch.export needs."""

    def __init__(self, head: OutputHead | Ctc) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head.log_probs(hidden)


class Rescoring(nn.Module):
    """Log-probabilities (B, L, V) of whole sequences by a decoder and its head."""

    def __init__(self, decoder: TransformerDecoder, head: OutputHead | None) -> None:
        super().__init__()
        assert head is not None
        self.decoder, self.head = decoder, head

    def forward(
        self, memory: Tensor, memory_lengths: Tensor, units_in: Tensor, unit_lengths: Tensor
    ) -> Tensor:
        return self.head.log_probs(self.decoder(memory, memory_lengths, units_in, unit_lengths))


@torch.no_grad()
def export(module: nn.Module, inputs: tuple[Tensor, ...], *, strict: bool = False) -> nn.Module:
    """The program exported with these inputs, whose dimensions are dynamic except for a third one."""
    shapes = tuple({axis: Dim.DYNAMIC for axis in range(min(value.dim(), 2))} for value in inputs)
    return torch.export.export(module.eval(), inputs, dynamic_shapes=shapes, strict=strict).module()


@torch.no_grad()
def assert_equal(program: nn.Module, eager: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(program(*inputs), eager(*inputs), atol=1e-5, rtol=0)


def utterances(batch: int, frames: int, width: int) -> tuple[Tensor, Tensor]:
    """Random frames (B, T, F), and lengths (B,) of which the last is shorter."""
    lengths = torch.full((batch,), frames)
    lengths[-1] -= frames // 3
    return torch.randn(batch, frames, width), lengths


def sequences(batch: int, frames: int) -> tuple[Tensor, ...]:
    """Memory (B, T, D) and units (B, L) with their lengths, L a fifth of T."""
    labels = frames // 5
    unit_lengths = torch.full((batch,), labels)
    unit_lengths[0] -= labels // 2
    return (
        *utterances(batch, frames, WIDTH),
        torch.randint(3, NUM_UNITS, (batch, labels)),
        unit_lengths,
    )


# ---- encoder


def check_encoder(conf: dict[str, Any], strict: bool = False) -> None:
    encoder = small_model(encoder_conf=conf).encoder
    program = export(encoder, utterances(3, 90, NUM_BINS), strict=strict)
    for size in (*SIZES, LONG):
        assert_equal(program, encoder, utterances(*size, NUM_BINS))


@slow
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_of_every_kind(name: str) -> None:
    check_encoder(ENCODERS[name])


@slow
def test_transformer_encoder_and_strict_tracing() -> None:
    encoder = small_model(
        encoder="transformer", encoder_conf={"pos_enc_layer_type": "abs_pos"}
    ).encoder
    assert_equal(export(encoder, utterances(3, 90, NUM_BINS)), encoder, utterances(*LONG, NUM_BINS))
    check_encoder({}, strict=True)


# ---- decoder and heads


@slow
@pytest.mark.parametrize("strict", [False, True])
def test_decoders_of_both_directions_with_their_heads(strict: bool) -> None:
    model = small_model(
        decoder="bitransformer",
        decoder_conf={"num_blocks": 2, "r_num_blocks": 1},
        **head("hsoftmax"),
    )
    assert isinstance(model.decoder, BiTransformerDecoder)
    for decoder, own in (model.left, (model.decoder.right_decoder, model.right_head)):
        module = Rescoring(decoder, own).eval()
        program = export(module, sequences(3, 90), strict=strict)
        for size in (*SIZES, (2, 11_000)):  # 2,200 units
            assert_equal(program, module, sequences(*size))


def head(kind: str) -> dict[str, Any]:
    """The sections of a config with this head, also as CTC."""
    conf = {"tree": "tree.json"} if has_tree(kind) else {}
    return {"head": kind, "head_conf": conf, "ctc_conf": {"head": kind, "head_conf": conf}}


def check_head(module: OutputHead | Ctc, strict: bool = False) -> None:
    eager = LogProbs(module).eval()
    program = export(eager, (torch.randn(3, 90, WIDTH),), strict=strict)
    for size in (*SIZES, LONG):
        assert_equal(program, eager, (torch.randn(*size, WIDTH),))


@pytest.mark.slow
def test_ctc_of_the_tree_head_in_a_model_without_a_decoder() -> None:
    check_head(small_model(**CTC_ONLY, ctc_conf=head("hsoftmax")["ctc_conf"]).ctc)


@slow
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", list(HEADS))
def test_every_head_and_its_ctc_also_limited_to_some_units(kind: str, strict: bool) -> None:
    model: AsrModel = small_model(**head(kind))
    for module in (model.head, model.ctc, model.restrict({3: 3, 5: 4}).head):
        check_head(module, strict)
