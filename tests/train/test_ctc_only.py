# SPDX-License-Identifier: Apache-2.0
"""`decoder: none`: training, resume, average, every command that reads the model, and fine-tuning
to and from it.
"""

import json
import logging
from pathlib import Path
from types import ModuleType

import pytest
import torch
from command_line import Capsys, error_line
from tiny_corpus import TinyCorpus, cut_back, metrics, outcome, weights_of

from wenet_hs import load_model
from wenet_hs.bin import align, average, check_options, recognize, report, score, transcribe
from wenet_hs.bin.main import run_command
from wenet_hs.config.load import load_config
from wenet_hs.decode import MODES
from wenet_hs.tree.errors import ConfigError

CTC_MODES = {"ctc_greedy_search", "ctc_prefix_beam_search"}
CTC_ONLY = ("decoder=none", "decoder_conf=null", "model_conf=null")
TREE = ("ctc_conf.head=hsoftmax", "ctc_conf.head_conf.tree={}/tree.json")


def overrides(corpus: TinyCorpus, *more: str) -> tuple[str, ...]:
    return (
        *CTC_ONLY,
        "save_interval=4",
        *(one.replace("{}/", f"{corpus.folder}/") for one in (*TREE, *more)),
    )


@pytest.fixture(scope="module")
def ctc_only(tiny_corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder with a tree under CTC."""
    return tiny_corpus.train(tmp_path_factory.mktemp("ctc-only") / "m", *overrides(tiny_corpus))


def call(command: ModuleType, *arguments: Path | str) -> int:
    on_cpu = ("--device", "cpu") if command in (recognize, transcribe, align) else ()
    return run_command(command, [*map(str, arguments), *on_cpu])


def test_the_records_have_no_values_of_a_decoder_and_a_resumed_run_ends_with_the_same_bits(
    tiny_corpus: TinyCorpus, tmp_path: Path, ctc_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        copy = tiny_corpus.train(cut_back(ctc_only, tmp_path / "m", 4), *overrides(tiny_corpus))
    assert outcome(copy) == outcome(ctc_only)
    for record in metrics(copy):
        assert record["loss"] == record["loss_ctc"] > 0
        assert record["loss_att"] is record["accuracy"] is record["bits_per_unit"] is None
    last = metrics(copy)[-1]["loss"]
    assert f"validation loss {last:.3f} (ctc {last:.3f}) | " in caplog.text
    assert not [
        name for name in weights_of(copy) if name.startswith(("decoder.", "head.", "right_head."))
    ]
    config = load_config(copy / "train.yaml")
    assert (config.decoder, config.model_conf.ctc_weight) == ("none", 1.0)
    with pytest.raises(ConfigError, match="decoder was 'none', is now 'transformer'"):
        tiny_corpus.train(copy)


def test_checkpoints_are_averaged_by_the_loss(
    ctc_only: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = ("--dst_model", tmp_path / "final.pt", "--model_dir", ctc_only)
    assert call(average, *out, "--num", "2") == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'final.pt'}: average of step-")
    line = error_line(call(average, *out, "--by", "accuracy"), capsys)
    assert line.endswith("no checkpoint whose validation measured accuracy; use --by last")


def test_intermediate_ctc_early_stopping_and_freeze(
    tiny_corpus: TinyCorpus, tmp_path: Path, ctc_only: Path
) -> None:
    more = ("model_conf={interctc_weight: 0.3, interctc_layer: 1}", "encoder_conf.num_blocks=2")
    more += ("freeze=[encoder.embed]", "early_stopping.metric=loss_ctc", "max_epoch=1")
    folder = tiny_corpus.train(tmp_path / "m", *overrides(tiny_corpus, *more))
    first = metrics(folder)[0]
    assert first["loss"] != first["loss_ctc"], "training has the loss of the lower layer"
    with pytest.raises(
        ConfigError, match="freeze: 'decoder' is no parameter and no module with parameters"
    ):
        tiny_corpus.train(tmp_path / "n", *overrides(tiny_corpus, "freeze=[decoder]"))


def test_recognize_score_and_report(
    tiny_corpus: TinyCorpus, ctc_only: Path, tmp_path: Path, capsys: Capsys
) -> None:
    line = (
        "--model_dir",
        ctc_only,
        "--test_data",
        tiny_corpus.cv_data,
        "--result_dir",
        ctc_only / "test",
    )
    for mode in sorted(MODES.keys() - CTC_MODES):
        found = error_line(call(recognize, *line, "--modes", "ctc_greedy_search", mode), capsys)
        expected = f"{mode}: needs a decoder, and this model has none; use "
        assert found == expected + "ctc_greedy_search or ctc_prefix_beam_search"
    assert call(recognize, *line, "--length_bonus", "0.5") == 0
    assert {path.parent.name for path in (ctc_only / "test").glob("*/text")} == CTC_MODES
    assert (
        call(score, "--metric", "cer", "--ref", tiny_corpus.cv_data, "--hyp", ctc_only / "test")
        == 0
    )
    assert call(report, "--exp", ctc_only, "--out", tmp_path / "report.html") == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert (
        "hsoftmax" in page
        and "CTC loss, nats per target" in page
        and "Attention accuracy" not in page
    )
    assert call(report, "--exp", ctc_only, "--results", tmp_path / "results") == 0


def test_transcribe_and_align(
    tiny_corpus: TinyCorpus, ctc_only: Path, tmp_path: Path, capsys: Capsys
) -> None:
    clip = json.loads(tiny_corpus.cv_data.read_text("utf-8").splitlines()[0])["wav"]
    assert call(transcribe, "--model_dir", ctc_only, clip, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    recognizer = load_model(ctc_only)
    expected = recognizer.transcribe(clip, mode="ctc_prefix_beam_search")
    assert (found["text"], found["score"]) == (expected.text, expected.score)
    assert recognizer.transcribe(clip) == expected and recognizer.has_times
    assert len(recognizer.transcribe_recording(clip).segments) == 1
    with pytest.raises(ConfigError, match="joint: needs a decoder, and this model has none"):
        recognizer.transcribe(clip, mode="joint")
    assert (
        call(
            align,
            "--model_dir",
            ctc_only,
            "--data_list",
            tiny_corpus.cv_data,
            "--out",
            tmp_path / "a.jsonl",
        )
        == 0
    )
    assert len((tmp_path / "a.jsonl").read_text("utf-8").splitlines()) == 3


def test_fine_tuning_to_a_model_with_a_decoder_and_back(
    tiny_corpus: TinyCorpus,
    tmp_path: Path,
    ctc_only: Path,
    trained_tree: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The learning rate of the only step is so small that no weight changes.
    end = ("optim_conf.lr=1e-30", "max_minutes=1e-9")
    tree = (one.replace("{}", str(tiny_corpus.folder)) for one in TREE)
    caplog.set_level(logging.INFO)
    folder = tiny_corpus.train(tmp_path / "m", *end, *tree, head="hsoftmax", checkpoint=ctc_only)
    base, found = weights_of(ctc_only), weights_of(folder)
    names = {name for name in base if "running_" not in name and "num_batches" not in name}
    assert all(torch.equal(found[name], base[name]) for name in names)
    of_decoder = {name for name in found if name.startswith(("decoder.", "head."))}
    fine_tune = json.loads((folder / "fine_tune.json").read_text("utf-8"))
    assert set(fine_tune["parameters_new"]) == of_decoder and not fine_tune["parameters_dropped"]
    assert fine_tune["parameters_taken"] == len(base)

    folder = tiny_corpus.train(tmp_path / "n", *CTC_ONLY, *end, checkpoint=trained_tree)
    assert "dropped: decoder.embed.0.weight, " in caplog.text.rsplit("weights from ", 1)[1]
    fine_tune = json.loads((folder / "fine_tune.json").read_text("utf-8"))
    base, found = weights_of(trained_tree), weights_of(folder)
    assert set(fine_tune["parameters_dropped"]) == base.keys() - found.keys() == of_decoder
    assert fine_tune["parameters_new"] == [] and fine_tune["parameters_taken"] == len(found)


def test_options_of_a_recipe(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "c.yaml").write_text("decoder: none\n")
    line = ("--config", tmp_path / "c.yaml", "--modes")
    assert call(check_options, *line, "ctc_greedy_search") == 0
    found = error_line(call(check_options, *line, "ctc_greedy_search", "attention"), capsys)
    assert (
        found
        == "decoder: none, --modes attention: must be one of ctc_greedy_search, ctc_prefix_beam_search"
    )
    found = error_line(
        call(check_options, *line, "ctc_greedy_search", "--head", "hsoftmax"), capsys
    )
    assert (
        "head: decoder: none has no output layer but that of CTC; remove it, and use ctc_conf.head"
        in found
    )
