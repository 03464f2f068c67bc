# SPDX-License-Identifier: Apache-2.0
"""The base class of pretrained encoders: the loop over their layers, and masks of their input.

The modules are those of `transformers`. The loop over them is ours: it stops at the chosen layer,
and padding changes no output. The kinds of encoders are in `kinds.py`.

Dimension key: B batch, N samples, T frames, F features, D width of the layers, K outputs that are
kept.
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
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

_LONGEST_S = 30.0
"""Longest audio that is encoded as one whole: the memory of attention grows with its square."""
_MASK_SPAN = 10
"""Frames or dimensions that one mask hides, as in wav2vec 2.0."""


@dataclass(frozen=True)
class LayerContext:
    """What all layers of a forward pass need beside their input."""

    valid_BT: Tensor
    """(B, T) bool: which frames are not padding."""
    visible_B11T: Tensor
    """(B, 1, 1, T): the same as a mask that is added to the scores of attention."""
    positions: Tensor | None
    """The positions that the layers share; None for an encoder whose layers need none."""


class PretrainedEncoder(SpeechEncoder):
    """The layers of a pretrained encoder, and perhaps layers of ours above them (`upper`).

    Parameters: `pretrained.*` with the names of transformers, `layer_weights`, `upper.*`. The
    weights are new until they are loaded.

    Attributes:
        takes_outputs: whether the input is already what `states` returns, (B, T, K * D). Training
            sets it.
        is_held: whether no weight of `pretrained` is trained now, and it has no dropout. Training
            sets it, and then calls `train` of the whole model.
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
        """Uses the layers of a module of transformers that `conf` asks for; deletes the others.

        `upper`: an encoder over the outputs of the module; None: they are the memory.

        Raises ConfigError for settings that do not fit the encoder.
        """
        super().__init__()
        self.description = description
        self.conf = conf
        self.own_frontend = description.frontend(conf.silence_s)
        self.longest_s = min(_LONGEST_S, self.own_frontend.window_s)
        _check_layer_numbers(conf, description.num_layers)
        _check_silence(conf, description)
        _check_adapter(conf, description)
        num_layers = conf.layers if isinstance(conf.layers, int) else description.num_layers
        self.pretrained = module
        blocks = self._blocks()
        del blocks[num_layers:]
        self.is_weighted = conf.layers == "weighted"
        # The memory is computed from K states: one output, or the weighted sum of the input of the
        # first layer and the outputs of all layers.
        self.num_states = num_layers + 1 if self.is_weighted else 1
        self.state_size = state_size(description, conf)
        self.layer_weights = None
        if self.is_weighted:
            self.layer_weights = nn.Parameter(torch.zeros(self.num_states))
        # The adapter was trained on the output of the last layer: it is deleted if the memory is
        # computed from other outputs.
        uses_last_output = num_layers == description.num_layers and not self.is_weighted
        self._num_adapters = description.adapter_layers if uses_last_output else 0
        if not uses_last_output and hasattr(self.pretrained, "adapter"):
            self.pretrained.adapter = None
        self.upper = upper
        self.num_layers = num_layers if upper is None else upper.num_layers
        self.output_size = memory_size(description, conf)
        self.min_frames, stride = description.frame_geometry
        self.stride = stride * 2**self._num_adapters  # each layer of the adapter has stride 2
        self.takes_outputs = False
        self.is_held = False

    def frozen_parts(self) -> list[str]:
        """The names of the parts that `freeze` excludes from training, as `encoder.pretrained.…`.

        They are names of parameters for `all_but_adapters`, and otherwise names of modules. The
        list is empty for `none`.
        """
        rule = self.conf.freeze
        if rule == "all":
            return ["encoder.pretrained"]
        parts: list[str] = []
        if rule == "all_but_adapters":
            for name, _ in self.pretrained.named_parameters():
                if ".adapter_layer." not in name:  # a weight of the adapters of MMS
                    parts.append(name)
        elif rule == "feature_encoder":
            parts.extend(self._convolutions)
        elif isinstance(rule, int):  # everything up to this layer, counted from 1
            parts.extend(self._convolutions)
            parts.extend(self._parts_below_layers())
            parts.extend(f"{self._blocks_name}.{index}" for index in range(rule))
        return [f"encoder.pretrained.{part}" for part in parts]

    def train(self, mode: bool = True) -> "PretrainedEncoder":
        """Sets training mode, or evaluation mode if `mode` is False.

        Layers that are held or frozen as a whole stay in evaluation mode. They are never in
        training mode, also not for a moment, because a thread may compute their outputs now.
        """
        self.training = mode
        is_fixed = self.is_held or self.conf.freeze == "all"
        for child in self.children():
            stays_in_evaluation = is_fixed and child is self.pretrained
            child.train(mode and not stays_in_evaluation)
        return self

    @property
    def device(self) -> torch.device:
        """The device of the pretrained weights."""
        weight: nn.Parameter = next(self.pretrained.parameters())
        return weight.device

    def output_length(self, length: FrameLength) -> FrameLength:
        """The number of memory frames of `length` input frames, an int or (B,)."""
        return length if self.takes_outputs else self.states_length(length)

    def states_length(self, length: Frames) -> Frames:
        """The number of frames that `states` returns for `length` input frames; (B,) → (B,)."""
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
        """See `SpeechEncoder.forward`.

        Args:
            inputs: those of `own_frontend`, (B, N) or (B, T, F); with `takes_outputs` what `states`
                returned.
            layers: layers of `upper` if there is one, otherwise layers of the pretrained encoder.
                These are not computed with `takes_outputs`, so none of their outputs is returned.
            chunk: has no effect, because every frame sees all frames.
        """
        self._check_layers(layers)
        out_lengths = self.output_length(lengths)
        layer_outputs: dict[int, Tensor] = {}
        if self.takes_outputs:
            states = list(torch.split(inputs, self.state_size, dim=2))
        else:
            asked_layers = layers if self.upper is None else ()
            needs_gradient = torch.is_grad_enabled() and not self.is_held
            with torch.set_grad_enabled(needs_gradient):
                states, layer_outputs = self._compute_states(inputs, lengths, asked_layers)
        if self.layer_weights is None:
            memory_BTD = states[-1]  # the only state
        else:
            shares_K = self.layer_weights.softmax(0)
            memory_BTD = sum(share * state for share, state in zip(shares_K, states, strict=True))
        if self.upper is None:
            return memory_BTD, out_lengths, layer_outputs
        upper_conf = self.conf.upper
        if self.training and upper_conf is not None:
            memory_BTD = mask_spans(memory_BTD, upper_conf.mask_time, upper_conf.mask_feature)
        return self.upper(memory_BTD, out_lengths, layers)

    @torch.no_grad()
    def states(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """The K states that the memory is computed from, as (B, T, K * D), without gradients.

        For `layers: weighted` these are the input of the first layer and the outputs of all layers;
        otherwise it is one output.
        """
        states, _ = self._compute_states(inputs, lengths, ())
        return torch.cat(states, dim=2)

    def _compute_states(
        self, inputs: Tensor, lengths: Tensor, layers: Collection[int]
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Computes the states for the memory, and the outputs of `layers` by their numbers (from 1).

        For `layers: weighted` the states are the input of the first layer and the output of each
        layer, with mean 0 and variance 1 per frame. Otherwise there is one state, the output of the
        last layer, normalized, and after the adapter if there is one. All are (B, T, D).
        """
        num_utterances = inputs.size(0)  # _embed may cut them into windows
        x_BTD, valid_BT = self._embed(self._pad_to_min_frames(inputs), lengths)
        weighted_states: list[Tensor] = []
        if self.is_weighted:
            weighted_states.append(self._drop_silence(_standardize(x_BTD), num_utterances))
        context = LayerContext(
            valid_BT=valid_BT,
            positions=self._positions(x_BTD),
            visible_B11T=additive_mask(valid_BT, x_BTD.dtype),
        )
        layer_outputs: dict[int, Tensor] = {}
        for number, block in enumerate(self._blocks(), start=1):
            x_BTD = self._call_or_checkpoint(block, x_BTD, context)
            if self.is_weighted:
                weighted_states.append(self._drop_silence(_standardize(x_BTD), num_utterances))
            if number in layers:
                output_BTD = self._normalize(x_BTD)
                layer_outputs[number] = self._drop_silence(output_BTD, num_utterances)
        if self.is_weighted:
            return weighted_states, layer_outputs
        last_BTD = self._normalize(x_BTD)
        if getattr(self.pretrained, "adapter", None) is not None:
            last_BTD = self._adapt(last_BTD, valid_BT)
        return [self._drop_silence(last_BTD, num_utterances)], layer_outputs

    def _mask(self, x_BTD: Tensor) -> Tensor:
        """The input of the first layer with random masks; unchanged in evaluation mode."""
        if not self.pretrained.training:
            return x_BTD
        return mask_spans(
            x_BTD,
            self.conf.mask_time,
            self.conf.mask_feature,
            getattr(self.pretrained, "masked_spec_embed", None),
        )

    def _call_or_checkpoint(self, block: nn.Module, x_BTD: Tensor, context: LayerContext) -> Tensor:
        """The output of a layer.

        If `_should_checkpoint`, its activations are not kept: the backward pass computes them again.
        """
        if self._should_checkpoint(block, x_BTD):
            return checkpoint(self._call_with_kernels, block, x_BTD, context, use_reentrant=False)
        return self._call_with_kernels(block, x_BTD, context)

    def _should_checkpoint(self, block: nn.Module, x_BTD: Tensor) -> bool:
        """Whether `gradient_checkpointing` is set, and a gradient goes through the layer."""
        if not (self.conf.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            return False
        has_trained_weight = any(weight.requires_grad for weight in block.parameters())
        return x_BTD.requires_grad or has_trained_weight

    def _call_with_kernels(self, block: nn.Module, x_BTD: Tensor, context: LayerContext) -> Tensor:
        """The output of a layer, with the kernels of attention that we choose for the device."""
        with attention_kernels(x_BTD.device):
            return self._call_layer(block, x_BTD, context)

    # ---- what differs between the kinds

    _blocks_name = "encoder.layers"
    """The name of the list of layers in `pretrained`."""
    _convolutions: Sequence[str] = ()
    """The names of the parts that are convolutions over the input."""

    def _blocks(self) -> nn.ModuleList:
        """The layers, without those that were deleted."""
        blocks = self.pretrained.get_submodule(self._blocks_name)
        assert isinstance(blocks, nn.ModuleList)
        return blocks

    def _layer_length(self, length: Frames) -> Frames:
        """The number of frames of the layers for `length` input frames; (B,) → (B,)."""
        return self.description.layer_length(length)

    @abstractmethod
    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the first layer (B, T, D), and which of its frames are not padding, (B, T).

        In training some frames and dimensions are masked. B is the number of windows if a kind cuts
        utterances into windows.
        """

    def _call_layer(self, block: nn.Module, x_BTD: Tensor, context: LayerContext) -> Tensor:
        """The output of a layer, (B, T, D)."""
        return block(x_BTD, attention_mask=context.visible_B11T)

    def _positions(self, x_BTD: Tensor) -> Tensor | None:
        """The positions that all layers of a pass share; None if the layers need none."""
        return None

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        """The output of a layer as the memory is normalized; here unchanged."""
        return output_BTD

    def _adapt(self, output_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """The output of the adapter, whose layers follow the last one and each halve the frames.

        Raises NotImplementedError for a kind that never has an adapter.
        """
        raise NotImplementedError

    def _drop_silence(self, output_BTD: Tensor, num_utterances: int) -> Tensor:
        """Drops the frames that are not of the audio; joins the windows of each utterance.

        Here all frames are of the audio, and nothing is changed.
        """
        return output_BTD

    @abstractmethod
    def _parts_below_layers(self) -> Sequence[str]:
        """The names of the parts between the convolutions and the first layer."""


def _check_layer_numbers(conf: PretrainedConf, num_layers: int) -> None:
    """Raises ConfigError if `layers` or `freeze` is the number of a layer that is not there.

    Layers above `layers` are left out, so that `freeze` cannot be one of them.
    """
    num_used = num_layers
    if isinstance(conf.layers, int):
        _check_layer_number("layers", conf.layers, num_layers)
        num_used = conf.layers
    if isinstance(conf.freeze, int):
        _check_layer_number("freeze", conf.freeze, num_used)


def _check_layer_number(name: str, number: int, num_layers: int) -> None:
    """Raises ConfigError if the setting `name` of `encoder_conf` is above the number of layers."""
    if number > num_layers:
        found = f"{number}, but the encoder has {num_layers} layers"
        raise ConfigError(f"encoder_conf.{name}", found, "use fewer")


def _check_silence(conf: PretrainedConf, description: EncoderDescription) -> None:
    """Raises ConfigError if silence after the audio is set for another encoder than Whisper's."""
    is_set = conf.silence_s != PretrainedConf.model_fields["silence_s"].default
    if is_set and description.kind != "whisper":
        raise ConfigError("encoder_conf.silence_s", "has an effect with Whisper only", "remove it")


def _check_adapter(conf: PretrainedConf, description: EncoderDescription) -> None:
    """Raises ConfigError if the settings about adapters for languages do not fit the encoder.

    An encoder that has such adapters needs the setting `adapter`. An encoder without them must have
    neither `adapter` nor `freeze: all_but_adapters`.
    """
    section = "encoder_conf.adapter"
    if description.has_language_adapters:
        if conf.adapter is None:
            found = "the encoder has adapters for languages"
            raise ConfigError(section, found, "name the language, or `new`")
    elif conf.adapter is not None or conf.freeze == "all_but_adapters":
        to_do = "remove it, and freeze: all_but_adapters"
        raise ConfigError(section, "the encoder has no adapters", to_do)


def _standardize(output_BTD: Tensor) -> Tensor:
    """Each frame with mean 0 and variance 1.

    Outputs of later layers are larger, and would dominate a weighted sum.
    """
    return F.layer_norm(output_BTD, output_BTD.shape[-1:])


def state_size(description: EncoderDescription, conf: PretrainedConf) -> int:
    """The width of one output that the memory is computed from.

    It is that of the last output of the encoder, after its adapter, or that of its layers.
    """
    uses_last_output = conf.layers in ("last", description.num_layers)
    return description.output_size if uses_last_output else description.hidden_size


def memory_size(description: EncoderDescription, conf: PretrainedConf) -> int:
    """The width of the memory: that of the layers above the encoder, if there are any."""
    return state_size(description, conf) if conf.upper is None else conf.upper.output_size


def additive_mask(visible_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask that is added to scores of attention, (B, 1, 1, T).

    It is 0 for keys that are visible, and the lowest finite number of `dtype` for the others.
    """
    zeros_BT = torch.zeros_like(visible_BT, dtype=dtype)
    return zeros_BT.masked_fill(~visible_BT, torch.finfo(dtype).min)[:, None, None]


def mask_spans(
    x_BTD: Tensor, time: float, feature: float, mask_vector: Tensor | None = None
) -> Tensor:
    """SpecAugment (Park et al. 2019) as in wav2vec 2.0: replaces random frames and dimensions.

    Args:
        time: about the share of the frames that is replaced, in spans of 10 frames; 0: none. A span
            begins at each frame with the probability time / 10, also in short utterances.
        feature: the same for dimensions, which are set to 0; 0: none.
        mask_vector: (D,) what replaces a frame; None: zeros.
    Returns: (B, T, D); x_BTD itself if both shares are 0.
    """
    if time:
        is_masked_BT1 = _draw_spans(x_BTD.shape[:2], time, x_BTD.device)[:, :, None]
        zero = x_BTD.new_zeros(())
        replacement = zero if mask_vector is None else mask_vector.to(x_BTD.dtype)
        x_BTD = torch.where(is_masked_BT1, replacement, x_BTD)
    if feature:
        shape_BD = (x_BTD.size(0), x_BTD.size(2))
        is_masked_B1D = _draw_spans(shape_BD, feature, x_BTD.device)[:, None]
        x_BTD = x_BTD.masked_fill(is_masked_B1D, 0.0)
    return x_BTD


def _draw_spans(shape: tuple[int, int] | torch.Size, share: float, device: torch.device) -> Tensor:
    """(B, T) bool: the positions that are in a random span of `_MASK_SPAN` positions.

    A span begins at each position with the probability share / _MASK_SPAN. Spans may overlap. One
    that would go beyond the last position ends there.
    """
    starts_BT = (torch.rand(shape, device=device) < share / _MASK_SPAN).float()
    # A position is in a span if a span begins at it or at one of the _MASK_SPAN - 1 before it.
    padded_BT = F.pad(starts_BT, (_MASK_SPAN - 1, 0))
    return F.max_pool1d(padded_BT, _MASK_SPAN, stride=1) > 0
