# SPDX-License-Identifier: Apache-2.0
"""`freeze`: frozen parameters and modules, and wrong names."""

import json
import logging
from pathlib import Path

import pytest
import torch
from small_models import small_batch, small_config, small_model
from tiny_corpus import TinyCorpus, weights_of

from wenet_hs.errors import ConfigError
from wenet_hs.train.loop import run_epoch
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.setup import freeze
from wenet_hs.train.state import TrainState


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
    assert "freeze without --checkpoint: frozen parameters keep their random initial values" in caplog.text
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
        (["encoder.embd"], "'encoder.embd' is no parameter and no module with parameters; did you mean encoder.embed "),
        (["qqq"], "'qqq' is no .*; did you mean encoder or decoder or head or ctc"),
        (["encoder.global_cmvn"], "'encoder.global_cmvn' is no parameter"),
        (["encoder.encoder"], "'encoder.encoder' is no .*; did you mean encoder.encoders"),
        (["encoder", "decoder", "head", "ctc"], "names every parameter, so nothing is trained; remove a name$"),
    ],
)
def test_wrong_names_to_freeze(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^a.yaml: freeze: {message}"):
        freeze(small_model(), names, where="a.yaml")


def test_the_loss_must_depend_on_a_trained_parameter() -> None:
    config, model = small_config(model_conf={"ctc_only_steps": 5}), small_model()
    freeze(model, ["encoder", "ctc"], where="a.yaml")
    state = TrainState(model, build_optimizer(model, config), torch.device("cpu"))
    message = (
        "^step 1: no parameter that freeze leaves to train has a part in the loss at CTC weight 1; remove a name of"
    )
    with pytest.raises(ConfigError, match=message):
        next(run_epoch(state, [small_batch([40], [3])], config))
