# SPDX-License-Identifier: Apache-2.0
"""What is read from an experiment folder, what is said to be absent, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_experiment import BAD, GOOD, REF

from wenet_hs.errors import DataError
from wenet_hs.manifest import read_text, write_text
from wenet_hs.report.collect import collect, in_order, read_curves, short_names
from wenet_hs.score import Rules, report_to_json, score

Make = Callable[..., Path]


def test_a_complete_folder(make_experiment: Make) -> None:
    (experiment,) = collect([make_experiment("exp/a")])
    assert (experiment.name, experiment.head, experiment.absent) == ("a", "hsoftmax", ())
    assert experiment.settings["encoder_conf"] == {"num_blocks": 4}
    assert "provenance" not in experiment.settings
    assert experiment.provenance["git"] == "1a2b3c4"
    assert list(experiment.scores) == ["ctc_greedy_search", "attention"]
    assert experiment.tree is not None and experiment.tree.num_units == 5
    assert [record["step"] for record in experiment.curves["valid"]] == [10, 20, 30, 40, 50]
    assert experiment.curves["train"][0]["loss_ctc"] == 9
    speed = experiment.speeds["attention"]
    assert (speed["audio_seconds"], speed["wall_seconds"], speed["rtf"]) == (100.0, 25.0, 0.25)
    options = {"beam_size": 10, "finished_list": True, "nbest": None, "lm": "units.arpa"}
    assert experiment.speed_conditions == {"device": "cpu", "num_threads": 2, **options}
    assert experiment.speed_parts == {"encoder": 9.0}


def test_a_softmax_head_lacks_no_tree(make_experiment: Make) -> None:
    (experiment,) = collect([make_experiment("a", head="softmax")])
    assert (experiment.tree, experiment.absent) == (None, ())


@pytest.mark.parametrize(
    ("files", "phrase"),
    [
        (["train.yaml"], "train.yaml (settings, versions)"),
        (["metrics.jsonl"], "metrics.jsonl (training curves)"),
        (["tree.json"], "tree.json (the tree)"),
        (["test/rtf.json"], "test/rtf.json (speed)"),
        (
            ["test/attention/score.json", "test/ctc_greedy_search/score.json"],
            "test/<mode>/score.json (error rates)",
        ),
    ],
)
def test_what_is_not_there_is_said(files: list[str], phrase: str, make_experiment: Make) -> None:
    folder = make_experiment("a")
    for file in files:
        (folder / file).unlink()
    (experiment,) = collect([folder])
    assert experiment.absent == (phrase,)


def test_names_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    assert short_names([tmp_path / "x/exp/a", tmp_path / "x/exp/b"]) == ["a", "b"]
    assert short_names([tmp_path / "x/exp/a", tmp_path / "y/exp/a"]) == ["x/exp/a", "y/exp/a"]


def test_modes_are_ordered_as_people_know_them() -> None:
    assert in_order(["zz", "attention", "aa", "ctc_greedy_search"]) == ["ctc_greedy_search", "attention", "aa", "zz"]


def test_wrong_folders_are_refused(make_experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such experiment folder; check --exp$"):
        collect([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no train.yaml, metrics.jsonl or test/<mode>/score.json; is it an exp"):
        collect([tmp_path / "empty"])
    folder = make_experiment("a")
    with pytest.raises(DataError, match="a: the same experiment twice; give each --exp once"):
        collect([folder, folder / "../a"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("test/rtf.json", "{", r"rtf.json: not JSON \(Expecting property name.*\); make it again"),
        ("test/rtf.json", '{"modes": {"attention": 3}}', "rtf.json: not the rtf.json of `recognize`; decode again"),
        ("test/rtf.json", '{"modes": [1]}', "rtf.json: not the rtf.json of `recognize`; decode again"),
        ("metrics.jsonl", '{"loss": 1}\n{"kind": "train", "step": 1}\n', "metrics.jsonl:1: not a record of a training"),
    ],
)
def test_damaged_files_are_named(file: str, content: str, message: str, make_experiment: Make) -> None:
    folder = make_experiment("a")
    (folder / file).write_text(content)
    with pytest.raises(DataError, match=message):
        collect([folder])


def test_a_last_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1, "loss": 2, "note": "x"}\n{"kind": "train", "st')
    assert read_curves(path) == {"train": [{"step": 1.0, "loss": 2.0}]}


@pytest.mark.parametrize("content", ["{}", '{"format": "wenet_hs.score/0"}', "cut off"])
def test_a_score_of_another_version_is_said_and_left_out(
    content: str, make_experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_experiment("a")
    (folder / "test/attention/score.json").write_text(content)
    (experiment,) = collect([folder])
    assert list(experiment.scores) == ["ctc_greedy_search"]
    (line,) = caplog.messages
    assert line.startswith(f"{folder / 'test/attention/score.json'}: not a file of `score --json` (")
    assert line.endswith("; run `wenet-hs score` again; the mode is left out") and "\n" not in line
    assert experiment.absent == ("test/attention/score.json that this version can read (run `wenet-hs score` again)",)


@pytest.mark.parametrize(
    "changed",
    [{"ca1": "bon dia"}, {"ca2": ""}, {"ky1": None}],
    ids=["another text", "an empty text", "a clip that failed now"],
)
def test_a_scoring_from_before_the_last_decoding_is_said(
    changed: dict[str, str | None], make_experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_experiment("a")
    texts = GOOD | changed
    write_text(folder / "test/attention/text", {key: text for key, text in texts.items() if text is not None})
    write_text(folder / "test/ctc_greedy_search/text", BAD)
    (experiment,) = collect([folder])
    phrase = "attention: scored before it was decoded again, for its text has changed; run `wenet-hs score` again"
    assert experiment.stale == (phrase,)
    assert caplog.messages == [f"a, {phrase}"]


def test_a_scoring_of_the_text_that_is_there_is_up_to_date(
    make_experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """However it is spelled: an utterance without a text, one that nobody decoded, one that nobody asked for."""
    folder, path = make_experiment("a"), Path("test/ctc_greedy_search")
    write_text(folder / path / "text", BAD | {"ca1": "a\u0301  b\u00a0c ", "ca2": "", "xx": "?"})
    report = score(REF, read_text(folder / path / "text"), rules=Rules(metric="cer"), allow_extra=True)
    (folder / path / "score.json").write_text(report_to_json(report), "utf-8")
    (experiment,) = collect([folder])
    assert (experiment.stale, caplog.messages) == ((), [])
