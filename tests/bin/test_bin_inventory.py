# SPDX-License-Identifier: Apache-2.0
"""`units --inventory` and `recognize --inventory`: the file, results per language, one line per
fault.
"""

import json
from pathlib import Path

import pytest
from command_line import Capsys, error_line, run_line
from model_folders import HSOFTMAX, write_clip, write_model_folder

from wenet_hs.bin import recognize, units
from wenet_hs.manifest.data_list import Utterance, write_data_list

INVENTORY = "tr\ta b\nru\td e\nxx\t☃\n"
"""No utterance has the last language, so its unit does not matter."""
DECODE = "--model_dir exp --test_data data.list --result_dir out --modes joint attention --device cpu --beam_size 4"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model_folder(tmp_path / "exp", **HSOFTMAX)
    langs = {"u0": "tr", "u1": "ru", "u2": "tr", "u3": "ru"}
    clips = [
        write_clip(tmp_path / f"{key}.wav", 0.8, seed=int(key[1]), lang=lang)
        for key, lang in langs.items()
    ]
    write_data_list("data.list", clips)
    (tmp_path / "inventory.tsv").write_text(INVENTORY, "utf-8")
    return tmp_path


def decoded(folder: Path, mode: str = "joint") -> dict[str, list[list[str]]]:
    lines = (folder / "out" / mode / "hyps.jsonl").read_text("utf-8").splitlines()
    return {
        record["key"]: [one["units"] for one in record["nbest"]]
        for record in map(json.loads, lines)
    }


@pytest.mark.slow
def test_each_language_has_its_units_in_any_batch(folder: Path) -> None:
    found = {}
    for size in (1, 4):
        assert run_line(recognize, f"{DECODE} --inventory inventory.tsv --batch_size {size}") == 0
        found[size] = decoded(folder)
        for mode in ("joint", "attention"):
            for key, nbest in decoded(folder, mode).items():
                assert {unit for units in nbest for unit in units} <= (
                    {"a", "b"} if key in ("u0", "u2") else {"d", "e"}
                )
    assert found[1] == found[4] and list(found[1]) == ["u0", "u1", "u2", "u3"]
    conditions = json.loads((folder / "out/rtf.json").read_text("utf-8"))
    assert list(conditions["inventory"]) == ["inventory.tsv"] and conditions["place_unseen"] is None


def test_an_unseen_unit_is_written(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "inventory.tsv").write_text("tr\ta\nru\tẽ g\n", "utf-8")
    caplog.set_level("INFO")
    assert (
        run_line(recognize, f"{DECODE} --inventory inventory.tsv --place_unseen articulatory") == 0
    )
    assert "units that the model does not have: ẽ beside e" in caplog.text
    assert any("ẽ" in units for nbest in decoded(folder).values() for units in nbest)


def test_the_inventory_of_transcripts(folder: Path, capsys: Capsys) -> None:
    texts = [("tr", "p a ʃ"), ("ru", "p ã"), ("tr", "a t")]
    write_data_list(
        "p.list",
        [Utterance(key=f"k{n}", wav="x", txt=t, lang=lang) for n, (lang, t) in enumerate(texts)],
    )
    assert run_line(units, "--data_list p.list --kind phone --inventory i.tsv") == 0
    assert (folder / "i.tsv").read_text("utf-8") == "ru\tp ã\ntr\ta p t ʃ\n"
    assert capsys.readouterr().out == "i.tsv: 2 languages from 3 transcripts\n"
    assert (
        run_line(
            units, "--data_list p.list --kind phone --min_count 2 --inventory i.tsv --out units.txt"
        )
        == 0
    )
    assert (folder / "i.tsv").read_text("utf-8") == "ru\tp\ntr\ta p\n"
    assert (folder / "units.txt").read_text("utf-8").endswith("a 3\np 4\n")


@pytest.mark.parametrize(
    ("inventory", "options", "message"),
    [
        (
            "tr\ta b\n",
            "",
            "inventory.tsv: no line for the languages ru of --test_data; add their units",
        ),
        (
            "tr a\n",
            "",
            "inventory.tsv:1: expected `lang<TAB>unit unit …`, found 'tr a'; write two fields",
        ),
        (
            "tr\ta\tb\n",
            "",
            "inventory.tsv:1: expected `lang<TAB>unit unit …`, found 'tr\\ta\\tb'; write two fields",
        ),
        (INVENTORY + "tr\tc\n", "", "inventory.tsv:4: language 'tr' has a line already; keep one"),
        (
            "tr\ta\nru\t \n",
            "",
            "inventory.tsv:2: language 'ru' has no units; list them, or remove the line",
        ),
        (
            "tr\ta\nru\tx y\n",
            "",
            "--inventory: the model has no unit of language 'ru' (x y); use the inventory of",
        ),
        (
            INVENTORY,
            "--test_data none.list",
            "--inventory: 1 utterances have no language (u0); give each its `lang`",
        ),
        (
            None,
            "--place_unseen articulatory",
            "--place_unseen: has no effect without --inventory; give the inventory",
        ),
    ],
)
def test_a_fault_is_one_line(
    folder: Path, capsys: Capsys, inventory: str | None, options: str, message: str
) -> None:
    write_data_list("none.list", [Utterance(key="u0", wav="u0.wav", txt="a")])
    if inventory is not None:
        (folder / "inventory.tsv").write_text(inventory, "utf-8")
        options += " --inventory inventory.tsv"
    assert error_line(run_line(recognize, f"{DECODE} {options}"), capsys).startswith(message)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--data_list none.list --kind char --inventory i",
            "--inventory: 1 utterances have no language (u0); give",
        ),
        ("--data_list none.list --kind char", "--out: nothing to write; give --out or --inventory"),
        (
            "--data_list none.list --kind bpe --vocab_size 9 --bpe_model m --inventory i",
            "--inventory: not for --kind b",
        ),
    ],
)
def test_a_fault_of_units_is_one_line(
    folder: Path, capsys: Capsys, options: str, message: str
) -> None:
    write_data_list("none.list", [Utterance(key="u0", wav="u0.wav", txt="a")])
    assert error_line(run_line(units, options), capsys).startswith(message)
