# SPDX-License-Identifier: Apache-2.0
"""Folders that an earlier release trained: they load, decode to the same texts, start trainings and are resumed."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from tiny_corpus import TinyCorpus, metrics, newest, write_tiny_corpus

from wenet_hs.bin import recognize
from wenet_hs.bin.main import run_command
from wenet_hs.config.encoders import TransformerConf
from wenet_hs.config.load import load_config
from wenet_hs.model.checkpoint import list_checkpoints, step_of
from wenet_hs.train.average import average_weights
from wenet_hs.train.model_folder import _fixed_settings, former_hashes
from wenet_hs.tree.errors import ConfigError

FOLDERS = Path(__file__).parent / "golden" / "folders-568091f.tar.xz"
HEADS = {
    "softmax": (),
    "hsoftmax": ("ctc_conf.head=hsoftmax", "ctc_conf.head_conf.tree={}/ctc_tree.json"),
    "class": ("head_conf.search=best_first",),
    "adaptive": ("head_conf.cutoffs=[4, 6]",),
}
"""The overrides of its training, beside `SMALL`."""
SMALL = [
    *("encoder_conf.output_size=8", "encoder_conf.linear_units=8", "encoder_conf.attention_heads=2"),
    *("decoder_conf.linear_units=8", "decoder_conf.attention_heads=2", "max_epoch=90", "keep_checkpoints=2"),
    *("save_interval=90", "optim_conf.lr=0.03", "scheduler_conf.warmup_steps=20", "log_interval=90"),
    *("dataset_conf.spec_aug=false", "dataset_conf.fbank_conf.dither=0.1", "model_conf.ctc_weight=0.5"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("older")
    with tarfile.open(FOLDERS) as archive:
        archive.extractall(root, filter="data")
    return root


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("head", HEADS)
def test_it_decodes_to_the_same_texts(head: str, folders: Path, corpus: TinyCorpus, tmp_path: Path) -> None:
    expected = json.loads((folders / "texts.json").read_text("utf-8"))[head]
    line = ["--model_dir", folders / head, "--test_data", corpus.cv_data, "--result_dir", tmp_path]
    assert run_command(recognize, [*map(str, line), "--device", "cpu", "--modes", *expected]) == 0
    for mode, texts in expected.items():
        for line in (tmp_path / mode / "hyps.jsonl").read_text("utf-8").splitlines():
            found = json.loads(line)
            best = [[one["text"], pytest.approx(one["score"], abs=1e-3)] for one in found["nbest"][:2]]
            assert texts[found["key"]] == best, (mode, found["key"])


@pytest.mark.parametrize("head", HEADS)
def test_it_is_resumed(head: str, folders: Path, corpus: TinyCorpus, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / head, tmp_path / head)
    (folder / "final.pt").unlink()
    cmvn = f"cmvn_conf.cmvn_file={folders / head / 'global_cmvn'}"  # another processor computes other last digits
    overrides = [*SMALL, cmvn, *(text.format(folders) for text in HEADS[head])]
    corpus.train(folder, *overrides, "max_epoch=68", "log_interval=1", head=head)
    assert step_of(newest(folder)) == 272
    steps = [record["step"] for record in metrics(folder)]
    assert min(steps) == 271
    assert average_weights(list_checkpoints(folder / "checkpoints"))  # also with those of before


def test_a_transformer_with_settings_of_a_conformer_is_the_same_training(tmp_path: Path) -> None:
    """The hashes are those of d99a062f, before `encoder_conf` had a class for each encoder."""
    path, configs = tmp_path / "train.yaml", []
    for more in ("", "cnn_module_kernel: 31, cnn_module_norm: layer_norm"):
        settings = f"macaron_style: false, use_cnn_module: false, {more}"
        path.write_text(f"encoder: transformer\nseed: 3\nencoder_conf: {{{settings}}}\n")
        configs.append(load_config(path))
        assert configs[-1].encoder_conf == TransformerConf()
    assert configs[0] == configs[1]
    assert former_hashes(configs[0]) >= {
        "8fec216ec1873cd838bf483cedfd1291be6ea1bc314f99525ab0d28fca59c89a",
        "db384d5935e1ce77c37661402faeffe39256a0b21df9b73433aa333ae1c870dc",
    }
    path.write_text("encoder: transformer\nencoder_conf: {macaron_style: true}\n")
    with pytest.raises(ConfigError, match=r"2: encoder_conf.macaron_style: not a key of this encoder; remove it"):
        load_config(path)


def test_a_training_is_the_same_with_settings_of_its_pretrained_encoder_that_a_later_release_adds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.yaml"
    text = "encoder: pretrained\nencoder_conf: {path: e, freeze: all, cache: c}\ndataset_conf: {spec_aug: false}\n"
    path.write_text(text)
    fixed = {key for key in _fixed_settings(load_config(path)) if key.startswith("encoder_conf.")}
    assert fixed == {"encoder_conf.path", "encoder_conf.freeze", "encoder_conf.cache"}


@pytest.mark.parametrize("head", HEADS)
def test_a_training_starts_from_it(head: str, folders: Path, corpus: TinyCorpus, tmp_path: Path) -> None:
    overrides = [*SMALL, *(text.format(folders) for text in HEADS[head]), "max_epoch=1", "max_minutes=1e-9"]
    corpus.train(tmp_path / head, *overrides, head=head, checkpoint=folders / head)
    lines = (tmp_path / head / "train.yaml").read_text("utf-8")
    assert "sha256 of checkpoint: none" not in lines
    assert step_of(newest(tmp_path / head)) == 1
