# SPDX-License-Identifier: Apache-2.0
"""The start of a training: --resume, --checkpoint, rejected utterances and devices."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from tiny_corpus import TinyCorpus, cut_back, outcome, weights_of, write_tiny_corpus

from wenet_hs.checkpoint import list_checkpoints
from wenet_hs.devices import find_device
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.manifest import Utterance, read_data_list, write_data_list
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree

# --resume


def test_resume_never_refuses_a_folder_with_checkpoints(tiny_corpus: TinyCorpus, trained: Path) -> None:
    before = outcome(trained)
    with pytest.raises(
        CheckpointError, match="checkpoints: holds checkpoints and --resume is never; use another --mod"
    ):
        tiny_corpus.train(trained, resume="never")
    assert outcome(trained) == before


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_model_without_checkpoints_is_not_overwritten(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, resume: str
) -> None:
    shutil.copytree(trained, tmp_path / "m", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(
        CheckpointError, match="m/final.pt: there is a model, but no checkpoint to resume from; use anoth"
    ):
        tiny_corpus.train(tmp_path / "m", "seed=5", resume=resume)
    assert (tmp_path / "m" / "train.yaml").read_bytes() == (trained / "train.yaml").read_bytes()


def test_training_resumes_from_a_named_checkpoint(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = cut_back(trained, tmp_path / "m", 7)
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(copy, resume=str(copy / "checkpoints" / "step-00000003"))
    assert "step-00000003 (epoch 0, step 3)" in caplog.text
    assert "step-00000005: newer than the one to resume from; kept as step-00000005.old" in caplog.text
    assert outcome(copy) == outcome(trained)
    assert sorted(path.name for path in (copy / "checkpoints").glob("*.old")) == [
        f"step-{step:08d}.old" for step in (4, 5, 6, 7)
    ]


def test_wrong_values_of_resume(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    copy = cut_back(trained, tmp_path / "m", 2)
    newest = copy / "checkpoints" / "step-00000002"
    elsewhere = str(list_checkpoints(trained / "checkpoints")[0])
    for resume, message in (
        ("atuo", "^--resume atuo: no such folder; use auto, never, or one of .*/m/checkpoints/step-.$"),
        (elsewhere, "^--resume .*step-00000001: is not one of .*; to start anew from its weights use --checkpoint$"),
        (str(copy), "^--resume .*m: is not one of"),
    ):
        with pytest.raises(CheckpointError, match=message):
            tiny_corpus.train(copy, resume=resume)
    (newest / "rng.pt").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match="step-00000002: sha256 of rng.pt differs from the manifest; use an earli"
    ):
        tiny_corpus.train(copy, resume=str(newest))


# --checkpoint


def start_of(corpus: TinyCorpus, model_dir: Path, checkpoint: Path, head: str = "softmax") -> dict[str, torch.Tensor]:
    """The first weights of a training: those after one step with a very small learning rate."""
    overrides = ("optim_conf.lr=1e-30", "max_minutes=1e-9", "encoder_conf.cnn_module_norm=layer_norm")
    return weights_of(corpus.train(model_dir, *overrides, head=head, checkpoint=checkpoint))


@pytest.fixture(scope="module")
def trained_norm(tiny_corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished model without running statistics, which a single step would change."""
    folder = tmp_path_factory.mktemp("norm") / "m"
    return tiny_corpus.train(folder, "encoder_conf.cnn_module_norm=layer_norm", "max_minutes=1e-9")


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in one if name not in other or not torch.equal(one[name], other[name])]


@pytest.mark.parametrize(
    ("head", "new"), [("softmax", []), ("hsoftmax", ["head.inner_vector.weight"])], ids=["same head", "other head"]
)
def test_fine_tuning_starts_with_the_weights_of_a_model(
    tiny_corpus: TinyCorpus,
    tmp_path: Path,
    trained_norm: Path,
    caplog: pytest.LogCaptureFixture,
    head: str,
    new: list[str],
) -> None:
    with caplog.at_level(logging.INFO):
        started = start_of(tiny_corpus, tmp_path / "m", trained_norm, head=head)
    assert f"weights from {trained_norm / 'final.pt'}; new: {', '.join(new) or 'none'}" in caplog.text
    assert differing(started, weights_of(trained_norm)) == new


@pytest.mark.slow
def test_a_resume_does_not_load_the_weights_again(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    whole = tiny_corpus.train(tmp_path / "whole", checkpoint=trained / "final.pt")
    assert outcome(whole) != outcome(trained)
    copy = cut_back(whole, tmp_path / "m", 3)
    assert outcome(tiny_corpus.train(copy, checkpoint=trained / "final.pt")) == outcome(whole)


def test_fine_tuning_refuses_a_damaged_checkpoint(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    copy = cut_back(trained, tmp_path / "old", 2) / "checkpoints" / "step-00000002"
    content = bytearray((copy / "model.pt").read_bytes())
    content[-2000] ^= 1
    (copy / "model.pt").write_bytes(content)
    with pytest.raises(
        CheckpointError, match="^--checkpoint .*2: sha256 of model.pt differs from the manifest; use an"
    ):
        tiny_corpus.train(tmp_path / "m", checkpoint=copy)
    with pytest.raises(CheckpointError, match="nowhere: no such file"):
        tiny_corpus.train(tmp_path / "m", checkpoint=tmp_path / "nowhere")


def test_other_units_are_matched_by_symbol(
    tmp_path: Path, trained_norm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    names = ["<blank>", "e", "d", "<sos/eos>", "x", "b", "<unk>", "a"]
    (corpus.folder / "units.txt").write_text("".join(f"{unit} {unit_id}\n" for unit_id, unit in enumerate(names)))
    newest = list_checkpoints(trained_norm / "checkpoints")[-1]
    with caplog.at_level(logging.INFO):
        started = start_of(corpus, tmp_path / "m", newest)
    assert f"units of {trained_norm / 'units.txt'}: 7 kept; new: 'x'; dropped: 'c'" in caplog.text
    report = json.loads((tmp_path / "m" / "fine_tune.json").read_text("utf-8"))
    assert (report["checkpoint"], report["units_new"], report["units_dropped"]) == (str(newest), ["x"], ["c"])
    final = weights_of(trained_norm)
    old, new = torch.tensor([0, 1, 2, 3, 4, 6, 7]), torch.tensor([0, 6, 3, 7, 5, 2, 1])
    parts = ["decoder.embed.0.weight", "ctc.head.output.weight", "ctc.head.output.bias"]
    parts += ["head.output.weight", "head.output.bias"]
    for name in parts:
        assert torch.equal(started[name][new], final[name][old]), name
    assert report["parameters_in_part"] == {name: {"taken": 7, "rows": 8} for name in parts}
    assert sorted(differing(final, started)) == sorted(parts)


# Data


def relist(corpus: TinyCorpus, *more: Utterance, keep: int = 99, flag: str = "train_data") -> None:
    path = getattr(corpus, flag)
    write_data_list(path, [*read_data_list(path)[:keep], *more])


def test_rejected_utterances_are_listed_and_unknown_units_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    first = read_data_list(corpus.train_data)[0]
    wav = {"wav": first.wav, "duration": first.duration}
    relist(
        corpus,
        Utterance(key="empty", txt="", **wav),
        Utterance(key="long", txt="abcde" * 9, **wav),
        Utterance(key="foreign", txt="zya", **wav),
    )
    relist(corpus, Utterance(key="short", txt="a", wav=first.wav, duration=0.02), flag="cv_data")
    with caplog.at_level(logging.INFO):
        folder = corpus.train(tmp_path / "m", "max_epoch=1")
    rows = [line.split("\t") for line in (folder / "train_rejected.tsv").read_text().splitlines()]
    assert [key for key, _ in rows] == ["empty", "long"]
    assert rows[0][1] == "empty transcript"
    assert rows[1][1].startswith("fewer frames than labels: ")
    listed = "2 of 13 utterances are not used: empty transcript 1, fewer frames than labels 1; see"
    assert f"--train_data: {listed} {folder / 'train_rejected.tsv'}" in caplog.text
    assert "--cv_data: 1 of 4 utterances are not used: too short for the encoder 1; see" in caplog.text
    assert (folder / "cv_rejected.tsv").read_text().startswith("short\ttoo short for the encoder")
    assert "--train_data: 2 units of transcripts are not in units.txt and become <unk>: 'z' 1, 'y' 1" in caplog.text


@pytest.mark.parametrize("flag", ["train_data", "cv_data"])
def test_a_list_without_usable_utterances_is_refused(tmp_path: Path, flag: str) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    clip = read_data_list(corpus.train_data)[0].wav
    relist(corpus, *(Utterance(key=f"u{i}", txt="a", wav=clip, duration=0.02) for i in range(3)), keep=0, flag=flag)
    with pytest.raises(DataError, match=f"^--{flag}: none of its 3 utterances can be used: too short.* 3; see .*tsv$"):
        corpus.train(tmp_path / "m")
    table = "train_rejected.tsv" if flag == "train_data" else "cv_rejected.tsv"
    assert len((tmp_path / "m" / table).read_text().splitlines()) == 3


def test_special_tokens_that_contradict_the_table_are_refused(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    message = "tiny.yaml: tokenizer_conf.special_tokens: <eos> is 7, but is 2 in the unit table; use the units.txt of"
    with pytest.raises(ConfigError, match=message):
        tiny_corpus.train(tmp_path / "m", 'tokenizer_conf.special_tokens={"<sos>": 2, "<eos>": 7}')


def test_devices() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ConfigError, match="^--device gpu: not a device; use cpu, cuda or cuda:N$"):
        find_device("gpu")
    with pytest.raises(ConfigError, match="^--device meta: not supported; use cpu, cuda or cuda:N$"):
        find_device("meta")
    with pytest.raises(
        ConfigError, match="^--device cuda:99: there are \\d+ CUDA devices here; use another one or --device cpu$"
    ):
        find_device("cuda:99")


def test_units_and_trees_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    tree = Tree.load(corpus.folder / "tree.json")
    Tree.huffman(tree.frequencies, units=tree.units, options={"tokenizer": "phone"}).save(corpus.folder / "tree.json")
    message = "tree.json: built with --tokenizer phone, but the config has tokenizer: char; set the same one in both"
    with pytest.raises(DataError, match=message):
        corpus.train(tmp_path / "m", head="hsoftmax")
    for tokenizer, unit, what in (("char", "tʃ", "more than one character"), ("phone", "▁", "the space of characters")):
        UnitTable.from_units(["a", unit]).write(corpus.folder / "units.txt")
        with pytest.raises(ConfigError, match=f"units.txt: unit '{unit}' .*{what}.* --kind {tokenizer}"):
            corpus.train(tmp_path / tokenizer, f"tokenizer={tokenizer}")
