# SPDX-License-Identifier: Apache-2.0
"""Tables of language models: means over seeds, statistics of the texts, a second table over the same results."""

import json
from pathlib import Path

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import lm
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import dump_config
from wenet_hs.report.lm import FORMAT, write_lm_results


def write_result(folder: Path, system: str, seed: int, perplexity: float) -> None:
    scores = {
        name: {"perplexity": perplexity * factor, "bits_per_unit": 7.5} for name, factor in (("valid", 1), ("test", 2))
    }
    content = {"format": FORMAT, "system": system, "seed": seed, "provenance": {"processor": "P", "torch": "2"}}
    settings = {"head": system, "optim_conf.lr": 0.001 if seed == 0 else 0.002, "grad_clip": 1.0}
    content |= {"steps": 100, "seconds": 3600, "scores": scores, "settings": settings}
    folder.mkdir(exist_ok=True)
    (folder / f"{system}-seed{seed}.json").write_text(json.dumps(content))


def test_tables_have_means_over_seeds_and_the_statistics_of_the_texts(tmp_path: Path, capsys: Capsys) -> None:
    for seed, perplexity in enumerate((100.0, 110.0)):
        write_result(tmp_path / "a", "tree", seed, perplexity)
    write_result(tmp_path / "a", "flat", 0, 90.0)
    (tmp_path / "a" / "table.yaml").write_text(
        "title: A\nsystems: {flat: softmax, tree: a tree}\npublished: {flat: [1.5, 2]}\n"
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "table.yaml").write_text("title: B\nresults: ../a\nsystems: {tree: the same}\n")
    (tmp_path / "train.txt").write_text("one two\n\ntwo three\n")
    (tmp_path / "test.txt").write_text("one four\nfour four\n")
    (tmp_path / "units.txt").write_text(
        "".join(f"{unit} {n}\n" for n, unit in enumerate(["<blank>", "<unk>", "<sos/eos>", "one", "two", "three"]))
    )
    line = (
        f"report --texts {tmp_path}/train.txt {tmp_path}/test.txt --units {tmp_path}/units.txt --results {tmp_path}/a"
    )
    assert run_line(lm, line) == 2
    assert "3 of 6 units are <unk> or not in the unit table" in error_line(2, capsys)
    (tmp_path / "test.txt").write_text("one one two three four\n")
    assert run_line(lm, line) == 0
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "table.yaml").write_text("title: C\nsystems: {flat: softmax}\n")
    assert run_line(lm, f"report --tables {tmp_path}/c --markdown {tmp_path}/R.md") == 2
    assert "c: no results of the systems in table.yaml; run the recipe with" in error_line(2, capsys)
    assert run_line(lm, f"report --tables {tmp_path}/c {tmp_path}/a {tmp_path}/b --markdown {tmp_path}/R.md") == 0
    text = (tmp_path / "R.md").read_text()
    assert text.startswith("## A\n") and "## C" not in text
    assert text.count(". Not equal in all trainings: optim_conf.lr.\n") == 2
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in (tmp_path / "R.md").read_text().splitlines()]
    assert ["", "train.txt", "test.txt"] in rows
    assert ["units with line ends", "7", "6"] in rows
    assert ["empty lines", "1", "0"] in rows
    assert ["share of <unk>", "0.0 %", "16.7 %"] in rows
    assert ["softmax", "90.00", "180.00", "7.50", "100", "1.0", "0", "1.50", "2.00"] in rows
    assert ["a tree", "105.00 ± 7.07", "210.00 ± 14.14", "7.50 ± 0.00", "100", "1.0", "0 1", "–", "–"] in rows
    assert ["the same", "105.00 ± 7.07", "210.00 ± 14.14", "7.50 ± 0.00", "100", "1.0", "0 1"] in rows


def test_without_a_table_yaml_all_systems_are_rows_and_other_texts_are_refused(tmp_path: Path, capsys: Capsys) -> None:
    for system in ("tree", "flat"):
        write_result(tmp_path / "mine", system, 1, 90.0)
    assert run_line(lm, f"report --tables {tmp_path}/mine --markdown {tmp_path}/R.md") == 0
    text = (tmp_path / "R.md").read_text()
    assert text.startswith("## mine\n") and text.index("| flat") < text.index("| tree")
    (tmp_path / "units.txt").write_text("<blank> 0\n<unk> 1\n<sos/eos> 2\none 3\ntwo 4\n")
    line = f"report --texts {tmp_path}/a.txt --units {tmp_path}/units.txt --results {tmp_path}/mine"
    for content, code in (("one two\n", 0), ("one two\n", 0), ("one one two\n", 2)):
        (tmp_path / "a.txt").write_text(content)
        assert run_line(lm, line) == code
    assert "mine: has results of other texts; give --results a folder of its own" in error_line(2, capsys)


@pytest.mark.parametrize(("name", "remedy"), [("test.json", "lm score --json"), ("texts.json", "lm report --texts")])
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, remedy: str, capsys: Capsys) -> None:
    folder = tmp_path / "tree-seed777"
    dump_config(LmConfig(), folder / "train.yaml", provenance={})
    (folder / "metrics.jsonl").write_text('{"kind": "valid", "step": 1, "loss": 1, "perplexity": 9, "seconds": 1}\n')
    (folder / "test.json").write_text("{}")
    write_result(folder, "tree", 1, 90.0)
    (folder / name).write_text("{")
    line = (
        f"--exp {folder} --results {tmp_path}" if name == "test.json" else f"--tables {folder} --markdown {tmp_path}/R"
    )
    found = error_line(run_line(lm, f"report {line}"), capsys)
    assert found.startswith(f"{folder / name}: damaged (") and remedy in found
    (folder / "texts.json").write_text("[]")
    assert "texts.json: has no text;" in error_line(
        run_line(lm, f"report --tables {folder} --markdown {tmp_path}/R"), capsys
    )


def test_a_results_file_has_the_facts_of_a_folder_without_paths_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "exp" / "tree-seed777"
    command = f"wenet-hs lm train --train_text {tmp_path}/train.txt --override_config head_conf.tree={tmp_path}/t.json"
    dump_config(LmConfig(), folder / "train.yaml", provenance={"command": command, "processor": "P/2"})
    points = [{"kind": "valid", "step": n, "loss": 5.0 - n, "perplexity": 9, "seconds": n} for n in (1, 2)]
    points.insert(1, {"kind": "train", "step": 1, "loss": 0.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    score = {"model": str(folder), "text": [f"{tmp_path}/test.txt"], "perplexity": 8.5}
    (folder / "test.json").write_text(json.dumps(score))
    target = write_lm_results(folder, tmp_path / "results")
    assert target.name == "tree-seed777.json" and str(tmp_path) not in target.read_text()
    found = json.loads(target.read_text())
    assert found["provenance"]["command"].endswith("--train_text train.txt --override_config head_conf.tree=t.json")
    assert found["provenance"]["processor"] == "P/2"
    assert (found["steps"], found["seconds"], [point["loss"] for point in found["curve"]]) == (2, 2, [4.0, 3.0])
    assert found["scores"] == {"test": {"model": "tree-seed777", "text": ["test.txt"], "perplexity": 8.5}}


def test_flags_that_do_not_fit_together_are_one_line(tmp_path: Path, capsys: Capsys) -> None:
    for flags in ("", "--tables a", "--results a", "--texts a --units b", "--texts a --results b"):
        assert "give" in error_line(run_line(lm, f"report {flags}"), capsys)
