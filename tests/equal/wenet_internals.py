# SPDX-License-Identifier: Apache-2.0
"""The only module here that imports wenet_hs. A refactoring that moves a module changes it here.

A record of another commit uses the file of this name of that commit, if it has one.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

NUM_UNITS = 11
NUM_BINS = 20
FRAMES = (60, 47, 33)
LABELS = (6, 4, 2)


def load_commands() -> ModuleType:
    """Import every command, so that a fork of this process runs one at once.

    Returns the module with `main()`, which reads sys.argv, and `run_command(module, argv)`.
    """
    main = importlib.import_module("wenet_hs.bin.main")
    for name in main.COMMANDS:
        importlib.import_module(f"wenet_hs.bin.{name.replace('-', '_')}")
    return main


def command_names() -> list[str]:
    """The names after `wenet-hs`."""
    main = importlib.import_module("wenet_hs.bin.main")
    return list(main.COMMANDS)


def user_error_class() -> type[Exception]:
    """The base class of all errors that a user can fix."""
    errors = importlib.import_module("wenet_hs.tree.errors")
    error_class: type[Exception] = errors.WenetHsError
    return error_class


def loss_and_gradients(sections: Mapping[str, Any]) -> dict[str, Tensor]:
    """The loss of one batch and its gradients by the name of the parameter.

    The model is a small conformer with random weights; `sections` replaces sections of its config.
    """
    from wenet_hs.config.schema import ExperimentConfig
    from wenet_hs.data.batching import Example, collate
    from wenet_hs.model.build import build_model
    from wenet_hs.text.units import SpecialIds
    from wenet_hs.tree import Tree

    torch.manual_seed(3)
    size = {"attention_heads": 2, "linear_units": 24, "num_blocks": 2, "dropout_rate": 0.0}
    base: dict[str, Any] = {
        "encoder_conf": {"output_size": 16, "positional_dropout_rate": 0.0, **size},
        "decoder": "transformer",
        "decoder_conf": {"positional_dropout_rate": 0.0, **size},
        "dataset_conf": {"fbank_conf": {"num_mel_bins": NUM_BINS}},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
    }
    config = ExperimentConfig(**{**base, **sections})
    tree = Tree.huffman(range(1, NUM_UNITS + 1))
    special = SpecialIds(blank=0, unk=1, sos=2, eos=2)
    model = build_model(config, NUM_UNITS, special, tree=tree, ctc_tree=tree)
    examples = []
    for number, (num_frames, num_labels) in enumerate(zip(FRAMES, LABELS, strict=True)):
        example = Example(
            key=f"utterance{number}",
            features=torch.randn(num_frames, NUM_BINS),
            target=torch.randint(3, NUM_UNITS, (num_labels,)),
            audio_seconds=num_frames / 100,
        )
        examples.append(example)
    loss = model.train()(collate(examples)).total
    loss.backward()
    gradients = {"loss": loss.detach()}
    for name, parameter in model.named_parameters():
        gradients[name] = torch.zeros(0) if parameter.grad is None else parameter.grad
    return gradients
