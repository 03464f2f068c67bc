# SPDX-License-Identifier: Apache-2.0
"""Results files, and the Markdown tables made from them."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import Capsys, error_line, run_line
from made_up_experiment import BAD, GOOD, REF, replace_text, write_data, write_experiment
from made_up_runs import change_run

from wenet_hs.bin import report as command
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.report.tables import format_details, format_table, write_markdown
from wenet_hs.results.collect import collect_results
from wenet_hs.results.experiment import read_experiments
from wenet_hs.results.results_file import Results, read_results, write_results
from wenet_hs.results.study import compare_study, read_table
from wenet_hs.runs.record import DataFile, DataLists, FirstWeights, Start
from wenet_hs.score.compare import MACRO

TABLE = """title: A study
text: Made up.
systems: {softmax-0.5: flat softmax, hsoftmax-0.5: tree}
modes: [attention, ctc_greedy_search]
chart: {x: hours, lines: {flat: {1.5: softmax-0.5}, tree: {1.5: hsoftmax-0.5}}}
"""


def make_results(folder: Path, head: str, seed: int, attention: dict[str, str]) -> Results:
    """The results of a made-up training whose list has REF of `ca` three times."""
    exp = write_experiment(folder / f"exp-0.5/{head}-seed{seed}", head=head, attention=attention)
    clips = [
        Utterance(key=f"{key}{n}", wav="x", txt=REF[key], lang="ca", duration=1.8)
        for key in ("ca1", "ca2")
        for n in "123"
    ]
    write_data_list(folder / "train.list", clips)
    replace_text(exp / "train.yaml", "seed: 777", f"seed: {seed}")
    start = Start(processors=("P1",), packages={"torch": "2.11.0"}, commit="1a2b3c4")
    lists = DataLists(train=(DataFile(path=f"{folder}/train.list"),))
    change_run(exp, starts=(start,), lists=lists)
    replace_text(exp / "test/rtf.json", '"device"', '"inventory": {"known.tsv": "0a1b"}, "device"')
    return collect_results(read_experiments([exp])[0])


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Five seeds of two systems; the tree is better with each seed but the first."""
    for seed in range(1, 6):
        for head in ("softmax", "hsoftmax"):
            one = make_results(
                tmp_path, head, seed, GOOD if head == "hsoftmax" and seed > 1 else BAD
            )
            write_results(one, tmp_path / "table")
    (tmp_path / "table/table.yaml").write_text(TABLE)
    return tmp_path / "table"


@pytest.mark.parametrize(
    ("chunks", "suffix"),
    [((None, None), ""), ((-1, None), ""), ((16, None), "-chunk16"), ((16, 0), "-chunk16-0")],
)
def test_chunks_are_in_the_name_of_the_system(
    tmp_path: Path, chunks: tuple[int | None, int | None], suffix: str
) -> None:
    exp = write_experiment(tmp_path / "exp/softmax", head="softmax", attention=GOOD)
    size, left = (json.dumps(one) for one in chunks)
    decoded = f'"decoding_chunk_size": {size}, "num_decoding_left_chunks": {left}, "device"'
    replace_text(exp / "test/rtf.json", '"device"', decoded)
    found = collect_results(read_experiments([exp])[0])
    assert found.system == f"softmax{suffix}"
    assert "decoding_chunk_size" not in found.decoding


def test_a_results_file_has_the_counts_and_no_transcripts(tmp_path: Path) -> None:
    results = make_results(tmp_path, "hsoftmax", 3, BAD)
    path = write_results(results, tmp_path / "r")
    assert path.name == "hsoftmax-0.5-seed3.json"
    assert not any(
        word in path.read_text("utf-8") for text in REF.values() for word in text.split()
    )
    found = read_results(path)
    assert (found.system, found.seed, found.steps, found.train_seconds) == (
        "hsoftmax-0.5",
        3,
        50,
        300.0,
    )
    assert found.train_hours == pytest.approx(6 * 1.8 / 3600, abs=1e-4)
    assert found.settings.keys() <= {"dtype"} and found.run.processors == ["P1"]
    assert found.run.lists.train_paths == ["train.list"]
    assert str(tmp_path) not in path.read_text("utf-8")
    mode = found.modes["ctc_greedy_search"]
    # bon dia → on di; adéu → adeu; салам дүйнө → салам дуйно; кыргыз → nothing. Spaces do not
    # count.
    assert (found.units, mode.errors) == (
        {"ca": [6, 4], "ky": [10, 6]},
        {"ca": [2, 1], "ky": [2, 6]},
    )
    assert {lang: [*kinds] for lang, kinds in mode.kinds.items()} == {
        "ca": [1, 2, 0],
        "ky": [2, 6, 0],
    }
    assert found.rates("ctc_greedy_search") == pytest.approx(
        {"ca": 0.3, "ky": 0.5, MACRO: 0.4, "micro average": 11 / 26}
    )
    # Each unit of ca is in the training list, 3 to 9 times; no unit of ky is.
    assert {band: [*of] for band, of in mode.bands.items() if of[0]} == {
        "unseen": [16, 2, 6, 0],
        "1 to 9": [10, 1, 2, 0],
    }
    assert found.dev_loss is not None and found.is_on_plateau is False


@pytest.mark.parametrize(
    ("valid", "train", "expected"), [(2.6, 2.6, True), (2.6, 2.4, False), (2.4, 2.6, False)]
)
def test_a_training_that_overfits_is_not_on_the_plateau(
    tmp_path: Path, valid: float, train: float, *, expected: bool
) -> None:
    exp = write_experiment(tmp_path / "exp/softmax")
    records = [{"kind": "train", "step": 5, "loss_ctc": train}]
    records += [
        {"kind": "valid", "step": 10, "loss_ctc": valid, "plateau_ctc": 3.0, "seconds": 1.0}
    ]
    records += [{"kind": "valid", "step": 20, "loss_ctc": 9.0, "seconds": 2.0}]
    (exp / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    assert collect_results(read_experiments([exp])[0]).is_on_plateau is expected


def test_a_study_is_compared_and_written_as_markdown(
    study: Path, tmp_path: Path, capsys: Capsys
) -> None:
    rows = compare_study(read_table(study))
    assert [(row.mode, tuple(row.rates)) for row in rows] == [
        (mode, ("1", "2", "3", "4", "5")) for mode in ("attention", "ctc_greedy_search")
    ]
    first, second = rows
    assert first.difference.differences[0] == 0 and first.difference.mean < 0
    assert first.adjusted_p == pytest.approx(2 * first.difference.p), "two comparisons"
    assert second.difference.mean == 0 and second.adjusted_p == 1
    line = f"--tables {study} --markdown {tmp_path}/R.md"
    assert run_line(command, line) == 0
    text = (tmp_path / "R.md").read_text("utf-8")
    assert "| flat softmax | 40.00 ± 0.00 | 40.00 ± 0.00 |" in text
    means = (
        f"40.00 | {40 + 100 * first.difference.mean:.2f} | 5 | {100 * first.difference.mean:+.2f}"
    )
    assert f"| attention | flat softmax | tree | {means} |" in text
    assert (
        "\n\nNot recorded by each training, so not checked: dtype, number of ranks, weights of --checkpoint.\n"
        in text
    )
    assert "| p (Holm, 2 comparisons) |" in text and "](table.md)" in text
    details = (tmp_path / "table.md").read_text("utf-8")
    assert (
        "`unseen`: not in it" in details
        and "without the" not in details
        and ", plausible |" not in details
    )
    assert "| tree | 1 2 3 4 5 | 50 | 0.003 | 5.0 | none | P1 | 1a2b3c4 |" in details
    assert "| ctc_greedy_search | flat softmax | tree |" in details
    assert "| ctc_greedy_search | flat softmax" not in text
    for path in study.glob("hsoftmax*.json"):
        path.write_text(re.sub('"take_off":[^,]*,', "", path.read_text("utf-8")), "utf-8")
    assert run_line(command, line) == 0
    assert "| 5.0 | n/a | P1 |" in (tmp_path / "table.md").read_text("utf-8"), (
        "files with the plateau per label"
    )
    assert "![A study](table/chart.svg)" in text
    chart = ElementTree.parse(study / "chart.svg").getroot()
    texts = [node.text for node in chart.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-2:] == ["flat", "tree"] and "hours, log scale" in texts
    before = (study / "chart.svg").read_bytes()
    assert run_line(command, line) == 0 and (study / "chart.svg").read_bytes() == before
    assert (
        "Decoding: beam_size 10, finished_list True, lm units.arpa, inventory known.tsv." in details
    )
    assert "## A study\n" in text
    first_file = sorted(study.glob("softmax*.json"))[0]
    replace_text(first_file, '"system":', '"is_pretrained_on_simulated":true,"system":')
    assert run_line(command, line) == 0
    assert "## A study (real, and real + simulated)\n" in (tmp_path / "R.md").read_text("utf-8")
    replace_text(first_file, '"system":', '"is_simulated":true,"system":')
    (study / "other").mkdir()
    (study / "other/table.yaml").write_text(TABLE + "also: [..]\n")
    assert [row.difference for row in compare_study(read_table(study / "other"))] == [
        row.difference for row in rows
    ]
    (tmp_path / "intro.md").write_text("Findings.\n")
    (tmp_path / "more.md").write_text("## Another command's table\n")
    assert run_line(command, f"{line} --intro {tmp_path}/intro.md --more {tmp_path}/more.md") == 0
    page = (tmp_path / "R.md").read_text("utf-8")
    parts = [
        "<!-- Generated by",
        "Findings.\n",
        "**How to read the comparisons**",
        "## A study (simulated speech)\n",
    ]
    parts.append("## Another command's table\n")
    positions = [page.index(part) for part in parts]
    assert positions == sorted(positions)
    assert page.endswith(parts[-1])
    capsys.readouterr()


def test_a_training_in_two_parts_has_the_cost_of_both(study: Path, tmp_path: Path) -> None:
    base = write_experiment(tmp_path / "exp-0.5/base")
    write_data_list(
        tmp_path / "base.list", [Utterance(key="b", wav="x", txt="a", lang="ca", duration=7200.0)]
    )
    change_run(base, lists=DataLists(train=(DataFile(path=f"{tmp_path}/base.list"),)))
    replace_text(
        base / "metrics.jsonl", '"kind": "valid", "step": 50', '"kind": "valid", "step": 1500'
    )
    first = make_results(tmp_path / "a", "softmax", 1, BAD)
    assert first.first is None and first.parts == [first]
    for head in ("softmax", "hsoftmax"):
        exp = tmp_path / f"exp-0.5/{head}-seed1"
        change_run(exp, first_weights=FirstWeights(kind="checkpoint", name=str(base)))
        path = write_results(collect_results(read_experiments([exp])[0]), study)
    found = read_results(path)
    assert found.first is not None and [part.steps for part in found.parts] == [1500, 50]
    assert (found.first.train_hours, found.first.train_seconds) == (2.0, 300.0)
    text = format_details(read_table(study))
    assert "| tree | 1 2 3 4 5 | 1,500 + 50, 50 | 2.0 + 0.003, 0.003 | 5.0 + 5.0 | none |" in text
    shutil.rmtree(base)
    assert collect_results(read_experiments([exp])[0]).first is None, (
        "the first part does not exist any more"
    )


def test_rates_without_clips_of_implausible_duration(tmp_path: Path) -> None:
    for name, keys in (("data", ("ca2", "ky1", "train7")), ("more", ())):
        (tmp_path / name).mkdir()
        rows = [f"{key}\t0.1\t6\t0.017\n" for key in keys]
        (tmp_path / name / "implausible.tsv").write_text(
            "".join(["key\tduration\tunits\tseconds per unit\n", *rows])
        )
    (tmp_path / "table").mkdir()
    (tmp_path / "table/table.yaml").write_text(TABLE)
    for head in ("softmax", "hsoftmax"):
        assert make_results(tmp_path, head, 1, BAD).implausible is None, "prepare wrote no file"
        (exp,) = read_experiments([tmp_path / f"exp-0.5/{head}-seed1"])
        assert collect_results(exp, [tmp_path / "more"]).implausible == {}
        path = write_results(
            collect_results(exp, [tmp_path / "data", tmp_path / "more"]), tmp_path / "table"
        )
    found = read_results(path)
    assert found.implausible == {"ca": [1], "ky": [0]}
    # ca1 has 2 errors in 6 units, ky2 has 6 in 6.
    without = found.rates("attention", only_plausible=True)
    assert without == pytest.approx({"ca": 2 / 6, "ky": 1.0, MACRO: 2 / 3, "micro average": 8 / 12})
    assert found.rates("attention") == pytest.approx(
        {"ca": 0.3, "ky": 0.5, MACRO: 0.4, "micro average": 11 / 26}
    )
    text = format_details(read_table(tmp_path / "table"))
    rates = text.partition("Rates without the 2 clips of implausible duration:\n\n")[2].partition(
        "\n\n"
    )[0]
    assert "| tree | 66.67 | 66.67 |" in rates
    assert "| tree | 40.00 | 40.00 |" in format_table(read_table(tmp_path / "table"))
    assert "| seeds | B − A | B − A, plausible |" in text and "| +0.00 | +0.00 |" in text
    path.write_text(re.sub(r',\n?"implausible":\{[^}]*\}', "", path.read_text("utf-8")), "utf-8")
    assert read_results(path).implausible is None
    text = format_details(read_table(tmp_path / "table"))
    rates = text.partition("implausible duration:\n\n")[2].partition("\n\n")[0]
    assert rates.splitlines()[2:] == ["| flat softmax | 66.67 | 66.67 |", "| tree | n/a | n/a |"]
    for flags in (
        f"--data_list {write_data(tmp_path / 'lists').parent}/test/data.list",
        f"--stats {tmp_path}/data/s.json",
    ):
        shutil.copy(tmp_path / "data/implausible.tsv", tmp_path / "lists/implausible.tsv")
        (tmp_path / "data/s.json").write_text("{}")
        (tmp_path / "again").mkdir(exist_ok=True)
        line = f"--exp {exp.folder} --out {tmp_path}/x.html --results {tmp_path}/again {flags}"
        assert run_line(command, line) == 0
        assert read_results(tmp_path / "again" / path.name).implausible == found.implausible, flags
        (tmp_path / "again" / path.name).unlink()


def test_systems_without_a_common_seed_have_no_means(study: Path, tmp_path: Path) -> None:
    for seed in (1, 2, 3, 4, 5):
        (study / f"{'softmax' if seed > 2 else 'hsoftmax'}-0.5-seed{seed}.json").unlink()
    write_markdown(tmp_path / "R.md", [study], command="x")
    text = (tmp_path / "R.md").read_text("utf-8")
    assert (
        "\nNo seed is common to all systems, so there are no means over seeds (flat softmax: 1 2; tree: 3 4 5).\n"
        in text
    )
    details = study.with_suffix(".md").read_text("utf-8")
    assert (
        "| system | attention |" not in text
        and "By language" not in details
        and "chart.svg" not in text
    )
    assert "| tree | 3 4 5 | 50 |" in details


def test_systems_with_other_languages_are_in_one_table_but_not_compared(
    study: Path, capsys: Capsys
) -> None:
    for path in study.glob("softmax-*.json"):
        text = (
            path.read_text("utf-8")
            .replace('"softmax-0.5"', '"fr"')
            .replace('"keys":"', '"keys":"f')
        )
        (study / path.name.replace("softmax-0.5", "fr")).write_text(
            text.replace('"ca":', '"fr":'), "utf-8"
        )
    replace_text(
        study / "table.yaml",
        "hsoftmax-0.5: tree}",
        "hsoftmax-0.5: tree, fr: French}\ncomparisons: []",
    )
    assert run_line(command, f"--tables {study} --markdown {study}/R.md") == 0
    text = study.with_suffix(".md").read_text("utf-8")
    assert "| system | ca | ky | fr | macro average | micro average |" in text
    assert (
        "| French |  | 50.00 | 30.00 | 40.00 |" in text
        and "| flat softmax | 30.00 | 50.00 |  | 40.00 |" in text
    )
    replace_text(study / "table.yaml", "comparisons: []", "comparisons: [[softmax-0.5, fr]]")
    code = run_line(command, f"--tables {study} --markdown {study}/R.md")
    assert "attention: softmax-0.5-seed1 and fr-seed1 have different test sets; " in error_line(
        code, capsys
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("hsoftmax-0.5-seed2.json", '"P1"', '"P2"', "seed2 and hsoftmax-0.5-seed2: processor 'P1' and 'P2'; "),
        ("hsoftmax-0.5-seed2.json", "wenet_hs.results/3", "x", "seed2.json: not written by `report --results`"),
        ("hsoftmax-0.5-seed2.json", '"system":"hsoftmax-0.5"', '"system":"x"', "results of x, which "),
        ("table.yaml", "title:", "titel:", "table.yaml: title: Field required"),
        ("hsoftmax-0.5-seed2.json", '"keys":"', '"keys":"0', "attention: .* have different test sets; score"),
        ("hsoftmax-0.5-seed2.json", '"beam_size":10', '"beam_size":9', "seed2 were decoded with different options"),
    ],
)  # fmt: skip
def test_results_that_do_not_fit_are_refused(
    study: Path, capsys: Capsys, file: str, old: str, new: str, message: str
) -> None:
    replace_text(study / file, old, new)
    code = run_line(command, f"--tables {study} --markdown {study}/R.md")
    assert re.search(message, error_line(code, capsys))


def test_a_table_without_results_is_refused(study: Path, capsys: Capsys) -> None:
    for path in study.glob("*.json"):
        path.unlink()
    code = run_line(command, f"--tables {study} --markdown {study}/R.md")
    assert f"{study}: no results files; run a recipe with --results" in error_line(code, capsys)


def test_flags_that_do_not_belong_together_are_refused(tmp_path: Path, capsys: Capsys) -> None:
    for line in ("", f"--tables {tmp_path}", f"--markdown {tmp_path}/R.md"):
        assert "give --exp with" in error_line(run_line(command, line), capsys)
    for line in (
        f"--exp {tmp_path}",
        f"--results {tmp_path} --tables {tmp_path} --markdown {tmp_path}/R.md",
    ):
        assert "--exp: needs --out for a page, or --results" in error_line(
            run_line(command, line), capsys
        )
