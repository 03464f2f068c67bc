# SPDX-License-Identifier: Apache-2.0
"""The input of a report: the shown mode, simulated speech, the test list, and error messages."""

import json
from pathlib import Path

import pytest
from made_up_experiment import LANGS, REF, write_data, write_experiment, write_report
from made_up_runs import change_run

from wenet_hs.results.experiment import read_experiments
from wenet_hs.results.report_data import choose_mode, gather_data
from wenet_hs.runs.record import DataFile, DataLists
from wenet_hs.score import Rules, score
from wenet_hs.tree.errors import ConfigError, DataError


def test_the_mode_is_never_chosen_by_its_result(tmp_path: Path) -> None:
    experiments = read_experiments(
        [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    )
    assert choose_mode(experiments, None) == "attention", "attention is before greedy search"
    assert choose_mode(experiments, "ctc_greedy_search") == "ctc_greedy_search"
    lacking = write_experiment(tmp_path / "c")
    (lacking / "test/attention/score.json").unlink()
    all_three = [*experiments, *read_experiments([lacking])]
    assert choose_mode(all_three, None) == "ctc_greedy_search", "the mode that all have"
    assert [shown.name for _, shown, _ in gather_data(all_three, mode="attention").shown] == [
        "a",
        "b",
    ]
    (lacking / "test/ctc_greedy_search").rename(lacking / "test/attention_rescoring")
    assert choose_mode(read_experiments([lacking]), None) == "attention_rescoring"
    with pytest.raises(
        ConfigError,
        match="^--mode joint: no experiment is scored in this mode; scored modes are: c",
    ):
        choose_mode(experiments, "joint")


def test_different_test_sets_are_refused(tmp_path: Path) -> None:
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    other = {**REF, "ky2": "кыргызча", "ky3": "ооба"}
    report = score(
        other, other, rules=Rules(metric="cer"), langs={**LANGS, "ky3": "ky"}, num_resamples=0
    )
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
        assert gather_data(read_experiments([folder]), stats=stats).is_simulated is expected, (
            marks,
            key,
        )


def test_stats_are_found_beside_the_lists_of_the_training(tmp_path: Path) -> None:
    folder, data = write_experiment(tmp_path / "a"), tmp_path / "data"
    assert gather_data(read_experiments([folder])).is_simulated is None
    lists = DataLists(
        train=(DataFile(path=f"{data}/train/data.list"),),
        valid=(DataFile(path=f"{data}/dev/data.list"),),
    )
    change_run(folder, lists=lists)
    assert gather_data(read_experiments([folder])).is_simulated is None, (
        "the data do not exist any more"
    )
    stats = write_data(data, simulated=True)
    found = gather_data(read_experiments([folder]))
    assert (found.is_simulated, list(found.stats)) == (True, [stats])
    assert found.data_list == stats.parent / "test/data.list" and found.clips["ca1"].duration == 0.5
    stats.write_text(json.dumps({"langs": {}}))
    assert gather_data(read_experiments([folder])).is_simulated is False
    (folder / "run.json").unlink()
    assert gather_data(read_experiments([folder])).stats == {}, "no lists are recorded"


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
    with pytest.raises(
        DataError, match=r"stats.json: not the stats.json of `prepare`; check --stats"
    ):
        gather_data(experiments, stats=stats)
