# SPDX-License-Identifier: Apache-2.0
"""The order of decoding modes in results, and the usual mode."""

from wenet_hs.results.modes import sort_modes, usual_mode


def test_modes_have_the_order_of_the_table_and_unknown_ones_are_last() -> None:
    modes = ["zz", "attention", "aa", "ctc_greedy_search"]
    assert sort_modes(modes) == ["ctc_greedy_search", "attention", "aa", "zz"]


def test_the_usual_mode() -> None:
    assert usual_mode({"joint", "attention_rescoring", "attention"}) == "attention_rescoring"
    assert usual_mode({"attention", "ctc_greedy_search"}) == "attention"
