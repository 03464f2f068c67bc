# SPDX-License-Identifier: Apache-2.0
"""Which decoding modes a model has, supports and recommends."""

from typing import Any

import pytest
from small_models import CTC_ONLY, small_model

from wenet_hs.model.modes import MODES, modes_with, recommended_modes, usual_mode

ALL = [*MODES]
OF_CTC = ["ctc_greedy_search", "ctc_prefix_beam_search"]
OF_DECODER = ["attention"]
RECOMMENDED = [*OF_CTC, "attention_rescoring", "joint"]


def test_the_branches_of_the_modes() -> None:
    assert modes_with({"ctc"}) == OF_CTC
    assert modes_with({"decoder"}) == OF_DECODER
    assert modes_with({"ctc", "decoder"}) == ALL
    assert modes_with(set()) == []


def test_attention_is_recommended_only_where_nothing_else_is_there() -> None:
    assert recommended_modes(ALL) == RECOMMENDED
    assert recommended_modes(OF_DECODER) == ["attention"]


@pytest.mark.parametrize(
    ("modes", "usual"),
    [
        (ALL, "attention_rescoring"),
        (OF_CTC, "ctc_prefix_beam_search"),
        (["attention"], "attention"),
    ],
)
def test_the_usual_mode(modes: list[str], usual: str) -> None:
    assert usual_mode(modes) == usual


@pytest.mark.parametrize(
    ("sections", "supported", "recommended", "default"),
    [
        ({"model_conf": {"ctc_weight": 0.3}}, ALL, RECOMMENDED, "attention_rescoring"),
        (CTC_ONLY, OF_CTC, OF_CTC, "ctc_prefix_beam_search"),
        ({"model_conf": {"ctc_weight": 1.0}}, OF_CTC, OF_CTC, "ctc_prefix_beam_search"),
        ({"model_conf": {"ctc_weight": 0.0}}, OF_DECODER, ["attention"], "attention"),
    ],
)
def test_modes_of_a_model(
    sections: dict[str, Any],
    supported: list[str],
    recommended: list[str],
    default: str,
) -> None:
    model = small_model(**sections)
    assert [mode for mode in MODES if model.supports(mode)] == supported
    assert model.supported_modes() == supported
    assert model.recommended_modes() == recommended
    assert model.default_mode() == default
