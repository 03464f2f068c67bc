# SPDX-License-Identifier: Apache-2.0
"""Which mode a page shows, whose speech it is, which list was decoded, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_experiment import LANGS, REF, write_data

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.report import collect, gather
from wenet_hs.report.material import choose_mode
from wenet_hs.report.simulated import named_simulated, says_simulated
from wenet_hs.score import Rules, report_to_json, score

Make = Callable[..., Path]


def trained_on(folder: Path, data: Path) -> Path:
    """Let train.yaml say that the training read the lists of `data`."""
    command = f"wenet-hs train --train_data {data}/train/data.list --cv_data={data}/dev/data.list --model_dir x"
    settings = (folder / "train.yaml").read_text()
    (folder / "train.yaml").write_text(settings.replace("wenet-hs train --model_dir exp/hsoftmax", command))
    return folder


def test_the_mode_is_never_chosen_by_its_result(make_experiment: Make) -> None:
    experiments = collect([make_experiment("a"), make_experiment("b", head="softmax")])
    assert choose_mode(experiments, None) == "attention", "by order: attention stands before greedy search"
    assert choose_mode(experiments, "ctc_greedy_search") == "ctc_greedy_search"
    lacking = make_experiment("c")
    (lacking / "test/attention/score.json").unlink()
    assert choose_mode([*experiments, *collect([lacking])], None) == "ctc_greedy_search", "the one that all have"
    (lacking / "test/ctc_greedy_search").rename(lacking / "test/attention_rescoring")
    (last,) = collect([lacking])
    assert choose_mode([last], None) == "attention_rescoring"
    assert gather([*experiments, last], mode="attention").shown[1][1].name == "b"
    with pytest.raises(
        ConfigError, match="^--mode joint: no experiment was scored in it; choose one of those scored: c"
    ):
        choose_mode(experiments, "joint")


def test_experiments_of_different_test_sets_are_refused(make_experiment: Make) -> None:
    folders = [make_experiment("a"), make_experiment("b", head="softmax")]
    other = {**REF, "ky2": "кыргызча", "ky3": "ооба"}
    report = score(other, other, rules=Rules(metric="cer"), langs={**LANGS, "ky3": "ky"}, num_resamples=0)
    (folders[1] / "test/attention/score.json").write_text(report_to_json(report))
    with pytest.raises(DataError) as found:
        gather(collect(folders))
    (line,) = str(found.value).splitlines()
    assert "b/test/attention/score.json: another test set than " in line
    assert line.endswith(
        "2 utterances not alike (ky2, ky3); report experiments of one test set, or score all again with one --ref"
    )


@pytest.mark.parametrize(
    ("stats", "answer"),
    [
        ({"simulated": True}, True),
        ({"speech": {"simulated": True}}, True),
        ({"parts": [{"simulated": True}]}, True),
        ({"simulated": False, "name": "simulated"}, False),
        ({}, False),
    ],
)
def test_simulated_speech_is_known_from_the_stats(stats: dict[str, object], answer: bool) -> None:
    assert says_simulated(stats) is answer


def test_simulated_speech_is_known_without_being_told(make_experiment: Make, tmp_path: Path) -> None:
    folder = make_experiment("a")
    assert gather(collect([folder])).simulated is None
    assert gather(collect([trained_on(folder, tmp_path / "data")])).simulated is None, "the data are not there any more"
    stats = write_data(tmp_path / "data", simulated=True)
    found = gather(collect([folder]))
    assert (found.simulated, list(found.stats)) == (True, [stats])
    assert found.data_list == stats.parent / "test/data.list" and found.clips["ca1"].duration == 0.5
    stats.write_text(json.dumps({"langs": {}}))
    assert gather(collect([folder])).simulated is False
    assert named_simulated(["cs_simulated_028374bf9a19ceb0"]) and named_simulated(["x/simulated_028374bf9a19.flac"])
    assert not named_simulated(["simulated", "dissimulated_00000000", "es_12345678"])


def test_a_list_of_other_utterances_is_not_the_tests(make_experiment: Make, tmp_path: Path) -> None:
    stats = write_data(tmp_path / "data")
    lines = (stats.parent / "test/data.list").read_text("utf-8").splitlines(keepends=True)
    short = tmp_path / "short.list"
    short.write_text("".join(lines[1:]), "utf-8")
    experiments = collect([make_experiment("a")])
    with pytest.raises(
        DataError, match=r"short.list: not the list that was decoded, 1 scored utterance not in it \(ca1\)"
    ):
        gather(experiments, data_list=short)
    (stats.parent / "test/data.list").write_text("".join(lines[1:]), "utf-8")
    assert gather(experiments, stats=stats).clips == {}, "a list that was only found is left alone"
    stats.write_text("[1]")
    with pytest.raises(
        DataError, match=r"stats.json: not the stats.json of `prepare`; name the right file with --stats"
    ):
        gather(experiments, stats=stats)
