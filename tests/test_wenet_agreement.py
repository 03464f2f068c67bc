# SPDX-License-Identifier: Apache-2.0
"""Agreement with WeNet, on a model with random weights that WeNet itself ran: numbers to 1e-4, tokens exactly."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from wenet_hs.decode.modes import DecodeOptions, decode
from wenet_hs.interop.wenet import load_model
from wenet_hs.model import AsrModel

FOLDER = Path(__file__).parent / "golden"
MODES = ("attention", "ctc_greedy_search", "ctc_prefix_beam_search", "attention_rescoring")


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    with np.load(FOLDER / "wenet_conformer.npz", allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


@pytest.fixture(scope="module")
def model(arrays: dict[str, Tensor]) -> AsrModel:
    weights = {name.removeprefix("param."): array for name, array in arrays.items() if name.startswith("param.")}
    return load_model(FOLDER / "wenet_conformer.yaml", weights).eval()


@torch.inference_mode()
def test_encoder_ctc_and_decoder(model: AsrModel, arrays: dict[str, Tensor]) -> None:
    features = arrays["feats"][None]
    memory, lengths = model.encode(features, torch.tensor([features.shape[1]]))
    units = arrays["decoder_in"][None]
    hidden = model.decoder(memory, lengths, units, torch.tensor([units.shape[1]]))
    for found, name in (
        (memory[0], "encoder_out"),
        (model.ctc.log_probs(memory)[0], "ctc_log_probs"),
        (model.head.log_probs(hidden)[0], "decoder_log_probs"),
    ):
        torch.testing.assert_close(found, arrays[name], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_hypotheses_of_four_modes(model: AsrModel, arrays: dict[str, Tensor]) -> None:
    features = arrays["feats"][None]
    options = DecodeOptions(beam_size=4, ctc_weight=0.5)
    found = decode(model, features, torch.tensor([features.shape[1]]), MODES, options)
    for mode in MODES:
        assert list(found[mode][0][0].ids) == arrays[f"{mode}.tokens"].tolist(), mode
    for rank, hypothesis in enumerate(found["ctc_prefix_beam_search"][0]):
        assert list(hypothesis.ids) == arrays[f"ctc_prefix_beam_search.nbest{rank}"].tolist()
        assert hypothesis.score == pytest.approx(float(arrays[f"ctc_prefix_beam_search.nbest{rank}.score"]), abs=1e-3)
