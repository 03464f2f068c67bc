# SPDX-License-Identifier: Apache-2.0
"""The optimizer, and the two schedules, each a pure function of the optimizer step: that makes a resume exact."""

import math

import torch
from torch import nn

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.heads.base import OutputHead
from wenet_hs.train.sparse import AdamBesideSparseAdam

Optimizer = torch.optim.Optimizer | AdamBesideSparseAdam


def build_optimizer(model: nn.Module, config: ExperimentConfig) -> Optimizer:
    """Adam or AdamW over the parameters that train, with `optim_conf`; rows of sparse gradients by SparseAdam."""
    conf = config.optim_conf
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    heads = [module for module in model.modules() if isinstance(module, OutputHead)]
    of_heads = {id(parameter) for head in heads for parameter in head.sparse_parameters()}
    sparse = [parameter for parameter in parameters if id(parameter) in of_heads]
    if sparse:
        dense = [parameter for parameter in parameters if id(parameter) not in of_heads]
        return AdamBesideSparseAdam(dense, sparse, lr=conf.lr, betas=conf.betas, eps=conf.eps)
    kind = torch.optim.Adam if config.optim == "adam" else torch.optim.AdamW
    return kind(parameters, lr=conf.lr, betas=conf.betas, eps=conf.eps, weight_decay=conf.weight_decay, fused=True)


def learning_rate(step: int, config: ExperimentConfig) -> float:
    """The rate of optimizer step `step` (the first is 1).

    `warmuplr` is WeNet's: lr · warmup^0.5 · min(n^-0.5, n · warmup^-1.5), and lr · n^-0.5 without warm-up.
    `warmup_cosine` rises linearly in `warmup_steps`, then falls as a half cosine to 0 at `total_steps`, where training
    ends.
    """
    base, conf = config.optim_conf.lr, config.scheduler_conf
    warmup = conf.warmup_steps
    if config.scheduler == "warmuplr":
        inverse_root = 1.0 / math.sqrt(step)
        return base * inverse_root if warmup == 0 else base * math.sqrt(warmup) * min(inverse_root, step * warmup**-1.5)
    if step <= warmup:
        return base * step / warmup
    assert conf.total_steps is not None  # the schema asks for it with warmup_cosine
    progress = min(1.0, (step - warmup) / max(1, conf.total_steps - warmup))
    return base * 0.5 * (1.0 + math.cos(math.pi * progress))


def ctc_weight(step: int, config: ExperimentConfig) -> float:
    """The share of CTC at optimizer step `step`: all of it in the first `ctc_only_steps`, then constant, or linear to
    `ctc_weight_final` in `ctc_weight_steps`."""
    conf = config.model_conf
    if step <= conf.ctc_only_steps:
        return 1.0
    if conf.ctc_weight_final is None:
        return conf.ctc_weight
    done = step - conf.ctc_only_steps - 1
    progress = 1.0 if conf.ctc_weight_steps == 0 else min(1.0, done / conf.ctc_weight_steps)
    return conf.ctc_weight + progress * (conf.ctc_weight_final - conf.ctc_weight)


def attention_guide(step: int, config: ExperimentConfig) -> float:
    """The weight of the guided-attention penalty at optimizer step `step`: linear to 0 from the decoder's start."""
    conf = config.model_conf
    if not conf.attention_guide or step <= conf.ctc_only_steps:
        return 0.0
    done = step - conf.ctc_only_steps - 1
    return conf.attention_guide * max(0.0, 1.0 - done / conf.attention_guide_steps)
