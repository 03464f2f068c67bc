# SPDX-License-Identifier: Apache-2.0
"""The input of a report: experiment folders, the shown mode, simulated speech, the test list, and error messages."""

import json
from pathlib import Path

import pytest
from made_up_experiment import BAD, GOOD, LANGS, REF, replace_text, write_data, write_experiment, write_report

from wenet_hs.manifest.data_list import read_text, write_text
from wenet_hs.results.experiment import read_experiments
from wenet_hs.results.modes import sort_modes
from wenet_hs.results.report_data import choose_mode, gather_data
from wenet_hs.runs.curves import read_curves
from wenet_hs.score import Rules, score
from wenet_hs.tree.errors import ConfigError, DataError


def test_a_complete_folder(tmp_path: Path) -> None:
    (experiment,) = read_experiments([write_experiment(tmp_path / "exp/a")])
    assert (experiment.name, experiment.head, experiment.absent) == ("a", "hsoftmax", ())
    assert (experiment.settings["seed"], experiment.run.last_start.commit) == (777, "1a2b3c4")
    assert "provenance" not in experiment.settings
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
    of_two = read_experiments([write_experiment(tmp_path / "x/exp/a"), write_experiment(tmp_path / "y/exp/a")])
    assert [experiment.name for experiment in of_two] == ["x/exp/a", "y/exp/a"]
    assert sort_modes(["zz", "attention", "aa", "ctc_greedy_search"]) == ["ctc_greedy_search", "attention", "aa", "zz"]


def test_repeated_folders_and_damaged_files_are_refused(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "a")
    with pytest.raises(DataError, match="a: the same experiment twice; give each --exp once"):
        read_experiments([folder, folder / "../a"])
    for file, content, message in (
        ("test/rtf.json", "{", r"rtf.json: damaged \(Expecting property name.*\); decode again"),
        ("test/rtf.json", '{"modes": [1]}', "rtf.json: not the rtf.json of `recognize`; decode again"),
        ("test/rtf.json", "[]", "rtf.json: not the rtf.json of `recognize`; decode again"),
        ("test/attention/score.json", "{", r"score.json: not written by `score --json` \(.*; run `wenet-hs score` a"),
        ("metrics.jsonl", '{"loss": 1}\n{"kind": "train", "step": 1}\n', "metrics.jsonl:1: not a record of a training"),
    ):
        before = (folder / file).read_text("utf-8")
        (folder / file).write_text(content)
        with pytest.raises(DataError, match=message):
            read_experiments([folder])
        (folder / file).write_text(before, "utf-8")


def test_a_scoring_from_before_the_last_decoding_is_outdated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_experiment(tmp_path / "a")
    path = folder / "test/attention/text"
    write_text(folder / "test/ctc_greedy_search/text", BAD)
    message = "attention: decoded again after its scoring, its text has changed; run `wenet-hs score` again"
    for texts in (GOOD | {"ca1": "bon dia"}, GOOD | {"ca2": ""}, {"ca1": "bon die", "ca2": "adéu"}):
        write_text(path, texts)
        assert read_experiments([folder])[0].outdated == (message,)
    assert caplog.messages == [f"a, {message}"] * 3
    # The scored text in another spelling, an utterance without a hypothesis, a hypothesis without a reference.
    write_text(path, BAD | {"ca1": "a\u0301  b\u00a0c ", "ca2": "", "xx": "?"})
    write_report(folder, score(REF, read_text(path), rules=Rules(metric="cer"), allow_extra=True), "attention")
    assert read_experiments([folder])[0].outdated == ()


def test_the_mode_is_never_chosen_by_its_result(tmp_path: Path) -> None:
    experiments = read_experiments([write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")])
    assert choose_mode(experiments, None) == "attention", "attention is before greedy search"
    assert choose_mode(experiments, "ctc_greedy_search") == "ctc_greedy_search"
    lacking = write_experiment(tmp_path / "c")
    (lacking / "test/attention/score.json").unlink()
    all_three = [*experiments, *read_experiments([lacking])]
    assert choose_mode(all_three, None) == "ctc_greedy_search", "the mode that all have"
    assert [shown.name for _, shown, _ in gather_data(all_three, mode="attention").shown] == ["a", "b"]
    (lacking / "test/ctc_greedy_search").rename(lacking / "test/attention_rescoring")
    assert choose_mode(read_experiments([lacking]), None) == "attention_rescoring"
    with pytest.raises(ConfigError, match="^--mode joint: no experiment is scored in this mode; scored modes are: c"):
        choose_mode(experiments, "joint")


def test_different_test_sets_are_refused(tmp_path: Path) -> None:
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    other = {**REF, "ky2": "кыргызча", "ky3": "ооба"}
    report = score(other, other, rules=Rules(metric="cer"), langs={**LANGS, "ky3": "ky"}, num_resamples=0)
    write_report(folders[1], report, "attention")
    message = r"b/test/attention/score.json: another test set than .*: 2 utterances differ \(ky2, ky3\); report exp"
    with pytest.raises(DataError, match=message):
        gather_data(read_experiments(folders))


def test_stats_and_keys_mark_simulated_speech(tmp_path: Path) -> None:
    folder, stats = write_experiment(tmp_path / "a"), tmp_path / "stats.json"
    for marks, key, expected in (
        ({"parts": [{"speech": {"simulated": True}}]}, "k", True),
        ({"simulated": False, "name": 'simulated", "simulated": true'}, "k", False),
        ({}, "cs_simulated_028374bf9a19ceb0", True),
        ({}, "x/simulated_028374bf.flac", True),
        ({}, "dissimulated_00000000", False),
    ):
        stats.write_text(json.dumps(marks))
        write_report(folder, score({key: "a"}, {key: "a"}, rules=Rules(metric="cer")))
        assert gather_data(read_experiments([folder]), stats=stats).is_simulated is expected, (marks, key)


def test_stats_are_found_beside_the_lists_of_the_training(tmp_path: Path) -> None:
    folder, data = write_experiment(tmp_path / "a"), tmp_path / "data"
    assert gather_data(read_experiments([folder])).is_simulated is None
    command = f"wenet-hs train --train_data {data}/train/data.list --cv_data={data}/dev/data.list --model_dir x"
    replace_text(folder / "train.yaml", "wenet-hs train --model_dir exp/hsoftmax", command)
    assert gather_data(read_experiments([folder])).is_simulated is None, "the data do not exist any more"
    stats = write_data(data, simulated=True)
    found = gather_data(read_experiments([folder]))
    assert (found.is_simulated, list(found.stats)) == (True, [stats])
    assert found.data_list == stats.parent / "test/data.list" and found.clips["ca1"].duration == 0.5
    stats.write_text(json.dumps({"langs": {}}))
    assert gather_data(read_experiments([folder])).is_simulated is False
    replace_text(folder / "train.yaml", "wenet-hs train", "wenet-hs 'train")
    assert gather_data(read_experiments([folder])).stats == {}, "a command that cannot be split"


def test_a_list_of_other_utterances_is_not_the_test_list(tmp_path: Path) -> None:
    stats = write_data(tmp_path / "data")
    lines = (stats.parent / "test/data.list").read_text("utf-8").splitlines(keepends=True)
    short = stats.parent / "test/data.list"
    short.write_text("".join(lines[1:]), "utf-8")
    experiments = read_experiments([write_experiment(tmp_path / "a")])
    message = r"data.list: not the list that was decoded, it lacks 1 scored utterance \(ca1\); give --data_list"
    with pytest.raises(DataError, match=message):
        gather_data(experiments, data_list=short)
    assert gather_data(experiments, stats=stats).clips == {}, "a list that does not fit is not used"
    stats.write_text("[1]")
    with pytest.raises(DataError, match=r"stats.json: not the stats.json of `prepare`; check --stats"):
        gather_data(experiments, stats=stats)
