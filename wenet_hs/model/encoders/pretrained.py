# SPDX-License-Identifier: Apache-2.0
"""Encoders of `transformers` as a `SpeechEncoder`: wav2vec 2.0, HuBERT, WavLM, w2v-BERT 2.0,
Whisper's encoder.

Their modules are used, the loop over them is ours: it stops at the chosen layer, and padding
changes nothing.

Dimension key: B batch, N samples, T frames, F features, D width of the layers, K outputs that are
kept.
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.frontends.base import Frames
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.description import EncoderDescription
from wenet_hs.nn.attention import attention_kernels
from wenet_hs.nn.layers import Chunk
from wenet_hs.nn.subsampling import FrameLength
from wenet_hs.tree.errors import ConfigError

_LONGEST_S = 30.0  # the memory of attention increases with the square
_MASK_SPAN = 10  # frames or dimensions, as in wav2vec 2.0


class PretrainedEncoder(SpeechEncoder):
    """The layers of a pretrained encoder, and perhaps layers of ours above.

    The weights are new until they are loaded.

    Parameters: `pretrained.*` with the names of transformers, `layer_weights`, `upper.*`.

    Attributes:
        takes_outputs: whether the input is already what `states` returns, (B, T, K * D); training
        sets it. is_held: whether no weight of `pretrained` is trained now, and it has no dropout.
        Training sets it, and then
            calls `train` of the whole model.
    """

    pretrained: Any
    """A module of transformers."""
    max_batch_s = 120.0

    def __init__(
        self,
        module: nn.Module,
        description: EncoderDescription,
        conf: PretrainedConf,
        upper: SpeechEncoder | None = None,
    ) -> None:
        """`module`: of transformers.

        Raises ConfigError for settings that do not fit the encoder.
        """
        super().__init__()
        self.description, self.conf = description, conf
        self.own_frontend = description.frontend(conf.silence_s)
        self.longest_s = min(_LONGEST_S, self.own_frontend.window_s)
        self._check_settings()
        num_layers = conf.layers if isinstance(conf.layers, int) else description.num_layers
        self.pretrained = module
        blocks = self._blocks()
        del blocks[num_layers:]
        self.is_weighted = conf.layers == "weighted"
        self.layer_weights = nn.Parameter(torch.zeros(num_layers + 1)) if self.is_weighted else None
        self.upper = upper
        self.num_layers = num_layers if upper is None else upper.num_layers
        has_end = num_layers == description.num_layers and not self.is_weighted
        self._num_adapters = description.adapter_layers if has_end else 0
        if not has_end and hasattr(self.pretrained, "adapter"):
            self.pretrained.adapter = None
        self.output_size = memory_size(description, conf)
        self.num_states = num_layers + 1 if self.is_weighted else 1
        self.state_size = state_size(description, conf)
        self.min_frames, stride = description.frame_geometry
        self.stride = stride * 2**self._num_adapters
        self.takes_outputs = self.is_held = False

    def frozen_parts(self) -> list[str]:
        """The names of the parts that `freeze` excludes from training, as `encoder.pretrained.…`."""
        rule, parts = self.conf.freeze, list[str]()
        if rule == "all":
            return ["encoder.pretrained"]
        if rule == "all_but_adapters":
            parts = [
                name
                for name, _ in self.pretrained.named_parameters()
                if ".adapter_layer." not in name
            ]
        elif rule != "none":
            parts = list(self._convolutions)
        if isinstance(rule, int):
            parts += [
                *self._parts_below_layers(),
                *(f"{self._blocks_name}.{number}" for number in range(rule)),
            ]
        return [f"encoder.pretrained.{part}" for part in parts]

    def train(self, mode: bool = True) -> "PretrainedEncoder":
        """Frozen layers are never in training mode, also not for a moment: a thread may compute
        their outputs.
        """
        self.training = mode
        is_frozen = self.is_held or self.conf.freeze == "all"
        for child in self.children():
            child.train(mode and not (is_frozen and child is self.pretrained))
        return self

    @property
    def device(self) -> torch.device:
        found: torch.device = next(self.pretrained.parameters()).device
        return found

    def output_length(self, length: FrameLength) -> FrameLength:
        return length if self.takes_outputs else self.states_length(length)

    def states_length(self, length: Frames) -> Frames:
        """How many frames the outputs of `length` input frames have; (B,) → (B,)."""
        length = self._layer_length(length)
        for _ in range(self._num_adapters):
            length = self.description.adapter_length(length)
        return length

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor,
        layers: Sequence[int] = (),
        chunk: Chunk | None = None,
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """inputs: those of `own_frontend`, (B, N) or (B, T, F); see the base class.

        There are no chunks.
        """
        if unknown := [layer for layer in layers if not 1 <= layer <= self.num_layers]:
            raise ValueError(f"layers: {unknown[0]}: must be from 1 to {self.num_layers}")
        of_layers: dict[int, Tensor] = {}
        out_lengths = self.output_length(lengths)
        if self.takes_outputs:
            states = list(torch.split(inputs, self.state_size, dim=2))
        else:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_held):
                states, of_layers = self._states(inputs, lengths, () if self.upper else layers)
        memory_BTD = states[-1]
        if self.layer_weights is not None:
            shares_K = self.layer_weights.softmax(0)
            memory_BTD = sum(share * state for share, state in zip(shares_K, states, strict=True))
        if self.upper is not None:
            conf = self.conf.upper
            if self.training and conf is not None:
                memory_BTD = mask_spans(memory_BTD, conf.mask_time, conf.mask_feature)
            return self.upper(memory_BTD, out_lengths, layers)
        return memory_BTD, out_lengths, of_layers

    @torch.no_grad()
    def states(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """What the memory is computed from, (B, T, K * D), without gradients: the chosen output or
        all of them.
        """
        states, _ = self._states(inputs, lengths, ())
        return torch.cat(states, dim=2)

    def _states(
        self, inputs: Tensor, lengths: Tensor, layers: Collection[int]
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """The outputs that the memory is computed from, and those of `layers`, by number."""
        missing = self.min_frames - inputs.size(1)
        inputs = (
            F.pad(inputs, (0, 0) * (inputs.dim() - 2) + (0, missing)) if missing > 0 else inputs
        )
        x_BTD, valid_BT = self._embed(inputs, lengths)
        of_layers = dict[int, Tensor]()
        states = (
            [self._drop_silence(_unit_variance(x_BTD), inputs.size(0))] if self.is_weighted else []
        )
        shared = self._positions(x_BTD)
        visible_B11T = additive_mask(valid_BT, x_BTD.dtype)
        for number, block in enumerate(self._blocks(), start=1):
            x_BTD = self._call_or_checkpoint(block, x_BTD, valid_BT, visible_B11T, shared)
            if self.is_weighted:
                states.append(self._drop_silence(_unit_variance(x_BTD), inputs.size(0)))
            if number in layers:
                of_layers[number] = self._drop_silence(self._normalize(x_BTD), inputs.size(0))
        if self.is_weighted:
            return states, of_layers
        end_BTD = self._normalize(x_BTD)
        if getattr(self.pretrained, "adapter", None) is not None:
            end_BTD = self._adapt(end_BTD, valid_BT)
        return [self._drop_silence(end_BTD, inputs.size(0))], of_layers

    def _mask(self, x_BTD: Tensor) -> Tensor:
        """The input of the first layer with masks, in training."""
        if not self.pretrained.training:
            return x_BTD
        return mask_spans(
            x_BTD,
            self.conf.mask_time,
            self.conf.mask_feature,
            getattr(self.pretrained, "masked_spec_embed", None),
        )

    def _call_or_checkpoint(
        self,
        block: nn.Module,
        x_BTD: Tensor,
        valid_BT: Tensor,
        visible_B11T: Tensor,
        shared: Tensor | None,
    ) -> Tensor:
        is_trained = torch.is_grad_enabled() and (
            x_BTD.requires_grad or any(p.requires_grad for p in block.parameters())
        )
        if not (self.conf.gradient_checkpointing and is_trained and self.training):
            return self._attend(block, x_BTD, valid_BT, visible_B11T, shared)
        return checkpoint(
            self._attend, block, x_BTD, valid_BT, visible_B11T, shared, use_reentrant=False
        )

    def _attend(self, block: nn.Module, x_BTD: Tensor, *given: Any) -> Tensor:
        with attention_kernels(x_BTD.device):
            return self._call_layer(block, x_BTD, *given)

    def _check_settings(self) -> None:
        conf, total, section = self.conf, self.description.num_layers, "encoder_conf"
        for name, value in (("layers", conf.layers), ("freeze", conf.freeze)):
            if isinstance(value, int) and value > total:
                raise ConfigError(
                    f"{section}.{name}", f"{value}, but the encoder has {total} layers", "use fewer"
                )
            total = value if isinstance(value, int) else total
        if (
            self.description.kind != "whisper"
            and conf.silence_s != PretrainedConf.model_fields["silence_s"].default
        ):
            raise ConfigError(
                f"{section}.silence_s", "has an effect with Whisper only", "remove it"
            )
        has_adapters = self.description.has_language_adapters
        if has_adapters != (conf.adapter is not None) or (
            conf.freeze == "all_but_adapters" and not has_adapters
        ):
            found = (
                "the encoder has adapters for languages"
                if has_adapters
                else "the encoder has no adapters"
            )
            to_do = (
                "name the language, or `new`"
                if has_adapters
                else "remove it, and freeze: all_but_adapters"
            )
            raise ConfigError(f"{section}.adapter", found, to_do)

    # ---- what differs between the kinds

    _blocks_name = "encoder.layers"
    _convolutions: Sequence[str] = ()
    """The parts that are convolutions over the input."""

    def _blocks(self) -> nn.ModuleList:
        blocks = self.pretrained.get_submodule(self._blocks_name)
        assert isinstance(blocks, nn.ModuleList)
        return blocks

    def _layer_length(self, length: Frames) -> Frames:
        return self.description.layer_length(length)

    @abstractmethod
    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the first layer (B, T, D), and which frames it sees (B, T) bool."""

    def _call_layer(
        self,
        block: nn.Module,
        x_BTD: Tensor,
        valid_BT: Tensor,
        visible_B11T: Tensor,
        shared: Tensor | None,
    ) -> Tensor:
        """The output of a layer. `shared`: what `_positions` returned."""
        return block(x_BTD, attention_mask=visible_B11T)

    def _positions(self, x_BTD: Tensor) -> Tensor | None:
        """What all layers of a pass need beside their input: positions."""
        return None

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        """The normalization after the last layer."""
        return output_BTD

    def _adapt(self, output_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """The layers after the last one that halve the number of frames."""
        raise NotImplementedError

    def _drop_silence(self, output_BTD: Tensor, num_utterances: int) -> Tensor:
        """Drops frames that are not of the audio."""
        return output_BTD

    @abstractmethod
    def _parts_below_layers(self) -> Sequence[str]:
        """What is between these and the first layer."""


def _unit_variance(output_BTD: Tensor) -> Tensor:
    """Each frame with mean 0 and variance 1, before the weighted sum: outputs of later layers are
    larger.
    """
    return F.layer_norm(output_BTD, output_BTD.shape[-1:])


def state_size(description: EncoderDescription, conf: PretrainedConf) -> int:
    """The width of one output that the memory is computed from."""
    is_whole = conf.layers in ("last", description.num_layers)
    return description.output_size if is_whole else description.hidden_size


def memory_size(description: EncoderDescription, conf: PretrainedConf) -> int:
    """The width of the memory of such an encoder."""
    return state_size(description, conf) if conf.upper is None else conf.upper.output_size


def additive_mask(visible_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores of attention: (B, 1, 1, T), 0 for keys that are visible, else the
    lowest number.
    """
    zeros_BT = torch.zeros_like(visible_BT, dtype=dtype)
    return zeros_BT.masked_fill(~visible_BT, torch.finfo(dtype).min)[:, None, None]


def mask_spans(x_BTD: Tensor, time: float, feature: float, hidden: Tensor | None = None) -> Tensor:
    """SpecAugment (Park et al.

    2019) as in wav2vec 2.0: spans of 10 frames become `hidden` (D,), or 0, spans of 10 dimensions
    0.

    Every frame begins a span with a tenth of the probability `time`, so that no clip is too short
    for a span.
    """
    if time:
        hidden_BT1 = _draw_spans(x_BTD.shape[:2], time, x_BTD.device)[:, :, None]
        x_BTD = torch.where(
            hidden_BT1, x_BTD.new_zeros(()) if hidden is None else hidden.to(x_BTD.dtype), x_BTD
        )
    if feature:
        x_BTD = x_BTD.masked_fill(
            _draw_spans((x_BTD.size(0), x_BTD.size(2)), feature, x_BTD.device)[:, None], 0.0
        )
    return x_BTD


def _draw_spans(shape: tuple[int, int] | torch.Size, share: float, device: torch.device) -> Tensor:
    """(B, T) bool: spans of `_MASK_SPAN` positions that begin with the probability share / span at
    each position.
    """
    starts_BT = (torch.rand(shape, device=device) < share / _MASK_SPAN).float()
    return F.max_pool1d(F.pad(starts_BT, (_MASK_SPAN - 1, 0)), _MASK_SPAN, stride=1) > 0
