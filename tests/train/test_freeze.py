# SPDX-License-Identifier: Apache-2.0
"""`freeze`: frozen parameters and modules, and wrong names."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_batch, small_model
from tiny_corpus import TinyCorpus, weights_of

from wenet_hs.config.schema import ModelConf
from wenet_hs.errors import ConfigError
from wenet_hs.train.setup import check_losses_reach_parameters, freeze

BIDIRECTIONAL: dict[str, Any] = {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1, "num_blocks": 1}}


def test_frozen_parameters_do_not_change(tiny_corpus: TinyCorpus, trained: Path, tmp_path: Path) -> None:
    """Weights and running statistics are bit-equal, the optimizer has no state of them, a resume must not change it."""
    names = ["encoder.embed", "encoder.encoders.0", "ctc.head.output.bias"]
    chosen = (f"freeze={json.dumps(names)}", "max_epoch=1")
    folder = tiny_corpus.train(tmp_path / "m", *chosen, checkpoint=trained)
    before, after = weights_of(trained), weights_of(folder)
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    expected = {name for name in before if name.startswith((*names, "encoder.global_cmvn"))}
    assert unchanged == expected
    assert any(name.endswith("running_mean") for name in expected)
    newest = max((folder / "checkpoints").glob("step-*"))
    optimizer = torch.load(newest / "optimizer.pt", weights_only=True)
    buffers = ("global_cmvn", "running_", "num_batches_tracked")
    trained_names = [name for name in before if name not in expected and not any(part in name for part in buffers)]
    assert len(optimizer["state"]) == len(trained_names)
    with pytest.raises(
        ConfigError, match=r"m/train.yaml: freeze was \['encoder.embed', .* is now \['decoder'\]; a resumed"
    ):
        tiny_corpus.train(folder, "freeze=[decoder]", "max_epoch=2")


def test_freeze_without_a_checkpoint_warns(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With sparse gradients everything but the head may be frozen; then the dense optimizer has no parameters."""
    sparse = ("head_conf.sparse_grad=true", "head_conf.route=torch", "head_conf.search=torch")
    sparse += ("model_conf.lsm_weight=0", "max_minutes=1e-9")
    folder = tiny_corpus.train(tmp_path / "m", "freeze=[encoder, decoder, ctc]", *sparse, head="hsoftmax")
    assert "freeze without --checkpoint: what is frozen stays as it was drawn at random" in caplog.text
    newest = max((folder / "checkpoints").glob("step-*"))
    optimizer = torch.load(newest / "optimizer.pt", weights_only=True)
    assert (len(optimizer["dense"]["state"]), len(optimizer["sparse"]["state"])) == (0, 1)


def test_a_frozen_module_computes_the_same_as_before(caplog: pytest.LogCaptureFixture) -> None:
    """It has no dropout and no batch statistics, while the rest trains; `encoders.1` is not `encoders.10`."""
    layers = {"encoder_conf": {"num_blocks": 11, "output_size": 8, "attention_heads": 1, "linear_units": 4}}
    model = small_model(**layers)
    with caplog.at_level(logging.INFO):
        freeze(model, ["encoder.embed", "encoder.encoders.1", "encoder.encoders.0.norm_ff.weight"], where="a.yaml")
    model.train()
    modes = {name: module.training for name, module in model.named_modules()}
    assert not any(training for name, training in modes.items() if f"{name}.".startswith("encoder.encoders.1."))
    assert modes["encoder.encoders.10.conv_module.norm"] and modes["encoder.encoders.0"] and modes["decoder"]
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    assert frozen and all(
        name.startswith(("encoder.embed.", "encoder.encoders.1.", "encoder.encoders.0.norm_ff.weight"))
        for name in frozen
    )
    assert "frozen: encoder.embed, encoder.encoders.1, encoder.encoders.0.norm_ff.weight: " in caplog.text
    batch = small_batch([40], [3])
    first, again = (model.encoder.embed(batch.features)[0] for _ in range(2))
    assert torch.equal(first, again) and not first.requires_grad
    model(batch).total.backward()
    assert all((value.grad is None) != value.requires_grad for value in model.parameters())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["encoder.embd"], "no parameter is called 'encoder.embd' or begins so; did you mean encoder.embed or "),
        (["qqq"], ".*'qqq' .*; did you mean encoder or decoder or head or ctc"),
        (["encoder.global_cmvn"], "no parameter is called 'encoder.global_cmvn'"),
        (["encoder.encoder"], "no parameter is called 'encoder.encoder' or begins so; did you mean encoder.encoders"),
        (["encoder", "decoder", "head", "ctc"], "holds every parameter, so that nothing is left to train; remove a "),
    ],
)
def test_wrong_names_to_freeze(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^a.yaml: freeze: {message}"):
        freeze(small_model(), names, where="a.yaml")


def test_the_loss_must_depend_on_a_trained_parameter() -> None:
    model = small_model(**BIDIRECTIONAL)
    freeze(model, ["encoder", "ctc", "decoder.left_decoder", "head"], where="a.yaml")
    check_losses_reach_parameters(model, ModelConf(ctc_weight=0.3, reverse_weight=0.1), where="a.yaml")
    for conf, message in (
        ({"ctc_weight": 0.3}, "while model_conf.ctc_weight makes CTC's share 0.3; remove a name$"),
        ({"reverse_weight": 0.1, "ctc_only_steps": 5}, "while model_conf.ctc_only_steps makes CTC's share 1; remove a"),
    ):
        with pytest.raises(ConfigError, match=f"^a.yaml: freeze: nothing that is left to train .*{message}"):
            check_losses_reach_parameters(model, ModelConf(**conf), where="a.yaml")  # type: ignore[arg-type]
    other = small_model()
    freeze(other, ["encoder", "decoder", "head"], where="a.yaml")
    check_losses_reach_parameters(other, ModelConf(ctc_weight=0.3, ctc_only_steps=5), where="a.yaml")
    with pytest.raises(ConfigError, match="model_conf.ctc_weight_final makes CTC's share 0; "):
        check_losses_reach_parameters(
            other, ModelConf(ctc_weight=0.3, ctc_weight_final=0.0, ctc_weight_steps=9), where="a.yaml"
        )
