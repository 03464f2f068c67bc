# SPDX-License-Identifier: Apache-2.0
"""Tables of language models: means over seeds, statistics of the texts, a second table over the
same results.
"""

import json
from pathlib import Path

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import lm, report
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import dump_config
from wenet_hs.results.collect import collect_lm_results
from wenet_hs.results.results_file import Results, read_results, write_results
from wenet_hs.runs.record import DataFile, DataLists, RunRecord, Start, write_run


def write_result(folder: Path, system: str, seed: int, perplexity: float) -> Path:
    scores = {
        "valid perplexity": perplexity,
        "test perplexity": 2 * perplexity,
        "bits per word, test": 7.5,
    }
    settings = {"head": system, "optim_conf.lr": 0.001 if seed == 0 else 0.002, "grad_clip": 1.0}
    cost = {
        "steps": 100,
        "train_hours": None,
        "train_seconds": 3600.0,
        "run": RunRecord(starts=(Start(processors=("P",)),)),
    }
    return write_results(
        Results(system=system, seed=seed, settings=settings, scores=scores, **cost), folder
    )


def test_tables_have_means_over_seeds_and_the_statistics_of_the_texts(
    tmp_path: Path, capsys: Capsys
) -> None:
    for seed, perplexity in enumerate((100.0, 110.0)):
        write_result(tmp_path / "a", "tree", seed, perplexity)
    write_result(tmp_path / "a", "flat", 0, 90.0)
    spec = "title: A\nsystems: {flat: softmax, tree: a tree}\npaper: {flat: [1.5, 2]}\n"
    (tmp_path / "a" / "table.yaml").write_text(spec)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "table.yaml").write_text(
        "title: B\nalso: [../a]\nsystems: {tree: the same}\n"
    )
    (tmp_path / "train.txt").write_text("one two\n\ntwo three\n")
    (tmp_path / "test.txt").write_text("one four\nfour four\n")
    names = ["<blank>", "<unk>", "<sos/eos>", "one", "two", "three"]
    (tmp_path / "units.txt").write_text("".join(f"{unit} {n}\n" for n, unit in enumerate(names)))
    line = f"count --text {tmp_path}/train.txt {tmp_path}/test.txt --units {tmp_path}/units.txt"
    line += f" --out {tmp_path}/a/texts.json"
    assert run_line(lm, line) == 2
    assert "3 of 6 units are <unk> or not in the unit table" in error_line(2, capsys)
    (tmp_path / "test.txt").write_text("one one two three four\n")
    assert run_line(lm, line) == 0
    assert run_line(report, f"--tables {tmp_path}/a {tmp_path}/b --markdown {tmp_path}/R.md") == 0
    text = (tmp_path / "R.md").read_text()
    assert text.index("## A\n") < text.index("## B\n")
    assert text.count(". Not equal in all trainings: optim_conf.lr.\n") == 2
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()]
    assert ["", "train.txt", "test.txt"] in rows
    assert ["units with line ends", "7", "6"] in rows
    assert ["empty lines", "1", "0"] in rows
    assert ["share of <unk>", "0.0 %", "16.7 %"] in rows
    assert ["softmax", "90.00", "180.00", "7.50", "0", "1.50", "2.00"] in rows
    assert ["a tree", "105.00 ± 7.07", "210.00 ± 14.14", "7.50 ± 0.00", "0 1", "n/a", "n/a"] in rows
    assert ["the same", "105.00 ± 7.07", "210.00 ± 14.14", "7.50 ± 0.00", "0 1"] in rows
    assert "| a tree | 0 1 | 100 |" in (tmp_path / "a.md").read_text("utf-8"), (
        "the details have the trainings"
    )


def test_without_a_table_yaml_all_systems_are_rows_and_published_ones_are_compared(
    tmp_path: Path, capsys: Capsys
) -> None:
    for system in ("tree", "flat"):
        write_result(tmp_path / "mine/t", system, 1, 90.0)
        write_result(tmp_path / "published/t", system, 1, 80.0)
    line = f"--tables {tmp_path}/mine/t --markdown {tmp_path}/R.md"
    assert run_line(report, line) == 0
    text = (tmp_path / "R.md").read_text()
    assert "## t\n" in text and text.index("| flat") < text.index("| tree")
    (tmp_path / "published/t/table.yaml").write_text(
        "title: A study\nsystems: {tree: a tree, flat: softmax}\n"
    )
    capsys.readouterr()
    assert run_line(report, f"{line} --published {tmp_path}/published") == 0
    printed = capsys.readouterr().out
    assert "## Compared with the published results: A study\n" in printed
    assert "| valid perplexity | a tree | 90.00 | 80.00 | +10.00 | 1 and 1 |" in printed
    assert printed.splitlines()[2] in (tmp_path / "R.md").read_text()


@pytest.mark.parametrize(
    ("name", "remedy"), [("test.json", "lm score --json"), ("texts.json", "lm count")]
)
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, remedy: str, capsys: Capsys) -> None:
    folder = tmp_path / "tree-seed777"
    dump_config(LmConfig(), folder / "train.yaml")
    (folder / "metrics.jsonl").write_text(
        '{"kind": "valid", "step": 1, "loss": 1, "perplexity": 9, "seconds": 1}\n'
    )
    (folder / "test.json").write_text("{}")
    write_result(folder, "tree", 1, 90.0)
    line = f"--exp {folder} --results {tmp_path}"
    assert "test.json: no perplexity" in error_line(run_line(report, line), capsys)
    (folder / name).write_text("{")
    line = line if name == "test.json" else f"--tables {folder} --markdown {tmp_path}/R"
    found = error_line(run_line(report, line), capsys)
    assert found.startswith(f"{folder / name}: damaged (") and remedy in found


def test_a_results_file_has_the_facts_of_a_folder_without_paths_of_the_machine(
    tmp_path: Path, capsys: Capsys
) -> None:
    folder = tmp_path / "exp" / "tree-seed777"
    dump_config(LmConfig(), folder / "train.yaml")
    path = f"{tmp_path}/train.txt"
    override = f"head_conf.tree={tmp_path}/t.json"
    command = ("lm", "train", "--train_text", path, "--override_config", override)
    lists = DataLists(kind="text", train=(DataFile(path=path),))
    write_run(folder, RunRecord(starts=(Start(command=command, processors=("P/2",)),), lists=lists))
    points = [
        {"kind": "valid", "step": n, "loss": 5.0 - n, "perplexity": 9, "seconds": n} for n in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    score = {
        "model": str(folder),
        "text": [f"{tmp_path}/test.txt"],
        "perplexity": 8.5,
        "bits_per_unit": 3.1,
    }
    (folder / "test.json").write_text(json.dumps(score))
    target = write_results(collect_lm_results(folder), tmp_path / "results")
    assert target.name == "tree-seed777.json" and str(tmp_path) not in target.read_text()
    start = Start(time="2026-11-28T09:00:00Z", command=("train", f"{tmp_path}/caf\udce9.txt"))
    write_run(folder, RunRecord(starts=(start,)))
    (of_strange,) = read_results(
        write_results(collect_lm_results(folder), tmp_path / "r")
    ).run.starts
    assert of_strange.command == ("train", "caf\\udce9.txt")
    assert of_strange.time is None, "it is of one machine"
    found = read_results(target)
    command = ("--train_text", "train.txt", "--override_config", "head_conf.tree=t.json")
    assert found.run.last_start.command[-4:] == command
    assert found.run.lists.train_paths == ["train.txt"]
    assert found.run.processors == ["P/2"]
    assert (found.steps, found.train_seconds) == (2, 2.0)
    assert found.scores == {"test perplexity": 8.5, "bits per word, test": 3.1}
    line = f"--exp {folder} --out {tmp_path}/x.html"
    assert "a language model, of which there is no page" in error_line(
        run_line(report, line), capsys
    )
