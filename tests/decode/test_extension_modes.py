# SPDX-License-Identifier: Apache-2.0
"""Decoding modes of installed packages: their search, what they need of a model, and what is
refused.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_extension import importable, install_sample, write_metadata
from small_models import CTC_ONLY, small_batch, small_model

from wenet_hs.base.extensions import RESERVED_NAMES
from wenet_hs.bin.search_flags import ModeNames
from wenet_hs.decode import MODES, DecodeOptions, decode
from wenet_hs.decode.modes import SEARCHES, StageTimes, check_options, search_of, stages_of
from wenet_hs.model.modes import AUTO_MODES, find_mode
from wenet_hs.tree.errors import ConfigError


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    folder = install_sample(tmp_path / "site")
    with importable(folder):
        yield folder


def test_every_mode_of_the_table_has_a_search() -> None:
    assert list(SEARCHES) == list(MODES)


def test_a_mode_of_a_package_decodes(installed: Path) -> None:
    model, batch, times = small_model(**CTC_ONLY), small_batch([23, 14], [1, 1]), StageTimes()
    found = decode(
        model,
        batch.features,
        batch.feature_lengths,
        ["confident", "ctc_greedy_search"],
        times=times,
    )
    assert stages_of("confident") == ("ctc", "confident")
    assert {"ctc", "confident"} <= set(times.seconds)
    for nbest, greedy in zip(found["confident"], found["ctc_greedy_search"], strict=True):
        assert len(nbest) == 1
        assert nbest[0].score == pytest.approx(greedy[0].score)
        assert len(nbest[0].ids) <= len(greedy[0].ids)  # uncertain frames are left out


def test_a_mode_of_a_package_needs_its_branches(installed: Path) -> None:
    write_metadata(installed, "decoder-modes", "1", {"wenet_hs.modes": {"sharp": "sharp:MODE"}})
    text = "from wenet_hs.decode.modes import SearchMode\n"
    text += "MODE = SearchMode(search=print, help='', branches=frozenset({'decoder'}))\n"
    (installed / "sharp.py").write_text(text, "utf-8")
    model = small_model(**CTC_ONLY)
    assert model.supports("confident") and not model.supports("sharp")
    with pytest.raises(
        ConfigError,
        match="^sharp: needs a decoder, and this model has none; use ctc_greedy_search or",
    ):
        check_options(model, DecodeOptions(), ["sharp"])
    with pytest.raises(ConfigError, match="nbest 2: confident has only one hypothesis"):
        check_options(model, DecodeOptions(nbest=2), ["confident"])


def test_names_of_modes(installed: Path) -> None:
    names = ModeNames("auto")
    assert list(names) == [*MODES, "auto", "confident"]
    assert all(name in names for name in names)
    assert "confidence" not in names
    with pytest.raises(
        ValueError, match=r"^mode 'confidence': must be one of ctc_greedy_.*, confident$"
    ):
        find_mode("confidence")


def test_what_is_no_mode(installed: Path) -> None:
    modes = {"number": "math:pi", "facts": "facts:MODE"}
    write_metadata(installed, "broken-modes", "2", {"wenet_hs.modes": modes})
    text = "from wenet_hs.model.modes import Mode\nMODE = Mode(help='', branches=frozenset())\n"
    (installed / "facts.py").write_text(text, "utf-8")
    expected = "of the package broken-modes 2: is no wenet_hs.decode.modes.SearchMode; install another version of"
    with pytest.raises(ConfigError, match=f"^mode number {expected} broken-modes$"):
        find_mode("number")
    with pytest.raises(ConfigError, match=f"^mode facts {expected} broken-modes$"):
        search_of("facts")


def test_the_name_of_the_recommended_modes_is_reserved(
    installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert AUTO_MODES in RESERVED_NAMES["mode"]
    write_metadata(installed, "auto-modes", "2", {"wenet_hs.modes": {"auto": "absent:MODE"}})
    assert list(ModeNames()) == [*MODES, "confident"]
    expected = "^mode auto of the package auto-modes 2: the name is reserved; install another version of auto-modes$"
    with pytest.raises(ConfigError, match=expected):
        find_mode("auto")
    with pytest.raises(ConfigError, match=expected):
        assert "auto" in ModeNames()
    assert caplog.messages == []
    assert "auto" in ModeNames("auto")
    expected = "mode auto of the package auto-modes 2: not used; wenet_hs has a mode of this name"
    assert caplog.messages == [expected]


def test_a_mode_of_ours_is_used(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_metadata(installed, "other", "1", {"wenet_hs.modes": {"attention": "absent:MODE"}})
    assert find_mode("attention") is MODES["attention"]
    expected = "mode attention of the package other 1: not used; wenet_hs has a mode of this name"
    assert caplog.messages == [expected]


@pytest.mark.parametrize(
    ("branches", "shown"),
    [
        ("frozenset({'CTC'})", "frozenset({'CTC'})"),
        ("{'ctc'}", "{'ctc'}"),
        ("'ctc'", "'ctc'"),
        ("None", "None"),
    ],
)
def test_branches_that_no_model_has(installed: Path, branches: str, shown: str) -> None:
    write_metadata(installed, "odd-modes", "1", {"wenet_hs.modes": {"odd": "odd_mode:MODE"}})
    text = "from wenet_hs.decode.modes import SearchMode\n"
    text += f"MODE = SearchMode(search=print, help='', branches={branches})\n"
    (installed / "odd_mode.py").write_text(text, "utf-8")
    with pytest.raises(ConfigError) as error:
        find_mode("odd")
    found = f"its branches are {shown}, not a frozenset of ctc, decoder"
    assert (
        str(error.value)
        == f"mode odd of the package odd-modes 1: {found}; install another version of odd-modes"
    )


LENGTHS = "its search returned no list of 2 lists, one per utterance"
EMPTY = "its search returned a list without a Hypothesis for an utterance"


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ("[]", LENGTHS),
        ("None", LENGTHS),
        ("[[Hypothesis((), 0.0)]]", LENGTHS),
        ("[Hypothesis((), 0.0), Hypothesis((), 0.0)]", LENGTHS),
        ("[[Hypothesis((), 0.0)], []]", EMPTY),
        ("[[Hypothesis((), 0.0)], [((), 0.0)]]", EMPTY),
    ],
)
def test_n_best_lists_that_are_wrong(installed: Path, result: str, found: str) -> None:
    write_metadata(installed, "odd-modes", "1", {"wenet_hs.modes": {"odd": "odd_mode:MODE"}})
    text = "from wenet_hs.decode.hypothesis import Hypothesis\nfrom wenet_hs.decode.modes import SearchMode\n"
    text += f"MODE = SearchMode(search=lambda batch: {result}, help='', branches=frozenset({{'ctc'}}))\n"
    (installed / "odd_mode.py").write_text(text, "utf-8")
    model, batch = small_model(**CTC_ONLY), small_batch([23, 14], [1, 1])
    with pytest.raises(ConfigError) as error:
        decode(model, batch.features, batch.feature_lengths, ["odd"])
    assert (
        str(error.value)
        == f"mode odd of the package odd-modes 1: {found}; install another version of odd-modes"
    )


def test_an_error_in_a_search_keeps_its_traceback(installed: Path) -> None:
    write_metadata(installed, "odd-modes", "1", {"wenet_hs.modes": {"odd": "odd_mode:MODE"}})
    text = "from wenet_hs.decode.modes import SearchMode\n"
    text += "MODE = SearchMode(search=lambda batch: 1 / 0, help='', branches=frozenset({'ctc'}))\n"
    (installed / "odd_mode.py").write_text(text, "utf-8")
    model, batch = small_model(**CTC_ONLY), small_batch([23, 14], [1, 1])
    with pytest.raises(ZeroDivisionError):
        decode(model, batch.features, batch.feature_lengths, ["odd"])
