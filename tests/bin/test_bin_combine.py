# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs combine`: the formula by hand, minimum Bayes risk against all pairs, the files, one
line per fault.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import combine as command
from wenet_hs.bin import score as score_command
from wenet_hs.decode.combine import combine, read_nbest_lists
from wenet_hs.manifest.data_list import read_text
from wenet_hs.runs.hypotheses import Alternative
from wenet_hs.score.edit_distance import count_errors


def nbest(**scores: float) -> list[Alternative]:
    """Hypotheses by text; each letter is a unit."""
    return [
        Alternative(text=" ".join(text), score=score, units=tuple(text))
        for text, score in scores.items()
    ]


def write_folder(folder: Path, lists: dict[str, list[Alternative]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        {"key": key, "lang": "tr", "text": "unused", "nbest": one} for key, one in lists.items()
    ]
    (folder / "hyps.jsonl").write_text(
        "".join(json.dumps(record, default=vars) + "\n" for record in records), "utf-8"
    )


def test_the_sum_of_log_posteriors_with_a_floor_for_absent_hypotheses() -> None:
    first, second = nbest(ab=math.log(6), a=math.log(2)), nbest(ac=math.log(30), ab=math.log(10))
    floor = 0.25 / math.e  # of both lists
    ab, ac, a = (0.75 * 0.25) ** 0.5, (floor * 0.75) ** 0.5, (0.25 * floor) ** 0.5
    found = combine([first, second], [2.0, 2.0])
    assert [one.text for one in found] == ["a b", "a c", "a"]
    expected = np.log(np.array([ab, ac, a]) / (a + ab + ac))
    assert [one.score for one in found] == pytest.approx(expected.tolist())
    assert [one.text for one in combine([first, second], [1, 9])] == ["a c", "a b", "a"]
    shifted = [Alternative(text=one.text, score=one.score - 40, units=one.units) for one in second]
    assert combine([first, shifted], [1, 1]) == [
        Alternative(text=one.text, score=pytest.approx(one.score), units=one.units) for one in found
    ]
    flat = combine([first], [1], scale=0.0)
    assert [one.score for one in flat] == pytest.approx([math.log(0.5)] * 2)


def test_expected_errors_are_the_least_over_all_pairs() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        lists = []
        for _ in range(2):
            texts = {
                "".join(generator.choice(list("abc"), generator.integers(0, 5))) for _ in range(6)
            }
            lists.append(nbest(**{text: float(generator.normal(0, 2)) for text in texts}))
        plain, found = combine(lists, [1, 2]), combine(lists, [1, 2], by="expected_errors")
        assert sum(math.exp(one.score) for one in plain) == pytest.approx(1)
        risk = dict.fromkeys([one.units for one in plain], 0.0)
        for one, truth in itertools.product(plain, plain):
            risk[one.units] += math.exp(truth.score) * count_errors(truth.units, one.units).errors
        assert [risk[one.units] for one in found] == pytest.approx(sorted(risk.values()))
        assert {one.units: one.score for one in found} == {one.units: one.score for one in plain}


def test_the_files_are_those_of_recognize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "a", {"u1": nbest(ab=-1.0, b=-2.0), "u2": nbest(c=-1.0)})
    write_folder(tmp_path / "b", {"u2": nbest(c=-3.0), "u1": nbest(b=-0.1, ab=-9.0)})
    assert run_line(command, "--nbest a b --out c/joint") == 0
    assert capsys.readouterr().out == "c/joint/text: 2 utterances; 1 differ from a\n"
    assert read_text("c/joint/text") == {"u1": "b", "u2": "c"}
    record = json.loads((tmp_path / "c/joint/hyps.jsonl").read_text("utf-8").splitlines()[0])
    assert (record["key"], record["lang"], record["text"], record["units"]) == (
        "u1",
        "tr",
        "b",
        ["b"],
    )
    assert record["nbest"][0] == {name: record[name] for name in ("text", "score", "units")}
    (first,) = read_nbest_lists([tmp_path / "c/joint"])  # it can be combined again
    assert [one.text for one in first["u1"].nbest] == ["b", "a b"]
    (tmp_path / "ref").write_text("u1 b\nu2 c\n", "utf-8")
    assert run_line(score_command, "--metric per --ref ref --hyp c/joint/text") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nbest a a", "--nbest and --out: the same folder twice; give each model once"),
        (
            "--nbest a out",
            "--nbest and --out: the same folder twice; give each model once, and another folder",
        ),
        (
            "--nbest a b --weights 1",
            "--weights 1: expected 2 numbers above 0, one per folder of --nbest",
        ),
        (
            "--nbest a b --weights 1 0",
            "--weights 1 0: expected 2 numbers above 0, one per folder of --nbest",
        ),
        ("--nbest a b --scale -1", "--scale -1.0: must be at least 0"),
        (
            "--nbest a short",
            "short: lacks 1 utterances of a (u2); decode the same list with all models",
        ),
        (
            "--nbest short a",
            "short: lacks 1 utterances of a (u2); decode the same list with all models",
        ),
        (
            "--nbest a other",
            "other: no hypothesis has the same units as one of a; combine models of one unit table",
        ),
        (
            "--nbest a damaged",
            "damaged/hyps.jsonl:1: not a line of `wenet-hs recognize` with `key` and `nbest`",
        ),
        (
            "--nbest a same",
            "same/hyps.jsonl:1: not a line of `wenet-hs recognize` with `key` and `nbest`",
        ),
        (
            "--nbest a twice",
            "twice/hyps.jsonl:2: utterance 'u1' occurs twice; decode the list again",
        ),
        ("--nbest a empty", "empty/hyps.jsonl: contains no utterances; decode the list again"),
        (
            "--nbest a absent",
            "absent/hyps.jsonl: cannot be read (No such file or directory); check the path",
        ),
    ],
)
def test_a_fault_is_one_line(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    one = {"u1": nbest(ab=-1.0), "u2": nbest(c=-1.0)}
    lists = {
        "a": one,
        "b": one,
        "short": {"u1": one["u1"]},
        "other": {"u1": nbest(x=-1.0), "u2": nbest(y=-1.0)},
    }
    for name, of_folder in lists.items():
        write_folder(tmp_path / name, of_folder)
    write_folder(tmp_path / "damaged", {"u1": []})
    write_folder(tmp_path / "same", {"u1": nbest(a=-1.0) * 2})
    write_folder(tmp_path / "empty", {})
    line = (tmp_path / "short/hyps.jsonl").read_text("utf-8")
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice/hyps.jsonl").write_text(line * 2, "utf-8")
    assert error_line(run_line(command, f"{options} --out out"), capsys).startswith(message)
    assert not (tmp_path / "out").exists()
