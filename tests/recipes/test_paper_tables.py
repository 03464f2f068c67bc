# SPDX-License-Identifier: Apache-2.0
"""The scripts that print Tables 1 and 2 of Liu et al. (2023) from the lists of a recipe."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Capsys

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> Callable[..., str]:
    """Runs a script; returns what it prints, or its error."""

    def run_script(script: str, *arguments: object, fails: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        if fails:
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(EXAMPLES / script), run_name="__main__")
            return str(ended.value.code)
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run_script


def test_table_1_of_lists_and_of_official_statistics(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    of_lang = {"hours_before": 10.0, "lambda": 0.5, "hours": {"train": 4.9, "test": 1.0}}
    (tmp_path / "stats.json").write_text(json.dumps({"langs": {"ca": of_lang}}))
    header, _, row, total = run("commonvoice/s0/table1.py", tmp_path / "stats.json").splitlines()
    assert header.startswith(
        "| language | validated h | λ | λ × validated h | training h | the paper's training h | test h |"
    )
    assert row == "| ca | 10.00 | 0.5000 | 5.00 | 4.90 | 76.3 | 1.00 | 15.3 |"
    assert total == "| all | 10.00 |  | 5.00 | 4.90 | 76.3 | 1.00 | 15.3 |"
    content = {
        "locales": {"ca": {"validDurationSecs": 36000, "buckets": {"validated": 9000, "test": 450}}}
    }
    (tmp_path / "cv.json").write_text(json.dumps(content))
    printed = run("commonvoice/s0/table1.py", tmp_path / "cv.json", "--langs", "ca", "--ratio", 0.5)
    assert "| ca | 10.00 | 0.5000 | 5.00 | 76.3 | 1.00 | 15.3 | 0.50 |" in printed
    assert "contains no language tr" in run(
        "commonvoice/s0/table1.py", tmp_path / "cv.json", "--langs", "tr", fails=True
    )
    assert "neither a stats.json" in run(
        "commonvoice/s0/table1.py", tmp_path / "none" / "stats.json", fails=True
    )


def test_table_2(tmp_path: Path, run: Callable[..., str]) -> None:
    phones = {
        "types": {"train": 2, "test": 2},
        "tokens": {"train": 6, "test": 8},
        "unseen_in_test": ["ʃʲ"],
    }
    total = {"utterances": {"train": 3, "test": 4}, "hours": {"train": 0.1, "test": 0.2}}
    langs = {
        "abk": {"utterances": {"train": 0, "test": 4}},
        "xxa": {"utterances": {"train": 3, "test": 0}},
    }
    (tmp_path / "stats.json").write_text(
        json.dumps({"total": total, "langs": langs, "phones": phones})
    )
    printed = run("ucla/s0/table2.py", tmp_path / "stats.json")
    assert "| train | 1 | 0.10 | 3 | 2 | 6 |  | 87 | 1.86 |" in printed
    assert "| test | 1 | 0.20 | 4 | 2 | 8 | 1 | 10 | 0.14 |" in printed
    assert "not the stats.json of `prepare ucla`" in run(
        "ucla/s0/table2.py", tmp_path / "none", fails=True
    )


def test_hypothesis_of_neighbouring_languages(tmp_path: Path, run: Callable[..., str]) -> None:
    """xxa and xxb have the counts 8 4 2 1 1 of a … e, xxc and xxd 1 1 2 4 8; xxd also has 16 x."""
    texts = {
        "xxa": "aaaaaaaa bbbb cc d e",
        "xxb": "aaaaaaaa bbbb cc d e",
        "xxc": "a b cc dddd eeeeeeee",
    }
    texts["xxd"] = "a b cc dddd eeeeeeee" + 16 * "x"
    for lang, text in texts.items():
        (tmp_path / f"{lang}.txt").write_text(text)
    families = ("--families", "First: xxa xxb", "Second: xxc xxd", "--min_shared", 5)
    printed = run("commonvoice/s0/hypothesis.py", tmp_path, *families)
    assert "| First | 1 | 1.000 [1.000, 1.000] | 0.000 [0.000, 0.000] |" in printed
    assert "| all across families | 4 | -0.947 [-0.947, -0.947] | 1.688 [1.688, 1.688] |" in printed
    # xxa under its own tree over a … e, x: 1 2 3 5 4 bits; under that of the other family: 4 4 3 2
    # 2.
    cells = {
        row[2:5]: [cell.strip() for cell in row.split("|")[2:-1]] for row in printed.splitlines()
    }
    assert cells["xxa"] == ["16", "5", "1.938", "1.938", "1.938", "3.625", "100.0"]
    assert cells["xxd"][0] == "32" and cells["xxd"][-1] == "50.0"
    lists = [
        {"key": lang, "wav": "a.wav", "txt": text, "lang": lang} for lang, text in texts.items()
    ]
    (tmp_path / "data.list").write_text("".join(json.dumps(line) + "\n" for line in lists))
    assert run("commonvoice/s0/hypothesis.py", tmp_path / "data.list", *families) == printed
    wrong = run(
        "commonvoice/s0/hypothesis.py",
        tmp_path / "data.list",
        "--families",
        "A: xxa xxb",
        "B: xxc zz",
        fails=True,
    )
    assert "no letters of zz; add its transcripts, or leave it out of --families" in wrong
    wrong = run(
        "commonvoice/s0/hypothesis.py",
        tmp_path,
        "--families",
        "A: xxa xxb",
        "B: xxb xxc",
        fails=True,
    )
    assert wrong == "--families 'B: xxb xxc': xxb is there twice; give each language one family"
