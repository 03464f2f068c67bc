# SPDX-License-Identifier: Apache-2.0
"""The plain-text table that `report` prints."""

from collections.abc import Callable
from pathlib import Path

from wenet_hs.report.collect import collect
from wenet_hs.report.summary import summary

Make = Callable[..., Path]


def test_a_row_for_each_mode_and_experiment(make_experiment: Make) -> None:
    experiments = collect([make_experiment("exp/a"), make_experiment("exp/b", head="softmax")])
    lines = summary(experiments, said=" of simulated speech").splitlines()
    assert lines[0] == "CER in % of simulated speech"
    langs = sorted(experiments[0].scores["attention"].languages)
    assert lines[1].split() == ["mode", "experiment", *langs, "macro", "95%", "interval", "RTF"]
    assert [line.split()[:2] for line in lines[2:]] == [
        [mode, name] for mode in ("ctc_greedy_search", "attention") for name in ("a", "b")
    ]
    report = experiments[0].scores["attention"]
    rates = [f"{100 * (report.languages[lang].rate or 0):.2f}" for lang in langs]
    row = next(line for line in lines if line.startswith("attention ") and line.split()[1] == "a").split()
    assert row[2 : 2 + len(langs)] == rates
    assert row[2 + len(langs)] == f"{100 * (report.macro.rate or 0):.2f}"
    assert row[-1] == "0.250"


def test_columns_are_aligned(make_experiment: Make) -> None:
    lines = summary(collect([make_experiment("exp/a"), make_experiment("exp/longer_name")])).splitlines()[1:]
    second = len("ctc_greedy_search") + 2
    assert all(line[second - 1] == " " and line[second] != " " for line in lines)
    assert len({line.index("]") for line in lines[1:]}) == 1


def test_nothing_scored_is_nothing_said(make_experiment: Make) -> None:
    folder = make_experiment("a")
    for score in folder.glob("test/*/score.json"):
        score.unlink()
    assert summary(collect([folder])) == ""
