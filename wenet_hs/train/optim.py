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

SMALLEST_SCALE = 1.0
"""The loss scale that leaves the loss as it is; that of every dtype except fp16."""
FIRST_SCALE = 65536.0
"""The loss scale at the start of a training in fp16."""
STEPS_TO_DOUBLE = 2000
"""The loss scale of fp16 is doubled after so many steps without an overflow."""


class AdamBesideSparseAdam:
    """Fused Adam for the dense parameters and SparseAdam for the sparse ones, as one optimizer.

    With 267,735 units a dense gradient of the output layer, its norm and Adam's update of every row
    are most of a step. SparseAdam leaves a row that a step did not touch unchanged, also its
    moments; Adam would update it from its moments. SparseAdam counts steps for all rows together.
    """

    def __init__(
        self, dense: list[dict[str, Any]], sparse: list[dict[str, Any]], conf: OptimConf
    ) -> None:
        """
        Args:
            dense: groups of parameters with dense gradients, as torch's optimizers take them.
            sparse: the same for parameters with sparse gradients.
        """
        checks = torch.sparse.check_sparse_tensor_invariants
        if not checks.is_enabled():  # type: ignore[no-untyped-call]
            # They are off by default. Unless this is set, torch warns at the first sparse tensor.
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
        """Update every dense parameter, and of the sparse ones the rows that have a gradient."""
        for group in self._sparse.param_groups:
            for parameter in group["params"]:
                grad = parameter.grad
                # A head may return a dense gradient in some steps; SparseAdam refuses it.
                if grad is not None and not grad.is_sparse:
                    parameter.grad = grad.to_sparse(1)  # 1: only the rows are sparse
        self._dense.step()
        self._sparse.step()  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all parameters, or set them to zero."""
        self._dense.zero_grad(set_to_none)
        self._sparse.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The moments and settings of both optimizers, for a checkpoint."""
        return {"dense": self._dense.state_dict(), "sparse": self._sparse.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._dense.load_state_dict(state["dense"])
        self._sparse.load_state_dict(state["sparse"])


Optimizer = torch.optim.Optimizer | AdamBesideSparseAdam


def build_optimizer(
    model: nn.Module, config: TrainingConfig, *, where: str = "config"
) -> Optimizer:
    """The optimizer of the trainable parameters, with the settings of `optim_conf`.

    It is Adam or AdamW. If heads or embeddings have sparse gradients, it is SparseAdam for them and
    Adam for all others. The parts of the model with a learning rate of their own are groups.

    `where`: the file of the config, for errors.
    Raises ConfigError if a rate of `optim_conf.lr_of` is of no part of the model, or of no trained
        parameter.
    """
    conf = config.optim_conf
    rates = rates_of_parts(config)
    check_parts(model, [*rates], setting="optim_conf.lr_of", where=where)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    _check_rates_are_used(rates, trained, where=where)
    sparse_ids = _ids_of_sparse_parameters(model)
    sparse = {name: value for name, value in trained.items() if id(value) in sparse_ids}
    dense = {name: value for name, value in trained.items() if id(value) not in sparse_ids}
    dense_groups = _group_by_part(dense, rates)
    if sparse:
        # SparseAdam refuses a group without parameters.
        sparse_groups = [group for group in _group_by_part(sparse, rates) if group["params"]]
        return AdamBesideSparseAdam(dense_groups, sparse_groups, conf)
    optimizer_class = torch.optim.Adam if config.optim == "adam" else torch.optim.AdamW
    return optimizer_class(
        dense_groups,
        lr=conf.lr,
        betas=conf.betas,
        eps=conf.eps,
        weight_decay=conf.weight_decay,
        fused=True,
    )


def _check_rates_are_used(
    parts: Collection[str], trained: Mapping[str, nn.Parameter], *, where: str
) -> None:
    """Raise ConfigError in `where` if a part has a learning rate but no trained parameter.

    It may be frozen, or each of its parameters may belong to a smaller part with another rate.
    """
    used_parts = {find_part(name, parts) for name in trained}
    unused_parts = [part for part in parts if part not in used_parts]
    if unused_parts:
        found = f"optim_conf.lr_of: no trained parameter has the rate of {list_names(unused_parts)}"
        raise ConfigError(where, found, "remove it, or a name of freeze")


def _ids_of_sparse_parameters(model: nn.Module) -> set[int]:
    """The `id` of each parameter whose gradient is row-sparse, in output heads and embeddings."""
    ids = set[int]()
    for module in model.modules():
        if isinstance(module, OutputHead):
            ids.update(id(parameter) for parameter in module.sparse_parameters())
        elif isinstance(module, nn.Embedding) and module.sparse:
            ids.add(id(module.weight))
    return ids


def rates_of_parts(config: TrainingConfig) -> dict[str, float]:
    """The learning rates of the parts of the model that have their own, by the name of the part.

    These are `optim_conf.lr_of` and `encoder_conf.lr` of a pretrained encoder; the former counts if
    both name the encoder.
    """
    rates: dict[str, float] = {}
    encoder_conf = config.encoder_conf if isinstance(config, ExperimentConfig) else None
    if isinstance(encoder_conf, PretrainedConf) and encoder_conf.lr is not None:
        rates["encoder.pretrained"] = encoder_conf.lr
    return rates | config.optim_conf.lr_of


def _group_by_part(
    named: Mapping[str, nn.Parameter], parts: Collection[str]
) -> list[dict[str, Any]]:
    """Parameters by name as groups of an optimizer, one per part of the model.

    The first group has the parameters of no part, and may be empty. Each other group has its part
    as `part` beside `params`, by which the schedule finds its learning rate.
    """
    groups: dict[str | None, dict[str, Any]] = {None: {"params": []}}
    for name, value in named.items():
        part = find_part(name, parts)
        group = groups.setdefault(part, {"params": [], "part": part})
        group["params"].append(value)
    return [*groups.values()]


def find_part(name: str, parts: Collection[str]) -> str | None:
    """The longest of `parts` that the parameter `name` belongs to; None if it belongs to none.

    The parameter `a.b.c` belongs to the parts `a.b.c`, `a.b` and `a`.
    """
    longest_first = reversed(_prefixes(name))
    return next((prefix for prefix in longest_first if prefix in parts), None)


def check_parts(model: nn.Module, parts: Iterable[str], *, setting: str, where: str) -> None:
    """Raise ConfigError for the first of `parts` that is no parameter and no part of the model.

    The message suggests similar names, or else the parts at the top of the model.

    Args:
        setting: the setting that names the parts, for the message.
        where: the file of the config, for the message.
    """
    parts_of_model: dict[str, None] = {}  # a set that keeps the order
    for name, _ in model.named_parameters():
        parts_of_model |= dict.fromkeys(_prefixes(name))
    for part in parts:
        if part not in parts_of_model:
            suggestions = difflib.get_close_matches(part, parts_of_model, n=5)
            if not suggestions:
                suggestions = [other for other in parts_of_model if "." not in other]
            found = f"{setting}: {part!r} is no parameter and no module with parameters"
            raise ConfigError(where, found, f"did you mean {' or '.join(suggestions)}?")


def freeze(model: AsrModel, names: Sequence[str], *, where: str) -> None:
    """Exclude parameters, and modules with all that they contain, from training; log their number.

    They get no gradient and no optimizer state. A frozen module stays in evaluation mode: its batch
    normalization uses its running statistics and does not change them, and it has no dropout. Call
    this before the optimizer is built.

    Args:
        names: names of parameters and modules; nothing is frozen if there are none.
            `encoder.encoders.1` does not match layer 10.
        where: the file of the config, for error messages.

    Raises: ConfigError if no parameter has such a name, or no parameter is left to train.
    """
    if not names:
        return
    check_parts(model, names, setting="freeze", where=where)
    parameters = dict(model.named_parameters())
    frozen = [value for name, value in parameters.items() if find_part(name, names)]
    if len(frozen) == len(parameters):
        found = "freeze: names every parameter, so nothing is trained"
        raise ConfigError(where, found, "remove a name")
    for value in frozen:
        value.requires_grad_(False)
    names_of_modules = {name for name, _ in model.named_modules()}
    model.frozen = tuple(name for name in names if name in names_of_modules)
    model.train(model.training)  # keeps the mode, but puts the frozen modules into evaluation mode
    num_frozen = sum(value.numel() for value in frozen)
    num_parameters = sum(value.numel() for value in parameters.values())
    message = "frozen: %s: %d of %d parameters are not trained"
    logger.info(message, list_names(names), num_frozen, num_parameters)


def _prefixes(name: str) -> list[str]:
    """A dotted name and its beginnings before a dot: `a`, `a.b` and `a.b.c` for `a.b.c`."""
    return [*itertools.accumulate(name.split("."), lambda prefix, key: f"{prefix}.{key}")]


def current_rates(optimizer: Optimizer) -> dict[str, Any]:
    """The learning rates of the latest step, as the fields `lr` and `lr_of` of StepStats."""
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

    `warmuplr` is WeNet's: lr · warmup^0.5 · min(step^-0.5, step · warmup^-1.5), and without warm-up
    lr · step^-0.5. `warmup_cosine` rises linearly in the warm-up, then falls as a half cosine to 0
    at the end of the schedule, `total_steps` or `max_minutes`, where training ends.

    Args:
        part: a part of the model with a rate of its own (`rates_of_parts`); None for all others.
        seconds: training time before this step.
        warmup_seconds: training time at the end of the warm-up.
    """
    lr = config.optim_conf.lr if part is None else rates_of_parts(config)[part]
    warmup = config.scheduler_conf.warmup_steps
    if config.scheduler == "warmuplr":
        inverse_root = 1.0 / math.sqrt(step)
        if warmup == 0:
            return lr * inverse_root
        rising: float = step * warmup**-1.5
        return lr * math.sqrt(warmup) * min(inverse_root, rising)
    if step <= warmup:
        return lr * step / warmup
    share = _share_of_schedule(step, config, seconds=seconds, warmup_seconds=warmup_seconds)
    return lr * 0.5 * (1.0 + math.cos(math.pi * share))


def _share_of_schedule(
    step: int, config: TrainingConfig, *, seconds: float, warmup_seconds: float
) -> float:
    """How much of the schedule between warm-up and end is done, from 0 to 1.

    With `total_steps` and `max_minutes` the larger share counts: that end comes first.
    """
    conf = config.scheduler_conf
    share = 0.0
    if conf.total_steps is not None:
        steps_of_fall = max(1, conf.total_steps - conf.warmup_steps)  # no division by 0
        share = (step - conf.warmup_steps) / steps_of_fall
    if config.max_minutes is not None:
        max_seconds = 60 * config.max_minutes
        if warmup_seconds >= max_seconds:  # the time was over in the warm-up
            return 1.0
        share = max(share, (seconds - warmup_seconds) / (max_seconds - warmup_seconds))
    return min(1.0, share)


def ctc_weight(step: int, config: ExperimentConfig) -> float:
    """The weight of the CTC loss in optimizer step `step`, from 0 to 1; the first step is 1.

    It is 1 in the first `ctc_only_steps`. Then it is `ctc_weight`; with `ctc_weight_final` it
    changes linearly from the one to the other in `ctc_weight_steps`, and stays there.
    """
    conf = config.model_conf
    if step <= conf.ctc_only_steps:
        return 1.0
    if conf.ctc_weight_final is None:
        return conf.ctc_weight
    steps_before = step - conf.ctc_only_steps - 1  # of the change, before this one
    share = 1.0
    if conf.ctc_weight_steps > 0:
        share = min(1.0, steps_before / conf.ctc_weight_steps)
    return conf.ctc_weight + share * (conf.ctc_weight_final - conf.ctc_weight)


def attention_guide(step: int, config: ExperimentConfig) -> float:
    """The weight of the guided-attention penalty in optimizer step `step`; the first step is 1.

    It is 0 in the first `ctc_only_steps`, in which no decoder is trained. Then it falls linearly
    from `attention_guide` to 0 in `attention_guide_steps`, and stays there.
    """
    conf = config.model_conf
    if not conf.attention_guide or step <= conf.ctc_only_steps:
        return 0.0
    steps_before = step - conf.ctc_only_steps - 1  # of the decoder, before this one
    return conf.attention_guide * max(0.0, 1.0 - steps_before / conf.attention_guide_steps)


def clip_gradient(
    parameters: Iterable[nn.Parameter], max_norm: float, loss_scale: float = SMALLEST_SCALE
) -> Tensor:
    """Divide the gradients by the loss scale, and clip their common norm to `max_norm`, in place.

    Returns the norm of the divided gradients before clipping, 0-dim; 0 if there are no gradients.
    A sparse gradient is coalesced: after it each row occurs once.
    """
    values: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())  # a view: what changes it changes the gradient
        elif parameter.grad is not None:
            values.append(parameter.grad)
    if not values:
        return torch.zeros(())
    norms = torch.stack(torch._foreach_norm(values))
    norm: Tensor = torch.linalg.vector_norm(norms) / loss_scale
    clip_factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)  # 1e-6: no division by 0
    torch._foreach_mul_(values, clip_factor / loss_scale)
    return norm


class Precision:
    """The dtype of the forward pass, and the loss scale of fp16.

    Weights, optimizer, heads and losses stay in float32.
    float16 gradients vanish below 6e-8 and overflow above 65,504. So the loss is multiplied by a
    scale, which is halved after an overflow and doubled after 2,000 steps without one. A step that
    is skipped while the scale is above SMALLEST_SCALE does not count among the skipped steps in a
    row that end a training. The scale is a Python number. In torch's GradScaler it is a tensor,
    which would have to be read from a GPU.
    """

    def __init__(self, dtype: str, device: torch.device) -> None:
        """`dtype`: fp32, bf16 or fp16; `resolve_auto` replaces `auto`."""
        dtypes = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
        self._dtype = dtypes[dtype]
        """None for fp32, in which no autocast is needed."""
        self._device = device
        self.loss_scale = FIRST_SCALE if dtype == "fp16" else SMALLEST_SCALE
        """The factor of the loss; 1 except for fp16. `clip_gradient` divides by it."""
        self._steps_since_change = 0
        """Steps without an overflow since the scale last changed; always 0 except for fp16."""

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Enclose the forward pass and its losses; does nothing for fp32."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a 0-dim loss, times the scale, to those of the parameters."""
        scaled = loss * self.loss_scale if self._is_scaled else loss
        scaled.backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: Optimizer, *, is_finite: bool) -> None:
        """Do the optimizer's step if the gradient is finite, and set the next loss scale.

        `is_finite`: whether the gradient is, on all ranks; otherwise the step is skipped.
        The scale of fp16 is then halved, down to SMALLEST_SCALE. It is doubled after
        STEPS_TO_DOUBLE finite steps in a row. That of another dtype stays 1.
        """
        if is_finite:
            optimizer.step()
        if not self._is_scaled:
            return
        if not is_finite:
            self.loss_scale = max(SMALLEST_SCALE, self.loss_scale / 2)
            self._steps_since_change = 0
            return
        self._steps_since_change += 1
        if self._steps_since_change == STEPS_TO_DOUBLE:
            self.loss_scale *= 2
            self._steps_since_change = 0

    def state_dict(self) -> dict[str, Any]:
        """The scale and the steps since its last change, for a checkpoint; empty except for fp16.

        The names are those of torch's GradScaler.
        """
        if not self._is_scaled:
            return {}
        return {"scale": self.loss_scale, "_growth_tracker": self._steps_since_change}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises ValueError if only one of the two trainings is in fp16.
        """
        if bool(state) != self._is_scaled:
            raise ValueError("only fp16 has the state of a loss scale")
        if self._is_scaled:
            self.loss_scale = float(state["scale"])
            self._steps_since_change = int(state["_growth_tracker"])

    @property
    def _is_scaled(self) -> bool:
        """Whether the loss is multiplied by a scale: only in fp16."""
        return self._dtype == torch.float16


@contextlib.contextmanager
def matmul_precision(name: str, device: torch.device) -> Iterator[None]:
    """Inside the block, products of float32 matrices and convolutions have this precision.

    `name`: highest, high or medium, as in `torch.set_float32_matmul_precision`.
    Raises ConfigError if it is medium (bfloat16) and the device would emulate it.
    """
    if name == "medium" and not has_native_bf16(device):
        found = f"medium: {processor_name(device)} does not multiply bfloat16"
        raise ConfigError("matmul_precision", found, "use high or highest")
    precision_before = torch.get_float32_matmul_precision()
    allowed_tf32_before = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(name)
    # Convolutions have no such setting, only whether a GPU may round their factors to TF32.
    torch.backends.cudnn.allow_tf32 = name != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision_before)
        torch.backends.cudnn.allow_tf32 = allowed_tf32_before
