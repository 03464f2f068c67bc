# SPDX-License-Identifier: Apache-2.0
"""examples/ucla/s0/public_models.py on made-up labels: rates and differences by hand, and its error
lines.
"""

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.runs.record import RunRecord, Start, write_run

FOLDER = Path(__file__).parents[2] / "examples/ucla/s0"
WORDS = {
    "aa-1": ("aa", "p a"),
    "aa-2": ("aa", "t a"),
    "bb-1": ("bb", "k i t i"),
    "bb-2": ("bb", "k u p u"),
}
"""Key → language and audited phones."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("public_models")


@pytest.fixture
def files(script: ModuleType, tmp_path: Path) -> dict[str, Path]:
    """Texts of ours that are right but for one phone of `aa-1`, and public models whose phones are
    all wrong.
    """
    audited = tmp_path / "audited.tsv"
    rows = [f"{key}\t{lang}\t{phones}\n" for key, (lang, phones) in WORDS.items()]
    audited.write_text("key\tlang\tphones\n" + "".join(rows), encoding="utf-8")
    public = tmp_path / "public.tsv"
    rows = [
        f"{key}\t{lang}\t{model}\t1.0\n"
        for model in script.PUBLIC
        for key, (lang, _) in WORDS.items()
    ]
    public.write_text("key\tlang\tmodel\tPER\n" + "".join(rows), encoding="utf-8")
    study = tmp_path / "study"
    for folder in script.FOLDERS.values():
        for seed in script.SEEDS:
            texts = study / f"{folder}-seed{seed}" / "test" / script.MODE / "text"
            texts.parent.mkdir(parents=True)
            texts.write_text(
                "aa-1 b a\naa-2 t a\nbb-1 k i t i\nbb-2 k u p u\nother x\n", encoding="utf-8"
            )
            dump_config(ExperimentConfig(), study / f"{folder}-seed{seed}/train.yaml")
            start = Start(processors=("P1",), packages={"torch": "2.11.0"}, commit="1a2b3c4")
            write_run(study / f"{folder}-seed{seed}", RunRecord(starts=(start,)))
    implausible = study / "data/implausible.tsv"
    implausible.parent.mkdir()
    implausible.write_text("key\tduration\naa-1\t6.5\nother\t9\n", encoding="utf-8")
    return {"audited": audited, "public": public, "study": study, "out": tmp_path / "public_models"}


def run(script: ModuleType, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [str(part) for name, path in files.items() for part in (f"--{name}", path)]
    monkeypatch.setattr(sys, "argv", ["public_models.py", *arguments])
    script.main()


def test_rates_and_differences(
    script: ModuleType, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(script, files, monkeypatch)
    record = json.loads(files["out"].with_suffix(".json").read_text("utf-8"))
    ours, public = record["systems"]["softmax-whisper"], record["systems"]["powsm"]
    assert ours["rate"] == pytest.approx((1 / 4 + 0 / 8) / 2), (
        "pooled per language, then the mean of the languages"
    )
    assert (ours["num_seeds"], ours["difference"]) == (3, None)
    assert public["rate"] == 1.0 and public["interval"] == [1.0, 1.0]
    difference = public["difference"]
    assert difference["mean"] == pytest.approx(1 - 1 / 8)
    low, high = difference["interval"]
    assert low == pytest.approx(1 - 1 / 4), (
        "both words of aa are aa-1: two of four phones, or the half of a half"
    )
    assert high == 1.0
    assert difference["plausible_mean"] == 1.0, "without aa-1 all of ours are right"
    assert difference["num_better_languages"] == 0
    assert record["systems"].keys() == {*script.OURS, *script.PUBLIC}
    page = files["out"].with_suffix(".md").read_text("utf-8").replace(script.NO_BREAK, " ")
    assert "| 12.50 [0.00, 25.00] |  |  |  |" in page and "The 4 test words of 2 languages" in page
    assert "12 phones" in page and "without 1 of the words" in page
    assert "seeds 1 2 3; P1, torch 2.11.0, commit 1a2b3c4." in page


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        (
            "public",
            "aa-1\taa\tpowsm\t1.0\n",
            "",
            r"public\.tsv: powsm has 3 of 4 words; complete the file",
        ),
        (
            "public",
            "aa-1\taa\tpowsm\t1.0",
            "aa-1\taa\tpowsm\t0.7",
            r"aa-1, powsm: 1\.4 errors; the labels are other ones",
        ),
        ("public", "aa-1\taa\tpowsm", "zz-1\taa\tpowsm", r"unknown word or model: zz-1, powsm"),
        (
            "public",
            "aa-1\taa\tpowsm\t1.0",
            "aa-1\taa\tpowsm\tnan%",
            r"aa-1, powsm: PER 'nan%' is no number; correct it",
        ),
        (
            "public",
            "aa-2\taa\tpowsm",
            "aa-1\taa\tpowsm",
            r"aa-1, powsm: twice; remove one of the rows",
        ),
        ("audited", "phones\n", "text\n", r"audited\.tsv: no column phones"),
    ],
)
def test_a_wrong_file_gets_one_line(
    script: ModuleType,
    files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    old: str,
    new: str,
    line: str,
) -> None:
    text = files[name].read_text("utf-8")
    assert old in text
    files[name].write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        run(script, files, monkeypatch)
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and len(printed.splitlines()) == 1
    assert re.search(line, printed), printed


def test_a_text_that_is_missing_gets_one_line(
    script: ModuleType,
    files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = files["study"] / "exp-whisper/softmax-seed2/test/joint/text"
    texts.write_text("aa-1 b a\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        run(script, files, monkeypatch)
    assert "3 test words have no text; decode the whole test set" in capsys.readouterr().err
    texts.unlink()
    files["audited"].rename(files["audited"].with_suffix(".old"))
    with pytest.raises(SystemExit):
        run(script, files, monkeypatch)
    assert (
        "audited.tsv: does not exist; name the file with --audited or --public"
        in capsys.readouterr().err
    )


def test_the_published_file_has_every_recogniser(script: ModuleType) -> None:
    record = json.loads((FOLDER / "results/public_models.json").read_text("utf-8"))
    assert record["systems"].keys() == {*script.OURS, *script.PUBLIC}
