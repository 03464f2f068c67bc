# SPDX-License-Identifier: Apache-2.0
"""Trainings with a pretrained encoder: resume, frozen weights, the cache of outputs, and what is
made of the folder.
"""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from tiny_corpus import TinyCorpus, cut_back, metrics, newest, outcome, weights_of

pytest.importorskip("transformers")
from command_line import Capsys, run_line  # noqa: E402  # after importorskip
from pretrained_folders import CONFIGS, make_encoder, write_folder  # noqa: E402
from test_distributed import run_pair  # noqa: E402

from wenet_hs.base.files import file_sha256  # noqa: E402
from wenet_hs.bin import align, average, recognize, transcribe  # noqa: E402
from wenet_hs.config.load import load_config  # noqa: E402
from wenet_hs.decode import MODES  # noqa: E402
from wenet_hs.manifest.data_list import Utterance, read_data_list, write_data_list  # noqa: E402
from wenet_hs.model.checkpoint import FROZEN, list_checkpoints, read_weights  # noqa: E402
from wenet_hs.model.encoders.outputs import EncoderOutputs  # noqa: E402
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.experiment import load_experiment  # noqa: E402
from wenet_hs.model.modes import modes_with  # noqa: E402
from wenet_hs.recognizer import load_model  # noqa: E402
from wenet_hs.runs.record import read_run  # noqa: E402
from wenet_hs.train import speech  # noqa: E402
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError  # noqa: E402

slow = pytest.mark.slow
UPPER = (
    "{output_size: 16, attention_heads: 2, linear_units: 24, num_blocks: 2, cnn_module_kernel: 3}"
)
BASE = (
    "encoder=pretrained",
    "cmvn=null",
    "dataset_conf.fbank_conf=null",
    "dataset_conf.spec_aug=false",
)
TEN_STEPS = (
    "scheduler=warmup_cosine",
    "scheduler_conf={warmup_steps: 3, total_steps: 10}",
    "max_epoch=3",
)
TRAINED = (
    "layers: weighted, freeze_steps: 2, lr: 0.001, mask_time: 0.3, mask_feature: 0.1, upper: "
    + UPPER
)
TUNED = f"freeze: 1, {TRAINED}"
UPPER_ONLY = f"layers: weighted, upper: {UPPER}"
NO_DECODER = ("decoder=none", "decoder_conf=null", "model_conf=null")
TWO_KINDS = ["wav2vec2", "whisper"]
KINDS = [pytest.param(name, marks=() if name in TWO_KINDS else slow) for name in CONFIGS]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of the folders of encoders."""
    return tmp_path_factory.mktemp("encoders")


def settings_of(source: Path, conf: str, *more: str) -> tuple[str, ...]:
    """Overrides for a training of ten steps with this encoder, whose folder is written first, and
    its settings.
    """
    if source.name in CONFIGS and not source.exists():
        write_folder(source, source.name)
    adapter = ", adapter: new" if source.name == "mms" else ""
    return (
        *BASE,
        *TEN_STEPS,
        "save_interval=5",
        f"encoder_conf={{path: {source}, {conf}{adapter}}}",
        *more,
    )


@pytest.fixture(scope="module")
def tuned(tiny_corpus: TinyCorpus, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of wav2vec 2.0 whose lowest layer is frozen, with all random operations."""
    return tiny_corpus.train(
        tmp_path_factory.mktemp("tuned") / "m", *settings_of(sources / "wav2vec2", TUNED)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_training_ends_with_the_same_bits(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path, tuned: Path, name: str
) -> None:
    settings, whole = settings_of(sources / name, TUNED), tuned
    if name != "wav2vec2":
        interval = 5 if name in TWO_KINDS else 1
        settings = settings_of(
            sources / name, f"freeze: feature_encoder, {TRAINED}", f"save_interval={interval}"
        )
        whole = tiny_corpus.train(tmp_path / "whole", *settings)
    assert outcome(whole)["step"] == 10
    for step in (5,) if name in TWO_KINDS else (1, 2, 7):
        copy = cut_back(whole, tmp_path / f"from-{step}", step)
        assert outcome(tiny_corpus.train(copy, *settings)) == outcome(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [kind for kind in KINDS[1:] if "mms" not in str(kind)]
)  # whose adapters are trained
def test_outputs_of_a_frozen_encoder_are_computed_once(
    tiny_corpus: TinyCorpus,
    tmp_path: Path,
    sources: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = tmp_path / "a" / "cache"
    layers = "last" if name == "whisper" else "weighted"
    settings = settings_of(
        sources / name, f"freeze: all, cache: {cache}, layers: {layers}, upper: {UPPER}"
    )
    whole = tiny_corpus.train(tmp_path / "whole", *settings)
    files = sorted(path.name for path in cache.glob("*.bin"))
    assert len(files) == 2, "of the training and the validation list"
    copy = cut_back(whole, tmp_path / "copy", 5)
    with pytest.raises(
        ConfigError,
        match=r"train.yaml: encoder_conf.cache was '.*cache', is now None; a resumed run",
    ):
        tiny_corpus.train(copy, *settings, "encoder_conf.cache=null")
    cache = cache.rename(tmp_path / "moved")
    moved = (*settings, f"encoder_conf.cache={cache}")
    with monkeypatch.context() as patch:
        patch.setattr(EncoderOutputs, "compute", None)
        assert outcome(tiny_corpus.train(copy, *moved)) == outcome(whole)
        again = tiny_corpus.train(tmp_path / "again", *moved, "head=hsoftmax", tree(tiny_corpus))
    assert (
        sorted(path.name for path in cache.glob("*.bin")) == files
        and newest(again).name == newest(whole).name
    )


def tree(corpus: TinyCorpus, section: str = "head_conf") -> str:
    return f"{section}.tree={corpus.folder / 'tree.json'}"


@slow
def test_a_changed_clip_or_encoder_has_its_own_cache(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path
) -> None:
    utterance, *others = read_data_list(tiny_corpus.train_data)
    clip = tmp_path / "clip.wav"
    shutil.copy(utterance.wav, clip)
    write_data_list(tmp_path / "data.list", [replace(utterance, wav=str(clip)), *others])
    cache, counts = tmp_path / "cache", []
    changes: list[tuple[str, str, int]] = [
        ("xls-r", "last", 1),
        ("xls-r", "last", 1),
        ("xls-r", "last", 2),
    ]
    changes += [("xls-r", "2", 2), ("wav2vec2", "2", 2)]
    for number, (name, layers, seconds) in enumerate(changes):
        os.utime(clip, (seconds, seconds))
        settings = settings_of(
            sources / name, f"freeze: all, layers: {layers}, cache: {cache}", "max_minutes=1e-9"
        )
        tiny_corpus.train(tmp_path / f"m{number}", *settings, train_data=(tmp_path / "data.list",))
        counts.append(len([*cache.glob("*.bin")]))
    assert counts == [2, 2, 3, 5, 7]


@slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("flag", ["num_workers=2", "compile=true", "dtype=bf16", "dtype=auto"])
def test_options_of_a_training_with_a_cache(
    tiny_corpus: TinyCorpus,
    tmp_path: Path,
    sources: Path,
    flag: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = settings_of(sources / "xls-r", f"freeze: all, cache: {tmp_path / 'cache'}")
    plain = tiny_corpus.train(tmp_path / "plain", *settings)
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: None)
    other = tiny_corpus.train(tmp_path / "other", *settings, flag)
    if not flag.startswith("dtype"):
        assert outcome(other) == outcome(plain)
    if flag == "compile=true":
        assert "compile: the layers of the pretrained encoder are not compiled" in caplog.text
    losses = [
        [record["loss"] for record in metrics(folder) if "loss" in record]
        for folder in (plain, other)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)  # bf16 rounds to 0.4 %


def test_the_mode_of_layers_whose_outputs_are_kept_never_changes() -> None:
    """Another thread computes them when a validation begins and ends."""
    encoder, modes = make_encoder("wav2vec2", freeze="all"), list[bool]()
    encoder.takes_outputs = True
    dropout = next(
        module for module in encoder.pretrained.modules() if isinstance(module, torch.nn.Dropout)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropout, "train", modes.append)
        encoder.train().eval().train()
    assert modes == [False] * 3 and encoder.training


# The folder


@torch.no_grad()
def memory_of(folder: Path, **flags: Any) -> torch.Tensor:
    """The memory of a clip of 0.6 s."""
    found = load_experiment(folder, **flags)
    inputs = found.frontend.compute(
        0.1 * torch.randn(9000, generator=torch.Generator().manual_seed(0))
    )
    return found.model.encode(inputs[None], torch.tensor([len(inputs)]))[0]


def test_a_folder_needs_nothing_of_the_original_one(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path, tuned: Path
) -> None:
    expected, moved, source = (
        memory_of(tuned),
        shutil.copytree(tuned, tmp_path / "moved"),
        sources / "wav2vec2",
    )
    hidden = source.rename(sources / "hidden")
    try:
        assert torch.equal(memory_of(moved), expected)
        assert torch.equal(memory_of(moved, checkpoint=newest(moved)), expected)
    finally:
        hidden.rename(source)
    config = load_config(moved / "train.yaml")
    assert config.encoder_conf.model_dump()["path"] == "encoder.json"
    assert str(source) not in (moved / "train.yaml").read_text()
    record = read_run(moved)
    assert record is not None
    assert record.last_start.packages["transformers"] == version("transformers")
    assert record.encoder_sha256 == file_sha256(source / "model.safetensors")
    assert record.files["encoder.json"] == file_sha256(moved / "encoder.json")
    (moved / "encoder.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"encoder.json: changed since the training \(sha256 in \S+\)"
    ):
        load_experiment(moved)


def test_frozen_weights_are_in_one_file_and_final_pt_has_all(tuned: Path, sources: Path) -> None:
    frozen, final = (
        torch.load(tuned / name, weights_only=True)
        for name in (f"checkpoints/{FROZEN}", "final.pt")
    )
    of_source = load_file(sources / "wav2vec2" / "model.safetensors")
    parts = (
        "masked_spec_embed",
        "feature_extractor.",
        "feature_projection.",
        "encoder.pos_conv_embed.",
        "encoder.layer_norm.",
    )
    expected = {name for name in of_source if name.startswith((*parts, "encoder.layers.0."))}
    assert frozen.keys() == {f"encoder.pretrained.{name}" for name in expected}
    assert all(
        torch.equal(value, of_source[name.removeprefix("encoder.pretrained.")])
        for name, value in frozen.items()
    )
    for path in list_checkpoints(tuned / "checkpoints"):
        assert (
            torch.load(path / "model.pt", weights_only=True).keys() == final.keys() - frozen.keys()
        )
        assert read_weights(path).keys() == final.keys()
    changed = [
        name
        for name in of_source
        if not torch.equal(final[f"encoder.pretrained.{name}"], of_source[name])
    ]
    assert changed and all(
        name.startswith(("encoder.layers.1.", "encoder.layers.2.")) for name in changed
    )


def test_a_resume_with_another_encoder_or_other_settings_is_refused(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path, tuned: Path
) -> None:
    copy = cut_back(tuned, tmp_path / "m", 5)
    other = shutil.copytree(sources / "wav2vec2", tmp_path / "other")
    (other / "config.json").write_text(json.dumps({**CONFIGS["wav2vec2"], "hidden_dropout": 0.3}))
    line = r"encoder.json: differs from .*other \(line \d+ is the first\); a resumed run must be the same: "
    with pytest.raises(ConfigError, match=line):
        tiny_corpus.train(copy, *settings_of(other, TUNED))
    for setting, found in (
        ("freeze", "feature_encoder"),
        ("mask_time", "0.4"),
        ("freeze_steps", "3"),
        ("layers", "last"),
    ):
        with pytest.raises(
            ConfigError, match=f"train.yaml: encoder_conf.{setting} was .*, is now '?{found}[^\n]*$"
        ):
            tiny_corpus.train(
                copy, *settings_of(sources / "wav2vec2", TUNED), f"encoder_conf.{setting}={found}"
            )


@slow
def test_a_training_that_starts_from_such_a_folder_and_averages(
    tiny_corpus: TinyCorpus, tmp_path: Path, tuned: Path, sources: Path, capsys: Capsys
) -> None:
    settings = settings_of(tuned / "encoder.json", f"freeze: all, {UPPER_ONLY}", "max_minutes=1e-9")
    with pytest.raises(
        CheckpointError, match=r"encoder.json: describes an encoder, without weights; give --check"
    ):
        tiny_corpus.train(tmp_path / "without", *settings)
    message = r"--checkpoint .*wav2vec2: is a folder in Hugging Face's layout; set encoder_conf.path to it, or convert"
    with pytest.raises(CheckpointError, match=message):
        tiny_corpus.train(tmp_path / "without", *settings, checkpoint=sources / "wav2vec2")
    folder = tiny_corpus.train(tmp_path / "m", *settings, checkpoint=tuned)
    other = Path(shutil.copytree(sources / "wav2vec2", tmp_path / "other"))
    (other / "preprocessor_config.json").write_text('{"do_normalize": false}')
    settings = settings_of(other, f"freeze: all, {UPPER_ONLY}", "max_minutes=1e-9")
    with pytest.raises(
        ConfigError,
        match=r"path: an encoder with do_normalize False, not True as in .*encoder.json",
    ):
        tiny_corpus.train(tmp_path / "o", *settings, checkpoint=tuned)
    base, final = weights_of(tuned), weights_of(folder)
    assert all(
        torch.equal(final[name], base[name])
        for name in base
        if name.startswith("encoder.pretrained.")
    )
    record = read_run(folder)
    assert record is not None and record.encoder_sha256 is None
    copy = shutil.copytree(tuned, tmp_path / "copy")
    assert run_line(average, f"--model_dir {copy} --num 2") == 0
    first, last = map(read_weights, list_checkpoints(copy / "checkpoints"))
    name = "encoder.pretrained.encoder.layers.2.final_layer_norm.bias"
    assert torch.allclose(weights_of(copy)[name], (first[name] + last[name]) / 2)


@pytest.mark.slow
def test_clips_that_whisper_cuts_are_counted(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = read_data_list(tiny_corpus.train_data)
    soundfile.write(tmp_path / "long.wav", np.random.default_rng(0).normal(0, 0.1, 20000), 16000)
    rows.append(Utterance(key="long", wav=str(tmp_path / "long.wav"), txt="ab", duration=1.25))
    write_data_list(tmp_path / "data.list", rows)
    settings = (*settings_of(sources / "whisper", "silence_s: 29"), "max_minutes=1e-9")
    tiny_corpus.train(tmp_path / "m", *settings, train_data=(tmp_path / "data.list",))
    line = "--train_data: the encoder cuts clips longer than 1 s in the middle of words: 1 of 11; cut them at pauses"
    assert [one for one in caplog.messages if "in the middle of words" in one] == [line]
    write_data_list(tmp_path / "data.list", [*rows[:-1], replace(rows[-1], end=0.95)])
    settings = (*settings, "dataset_conf.speed_perturb=true")
    tiny_corpus.train(tmp_path / "n", *settings, train_data=(tmp_path / "data.list",))
    assert [one for one in caplog.messages if "in the middle of words" in one] == [line, line], (
        "at speed 0.9"
    )


# Recognition


@slow
@pytest.mark.parametrize(
    ("name", "conf", "settings"),
    [
        (
            "wav2vec2",
            f"upper: {UPPER}",
            ("model_conf={ctc_weight: 0.5, interctc_weight: 0.3, interctc_layer: 1}",),
        ),
        (
            "hubert",
            "layers: weighted",
            ("model_conf={ctc_weight: 0.5, interctc_weight: 0.3, interctc_layer: 2}",),
        ),
        (
            "whisper",
            "silence_s: 1",
            ("head=hsoftmax", "ctc_conf.head=hsoftmax", "TREE", "CTC_TREE"),
        ),
        ("w2v-bert-adapter", "freeze: 2", NO_DECODER),
        ("wavlm", "layers: 2", (*NO_DECODER, "ctc_conf.head=hsoftmax", "CTC_TREE")),
    ],
)
def test_every_search_alignment_and_times(
    tiny_corpus: TinyCorpus,
    tmp_path: Path,
    sources: Path,
    capsys: Capsys,
    name: str,
    conf: str,
    settings: Sequence[str],
) -> None:
    trees = {"TREE": tree(tiny_corpus), "CTC_TREE": tree(tiny_corpus, "ctc_conf.head_conf")}
    overrides = settings_of(sources / name, conf, *(trees.get(value, value) for value in settings))
    tiny_corpus.train(folder := tmp_path / "m", *overrides)
    generator = np.random.default_rng(0)
    clips = []
    for key, seconds, rate in (
        ("word", 0.9, 16000),
        ("slow", 1.5, 8000),
        ("click", 0.015, 16000),
        ("long", 130, 16000),
    ):
        soundfile.write(
            tmp_path / f"{key}.wav", 0.1 * generator.normal(size=round(seconds * rate)), rate
        )
        clips.append(
            Utterance(key=key, wav=str(tmp_path / f"{key}.wav"), txt="abc", duration=seconds)
        )
    write_data_list(tmp_path / "data.list", clips)
    modes = modes_with({"ctc"}) if NO_DECODER[0] in settings else [*MODES]
    data = f"--test_data {tmp_path / 'data.list'} --result_dir {tmp_path / 'out'} --device cpu --beam_size 3"
    assert (
        run_line(
            recognize, f"--model_dir {folder} {data} --modes {' '.join(modes)} --max_segment_s 40"
        )
        == 0
    )
    capsys.readouterr()
    assert run_line(recognize, f"--model_dir {folder} {data} --decoding_chunk_size 16") == 2
    kind = json.loads((folder / "encoder.json").read_text())["config"]["model_type"]
    found = f"decoding_chunk_size 16: a pretrained encoder ({kind}) reads whole utterances; leave it out"
    assert found in capsys.readouterr().err
    for mode in modes:
        records = [
            json.loads(line)
            for line in (tmp_path / "out" / mode / "hyps.jsonl").read_text().splitlines()
        ]
        assert [record["key"] for record in records] == ["word", "slow", "click", "long"]
    out = tmp_path / "align.jsonl"
    code = run_line(
        align, f"--model_dir {folder} --data_list {tmp_path / 'data.list'} --out {out} --device cpu"
    )
    aligned = {record["key"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert code == 2 and aligned.keys() == {"word", "slow", "long"}
    assert "click" in capsys.readouterr().err
    for clip in clips:
        units = aligned[clip.key]["units"] if clip.key in aligned else []
        times = [time for unit in units for time in (unit["start"], unit["end"])]
        assert times == sorted(times) and all(0 <= time <= (clip.duration or 0) for time in times)
    recognizer = load_model(folder)
    for clip in clips:
        for unit in recognizer.transcribe(clip.wav).units or ():
            assert 0 <= unit.start <= unit.end <= (clip.duration or 0)
    assert (
        run_line(transcribe, f"--model_dir {folder} --device cpu {clips[0].wav} {clips[2].wav}")
        == 0
    )


@slow
def test_clips_that_are_too_short_are_left_out(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path
) -> None:
    soundfile.write(tmp_path / "click.wav", np.zeros(240), 16000)
    click = Utterance(key="click", wav=str(tmp_path / "click.wav"), txt="a", duration=0.015)
    write_data_list(tmp_path / "data.list", [click, *read_data_list(tiny_corpus.train_data)])
    settings = (
        *settings_of(sources / "wav2vec2", f"freeze: all, cache: {tmp_path / 'c'}"),
        "max_minutes=1e-9",
    )
    filters = "dataset_conf.filter_conf.min_length=0"
    folder = tiny_corpus.train(
        tmp_path / "m", *settings, filters, train_data=(tmp_path / "data.list",)
    )
    assert (folder / "train_rejected.tsv").read_text().startswith("click\t")


# Mistakes


def test_settings_that_do_not_fit_a_pretrained_encoder(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interctc = "model_conf={interctc_weight: 0.3, interctc_layer: %d}"
    none = "interctc_layer: 1, but the number of layers that it can name .none with a cache or an adapter. is 0; set a"
    for name, conf, override, message in (
        (
            "wav2vec2",
            "",
            "dataset_conf.resample_conf.resample_rate=8000",
            "resample_conf: the rate of the encoder is",
        ),
        (
            "wav2vec2",
            "",
            "cmvn=global_cmvn",
            "cmvn: the encoder computes its own input and its normalization; remove",
        ),
        (
            "wav2vec2",
            "",
            "dataset_conf.fbank_conf={dither: 1.0}",
            "fbank_conf: the encoder computes its own input; re",
        ),
        (
            "wav2vec2",
            "freeze: all, cache: c, mask_time: 0.1",
            "seed=1",
            "mask_time: acts before layers that are not trained; set 0.0, and use upper.mask_time",
        ),
        (
            "wav2vec2",
            "",
            interctc % 3,
            "interctc_layer: 3, but the number of layers that it can name .* is 2; set",
        ),
        ("wav2vec2", "freeze: all, cache: c", interctc % 1, none),
        (
            "wav2vec2",
            "freeze: all, cache: ''",
            "seed=1",
            "encoder_conf.cache: must not be empty, got ''",
        ),
        (
            "wav2vec2",
            "layers: first",
            "seed=1",
            "layers: must be one of last, weighted or a whole number above 0, got '",
        ),
        (
            "wav2vec2",
            "freeze: 0",
            "seed=1",
            "encoder_conf.freeze: must be .*none or a whole number above 0, got 0$",
        ),
        ("wav2vec2-adapter", "", interctc % 1, none),
    ):
        with pytest.raises(ConfigError, match=message):
            tiny_corpus.train(tmp_path / "m", *settings_of(sources / name, conf), override)

    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    message = r"^/.*/cache: encoder_conf.cache: cannot reserve .* MB \(No space left on device\); free disk space, or"
    with pytest.raises(DataError, match=message):
        tiny_corpus.train(
            tmp_path / "m",
            *settings_of(sources / "wav2vec2", f"freeze: all, cache: {tmp_path}/cache"),
        )
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".cache.lock"]


# Two ranks


def train_pair(rank: int, folder: Path, corpus: TinyCorpus, source: Path) -> None:
    """Trainings of both ranks: one fills the cache, the next one reads it, and two of all weights,
    one of them held.
    """
    cached = settings_of(source, f"freeze: all, layers: weighted, cache: {folder / 'cache'}")
    speech.train(corpus.options(folder / "whole", *cached))
    files = {path: path.stat().st_ino for path in (folder / "cache").glob("*.bin")}
    assert len(files) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncoderOutputs, "compute", None)
        speech.train(corpus.options(folder / "again", *cached))
    assert files == {path: path.stat().st_ino for path in (folder / "cache").glob("*.bin")}
    settings = settings_of(source, f"freeze: none, {TRAINED}", "save_interval=1")
    speech.train(corpus.options(folder / "tuned", *settings))
    if rank == 0:
        cut_back(folder / "tuned", folder / "cut", 1)
    speech.train(corpus.options(folder / "cut", *settings))
    speech.train(
        corpus.options(folder / "held", *settings, "encoder_conf.freeze_steps=9", "optim=adamw")
    )


@slow
def test_two_ranks(tmp_path: Path, tiny_corpus: TinyCorpus, sources: Path) -> None:
    assert run_pair(train_pair, tmp_path, tiny_corpus, sources / "xls-r") == [0, 0]
    assert outcome(tmp_path / "again") == outcome(tmp_path / "whole")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "tuned")
    of_source = load_file(sources / "xls-r" / "model.safetensors")
    last_norm = {
        "encoder.layer_norm.weight",
        "encoder.layer_norm.bias",
    }  # not in a weighted sum of layers
    for folder, unchanged in (("held", of_source.keys()), ("tuned", last_norm)):
        found = weights_of(tmp_path / folder)
        assert {
            key
            for key, old in of_source.items()
            if torch.equal(found[f"encoder.pretrained.{key}"], old)
        } == unchanged


def test_frozen_layers_stay_in_evaluation_mode_when_the_others_begin_to_be_trained(
    tiny_corpus: TinyCorpus, tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = list[tuple[bool, ...]]()
    forward = PretrainedEncoder.forward

    def record(encoder: PretrainedEncoder, *inputs: Any) -> Any:
        layers = encoder.pretrained.encoder.layers
        modes.append((encoder.training, layers[0].training, layers[1].training))
        return forward(encoder, *inputs)

    monkeypatch.setattr(PretrainedEncoder, "forward", record)
    tiny_corpus.train(tmp_path / "m", *settings_of(sources / "wav2vec2", TUNED), "save_interval=10")
    in_training = [layers for is_training, *layers in modes if is_training]
    assert in_training == [[False, False]] * 2 + [[False, True]] * 8
