# SPDX-License-Identifier: Apache-2.0
"""Each command divides a text into the same units, for tables of many kinds, and the units give the
text again.
"""

import pickle
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import torch
from command_line import run_line
from model_folders import write_clip
from small_models import small_config
from unit_tables import ACUTE, CASES, SPECIAL, TableCase

from wenet_hs.bin import check, lm, recognize, tree
from wenet_hs.config.load import dump_config
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.decode.alignment import AlignedUtterance, align_utterances
from wenet_hs.decode.known_units import limit_to_inventories
from wenet_hs.lm.text import read_running_text
from wenet_hs.lm.word2vec import encode_text
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.model.build import build_model
from wenet_hs.model.experiment import Experiment
from wenet_hs.text.tokenizer import Tokenizer, check_units, make_tokenizer
from wenet_hs.text.units import SPACE, UnitTable
from wenet_hs.tree import load_tree
from wenet_hs.tree.errors import ConfigError

by_table = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.table.units[unit_id] for unit_id in ids]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Utterance:
    return write_clip(tmp_path_factory.mktemp("clip") / "u.wav", seconds=2.0)


def spoken(clip: Utterance, case: TableCase) -> Utterance:
    return Utterance(key=clip.key, wav=clip.wav, txt=case.text, lang="xx", duration=clip.duration)


def test_there_are_tables_of_many_kinds() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 20
    assert {case.kind for case in CASES} == {"char", "phone", "bpe", "word"}


@by_table
def test_the_text_has_these_units_and_they_give_the_text(tmp_path: Path, case: TableCase) -> None:
    tokenizer = case.write(tmp_path)
    assert tokenizer.split(case.text) == case.units
    assert not tokenizer.count_unknown(case.text)
    assert tokenizer.decode(tokenizer.encode(case.text)) == case.text
    assert tokenizer.join(case.units) == case.text
    assert pickle.loads(pickle.dumps(tokenizer)).split(case.text) == case.units


@by_table
def test_training_and_alignment(tmp_path: Path, clip: Utterance, case: TableCase) -> None:
    tokenizer = case.write(tmp_path)
    check_units(case.kind, tokenizer.table, "units.txt")
    config = small_config(
        decoder="none", decoder_conf=None, model_conf=None, encoder_conf={"num_blocks": 1}
    )
    model = build_model(config, len(tokenizer.table), SPECIAL).eval()
    conf = config.dataset_conf
    output_length = model.encoder.output_length
    utterance = spoken(clip, case)
    dataset = SpeechDataset(
        [utterance], tokenizer, conf, training=True, seed=0, output_length=output_length
    )
    assert names(tokenizer, dataset.make_example(0, epoch=0).target.tolist()) == case.units
    assert not dataset.unknown
    experiment = Experiment(config, tokenizer, model, tmp_path)
    aligned = align_utterances(experiment, [utterance])["u"]
    assert isinstance(aligned, AlignedUtterance)
    assert [unit.text for unit in aligned.units] == case.units
    if case.kind in ("char", "bpe"):
        words = [word.text for word in aligned.words]
        assert "".join(words) == case.text.replace(" ", "")


@by_table
def test_language_models_and_trees(tmp_path: Path, case: TableCase) -> None:
    tokenizer = case.write(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(f"{case.text}\n", "utf-8")
    arpa = tmp_path / "units.arpa"
    run_line(
        lm, f"ngram --text {text} {case.flags(tmp_path)} --order 1 --discount_fallback --out {arpa}"
    )
    of_order_1 = arpa.read_text("utf-8").partition("\\1-grams:\n")[2].partition("\n\n")[0]
    listed = {line.split("\t")[1] for line in of_order_1.splitlines()} - {"<s>", "</s>", "<unk>"}
    assert listed == set(case.units)
    running = read_running_text([text], tokenizer)
    assert names(tokenizer, running.ids.tolist()) == [*case.units, "<sos/eos>"]
    vectors_of = encode_text([case.text], tokenizer)
    assert names(tokenizer, vectors_of.ids.tolist()) == case.units
    out = tmp_path / "tree.json"
    run_line(tree, f"build --kind huffman --text {text} {case.flags(tmp_path)} --out {out}")
    frequencies = dict(zip(tokenizer.table.units, load_tree(out).frequencies, strict=True))
    assert {unit: number for unit, number in frequencies.items() if number} == Counter(
        [*case.units, "<sos/eos>"]
    )


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.kind in ("char", "phone")], ids=lambda case: case.name
)
def test_check(
    tmp_path: Path, clip: Utterance, case: TableCase, capsys: pytest.CaptureFixture[str]
) -> None:
    case.write(tmp_path)
    write_data_list(tmp_path / "train.list", [spoken(clip, case)])
    flags = f"--units {tmp_path / 'units.txt'} --unit {case.kind} --min_minutes 0 --num_workers 0 --min_count 9"
    run_line(check, f"{tmp_path / 'train.list'} {flags}")
    printed = capsys.readouterr().out
    assert (
        f"units as {tmp_path / 'units.txt'} divides them: {len(set(case.units))}; fewer than 9"
        in printed
    )
    assert "unknown unit" not in printed


def test_check_lists_units_that_the_table_does_not_have(
    tmp_path: Path, clip: Utterance, capsys: pytest.CaptureFixture[str]
) -> None:
    CASES[2].write(tmp_path)
    write_data_list(
        tmp_path / "train.list", [Utterance(key="u", wav=clip.wav, txt="tsä ng", duration=2.0)]
    )
    run_line(
        check,
        f"{tmp_path / 'train.list'} --units {tmp_path / 'units.txt'} --min_minutes 0 --num_workers 0",
    )
    printed = capsys.readouterr().out
    assert (
        "unknown unit" in printed
        and "or use a table that has it; training reads it as <unk>" in printed
    )
    run_line(check, f"{tmp_path / 'train.list'} --min_minutes 0 --num_workers 0")
    assert "unknown unit" not in capsys.readouterr().out


def test_check_takes_the_table_of_a_config(
    tmp_path: Path,
    clip: Utterance,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = next(case for case in CASES if case.name == "digraphs")
    case.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_data_list("train.list", [spoken(clip, case)])
    dump_config(
        small_config(tokenizer_conf={"symbol_table_path": "units.txt"}), tmp_path / "train.yaml"
    )
    line = "train.list --config train.yaml --min_minutes 0 --num_workers 0"
    for flags, expected in (
        ("", f"units as units.txt divides them: {len(set(case.units))};"),
        ("--unit char", f"units: {len({*case.text})};"),
    ):
        run_line(check, f"{line} {flags}")
        assert expected in capsys.readouterr().out
    (tmp_path / "units.txt").unlink()
    run_line(check, line)
    assert "units: " in capsys.readouterr().out


@by_table
def test_recognition_does_not_warn(
    tmp_path: Path, case: TableCase, caplog: pytest.LogCaptureFixture
) -> None:
    utterance = Utterance(key="u", wav="u.wav", txt=case.text)
    recognize._warn_unknown_units([utterance], case.write(tmp_path))
    assert not caplog.records


@pytest.mark.parametrize("kind", ["phones", "pieces", "bytes"])
def test_commands_refuse_a_table_of_another_kind_as_training_does(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unit, fault = {
        "phones": (
            "ts",
            "has several letters, and the table has no space ▁, so its units may be phones or words",
        ),
        "pieces": ("▁la", "is a piece of BPE, not a character"),
        "bytes": ("<0xC3>", "is a piece of BPE, not a character"),
    }[kind]
    spaces = [] if kind == "phones" else [SPACE]
    table = UnitTable(("<blank>", "<unk>", "<sos/eos>", "a", unit, *spaces), SPECIAL)
    path, text = tmp_path / "units.txt", tmp_path / "text.txt"
    table.write(path)
    text.write_text("a a\n")
    with pytest.raises(ConfigError) as raised:
        check_units("char", table, path)
    message = str(raised.value)
    assert message.startswith(f"{path}: unit {unit!r} {fault}; set tokenizer: ")
    for command, flags in (
        (lm, f"ngram --tokenizer char --text {text} --out {tmp_path / 'a.arpa'}"),
        (tree, f"build --kind huffman --text {text} --out {tmp_path / 'tree.json'}"),
        (check, f"{text} --unit char"),
    ):
        assert run_line(command, f"{flags} --units {path}") == 2
        assert capsys.readouterr().err == f"{message}\n"


def test_a_letter_of_an_inventory_may_be_several_units_of_the_table(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "accents as units")
    tokenizer = case.write(tmp_path)
    config = small_config(
        decoder="none", decoder_conf=None, model_conf=None, encoder_conf={"num_blocks": 1}
    )
    experiment = Experiment(
        config, tokenizer, build_model(config, len(tokenizer.table), SPECIAL).eval(), tmp_path
    )
    _, models = limit_to_inventories(experiment, {"xx": ["é", SPACE]})
    log_probs_V = models["xx"].ctc.head.log_probs(torch.zeros(16))
    possible = {
        tokenizer.table.units[unit_id]
        for unit_id in log_probs_V.isfinite().nonzero()[:, 0].tolist()
    }
    assert possible == {"<blank>", "e", ACUTE, SPACE}


@pytest.mark.parametrize("letter", ["é", "e\u0301", "กำ", "ड़"])
def test_a_table_without_the_space_may_have_letters_of_several_code_points(letter: str) -> None:
    table = UnitTable(("<blank>", "<unk>", "<sos/eos>", letter, "t"), SPECIAL)
    check_units("char", table, "units.txt")
    tokenizer = make_tokenizer("char", table)
    text = unicodedata.normalize("NFC", f"t{letter}")
    assert tokenizer.decode(tokenizer.encode(text)) == text and not tokenizer.count_unknown(text)


def test_the_remedy_for_units_of_several_letters_works(tmp_path: Path) -> None:
    units = ("<blank>", "<unk>", "<sos/eos>", "n", "g", "ng")
    with pytest.raises(ConfigError, match="of letters such as `ts`, add ▁ to the table"):
        check_units("char", UnitTable(units, SPECIAL), "units.txt")
    check_units("char", UnitTable((*units, SPACE), SPECIAL), "units.txt")
    check_units("phone", UnitTable(units, SPECIAL), "units.txt")
