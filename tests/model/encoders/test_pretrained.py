# SPDX-License-Identifier: Apache-2.0
"""Pretrained encoders: as in transformers, independent of padding; layers, freezing, masks, outputs
that are kept.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

transformers = pytest.importorskip("transformers")
from pretrained_folders import CONFIGS, make_encoder, write_folder  # noqa: E402  # after importorskip

from wenet_hs.base.files import LFS_POINTER  # noqa: E402
from wenet_hs.config.encoders import PretrainedConf  # noqa: E402
from wenet_hs.model.encoders.description import EncoderDescription, read_description  # noqa: E402
from wenet_hs.model.encoders.kinds import differences, make_pretrained  # noqa: E402
from wenet_hs.model.encoders.outputs import EncoderOutputs  # noqa: E402
from wenet_hs.model.encoders.pretrained import PretrainedEncoder, mask_spans  # noqa: E402
from wenet_hs.model.encoders.stack import EncoderStack  # noqa: E402
from wenet_hs.model.encoders.weights import load_pretrained  # noqa: E402
from wenet_hs.tree.errors import CheckpointError, ConfigError  # noqa: E402

SAMPLES = (9600, 5280, 8000, 2000)


def waves(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [0.1 * torch.randn(number, generator=generator) for number in SAMPLES]


def inputs_of(encoder: PretrainedEncoder, clips: list[Tensor]) -> tuple[Tensor, Tensor]:
    assert encoder.own_frontend is not None
    inputs = [encoder.own_frontend.compute(clip) for clip in clips]
    return pad_sequence(inputs, batch_first=True), torch.tensor([*map(len, inputs)])


@torch.no_grad()
def memories(encoder: PretrainedEncoder, clips: list[Tensor]) -> list[Tensor]:
    memory, lengths, _ = encoder(*inputs_of(encoder, clips))
    return [rows[:length] for rows, length in zip(memory, lengths, strict=True)]


@torch.no_grad()
def of_transformers(encoder: PretrainedEncoder, clip: Tensor) -> Tensor:
    """What the module computes by its own `forward` of a single clip, (T, D)."""
    module, kind = encoder.pretrained, encoder.description.kind
    if kind == "whisper":
        extractor = transformers.WhisperFeatureExtractor()
        features = extractor(clip.numpy(), sampling_rate=16000, return_tensors="pt").input_features
        return module(features).last_hidden_state[0, : -(-len(clip) // 320)]
    if kind == "wav2vec2-bert":  # on our features, which are compared below
        features_TF = inputs_of(encoder, [clip])[0][0].double()
        normed = ((features_TF - features_TF.mean(0)) / (features_TF.var(0) + 1e-7).sqrt()).float()
        pairs = normed[: len(normed) // 2 * 2].view(1, -1, 160)
        return module(pairs, attention_mask=torch.ones(1, pairs.size(1))).last_hidden_state[0]
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
    return module(
        extractor(clip.numpy(), sampling_rate=16000, return_tensors="pt").input_values
    ).last_hidden_state[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_is_what_transformers_computes_of_each_clip(name: str) -> None:
    encoder, clips = make_encoder(name), waves()
    if name == "whisper":  # whole windows
        encoder, clips = (
            make_encoder(name, silence_s=29),
            [pad(clip, (0, 16000 - len(clip))) for clip in clips],
        )
    for clip, memory in zip(clips, memories(encoder, clips), strict=True):
        assert torch.allclose(memory, of_transformers(encoder, clip)[: len(memory)], atol=1e-5)


def test_the_features_of_w2v_bert_are_those_of_its_extractor() -> None:
    encoder = make_encoder("w2v-bert")
    for clip in waves():
        features = transformers.SeamlessM4TFeatureExtractor()(
            clip.numpy(), sampling_rate=16000, return_tensors="pt"
        )
        ours = inputs_of(encoder, [clip])[0][0]
        normed = (ours - ours.mean(0)) / (ours.var(0) + 1e-7).sqrt()
        expected = features.input_features.view(-1, 80)[: len(ours)]
        assert torch.allclose(normed, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["hubert", "w2v-bert"])
def test_layers_that_config_json_adds_without_their_number(name: str) -> None:
    """A HuBERT has none, a w2v-BERT one, as in transformers."""
    config = {**CONFIGS[name], "add_adapter": True}
    encoder, clip = (
        make_pretrained(EncoderDescription(config), PretrainedConf(path="x")).eval(),
        waves()[0],
    )
    expected = of_transformers(encoder, clip)
    assert torch.allclose(memories(encoder, [clip])[0], expected, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_and_the_order_of_a_batch_change_nothing(name: str) -> None:
    encoder = make_encoder(name)
    alone = [memories(encoder, [clip])[0] for clip in waves()]
    together, reverse = memories(encoder, waves()), memories(encoder, waves()[::-1])[::-1]
    padded, lengths = inputs_of(encoder, waves())
    more = torch.cat([padded, torch.full_like(padded[:, :700], 3.0)], dim=1)
    with torch.no_grad():
        memory, out_lengths, _ = encoder(more, lengths)
    for index, expected in enumerate(alone):
        assert len(expected) == encoder.output_length(int(lengths[index])) == out_lengths[index]
        for found in (together[index], reverse[index], memory[index, : len(expected)]):
            assert torch.allclose(found, expected, atol=1e-5)


def test_long_audio_for_whisper_is_windows_of_whisper() -> None:
    encoder = make_encoder("whisper", silence_s=2)
    clip = 0.1 * torch.randn(16000 * 65)
    windows = [memories(encoder, [part])[0] for part in clip.split(16000 * 28)]
    for window, part in zip(
        windows[:2], clip.split(16000 * 28), strict=False
    ):  # with 2 s of silence they are whole
        assert torch.allclose(window, of_transformers(encoder, part)[: len(window)], atol=1e-5)
    short = clip[: 16000 * 5]
    for found in memories(encoder, [clip, short])[:1]:
        assert torch.allclose(found, torch.cat(windows), atol=1e-5)
    assert torch.allclose(
        memories(encoder, [clip, short])[1], memories(encoder, [short])[0], atol=1e-5
    )


def test_how_long_audio_is_encoded_as_one_whole() -> None:
    whisper, other = make_encoder("whisper", silence_s=2), make_encoder("w2v-bert")
    assert (whisper.longest_s, other.longest_s, EncoderStack.longest_s) == (28, 30, math.inf)
    assert whisper.own_frontend is not None and other.own_frontend is not None
    assert (whisper.own_frontend.window_s, EncoderOutputs(whisper).window_s) == (28, 28)
    assert other.own_frontend.window_s == math.inf
    assert (whisper.max_batch_s, other.max_batch_s, EncoderStack.max_batch_s) == (
        120,
        120,
        math.inf,
    )


@pytest.mark.parametrize("name", ["wav2vec2", "wav2vec2-adapter", "w2v-bert-adapter", "whisper"])
@pytest.mark.parametrize("layers", ["last", "weighted", 2])
def test_frames_times_stride_is_the_length_of_the_audio(name: str, layers: int | str) -> None:
    encoder = make_encoder(name, layers=layers)
    [memory] = memories(encoder, [torch.randn(16000 * 4)])
    assert len(memory) * encoder.stride * encoder.own_frontend.frame_s == pytest.approx(
        4.0, abs=0.2
    )


@pytest.mark.parametrize("name", ["xls-r", "w2v-bert-adapter", "whisper"])
def test_the_layers_that_make_the_memory(name: str) -> None:
    last, second = make_encoder(name), make_encoder(name, layers=2)
    clips = waves()
    with torch.no_grad():
        _, _, outputs = last(*inputs_of(last, clips), (2, 3))
    state = {
        key: value
        for key, value in last.pretrained.state_dict().items()
        if key in second.pretrained.state_dict()
    }
    second.pretrained.load_state_dict(state)
    for found, expected in zip(memories(second, clips), outputs[2], strict=True):
        assert torch.allclose(found, expected[: len(found)], atol=1e-5)
    weighted = make_encoder(name, layers="weighted")
    assert weighted.layer_weights is not None and len(weighted.layer_weights) == 4
    with torch.no_grad():
        weighted.layer_weights.copy_(torch.tensor([0.0, 0.0, 50.0, 0.0]))
    weighted.pretrained.load_state_dict({**weighted.pretrained.state_dict(), **state})
    kept = weighted.states(*inputs_of(weighted, clips))[..., 32:48]
    for found, expected in zip(memories(weighted, clips), kept, strict=True):
        assert torch.allclose(found, expected[: len(found)], atol=1e-5)


class Memory(torch.nn.Module):
    """`forward` without the outputs of layers."""

    def __init__(self, encoder: PretrainedEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(inputs, lengths)[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(CONFIGS.keys() - {"w2v-bert-relative"})
)  # its positions are a cache of Python
@torch.no_grad()
def test_the_memory_can_be_exported(name: str) -> None:
    encoder = make_encoder(name)
    inputs, lengths = inputs_of(encoder, waves()[:3])
    shapes = (
        {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},
        {0: torch.export.Dim.DYNAMIC},
    )
    program = torch.export.export(
        Memory(encoder), (inputs, lengths), dynamic_shapes=shapes, strict=False
    ).module()
    for clips in (waves()[1:3], [waves()[0].repeat(5), *waves()]):
        for found, expected in zip(
            *(one(*inputs_of(encoder, clips)) for one in (program, encoder)), strict=False
        ):
            assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["wav2vec2", "wavlm", "w2v-bert", "whisper"])
def test_recomputation_and_bfloat16(name: str) -> None:
    gradients = []
    for recompute in (False, True):
        encoder = make_encoder(name, freeze="none", gradient_checkpointing=recompute).train()
        torch.manual_seed(3)
        memory, _, _ = encoder(*inputs_of(encoder, waves()))
        memory.square().sum().backward()
        gradients.append([value.grad for value in encoder.parameters() if value.grad is not None])
    assert gradients[0] and all(map(torch.equal, *gradients))
    encoder = make_encoder(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = memories(encoder, waves())
    for found, expected in zip(rough, memories(encoder, waves()), strict=True):
        assert (found.float() - expected).abs().mean() < 0.1


@pytest.mark.parametrize(
    ("name", "freeze", "trained"),
    [
        (
            "xls-r",
            "none",
            "feature_extractor.conv_layers.0.conv.weight encoder.layers.0 encoder.layers.2",
        ),
        ("xls-r", "feature_encoder", "feature_projection encoder.layers.0 encoder.layers.2"),
        ("xls-r", 2, "encoder.layers.2 encoder.layer_norm"),
        ("wavlm", 1, "encoder.layers.1 encoder.layers.2"),
        (
            "mms",
            "all_but_adapters",
            " ".join(f"encoder.layers.{n}.adapter_layer" for n in range(3)),
        ),
        ("w2v-bert", 2, "encoder.layers.2"),
        ("whisper", 2, "layers.2 layer_norm"),
        ("whisper", "feature_encoder", "layers.0 layers.2 layer_norm"),
        ("whisper", "all", ""),
    ],
)
def test_what_is_frozen(name: str, freeze: str | int, trained: str) -> None:
    encoder = make_encoder(name, freeze=freeze)
    parts = [
        part.removeprefix("encoder.pretrained").removeprefix(".") for part in encoder.frozen_parts()
    ]
    names = [name for name, _ in encoder.pretrained.named_parameters()]
    left = [
        name
        for name in names
        if not any(f"{name}.".startswith(f"{part}." if part else "") for part in parts)
    ]
    for part in trained.split():
        assert any(f"{name}.".startswith(f"{part}.") for name in left)
    assert all(
        any(f"{name}.".startswith(f"{part}.") for part in trained.split()) for name in left
    ) or freeze in (
        "none",
        "feature_encoder",
    )


def test_held_layers_have_no_dropout_and_no_gradient() -> None:
    encoder = make_encoder("wav2vec2", layers="weighted", mask_time=0.5).train()
    encoder.is_held = True
    encoder.train()
    first, second = (encoder(*inputs_of(encoder, waves()))[0] for _ in range(2))
    assert torch.equal(first, second)
    first.sum().backward()
    assert all(value.grad is None for value in encoder.pretrained.parameters())
    assert encoder.layer_weights is not None and encoder.layer_weights.grad is not None
    encoder.is_held = False
    encoder.train()
    assert not torch.equal(*(encoder(*inputs_of(encoder, waves()))[0] for _ in range(2)))


@pytest.mark.parametrize("name", ["wav2vec2", "w2v-bert", "whisper"])
def test_masks_are_drawn_in_training_only_and_never_reach_beyond_a_clip(name: str) -> None:
    encoder = make_encoder(name, mask_time=0.9, mask_feature=0.3)
    short = [waves()[0][:700]]  # shorter than a mask
    for clips in (waves(), short):
        expected = memories(encoder, clips)
        for module in encoder.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        draws = [memories(encoder.train(), clips) for _ in range(30)]
        for found in draws:
            assert [len(rows) for rows in found] == [len(rows) for rows in expected]
            assert all(rows.isfinite().all() for rows in found)
        assert any(not torch.allclose(found[0], expected[0]) for found in draws)
        encoder.eval()


@pytest.mark.parametrize("name", ["xls-r", "w2v-bert-adapter", "whisper"])
@pytest.mark.parametrize("layers", ["last", "weighted", 2])
def test_outputs_that_are_kept_give_the_same_memory(name: str, layers: str | int) -> None:
    encoder = make_encoder(name, layers=layers, freeze="all")
    frontend, expected = EncoderOutputs(encoder), memories(encoder, waves())
    outputs = [frontend.compute(clip) for clip in waves()]
    assert [len(rows) for rows in outputs] == [frontend.length(number) for number in SAMPLES]
    assert all(
        torch.equal(rows, rows.half().float()) and rows.size(1) == frontend.width
        for rows in outputs
    )
    encoder.takes_outputs = True
    lengths = torch.tensor([*map(len, outputs)])
    with torch.no_grad():
        memory, out_lengths, _ = encoder(pad_sequence(outputs, batch_first=True), lengths)
    assert torch.equal(lengths, out_lengths)
    for found, rows in zip(memory, expected, strict=True):
        assert torch.allclose(found[: len(rows)], rows, atol=5e-3)


@pytest.mark.parametrize(
    ("name", "prefix"), [("xls-r", "wav2vec2."), ("w2v-bert", ""), ("whisper", "model.encoder.")]
)
def test_weights_are_found_under_the_names_of_a_whole_model(
    name: str, prefix: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, name, prefix)
    expected = memories(make_encoder(name), waves())
    encoder = make_encoder(name)
    for value in encoder.parameters():
        value.data.zero_()
    load_pretrained(encoder.pretrained, tmp_path)
    assert all(
        torch.equal(*pair) for pair in zip(memories(encoder, waves()), expected, strict=True)
    )


def test_older_names_a_pickle_and_shards(tmp_path: Path) -> None:
    encoder = make_encoder("wav2vec2")
    state = {f"wav2vec2.{key}": value for key, value in encoder.pretrained.state_dict().items()}
    ends = {
        "parametrizations.weight.original0": "weight_g",
        "parametrizations.weight.original1": "weight_v",
    }
    for new, old in ends.items():
        state[f"wav2vec2.encoder.pos_conv_embed.conv.{old}"] = state.pop(
            f"wav2vec2.encoder.pos_conv_embed.conv.{new}"
        )
    state["lm_head.weight"] = torch.zeros(2, 2)
    torch.save(state, tmp_path / "pytorch_model.bin")
    load_pretrained(make_encoder("wav2vec2").pretrained, tmp_path)
    names = sorted(state)
    parts = {f"model-{part}.safetensors": names[part::2] for part in range(2)}
    for file, of_part in parts.items():
        save_file({name: state[name].contiguous() for name in of_part}, tmp_path / file)
    index = {"weight_map": {name: file for file, of_part in parts.items() for name in of_part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    load_pretrained(make_encoder("wav2vec2").pretrained, tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-1.safetensors: no such file"):
        load_pretrained(encoder.pretrained, tmp_path)


def test_adapters_of_mms_are_never_those_of_another_language(tmp_path: Path) -> None:
    write_folder(tmp_path, "mms", "wav2vec2.")
    encoder = make_encoder("mms", adapter="mdw")
    names = [name for name in encoder.pretrained.state_dict() if ".adapter_layer." in name]
    shapes = encoder.pretrained.state_dict()
    adapter = {f"wav2vec2.{name}": torch.full_like(shapes[name], 0.25) for name in names}
    save_file(adapter, tmp_path / "adapter.fra.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"adapter.mdw.safetensors: no such adapter; use one of fra, or `new`$",
    ):
        load_pretrained(encoder.pretrained, tmp_path, "mdw")
    (tmp_path / "adapter.mdw.safetensors").write_bytes(LFS_POINTER)
    with pytest.raises(
        CheckpointError, match=r"adapter.mdw.safetensors: a pointer of Git LFS; run"
    ):
        load_pretrained(encoder.pretrained, tmp_path, "mdw")
    load_pretrained(encoder.pretrained, tmp_path, "fra")
    assert all(bool((encoder.pretrained.state_dict()[name] == 0.25).all()) for name in names)
    load_pretrained(encoder.pretrained, tmp_path, "new")
    with pytest.raises(
        ConfigError,
        match="adapter: the encoder has adapters for languages; name the language, or `new`",
    ):
        make_encoder("mms", adapter=None)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {},
            "config.json: cannot be read .No such file or directory.; encoder_conf.path is a folder",
        ),
        ({"config.json": "{"}, "config.json: is no JSON; download it again"),
        (
            {"config.json": '{"model_type": "bert"}'},
            "'bert' is not supported; use one of wav2vec2, hubert, wavlm, wav",
        ),
        (
            {"config.json": '{"model_type": "wav2vec2-bert"}'},
            "config.json: does not describe an encoder .KeyError",
        ),
        ({"config.json": f'{{"a": {"[" * 200_000}'}, "config.json: is no JSON; download it again"),
        (
            {"config.json": '{"model_type": "wavlm"}'},
            "preprocessor_config.json: no such file; download it too: it says",
        ),
        (
            {
                "config.json": json.dumps(CONFIGS["wav2vec2"]),
                "preprocessor_config.json": '{"sampling_rate": 8000}',
            },
            "preprocessor_config.json: sampling_rate 8000; only 16000 is supported",
        ),
        (
            {
                "config.json": json.dumps(CONFIGS["w2v-bert"]),
                "preprocessor_config.json": '{"stride": 1}',
            },
            "preprocessor_config.json: stride 1; only 2 is supported",
        ),
        (
            {"config.json": json.dumps(CONFIGS["w2v-bert"] | {"feature_projection_input_dim": 80})},
            "config.json: feature_projection_input_dim 80; only 160 is supported",
        ),
        (
            {
                "config.json": json.dumps(CONFIGS["whisper"]),
                "preprocessor_config.json": '{"feature_size": 128}',
            },
            "preprocessor_config.json: feature_size 128; only 80 is supported",
        ),
        (
            {
                "config.json": json.dumps(CONFIGS["wavlm"]),
                "preprocessor_config.json": '{"do_normalize": "false"}',
            },
            "preprocessor_config.json: do_normalize 'false'; must be true or false",
        ),
    ],
)
def test_folders_that_do_not_describe_an_encoder(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        read_description(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": []},
        {"preprocessor": []},
        {"config": CONFIGS["wav2vec2"] | {"hidden_size": "abc"}},
        {"config": CONFIGS["wav2vec2"] | {"num_hidden_layers": None}},
        {
            "config": CONFIGS["wav2vec2"]
            | {"conv_stride": [0] * len(CONFIGS["wav2vec2"]["conv_kernel"])}
        },
    ],
)
def test_an_encoder_json_of_others_is_read_with_care(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    content = {"config": CONFIGS["wav2vec2"], "preprocessor": {}} | changes
    (tmp_path / "encoder.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"encoder\.json: does not describe an encoder"):
        read_description(tmp_path / "encoder.json")


def test_weights_that_are_missing_or_of_another_encoder(tmp_path: Path) -> None:
    module = make_encoder("wav2vec2").pretrained
    with pytest.raises(
        CheckpointError,
        match=r"no weights \(model.safetensors or pytorch_model.bin\); download the whole",
    ):
        load_pretrained(module, tmp_path)
    save_file({"encoder.layer_norm.weight": torch.zeros(7)}, tmp_path / "model.safetensors")
    message = r"of another shape encoder.layer_norm.weight \(7,\), expected \(16,\); config.json and the weights are not of o"
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(module, tmp_path)
    norm = {"encoder.layer_norm.weight": torch.ones(16, dtype=torch.int8)}
    save_file({**module.state_dict(), **norm}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"integers encoder.layer_norm.weight; config.json and the weights"
    ):
        load_pretrained(module, tmp_path)
    (tmp_path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )
    with pytest.raises(
        CheckpointError, match="model.safetensors: a pointer of Git LFS; run `git lfs pull`"
    ):
        load_pretrained(module, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = tmp_path / "model.safetensors.index.json"
    for names in ({}, {"a": ".."}, {"a": "/etc/passwd"}):
        index.write_text(json.dumps({"weight_map": names}))
        with pytest.raises(
            CheckpointError, match="index.json: names no files of this folder; download it again"
        ):
            load_pretrained(module, tmp_path)
    for key, value in (("layers", 4), ("freeze", 9)):
        with pytest.raises(
            ConfigError,
            match=f"encoder_conf.{key}: {value}, but the encoder has 3 layers; use fewer",
        ):
            make_encoder("wav2vec2", **{key: value})
    with pytest.raises(
        ConfigError, match="encoder_conf.adapter: the encoder has no adapters; remove it"
    ):
        make_encoder("wav2vec2", adapter="mdw")


SMALLER = {"num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "weights", "name"),
    [
        ("wav2vec2", "wavlm", "encoder.layers.0.attention.gru_rel_pos_"),
        ("xls-r", "mms", "adapter_layer"),
        ("wav2vec2", "mhubert", "encoder.pos_conv_embed.batch_norm"),
        ("wav2vec2", "wav2vec2-adapter", "adapter.layers.0"),
        ("w2v-bert", "w2v-bert-adapter", "adapter.layers.0"),
        ({**CONFIGS["xls-r"], **SMALLER}, "xls-r", "encoder.layers.2"),
        ({**CONFIGS["whisper"], "encoder_layers": 2}, "whisper", "layers.2"),
    ],
)
def test_weights_of_another_architecture_are_refused(
    config: str | dict[str, Any], weights: str, name: str, tmp_path: Path
) -> None:
    """Although the module would find all of its own names."""
    write_folder(tmp_path, weights, "model.encoder." if weights == "whisper" else "")
    description = EncoderDescription(CONFIGS[config] if isinstance(config, str) else config)
    module = make_pretrained(description, PretrainedConf(path="x")).pretrained
    with pytest.raises(
        CheckpointError, match=f"weights of another model: (missing .*; )?unexpected .*{name}"
    ):
        load_pretrained(module, tmp_path)


@pytest.mark.parametrize("name", ["wav2vec2-adapter", "w2v-bert-adapter", "whisper", "wavlm"])
@pytest.mark.parametrize("layers", [2, "weighted"])
def test_weights_of_layers_that_are_left_out_may_be_there(
    name: str, layers: int | str, tmp_path: Path
) -> None:
    load_pretrained(make_encoder(name, layers=layers).pretrained, write_folder(tmp_path, name))


def test_what_changes_the_outputs_of_the_same_weights() -> None:
    one = EncoderDescription(CONFIGS["xls-r"], {"do_normalize": False})
    other = EncoderDescription(
        {**CONFIGS["xls-r"], "do_stable_layer_norm": False, "_name_or_path": "a/b"}
    )
    expected = ["do_stable_layer_norm True, not False", "do_normalize False, not True"]
    assert differences(one, other) == expected
    del other.config["do_stable_layer_norm"]  # type: ignore[attr-defined]  # whose default is False
    assert differences(one, other) == expected
    assert (
        differences(
            one, EncoderDescription({**CONFIGS["xls-r"], "hidden_dropout": 0.5}, one.preprocessor)
        )
        == []
    )
    assert differences(one, EncoderDescription(CONFIGS["wavlm"])) == [
        "model_type 'wav2vec2', not 'wavlm'"
    ]
    bert = [
        EncoderDescription({**CONFIGS["w2v-bert"], "left_max_position_embeddings": n})
        for n in (8, 9)
    ]
    assert differences(*bert) == ["left_max_position_embeddings 8, not 9"]
    with pytest.raises(ConfigError, match="max_source_positions 100; only 1500 is supported"):
        EncoderDescription({**CONFIGS["whisper"], "max_source_positions": 100})


def test_spans_hide_the_share_that_is_asked_for() -> None:
    torch.manual_seed(0)
    x_BTD = torch.ones(8, 2000, 400)
    masked = mask_spans(x_BTD, 0.3, 0.0, torch.full((400,), 2.0))
    share = float((masked[:, :, 0] == 2).float().mean())
    assert abs(share - (1 - (1 - 0.03) ** 10)) < 0.03  # spans overlap
    assert bool(((masked == 1) | (masked == 2)).all()) and bool((masked == masked[:, :, :1]).all())
    masked = mask_spans(x_BTD, 0.0, 0.3)
    assert abs(float((masked == 0).float().mean()) - (1 - (1 - 0.03) ** 10)) < 0.05
    assert bool((masked == masked[:, :1]).all())
    assert mask_spans(x_BTD, 0.0, 0.0) is x_BTD and mask_spans(x_BTD[:, :1], 0.9, 0.9).shape == (
        8,
        1,
        400,
    )


@pytest.mark.parametrize("name", ["wav2vec2", "xls-r", "wavlm-large", "w2v-bert"])
def test_lower_layers_are_those_of_transformers(name: str) -> None:
    """Also their input, the first of the weighted outputs.

    The last layer's normalization is that of the module.
    """
    weighted, second = make_encoder(name, layers="weighted"), make_encoder(name, layers=2)
    second.pretrained.load_state_dict(
        {
            k: v
            for k, v in weighted.pretrained.state_dict().items()
            if k in second.pretrained.state_dict()
        }
    )
    clip = waves()[0]
    inputs, lengths = inputs_of(weighted, [clip])
    if name == "w2v-bert":
        normed = (
            (inputs[0].double() - inputs[0].double().mean(0))
            / (inputs[0].double().var(0) + 1e-7).sqrt()
        ).float()
        values = normed.view(1, -1, 160)
    else:
        extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
        values = extractor(clip.numpy(), sampling_rate=16000, return_tensors="pt").input_values
    with torch.no_grad():
        hidden = weighted.pretrained(values, output_hidden_states=True).hidden_states
    states = weighted.states(inputs, lengths).split(16, dim=2)
    for state, expected in zip(states, hidden, strict=True):
        assert torch.allclose(state, torch.nn.functional.layer_norm(expected, (16,)), atol=1e-5)
    expected = hidden[2]
    if name in ("xls-r", "wavlm-large"):
        with torch.no_grad():
            expected = weighted.pretrained.encoder.layer_norm(expected)
    assert torch.allclose(memories(second, [clip])[0], expected[0], atol=1e-5)


def test_a_waveform_is_normalized_only_if_the_encoder_was_trained_so() -> None:
    raw = make_pretrained(
        EncoderDescription(CONFIGS["xls-r"], {"do_normalize": False}), PretrainedConf(path="x")
    ).eval()
    clip = waves()[0]
    with torch.no_grad():
        expected = raw.pretrained(clip[None]).last_hidden_state[0]
    assert torch.allclose(memories(raw, [clip])[0], expected, atol=1e-5)


def test_a_config_can_name_no_code_and_wrong_values_have_one_line() -> None:
    hostile = {
        "attn_implementation": "kernels-community/x",
        "_attn_implementation": "x/y",
        "auto_map": {"AutoModel": "a/b--c.D"},
    }
    encoder = make_pretrained(
        EncoderDescription({**CONFIGS["xls-r"], **hostile}), PretrainedConf(path="x")
    )
    assert encoder.pretrained.config._attn_implementation in ("sdpa", "eager")
    for wrong in ({"hidden_act": "nope"}, {"num_attention_heads": 3}, {"num_hidden_layers": "3"}):
        with pytest.raises(
            ConfigError,
            match=r"^config.json: makes no encoder of the kind wav2vec2 .*download it again$",
        ):
            make_pretrained(
                EncoderDescription({**CONFIGS["xls-r"], **wrong}), PretrainedConf(path="x")
            )


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="encoder_conf.silence_s: has an effect with Whisper only; remove it"
    ):
        make_encoder("xls-r", silence_s=3)
    with pytest.raises(
        ConfigError, match="encoder_conf.freeze: 3, but the encoder has 1 layers; use fewer"
    ):
        make_encoder("xls-r", layers=1, freeze=3)
    for key, value in (
        ("mask_time", 0.1),
        ("lr", 0.1),
        ("freeze_steps", 3),
        ("adapter", "new"),
        ("layerdrop", 0.1),
    ):
        with pytest.raises(
            ValidationError,
            match=key if key != "adapter" else "all leaves the new adapters untrained",
        ):
            PretrainedConf(path="x", freeze="all", **{key: value})  # type: ignore[arg-type]
