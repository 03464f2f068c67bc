# SPDX-License-Identifier: Apache-2.0
"""The table of recognisers with language models: weights chosen on the dev set, results of a recipe
left alone.
"""

import argparse
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wenet_hs.score.error_rate import score
from wenet_hs.score.report_file import report_to_json
from wenet_hs.score.rules import Rules

TOOL = Path(__file__).parents[2] / "tools" / "fusion.py"


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("fusion", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value_of(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1] if flag in arguments else ""


def test_the_weight_is_chosen_on_the_dev_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = load_tool()
    (tmp_path / "exp/tree/lm").mkdir(parents=True)
    (tmp_path / "exp/tree/test/joint").mkdir(parents=True)  # of run.sh, with other options
    (tmp_path / "exp/tree/test/joint/text").write_text("of run.sh")
    rates = {"dev-ngram-0.1": 0.3, "dev-ngram-0.5": 0.2, "test-ngram-0.5": 0.25, "test-no-lm": 0.4}
    rates |= {
        "dev-recurrent-0.1": 0.1,
        "dev-recurrent-0.5": 0.1,
        "test-recurrent-0.1": 0.15,
        "test-ngram-0.1": 0.01,
    }
    decoded = []
    report = score({"a": "x"}, {"a": "x"}, rules=Rules(metric="cer"))

    def run(*arguments: str) -> None:
        if arguments[0] == "recognize":
            result = Path(value_of(arguments, "--result_dir"))
            lm = value_of(arguments, "--lm_weight")
            assert (value_of(arguments, "--lm") != "") == (lm != "") and result.name.endswith(
                lm or "no-lm"
            )
            decoded.append(result.name)
            (result / "joint").mkdir(parents=True)
            (result / "joint" / "text").write_text("")
        else:
            target = Path(value_of(arguments, "--json"))
            macro = replace(report.macro, rate=rates[target.parts[-3]])
            target.write_text(report_to_json(replace(report, macro=macro)))

    monkeypatch.setattr(tool, "_run", run)
    options = {
        "exp": tmp_path / "exp",
        "data": tmp_path,
        "modes": ["joint"],
        "weights": ["0.5", "0.1"],
    }
    args = argparse.Namespace(**options, lm=[Path("a.arpa"), tmp_path / "exp/tree/lm"])
    assert tool._row(args, "tree", "joint") == [
        "tree",
        "joint",
        "40.00",
        "25.00 (0.5)",
        "15.00 (0.1)",
    ]
    assert sorted(decoded) == sorted({*rates} - {"test-ngram-0.1"}), (
        "the test set only with the chosen weights"
    )
    assert (tmp_path / "exp/tree/test/joint/text").read_text() == "of run.sh"
    line = [
        "fusion.py",
        "--exp",
        "e",
        "--head",
        "h",
        "--data",
        "d",
        "--lm",
        "a.arpa",
        "b.arpa",
        "--modes",
        "joint",
    ]
    monkeypatch.setattr(sys, "argv", [*line, "--weights", "1", "--out", "o"])
    with pytest.raises(SystemExit, match="2"):
        tool.main()
