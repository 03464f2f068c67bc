# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs check`: summary, table, page and exit code; one line per wrong input."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from command_line import Capsys, error_line, run_line
from model_folders import write_model_folder
from recipe_projects import write_description

from wenet_hs.bin import check as command
from wenet_hs.bin import prepare as prepare_command
from wenet_hs.corpus.check import KINDS
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.recipes.conf_files import conf_file

DOCS = Path(__file__).parents[2] / "docs" / "own-data-reference.md"
SENTENCES = ("la casa roja", "el perro come", "una mesa larga", "dos libros rojos")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One recording with twelve segments in two sets, without findings."""
    monkeypatch.chdir(tmp_path)
    soundfile.write("tape.flac", np.random.default_rng(0).uniform(-0.5, 0.5, 16 * 16000), 16000)
    made = []
    for number in range(12):
        text = f"{SENTENCES[number % 4]} {'abcdel'[number % 6]}{'abcdel'[number // 6]}"
        end = 1.3 * number + len(text) * (0.07 + 0.001 * (number % 3))
        speaker = "ana" if number < 8 else "luz"
        made.append(
            Utterance(
                key=f"u{number}",
                wav="tape.flac",
                txt=text,
                start=1.3 * number,
                end=end,
                speaker=speaker,
            )
        )
    write_data_list("train/data.list", made[:8])
    write_data_list("dev/data.list", made[8:])
    return tmp_path


def spoil(folder: Path) -> None:
    """A list with three faults and tags."""
    good = Utterance(key="a", wav="tape.flac", txt="una casa", start=1.0, end=2.0)
    bad = [
        replace(good, key="missing", wav="no.wav"),
        replace(good, key="empty", txt=""),
        replace(good, key="long", txt="la casa blanca es muy larga", start=3.0, end=3.3),
        replace(good, key="laugh", txt="la casa <b> [risa]", start=5.0, end=6.2),
    ]
    write_data_list("test/data.list", bad)


def call(line: str) -> int:
    return run_line(command, f"--num_workers 0 --min_count 2 --min_minutes 0 {line}")


def test_clean_lists(folder: Path, capsys: Capsys) -> None:
    for _ in range(2):  # an earlier result is replaced
        capsys.readouterr()
        assert call("train/data.list dev/data.list --html new/folder/check.html") == 0
    assert capsys.readouterr().out.split("\n") == [
        "train: 8 utterances, 0.00 hours",
        "dev: 4 utterances, 0.00 hours",
        "0.2 minutes of training speech; character error rates that we measured: 3.8 % with 10 minutes of simulated "
        "Uzbek; 36.0 % with 47 minutes of real speech in Mboshi; nothing else was measured "
        "(examples/own/s0/RESULTS.md)",
        "utterances per sample rate: 16000 Hz: 12",
        "units: 17; fewer than 2 times: none",
        "",
        "faults (training leaves these utterances out): none",
        "remarks (training uses these utterances): none",
        "total: 12 utterances, 0 with faults, 0 only with remarks",
        "new/folder/check.html",
        "",
    ]
    assert "No findings." in (folder / "new/folder/check.html").read_text("utf-8")


def test_too_little_training_speech_is_an_error_unless_it_is_accepted(
    folder: Path, capsys: Capsys
) -> None:
    little = (
        "0.2 minutes of training speech are less than --min_minutes 10 (the least in our results is 10; "
        "with a few minutes a model memorizes its sentences); add transcribed speech, or give --min_minutes 0"
    )
    assert error_line(
        run_line(command, "--num_workers 0 train/data.list dev/data.list"), capsys
    ) == (f"train/data.list, dev/data.list: {little}")
    assert run_line(command, "--num_workers 0 dev/data.list") == 0, "no training set"
    spoil(folder)
    capsys.readouterr()
    assert run_line(command, "--num_workers 0 train/data.list test/data.list") == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        "train/data.list, test/data.list: 3 utterances have faults; correct them, or leave them out",
        f"train/data.list, test/data.list: {little}",
    ]
    assert "missing audio" in shown.out, "everything is shown before"
    assert run_line(command, "--num_workers 0 train/data.list --min_minutes 0.05") == 0
    assert run_line(command, "train/data.list --min_minutes -1") == 2


def test_a_list_with_faults(folder: Path, capsys: Capsys) -> None:
    spoil(folder)
    assert (
        call("train/data.list test/data.list --out check.tsv --html check.html --max_players 1")
        == 3
    )
    shown = capsys.readouterr()
    assert (
        shown.err
        == "train/data.list, test/data.list: 3 utterances have faults; correct them, or leave them out\n"
    )
    assert re.search(
        r"^faults .*:\n  missing audio +1 +8\.3%  missing +restore the file, or correct wav in the list$",
        shown.out,
        re.M,
    )
    assert re.search(
        r"^total: 12 utterances, 3 with faults, 1 only with remarks\ncheck.tsv\ncheck.html$",
        shown.out,
        re.M,
    )
    rows = [line.split("\t") for line in (folder / "check.tsv").read_text("utf-8").splitlines()]
    assert rows[0] == ["set", "key", "kind", "details"]
    assert [row[:3] for row in rows[1:] if row[2] not in ("speaking rate", "rare unit")] == [
        ["test", "missing", "missing audio"],
        ["test", "empty", "empty transcript"],
        ["test", "long", "too long for CTC"],
        ["test", "laugh", "tags"],
    ]
    page = (folder / "check.html").read_text("utf-8")
    assert page.count("<audio") == page.count('src="data:audio/mpeg;base64,') == 1
    assert "la casa &lt;b&gt; [risa]" in page and "no.wav: missing" in page
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_subsampling_of_a_config(folder: Path, capsys: Capsys) -> None:
    spoil(folder)
    (folder / "a.yaml").write_text(
        "encoder_conf: {input_layer: linear}\ndataset_conf: {filter_conf: {min_length: 90}}\n"
    )
    assert call("test/data.list --config a.yaml") == 3
    shown = capsys.readouterr().out
    assert "too long for CTC" not in shown and re.search(r"length limits +1 .* long ", shown)
    (folder / "a.yaml").write_text("tokenizer: bpe\ntokenizer_conf: {bpe_path: bpe.model}\n")
    assert error_line(call("test/data.list --config a.yaml"), capsys) == (
        "a.yaml: tokenizer is bpe; give --unit char or --unit phone"
    )


def test_unit_is_that_of_the_config_unless_given(folder: Path, capsys: Capsys) -> None:
    (folder / "a.yaml").write_text("tokenizer: phone\n")
    units = {}
    for options in ("--config a.yaml", "--config a.yaml --unit char", "--unit phone", ""):
        call(f"train/data.list {options}")
        units[options] = re.search(r"units: (\d+);", capsys.readouterr().out)[1]  # type: ignore[index]
    assert (
        units["--config a.yaml"]
        == units["--unit phone"]
        != units[""]
        == units["--config a.yaml --unit char"]
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "nowhere.list",
            "nowhere.list: cannot be read (No such file or directory); check the path",
        ),
        (
            "train/data.list train/data.list",
            "train/data.list: 8 keys are also in train/data.list, the first is 'u0'; giv",
        ),
        (
            "table.csv",
            "table.csv: not a data.list (one JSON object per line); make one with `wenet-hs prepare table|",
        ),
        (
            "text",
            "text: not a data.list (one JSON object per line); make one with `wenet-hs prepare table|kaldi|folder|",
        ),
        ("broken.list", "broken.list:1: not JSON"),
        ("train", "train: a folder; give train/data.list"),
        (".", ".: a folder; give train/data.list dev/data.list"),
        ("none", "none: a folder; give a data.list; `wenet-hs prepare` makes it"),
        (
            "train/data.list --html train/data.list",
            "--html train/data.list: exists, and is no earlier result of this command; name another file",
        ),
        (
            "train/data.list --html page.html",
            "--html page.html: exists, and is no earlier result of this command",
        ),
        (
            "train/data.list --out text",
            "--out text: exists, and is no earlier result of this command; name another",
        ),
        ("train/data.list --num_workers -1", "--num_workers -1: must be at least 0"),
    ],
)
def test_wrong_input_is_one_line(folder: Path, capsys: Capsys, line: str, message: str) -> None:
    (folder / "none").mkdir()
    (folder / "page.html").write_text("<!DOCTYPE html>\n<title>mine</title>\n")
    for name in ("table.csv", "text"):
        (folder / name).write_text("u1 la casa\n")
    (folder / "broken.list").write_text('{"key": "a", \n')
    assert error_line(call(line) or 0, capsys).startswith(message)


def test_the_documentation_has_every_kind() -> None:
    text = DOCS.read_text("utf-8")
    assert [kind for kind in KINDS if not re.search(rf"^\|.*\b{kind}\b.*\|.*\|$", text, re.M)] == []


@pytest.mark.parametrize("given", [(), ("train",), ("train", "test"), ("train", "dev", "test")])
def test_common_speakers_are_a_remark_only_between_sets_that_the_data_gave(
    folder: Path, capsys: Capsys, given: tuple[str, ...]
) -> None:
    """`prepare` states what the sets that it makes have in common, and `check` repeats this line."""
    rows = [["audio", "text", "speaker", "start", "end", *["set"][: len(given)]]]
    for number in range(10):
        start, text = 1.3 * number, f"{SENTENCES[number % 4]} {'abcdelmnop'[number]}"
        of_set = [given[number % len(given)]] if given else []
        rows.append(
            ["tape.flac", text, "ab"[number // 5], f"{start:.1f}", f"{start + 1.2:.1f}", *of_set]
        )
    Path("t.tsv").write_text("\n".join(map("\t".join, rows)), "utf-8")
    assert (
        run_line(prepare_command, "table --table t.tsv --out out --split_by none --num_workers 0")
        == 0
    )
    lists = " ".join(f"out/{name}/data.list" for name in ("train", "dev", "test"))
    capsys.readouterr()
    call(f"{lists} --out check.tsv")
    findings = Path("check.tsv").read_text("utf-8").splitlines()
    remarked = {tuple(line.split("\t")[::2]) for line in findings if "speaker in two sets" in line}
    assert {of_set for of_set, _ in remarked} == {*given[1:]}
    stated = [
        line for line in capsys.readouterr().out.splitlines() if "/out/stats.json: sets (" in line
    ]
    assert len(stated) == (len(given) < 3)


def test_the_config_follows_from_the_base_or_the_encoder(folder: Path, capsys: Capsys) -> None:
    """A pretrained encoder has a frame per 20 ms, a subsampling by 4 one per 40 ms."""
    long = Utterance(key="long", wav="tape.flac", txt="a b c d e f g h i", start=0.0, end=0.5)
    write_data_list("train/data.list", [long])
    base = write_model_folder(folder / "base", tokenizer="phone")
    encoder = write_description(folder / "encoder", "hubert")

    def faults(options: str) -> bool:
        code = call(f"train/data.list dev/data.list --unit char {options}")
        return code == 3

    own = conf_file("own.yaml")
    assert faults(f"--config {own}") and faults("") and faults("--base '' --encoder ''")
    assert not faults(f"--config {own} --encoder {encoder}") and not faults(f"--encoder {encoder}")
    assert call(f"train/data.list dev/data.list --base {base}") == 0, "9 phones, its unit"
    capsys.readouterr()
    line = f"train/data.list --config {own} --base none"
    expected = "none: contains no final.pt; give the folder of a trained model"
    assert error_line(call(line), capsys) == expected
