# SPDX-License-Identifier: Apache-2.0
"""The order of decoding modes in results."""

from wenet_hs.results.modes import default_modes_first, sort_modes


def test_modes_have_the_order_of_the_table_and_unknown_ones_are_last() -> None:
    modes = ["zz", "attention", "aa", "ctc_greedy_search"]
    assert sort_modes(modes) == ["ctc_greedy_search", "attention", "aa", "zz"]


def test_the_default_mode_is_before_the_others() -> None:
    modes = ["zz", "ctc_greedy_search", "aa", "joint", "attention_rescoring", "attention"]
    expected = ["attention_rescoring", "joint", "attention", "ctc_greedy_search", "aa", "zz"]
    assert default_modes_first(modes) == expected
