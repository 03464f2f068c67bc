# SPDX-License-Identifier: Apache-2.0
"""The reader of the folder of a training: each file, absent files, damaged files."""

import json
from pathlib import Path

import pytest
from made_up_experiment import BAD, GOOD, REF, write_experiment

from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import dump_config
from wenet_hs.manifest.data_list import write_text
from wenet_hs.results.folder import DecodedTest, DecodingRecord, ExperimentFolder, ModeSpeed
from wenet_hs.runs.record import RunRecord, Start, write_run
from wenet_hs.score import Rules, score
from wenet_hs.tree.errors import DataError


def test_the_files_of_a_complete_folder(tmp_path: Path) -> None:
    folder = ExperimentFolder(write_experiment(tmp_path / "exp/a"))
    write_run(folder.path, RunRecord(seed=7, starts=(Start(commit="1a2b3c4"),)))
    assert folder.has_settings() and not folder.is_language_model()
    settings = folder.read_settings()
    assert settings["encoder_conf"] == {"num_blocks": 4} and settings["seed"] == 777
    settings["seed"] = 1
    assert folder.read_settings()["seed"] == 777, (
        "a change of the result does not change what is read next"
    )
    assert folder.read_run().seed == 7
    assert folder.read_run().last_start.commit == "1a2b3c4"
    curves = folder.read_curves()
    assert [record["step"] for record in curves["valid"]] == [10, 20, 30, 40, 50]
    assert curves["train"][0]["loss_ctc"] == 9
    tree = folder.read_tree()
    assert tree is not None and tree.num_units == 5


def test_an_empty_folder(tmp_path: Path) -> None:
    folder = ExperimentFolder(tmp_path)
    assert not folder.has_settings() and not folder.is_language_model()
    assert (folder.read_settings(), folder.read_run(), folder.read_curves()) == (
        {},
        RunRecord(),
        {},
    )
    assert folder.read_tree() is None and folder.scored_tests() == []
    test = folder.test()
    assert test == DecodedTest(tmp_path / "test")
    assert test.read_record() == DecodingRecord(modes={}) and test.read_scores() == {}
    assert test.read_confidences("attention") is None


def test_settings_and_curves_that_change_are_read_again(tmp_path: Path) -> None:
    folder = ExperimentFolder(tmp_path)
    for steps in ([1], [1, 2]):
        (tmp_path / "train.yaml").write_text(f"max_epoch: {len(steps)}\n{'# ' * len(steps)}\n")
        (tmp_path / "metrics.jsonl").write_text(
            "".join(f'{{"kind": "valid", "step": {step}}}\n' for step in steps)
        )
        assert folder.read_settings() == {"max_epoch": len(steps)}
        assert [record["step"] for record in folder.read_curves()["valid"]] == steps


def test_versions_of_packages_are_no_settings(tmp_path: Path) -> None:
    folders = [ExperimentFolder(tmp_path / version) for version in ("1", "2")]
    for folder in folders:
        folder.path.mkdir()
        listed = f"{{kind: head, name: cosine, package: a, version: '{folder.path.name}'}}"
        folder.settings_path.write_text(f"extensions: [{listed}]\nhead: cosine\nseed: 1\n", "utf-8")
    assert [folder.read_settings() for folder in folders] == [{"head": "cosine", "seed": 1}] * 2


def test_a_language_model(tmp_path: Path) -> None:
    dump_config(LmConfig(), tmp_path / "train.yaml")
    assert ExperimentFolder(tmp_path).is_language_model()


def test_the_results_on_a_test_set(tmp_path: Path) -> None:
    folder = ExperimentFolder(write_experiment(tmp_path / "a"))
    test = folder.test()
    assert test.name == "test" and folder.scored_tests() == [test]
    assert test.scored_modes() == ["ctc_greedy_search", "attention"]
    assert list(test.read_scores()) == ["ctc_greedy_search", "attention"]
    assert test.read_score("attention").utterances["ca1"].hyp == GOOD["ca1"]
    for mode in ("zz", "aa"):
        (test.path / mode).mkdir()
        test.score_path(mode).write_text("{}")
    assert test.scored_modes() == ["ctc_greedy_search", "attention", "aa", "zz"], (
        "unknown modes are last"
    )
    (tmp_path / "a/dev/joint").mkdir(parents=True)
    assert folder.scored_tests() == [test], "a mode without a scoring"
    folder.test("dev").score_path("joint").write_text("{}")
    assert [one.name for one in folder.scored_tests()] == ["dev", "test"]


def test_options_and_times_of_the_decoding(tmp_path: Path) -> None:
    record = ExperimentFolder(write_experiment(tmp_path / "a")).test().read_record()
    speed = ModeSpeed(wall_seconds=25.0, rtf=0.25, sum_rtf_by_lang={"ca": 0.3, "ky": 0.2})
    assert record.modes == {"attention": speed}
    assert (record.audio_seconds, record.seconds, record.model) == (100.0, {"encoder": 9.0}, {})
    assert list(record.options) == [
        "device",
        "num_threads",
        "beam_size",
        "finished_list",
        "nbest",
        "lm",
    ]
    assert record.options["beam_size"] == 10 and record.options["nbest"] is None
    both = DecodingRecord.model_validate(
        {"modes": {"attention": {}, "ctc_greedy_search": {"rtf": 1}}}
    )
    assert list(both.speeds) == ["ctc_greedy_search", "attention"]
    assert both.speeds["attention"] == ModeSpeed()


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"modes": [1]}', '{"modes": {}, "audio_seconds": "long"}']
)
def test_another_file_under_the_name_of_the_decoding_record(content: str, tmp_path: Path) -> None:
    test = DecodedTest(tmp_path)
    test.record_path.write_text(content)
    with pytest.raises(DataError, match="rtf.json: not the rtf.json of `recognize`; decode again"):
        test.read_record()


def test_a_mode_that_was_decoded_again_is_outdated(tmp_path: Path) -> None:
    test = ExperimentFolder(write_experiment(tmp_path / "a")).test()
    report = test.read_score("attention")
    assert not test.is_outdated("attention", report), "without a text nothing is known"
    for texts in (GOOD | {"ca1": "bon dia"}, GOOD | {"ca2": ""}, {"ca1": "bon die", "ca2": "adéu"}):
        write_text(test.text_path("attention"), texts)
        assert test.is_outdated("attention", report)
    write_text(test.text_path("attention"), GOOD | {"more": "a text without a reference"})
    assert not test.is_outdated("attention", report)
    missing = score(REF, BAD, rules=Rules(metric="cer"))
    write_text(test.text_path("attention"), BAD)
    assert not test.is_outdated("attention", missing), "an utterance without a hypothesis"


def test_confidences_of_the_best_hypotheses(tmp_path: Path) -> None:
    test = DecodedTest(tmp_path)
    test.hypotheses_path("joint").parent.mkdir()
    records = [{"key": "a", "confidence": 0.25}, {"key": "b", "confidence": None}, {"key": "c"}]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    test.hypotheses_path("joint").write_text(lines + '{"key": "d", "confid')
    assert test.read_confidences("joint") == {"a": 0.25}
