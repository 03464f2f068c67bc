# SPDX-License-Identifier: Apache-2.0
"""Experiments to compare: complete folders, names, outdated scorings, and error messages."""

from pathlib import Path

import pytest
from made_up_experiment import BAD, GOOD, REF, write_experiment, write_report

from wenet_hs.manifest.data_list import read_text, write_text
from wenet_hs.results.experiment import read_experiments
from wenet_hs.results.modes import sort_modes
from wenet_hs.runs.curves import read_curves
from wenet_hs.score import Rules, score
from wenet_hs.tree.errors import DataError


def test_a_complete_folder(tmp_path: Path) -> None:
    (experiment,) = read_experiments([write_experiment(tmp_path / "exp/a")])
    assert (experiment.name, experiment.head, experiment.absent) == ("a", "hsoftmax", ())
    assert (experiment.settings["seed"], experiment.run.last_start.commit) == (777, "1a2b3c4")
    assert list(experiment.scores) == ["ctc_greedy_search", "attention"]
    assert experiment.tree is not None and experiment.tree.num_units == 5
    assert [record["step"] for record in experiment.curves["valid"]] == [10, 20, 30, 40, 50]
    assert experiment.curves["train"][0]["loss_ctc"] == 9
    with (experiment.folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 60, "note": "x"}\n{"kind": "train", "st')
    curve = read_curves(experiment.folder / "metrics.jsonl")["train"]
    assert curve[-1] == {"step": 60.0}, "an incomplete last line and texts are ignored"
    (softmax,) = read_experiments([write_experiment(tmp_path / "b", head="softmax")])
    assert (softmax.tree, softmax.absent) == (None, ()), "a softmax head needs no tree"
    of_two = read_experiments(
        [write_experiment(tmp_path / "x/exp/a"), write_experiment(tmp_path / "y/exp/a")]
    )
    assert [experiment.name for experiment in of_two] == ["x/exp/a", "y/exp/a"]
    assert sort_modes(["zz", "attention", "aa", "ctc_greedy_search"]) == [
        "ctc_greedy_search",
        "attention",
        "aa",
        "zz",
    ]


def test_repeated_folders_and_damaged_files_are_refused(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "a")
    with pytest.raises(DataError, match="a: the same experiment twice; give each --exp once"):
        read_experiments([folder, folder / "../a"])
    for file, content, message in (
        ("test/rtf.json", "{", r"rtf.json: damaged \(Expecting property name.*\); decode again"),
        (
            "test/rtf.json",
            '{"modes": [1]}',
            "rtf.json: not the rtf.json of `recognize`; decode again",
        ),
        ("test/rtf.json", "[]", "rtf.json: not the rtf.json of `recognize`; decode again"),
        (
            "test/attention/score.json",
            "{",
            r"score.json: not written by `score --json` \(.*; run `wenet-hs score` a",
        ),
        (
            "metrics.jsonl",
            '{"loss": 1}\n{"kind": "train", "step": 1}\n',
            "metrics.jsonl:1: not a record of a training",
        ),
    ):
        before = (folder / file).read_text("utf-8")
        (folder / file).write_text(content)
        with pytest.raises(DataError, match=message):
            read_experiments([folder])
        (folder / file).write_text(before, "utf-8")


def test_a_scoring_from_before_the_last_decoding_is_outdated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_experiment(tmp_path / "a")
    path = folder / "test/attention/text"
    write_text(folder / "test/ctc_greedy_search/text", BAD)
    message = "attention: decoded again after its scoring, its text has changed; run `wenet-hs score` again"
    for texts in (GOOD | {"ca1": "bon dia"}, GOOD | {"ca2": ""}, {"ca1": "bon die", "ca2": "adéu"}):
        write_text(path, texts)
        assert read_experiments([folder])[0].outdated == (message,)
    assert caplog.messages == [f"a, {message}"] * 3
    # The scored text in another spelling, an utterance without a hypothesis, a hypothesis without a
    # reference.
    write_text(path, BAD | {"ca1": "a\u0301  b\u00a0c ", "ca2": "", "xx": "?"})
    write_report(
        folder,
        score(REF, read_text(path), rules=Rules(metric="cer"), allow_extra=True),
        "attention",
    )
    assert read_experiments([folder])[0].outdated == ()
