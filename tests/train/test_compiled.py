# SPDX-License-Identifier: Apache-2.0
"""`compile: true`: parameter names and results do not change."""

import pytest
import torch
from small_models import small_batch, small_model

from wenet_hs.train.setup import compile_layers


def test_every_layer_is_compiled_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: asked.append((self, options)))
    model = small_model()
    names = list(model.state_dict())
    compile_layers(model)
    assert [module for module, _ in asked] == [*model.encoder.encoders, *model.decoder.decoders]
    assert all(options == {"dynamic": True} for _, options in asked)
    assert list(model.state_dict()) == names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler has its own
def test_compiled_layers_compute_the_same_and_decode() -> None:
    off = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    sections = {"encoder_conf": {**off, "num_blocks": 1}, "decoder_conf": {**off, "num_blocks": 1}}
    plain, fast = small_model(seed=2, **sections).train(), small_model(seed=2, **sections).train()
    compile_layers(fast)
    for frames, labels in (([60, 41], [9, 2]), ([80, 33, 50], [5, 2, 7]), ([97, 44], [4, 4])):
        totals = [model(small_batch(frames, labels)).total for model in (plain, fast)]
        for total in totals:
            total.backward()
        assert totals[1].item() == pytest.approx(totals[0].item(), rel=1e-5)
    for (name, parameter), other in zip(plain.named_parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-4, msg=name)
    fresh = small_model(seed=3, **sections)
    fresh.load_state_dict(fast.state_dict())
    for (name, value), other in zip(plain.state_dict().items(), fresh.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5, msg=name)
