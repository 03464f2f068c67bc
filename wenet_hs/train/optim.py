# SPDX-License-Identifier: Apache-2.0
"""The optimizer, frozen parameters, schedules by step, clipping, and mixed precision."""

import contextlib
import difflib
import itertools
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wenet_hs.compute.devices import has_native_bf16, processor_name
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.optim import OptimConf
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.heads.base import OutputHead
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.tree.errors import ConfigError, list_names

logger = logging.getLogger(__name__)

SMALLEST_SCALE, FIRST_SCALE, STEPS_TO_DOUBLE = 1.0, 65536.0, 2000
"""The loss scale that leaves the loss as it is, the first one of fp16, and after how many steps it
is doubled.
"""


class AdamBesideSparseAdam:
    """Fused Adam for the dense parameters and SparseAdam for the sparse ones, as one optimizer.

    With 267,735 units a dense gradient of the output layer, its norm and Adam's update of every row
    are most of a step. SparseAdam leaves a row that a step did not touch unchanged, also its
    moments; Adam would update it from its moments. SparseAdam counts steps for all rows together.
    """

    def __init__(
        self, dense: list[dict[str, Any]], sparse: list[dict[str, Any]], conf: OptimConf
    ) -> None:
        """Both are groups of parameters, see `_group`."""
        checks = torch.sparse.check_sparse_tensor_invariants
        if not checks.is_enabled():  # type: ignore[no-untyped-call]
            # The default, set explicitly: otherwise torch warns at the first sparse tensor.
            checks.disable()  # type: ignore[no-untyped-call]
        self._dense = torch.optim.Adam(
            dense, lr=conf.lr, betas=conf.betas, eps=conf.eps, fused=True
        )
        self._sparse = torch.optim.SparseAdam(sparse, lr=conf.lr, betas=conf.betas, eps=conf.eps)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both optimizers; the schedule sets their "lr"."""
        return [*self._dense.param_groups, *self._sparse.param_groups]

    def step(self) -> None:
        """Update every dense parameter, and the touched rows of the sparse ones."""
        for group in self._sparse.param_groups:
            for parameter in group["params"]:
                if (
                    parameter.grad is not None and not parameter.grad.is_sparse
                ):  # a head chose a dense gradient
                    parameter.grad = parameter.grad.to_sparse(1)
        self._dense.step()
        self._sparse.step()  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._dense.zero_grad(set_to_none)
        self._sparse.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"dense": self._dense.state_dict(), "sparse": self._sparse.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._dense.load_state_dict(state["dense"])
        self._sparse.load_state_dict(state["sparse"])


Optimizer = torch.optim.Optimizer | AdamBesideSparseAdam


def build_optimizer(
    model: nn.Module, config: TrainingConfig, *, where: str = "config"
) -> Optimizer:
    """Adam or AdamW over the trainable parameters, with `optim_conf`; SparseAdam for rows with
    sparse gradients.

    Raises ConfigError in `where`, the file of the config, if no trained parameter has a rate of
        `lr_of`.
    """
    conf, rates = config.optim_conf, rates_of_parts(config)
    check_parts(model, [*rates], setting="optim_conf.lr_of", where=where)
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if unused := [part for part in rates if part not in {find_part(name, rates) for name in named}]:
        found = f"optim_conf.lr_of: no trained parameter has the rate of {list_names(unused)}"
        raise ConfigError(where, found, "remove it, or a name of freeze")
    heads = [module for module in model.modules() if isinstance(module, OutputHead)]
    tables = [
        module for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse
    ]
    rows = [
        *(parameter for head in heads for parameter in head.sparse_parameters()),
        *(one.weight for one in tables),
    ]
    with_rows = set(map(id, rows))
    dense = _group(
        {name: value for name, value in named.items() if id(value) not in with_rows}, rates
    )
    if sparse := {name: value for name, value in named.items() if id(value) in with_rows}:
        return AdamBesideSparseAdam(
            dense, [group for group in _group(sparse, rates) if group["params"]], conf
        )
    kind = torch.optim.Adam if config.optim == "adam" else torch.optim.AdamW
    return kind(
        dense,
        lr=conf.lr,
        betas=conf.betas,
        eps=conf.eps,
        weight_decay=conf.weight_decay,
        fused=True,
    )


def rates_of_parts(config: TrainingConfig) -> dict[str, float]:
    """The learning rates of parts of the model: `optim_conf.lr_of`, and that of a pretrained
    encoder.
    """
    encoder = config.encoder_conf if isinstance(config, ExperimentConfig) else None
    rate = encoder.lr if isinstance(encoder, PretrainedConf) else None
    return {**({} if rate is None else {"encoder.pretrained": rate}), **config.optim_conf.lr_of}


def _group(named: Mapping[str, nn.Parameter], parts: Collection[str]) -> list[dict[str, Any]]:
    """Parameter groups: first the parameters without a rate of their own (possibly none), then one
    group per part.
    """
    groups: dict[str | None, dict[str, Any]] = {None: {"params": []}}
    for name, value in named.items():
        part = find_part(name, parts)
        groups.setdefault(part, {"params": [], "part": part})["params"].append(value)
    return [*groups.values()]


def find_part(name: str, parts: Collection[str]) -> str | None:
    """The longest of the parts that the parameter `name` belongs to: `a`, `a.b` or `a.b.c` for
    `a.b.c`.
    """
    return next((prefix for prefix in reversed(_prefixes(name)) if prefix in parts), None)


def check_parts(model: nn.Module, parts: Iterable[str], *, setting: str, where: str) -> None:
    """Raise ConfigError in `where` for a name in `setting` that is no parameter and no module with
    parameters.
    """
    known = list(
        dict.fromkeys(prefix for name, _ in model.named_parameters() for prefix in _prefixes(name))
    )
    for part in parts:
        if part not in known:
            near = difflib.get_close_matches(part, known, n=5) or [
                other for other in known if "." not in other
            ]
            found = f"{setting}: {part!r} is no parameter and no module with parameters"
            raise ConfigError(where, found, f"did you mean {' or '.join(near)}?")


def freeze(model: AsrModel, names: Sequence[str], *, where: str) -> None:
    """Exclude the parameters of `names` from training: parameters, or modules with all that they
    contain.

    They get no gradient and no optimizer state. A frozen module stays in evaluation mode: its batch
    normalization uses its running statistics and does not change them, and it has no dropout. Call
    it before the optimizer is built.

    Args:
        names: prefixes of names in the state_dict that end before a dot: `encoder.encoders.1` does
            not match layer 10.
        where: the file of the config, for error messages.

    Raises: ConfigError if no parameter has such a name, or no parameter is left to train.
    """
    if not names:
        return
    check_parts(model, names, setting="freeze", where=where)
    parameters = dict(model.named_parameters())
    frozen = [value for name, value in parameters.items() if find_part(name, names)]
    if len(frozen) == len(parameters):
        raise ConfigError(
            where, "freeze: names every parameter, so nothing is trained", "remove a name"
        )
    for value in frozen:
        value.requires_grad_(False)
    modules = {name for name, _ in model.named_modules()}
    model.frozen = tuple(name for name in names if name in modules)
    model.train(model.training)
    num_frozen = sum(value.numel() for value in frozen)
    num_parameters = sum(value.numel() for value in parameters.values())
    logger.info(
        "frozen: %s: %d of %d parameters are not trained",
        list_names(names),
        num_frozen,
        num_parameters,
    )


def _prefixes(name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    return [*itertools.accumulate(name.split("."), lambda start, part: f"{start}.{part}")]


def current_rates(optimizer: Optimizer) -> dict[str, Any]:
    """The learning rates of this step, as fields of StepStats."""
    groups = optimizer.param_groups
    return {
        "lr": groups[0]["lr"],
        "lr_of": {group["part"]: group["lr"] for group in groups if "part" in group},
    }


def learning_rate(
    step: int,
    config: TrainingConfig,
    *,
    part: str | None = None,
    seconds: float = 0.0,
    warmup_seconds: float = 0.0,
) -> float:
    """The learning rate of optimizer step `step`; the first step is 1.

    `warmuplr` is WeNet's: lr · warmup^0.5 · min(n^-0.5, n · warmup^-1.5), and lr · n^-0.5 without
    warm-up. `warmup_cosine` rises linearly in `warmup_steps`, then falls as a half cosine to 0 at
    `total_steps` or at `max_minutes`, where training ends: of the shares of steps and of time since
    the warm-up the larger one counts.

    Args:
        part: of `optim_conf.lr_of`; None for the others.
        seconds: training time before this step.
        warmup_seconds: training time at the end of the warm-up.
    """
    base = config.optim_conf.lr if part is None else rates_of_parts(config)[part]
    conf = config.scheduler_conf
    warmup = conf.warmup_steps
    if config.scheduler == "warmuplr":
        inverse_root = 1.0 / math.sqrt(step)
        return (
            base * inverse_root
            if warmup == 0
            else base * math.sqrt(warmup) * min(inverse_root, step * warmup**-1.5)
        )
    if step <= warmup:
        return base * step / warmup
    share = 0.0 if conf.total_steps is None else (step - warmup) / max(1, conf.total_steps - warmup)
    if config.max_minutes is not None:
        end = 60 * config.max_minutes
        share = max(
            share,
            (seconds - warmup_seconds) / (end - warmup_seconds) if warmup_seconds < end else 1.0,
        )
    return base * 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))


def ctc_weight(step: int, config: ExperimentConfig) -> float:
    """The CTC weight of optimizer step `step`: 1 in the first `ctc_only_steps`, then constant, or
    linear to `ctc_weight_final` in `ctc_weight_steps`.
    """
    conf = config.model_conf
    if step <= conf.ctc_only_steps:
        return 1.0
    if conf.ctc_weight_final is None:
        return conf.ctc_weight
    done = step - conf.ctc_only_steps - 1
    progress = 1.0 if conf.ctc_weight_steps == 0 else min(1.0, done / conf.ctc_weight_steps)
    return conf.ctc_weight + progress * (conf.ctc_weight_final - conf.ctc_weight)


def attention_guide(step: int, config: ExperimentConfig) -> float:
    """The weight of the guided-attention penalty at optimizer step `step`: linear to 0, after
    `ctc_only_steps`.
    """
    conf = config.model_conf
    if not conf.attention_guide or step <= conf.ctc_only_steps:
        return 0.0
    done = step - conf.ctc_only_steps - 1
    return conf.attention_guide * max(0.0, 1.0 - done / conf.attention_guide_steps)


def clip_gradient(
    parameters: Iterable[nn.Parameter], max_norm: float, loss_scale: float = SMALLEST_SCALE
) -> Tensor:
    """Divide all gradients, dense and sparse, by the scale of the loss, and scale them so that
    their common norm is at most `max_norm`.

    Returns the norm of the divided gradients before that, 0-dim. A sparse gradient then has each
    touched row once.
    """
    values = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())  # shares its memory
        elif parameter.grad is not None:
            values.append(parameter.grad)
    if not values:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values))) / loss_scale
    torch._foreach_mul_(values, torch.clamp(max_norm / (norm + 1e-6), max=1.0) / loss_scale)
    return norm


class Precision:
    """The dtype of the forward pass, and the loss scale of fp16; weights, optimizer, heads and
    losses stay in float32.

    float16 gradients vanish below 6e-8 and overflow above 65,504. So the loss is multiplied by a
    scale, which is halved after an overflow and doubled after 2,000 steps without one. A step that
    is skipped while the scale is above SMALLEST_SCALE does not count among the skipped steps in a
    row that end a training. The scale is a number of the program, not a tensor as in torch's
    GradScaler, which would have to be read from a GPU.
    """

    def __init__(self, dtype: str, device: torch.device) -> None:
        """dtype: fp32, bf16 or fp16; `resolve_auto` replaces `auto`."""
        self._dtype, self._device = (
            {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype],
            device,
        )
        self.loss_scale = FIRST_SCALE if dtype == "fp16" else SMALLEST_SCALE
        """The factor of the loss; 1 except for fp16. `clip_gradient` divides by it."""
        self._steps_since = 0

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Enclose the forward pass and its losses; does nothing for fp32."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a 0-dim loss times the scale."""
        (loss * self.loss_scale if self._is_scaled else loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: Optimizer, *, is_finite: bool) -> None:
        """Do the optimizer's step if the gradient is finite on all ranks, and set the next scale."""
        if is_finite:
            optimizer.step()
        if self._is_scaled:
            self._steps_since = self._steps_since + 1 if is_finite else 0
            if not is_finite:
                self.loss_scale = max(SMALLEST_SCALE, self.loss_scale / 2)
            elif self._steps_since == STEPS_TO_DOUBLE:
                self.loss_scale, self._steps_since = 2 * self.loss_scale, 0

    def state_dict(self) -> dict[str, Any]:
        """The scale and the steps since its last change, by the names of torch's GradScaler; empty
        except for fp16.
        """
        return (
            {"scale": self.loss_scale, "_growth_tracker": self._steps_since}
            if self._is_scaled
            else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises ValueError if it is of a training with another dtype.
        """
        if bool(state) != self._is_scaled:
            raise ValueError("only fp16 has the state of a loss scale")
        if self._is_scaled:
            self.loss_scale, self._steps_since = (
                float(state["scale"]),
                int(state["_growth_tracker"]),
            )

    @property
    def _is_scaled(self) -> bool:
        return self._dtype == torch.float16


@contextlib.contextmanager
def matmul_precision(name: str, device: torch.device) -> Iterator[None]:
    """Set the precision of products of float32 matrices, and of convolutions.

    Raises ConfigError if the device would emulate it.
    """
    if name == "medium" and not has_native_bf16(device):
        found = f"medium: {processor_name(device)} does not multiply bfloat16"
        raise ConfigError("matmul_precision", found, "use high or highest")
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(name)
    torch.backends.cudnn.allow_tf32 = name != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
