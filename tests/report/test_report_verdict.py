# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report: the better system, no difference and how large one would have been, one
system.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from made_up_experiment import replace_text, write_experiment, write_report

from wenet_hs.report.seed_spread import SeedSpread, measured_spread
from wenet_hs.report.verdict import (
    DETECTABLE_SHARE_OF_WIDTH,
    _compare_with_spread,
    _describe_test_over_seeds,
    describe_single_trainings,
    write_verdict,
)
from wenet_hs.results.experiment import read_experiments
from wenet_hs.results.report_data import gather_data
from wenet_hs.results.single_trainings import compare_with_first
from wenet_hs.score import Rules, score
from wenet_hs.score.bootstrap import Interval
from wenet_hs.score.seeds import SeedDifference, SystemSeeds, detectable_difference

REF = {f"{lang}{number:02}": "abcdefghij" for lang in ("xx", "yy") for number in range(12)}
MODE = "attention"


def experiment(
    folder: Path, num_wrong: Mapping[str, int], *, ref: Mapping[str, str] = REF, seed: int = 777
) -> Path:
    """An experiment with one wrong letter in the first utterances of each language."""
    write_experiment(folder)
    hypothesis = {
        key: text[:-1] + "x" if int(key[2:]) < num_wrong.get(key[:2], 0) else text
        for key, text in ref.items()
    }
    langs = {key: key[:2] for key in ref}
    write_report(
        folder, score(ref, hypothesis, rules=Rules(metric="cer"), langs=langs, num_resamples=100)
    )
    replace_text(folder / "train.yaml", "seed: 777", f"seed: {seed}")
    return folder


def verdict(*folders: Path) -> list[str]:
    data = gather_data(read_experiments(folders), mode=MODE)
    sentences = write_verdict(data, compare_with_first(data).differences)
    return [f"{sentence.statement} {sentence.numbers}".strip() for sentence in sentences]


def test_the_better_one_of_two_trainings(tmp_path: Path) -> None:
    a, b = (
        experiment(tmp_path / "a", {"xx": 1, "yy": 9}),
        experiment(tmp_path / "b", {"xx": 12, "yy": 12}),
    )
    for folders, gap in (
        ((a, b), "b − a +5.83 points [+4.58, +7.08]"),
        ((b, a), "a − b -5.83 points [-7.08, -4.58]"),
    ):
        caveat, head, rates, worst = verdict(*folders)
        assert caveat.startswith("One training per system decides nothing between systems: ")
        assert head.startswith(
            "Of these two trainings, a has fewer errors than b, by 5.83 points [4.58, 7.08]. "
        )
        assert f"; {gap}; p = 0.0002, both over utterances only." in head
        assert "a 4.17 %" in head and "b 10.00 %" in head
        assert rates == f"All rates: character error rate (CER) in {MODE}, mean of 2 languages."
    assert worst == "Worst language: xx (b 10.00 %); yy (a 7.50 %)."


def test_the_spread_between_seeds_stands_before_the_comparison(tmp_path: Path) -> None:
    a, b = experiment(tmp_path / "a", {"xx": 1}), experiment(tmp_path / "b", {"xx": 12})
    spread = measured_spread("cer", MODE)
    assert spread is not None
    caveat, *_ = verdict(a, b)
    assert f"by more than {spread.median:.1%} of their rate in half of the pairs" in caveat
    assert (
        f"{spread.highest_tenth:.1%} in one of ten ({spread.num_systems} systems of ours)" in caveat
    )


def test_a_difference_stands_beside_those_of_seeds(tmp_path: Path) -> None:
    folders = [
        experiment(tmp_path / name, {"xx": wrong, "yy": 12})
        for name, wrong in (("a", 1), ("b", 12))
    ]
    assert verdict(*folders)[1].endswith(" Nine of ten pairs of seeds differ by less.")
    spread = SeedSpread(
        num_systems=1, num_pairs=3, lowest_rate=1, highest_rate=2, median=0.1, highest_tenth=0.5
    )
    assert (
        _compare_with_spread(-0.02, (0.1, 0.1), spread)
        == " More than one in ten pairs of seeds differ by as much."
    )
    assert _compare_with_spread(0.005, (0.1, 0.1), spread).startswith(
        " More than half of the pairs of seeds"
    )
    assert _compare_with_spread(0.02, (0.1, 0.1), None) == ""


def test_a_metric_whose_spread_was_not_measured_has_no_number() -> None:
    assert measured_spread("wer", MODE) is None
    assert describe_single_trainings("wer", MODE).numbers == "Train 5 seeds of each."


def test_no_difference_states_how_large_one_would_have_been(tmp_path: Path) -> None:
    folders = (
        experiment(tmp_path / "a", {"xx": 3, "yy": 3}),
        experiment(tmp_path / "b", {"xx": 3, "yy": 4}),
    )
    _, head, _, worst = verdict(*folders)
    assert head.startswith("Between these trainings of b and a no difference was detected; ")
    low, high = 0.0, 1.25  # one more error in 24 utterances, in no or in three of the resamples
    assert (
        f"{DETECTABLE_SHARE_OF_WIDTH * (high - low):.2f} points would have been, with a probability of 80 %."
        in head
    )
    assert "b 2.92 %, a 2.50 %; b − a +0.42 points [+0.00, +1.25]; p = " in head
    assert worst == "Worst language: xx (a 2.50 %); yy (b 3.33 %)."
    equal = experiment(tmp_path / "c", {"xx": 3, "yy": 3})
    assert verdict(folders[0], equal)[1].startswith(
        "Between these trainings of c and a no difference was detected; their errors are equal. "
    )


def test_the_detectable_difference_is_that_of_a_test_of_many_seeds() -> None:
    deviation, number = 0.02, 10_000
    width = 2 * 1.96 * deviation / number**0.5
    assert DETECTABLE_SHARE_OF_WIDTH * width == pytest.approx(
        detectable_difference(deviation, number), rel=2e-3
    )


def test_one_training_and_one_language(tmp_path: Path) -> None:
    folder = experiment(
        tmp_path / "a", {"xx": 6}, ref={key: text for key, text in REF.items() if key < "y"}
    )
    head, rates = verdict(folder)
    assert head.startswith("The character error rate (CER) of a is 5.00 % [") and head.endswith(
        "over utterances."
    )
    assert rates == f"All rates: character error rate (CER) in {MODE}, 12 utterances."


def systems(folder: Path, wrong_a: tuple[int, ...], wrong_b: tuple[int, ...]) -> list[Path]:
    folders = []
    for name, numbers in (("a", wrong_a), ("b", wrong_b)):
        for seed, number in enumerate(numbers, start=1):
            folders.append(
                experiment(folder / f"{name}-seed{seed}", {"xx": number, "yy": 12}, seed=seed)
            )
            replace_text(folders[-1] / "train.yaml", "head: hsoftmax", f"head: {name}")
    return folders


def test_systems_over_seeds(tmp_path: Path) -> None:
    head, _, worst = verdict(*systems(tmp_path / "better", (8, 9, 8, 9, 10), (2, 4, 3, 3, 3)))
    assert (
        head.startswith("b is better than a by 2.42 points [")
        and "] over 5 seeds. " in head
        and "; p = 0.00" in head
    )
    assert worst == "Worst language: yy (a 10.00 %, b 10.00 %)."
    head, *_ = verdict(*systems(tmp_path / "equal", (8, 9, 8, 9, 10), (9, 8, 8, 10, 9)))
    assert head.startswith("No difference between b and a was detected over 5 seeds; ")
    assert (
        "points would have been, with a probability of 80 %. b 8.67 %, a 8.67 %; b − a +0.00 points ["
        in head
    )
    head, *_ = verdict(*systems(tmp_path / "few", (8, 9), (2, 4)))
    assert head.startswith(
        "b has fewer errors than a with each of 2 seeds. Two equal systems show this in 1 of 2 cases. A test"
    )
    assert head.endswith("b − a -2.29 points, each seed -2.50, -2.08.")
    head, *_ = verdict(*systems(tmp_path / "mixed", (8, 4), (2, 6)))
    assert head.startswith(
        "Neither b nor a has fewer errors with each of 2 seeds. A test needs 5 seeds. "
    )
    head, *_ = verdict(*systems(tmp_path / "one", (8, 9), ()))
    assert head.startswith(
        "The character error rate (CER) of a is 8.54 %, the mean of 2 seeds. Each seed: 1: 8.33, 2"
    )


def test_trainings_that_cannot_be_compared_have_no_verdict(tmp_path: Path) -> None:
    a, b = experiment(tmp_path / "a", {"xx": 1}), experiment(tmp_path / "b", {"xx": 1}, seed=1)
    replace_text(b / "train.yaml", "head: hsoftmax", "head: b")
    assert verdict(a, b)[0] == "No verdict: the systems are not compared, see error rates."
    empty = experiment(tmp_path / "c", {}, ref=dict.fromkeys(REF, ""))
    assert verdict(empty)[0] == "No verdict: the references have no units."


def test_a_difference_of_these_utterances_only_is_called_so() -> None:
    """The test is over seeds; the interval, also over utterances, contains zero."""
    difference = SeedDifference(
        rates_a=(0.2,) * 5,
        rates_b=(0.19,) * 5,
        mean=-0.01,
        deviation=0.001,
        interval=Interval(-0.03, 0.01),
        p=0.001,
        detectable=0.002,
        differences=(-0.01,) * 5,
    )
    system = SystemSeeds(
        mode=MODE, name="b", rates={}, baseline="a", difference=difference, adjusted_p=0.001
    )
    sentence = _describe_test_over_seeds(system, difference, "")
    assert sentence.statement.startswith(
        "b is better than a by 1.00 points [-1.00, 3.00] over 5 seeds. This holds for "
    )
