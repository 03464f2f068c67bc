# SPDX-License-Identifier: Apache-2.0
"""In which precision a step computes: autocast for the forward pass, and a scaled loss for float16.

Gradients of float16 vanish below 6e-8 and overflow above 65,504, so the loss is scaled up before the backward pass and
its gradients down again before they are clipped. The scale is searched: it is halved where a gradient overflowed, and
doubled after 2,000 steps without. A step left out while the scale can still be halved is part of that search and no
fault of the data: it is counted, but not among those in a row that end a training. At SMALLEST_SCALE there is nothing
left to search, and a gradient that is not finite is what it is in any other precision; a loss that is not finite is
that at every scale.
"""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.devices import has_native_bf16, has_native_fp16
from wenet_hs.errors import ConfigError
from wenet_hs.train.optim import Optimizer

SMALLEST_SCALE = 1.0
"""A loss that is not scaled up."""

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_dtype(config: ExperimentConfig, device: torch.device, *, where: Path) -> ExperimentConfig:
    """The config with `dtype: auto` replaced, before it is written down: a resumed run computes as the run did.

    Raises ConfigError for fp16 where the device would emulate it. `where`: the file of the config.
    """
    if config.dtype == "fp16" and not has_native_fp16(device):
        raise ConfigError(
            f"{where}: dtype: fp16 is emulated by this processor, some 50 times slower than fp32; use bf16 or fp32, or "
            "--device cuda"
        )
    if config.dtype != "auto":
        return config
    return config.model_copy(update={"dtype": "bf16" if has_native_bf16(device) else "fp32"})


class Precision:
    """The dtype of the forward pass on a device; weights, optimizer, heads and losses stay in float32."""

    def __init__(self, dtype: str, device: torch.device) -> None:
        """dtype: fp32, bf16 or fp16; `auto` is resolved before. ValueError for any other."""
        if dtype != "fp32" and dtype not in _AUTOCAST:
            raise ValueError(f"dtype must be fp32, {' or '.join(_AUTOCAST)}, got {dtype!r}")
        self._dtype, self._device = _AUTOCAST.get(dtype), device
        self._scaler = GradScaler(device.type) if dtype == "fp16" else None

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by; 1 but for fp16."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    @property
    def is_searching(self) -> bool:
        """Whether a gradient that is not finite may be the scale's fault: it can still be halved."""
        return self.loss_scale > SMALLEST_SCALE

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """For the forward pass and its losses; nothing at all for fp32."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a 0-dim loss, scaled until `unscale`."""
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: Optimizer) -> None:
        """Once a step, behind its last `backward`: the gradients as they are, to be measured and clipped."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)  # type: ignore[arg-type]  # it reads param_groups alone

    def step(self, optimizer: Optimizer, *, is_finite: bool) -> bool:
        """The optimizer's step where the gradient is finite; the next scale. Returns `is_finite`.

        The caller decides, because all ranks must decide alike and other dtypes must too.
        """
        if is_finite:
            optimizer.step()
        if self._scaler is not None and is_finite:
            self._scaler.update()
        elif self._scaler is not None:  # by the caller's verdict: the scaler has seen the gradients of this rank alone
            self._scaler.update(max(SMALLEST_SCALE, self.loss_scale / 2))
            self._scaler.load_state_dict({**self._scaler.state_dict(), "_growth_tracker": 0})
        return is_finite

    def state_dict(self) -> dict[str, Any]:
        """The scale and how long it has held, numbers that JSON keeps exactly; empty where nothing is scaled."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what `state_dict` gave. ValueError where it is of a training with another dtype."""
        if bool(state) != (self._scaler is not None):
            raise ValueError("the state of a loss scale belongs to fp16, and to no other dtype")
        if self._scaler is not None:
            self._scaler.load_state_dict(state)
