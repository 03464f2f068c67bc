# SPDX-License-Identifier: Apache-2.0
"""Every decoding mode on the device of `fake_gpu`: the hypotheses of the CPU, and few waits for the
device.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fake_gpu import DEVICE, NAME, Record, on_gpu
from model_folders import HSOFTMAX, write_clip, write_model_folder
from small_models import NUM_UNITS, SPECIAL, small_batch, small_model

from wenet_hs.bin import recognize
from wenet_hs.bin.main import run_command
from wenet_hs.decode import MODES, DecodeOptions, Hypothesis, decode
from wenet_hs.decode.attention_search import AttentionSearch, BeamSearch
from wenet_hs.decode.joint import FinishedListSearch
from wenet_hs.heads import HSoftmaxHead, SoftmaxHead
from wenet_hs.lm.backoff import ArpaReader, NgramModel
from wenet_hs.lm.language_model import AnyLanguageModel, TextModel
from wenet_hs.lm.recurrent import RecurrentModel, RnnLm
from wenet_hs.manifest.data_list import write_data_list
from wenet_hs.text.tokenizer import CharTokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree

pytestmark = pytest.mark.slow
TREE = {"tree": "tree.json"}
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "hsoftmax": {"head": "hsoftmax", "head_conf": TREE},
    "class": {"head": "class", "head_conf": TREE},
    "adaptive": {"head": "adaptive", "head_conf": TREE},
    "CTC over a tree": {"ctc_conf": {"head": "hsoftmax", "head_conf": TREE}},
    "two directions": {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1}},
}
UNITS = UnitTable(("<blank>", "<unk>", "<sos/eos>", *"abcdefgh"), SPECIAL)
ARPA = "\\data\\\nngram 1=4\nngram 2=3\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\t-0.5\n-0.8\t</s>\n-0.4\ta\t-0.3\n\n"
ARPA += "\\2-grams:\n-0.2\t<s> a\n-0.6\ta a\n-0.3\ta </s>\n\n\\end\\\n"
BEFORE, AFTER = 8, 5
"""Waits of a batch before a search (lengths, checks that all is finite) and after it (results,
alignment).
"""


def make_lm(kind: str, folder: Path, device: torch.device) -> AnyLanguageModel:
    if kind in ("n-gram", "text"):
        (folder / "lm.arpa").write_text(ARPA, "utf-8")
        model = NgramModel(ArpaReader(folder / "lm.arpa"), UNITS)
        tokenizer = CharTokenizer(UNITS)
        return model if kind == "n-gram" else TextModel("lm.arpa", model, tokenizer, tokenizer)
    torch.manual_seed(3)
    tree = Tree.huffman(range(1, NUM_UNITS + 1))
    head = HSoftmaxHead(8, tree) if kind == "lstm" else SoftmaxHead(8, NUM_UNITS)
    sizes = {"embedding_size": 6, "num_layers": 2, "dropout_rate": 0.0}
    model = RnnLm(head, kind=kind, **sizes).eval().to(device)
    return RecurrentModel("lm", model, lm_units=UNITS, recogniser_units=UNITS)


def assert_equal(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in other]
        scores = [hypothesis.score for hypothesis in other]
        assert [hypothesis.score for hypothesis in one] == pytest.approx(scores, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "lm"),
    [
        *((name, None) for name in MODELS),
        *(("hsoftmax", kind) for kind in ("n-gram", "text", "gru", "lstm")),
    ],
)
@torch.no_grad()
def test_the_hypotheses_are_those_of_the_cpu(name: str, lm: str | None, tmp_path: Path) -> None:
    model, batch = small_model(seed=1, **MODELS[name]), small_batch([90, 60, 41, 0], [1] * 4)
    weight = 0.3 if name == "two directions" else 0.0
    options = DecodeOptions(
        beam_size=4, reverse_weight=weight, lm_weight=0.4 if lm else 0.0, length_bonus=0.1
    )
    modes = [mode for mode in MODES if not (lm and MODES[mode].is_greedy)]
    data = batch.features, batch.feature_lengths
    expected = decode(
        model,
        *data,
        modes,
        options,
        lm=make_lm(lm, tmp_path, torch.device("cpu")) if lm else None,
        align=True,
    )
    with on_gpu() as record:
        there, data = copy.deepcopy(model).to(DEVICE), tuple(tensor.to(DEVICE) for tensor in data)
        model_there = make_lm(lm, tmp_path, DEVICE) if lm else None
        found = decode(there, *data, modes, options, lm=model_there, align=True)
        for mode in modes:
            assert_equal(found[mode], expected[mode])
            record.clear()
            decode(there, *data, [mode], options, lm=model_there, align=True)
            counted = {
                line: count for line, count in record.waits.items() if not line.startswith(SEARCHES)
            }
            assert sum(counted.values()) <= BEFORE + AFTER, (mode, str(record))


SEARCHES = ("decode/attention_search.py", "decode/joint.py", "decode/ctc_search.py")


def counted_steps(search: BeamSearch, record: Record) -> tuple[int, int, int]:
    """The steps of a search, how often utterances were finished, and its waits."""
    steps, ends = [], []
    step, nbest = search.step, search.nbest
    with (
        patch.object(search, "step", lambda: steps.append(0) or step()),
        patch.object(search, "nbest", lambda rows: ends.append(0) or nbest(rows)),
    ):
        record.clear()
        search.search()
    return len(steps), len(ends), sum(record.waits.values())


@pytest.mark.parametrize("lm", [None, "n-gram", "gru"])
@pytest.mark.parametrize("kind", ["attention", "attention with a list", "joint"])
@torch.no_grad()
def test_a_search_waits_once_in_eight_steps(kind: str, lm: str | None, tmp_path: Path) -> None:
    model = small_model(seed=1, head="hsoftmax", head_conf=TREE)
    makers: dict[str, Callable[..., BeamSearch]] = {
        "attention": AttentionSearch,
        "attention with a list": lambda *args, lm: FinishedListSearch(*args, ctc_weight=0.0, lm=lm),
        "joint": lambda *args, lm: FinishedListSearch(*args, ctc_weight=0.5, lm=lm),
    }
    memory, lengths = torch.randn(3, 60, 16), torch.tensor([60, 44, 35])
    options = DecodeOptions(
        beam_size=3, lm_weight=0.3 if lm else 0.0, length_penalty=0.5, min_len_ratio=0.3
    )
    with on_gpu() as record:
        model = model.to(DEVICE)
        search = makers[kind](
            model,
            memory.to(DEVICE),
            lengths.to(DEVICE),
            options,
            lm=make_lm(lm, tmp_path, DEVICE) if lm else None,
        )
        steps, ends, waits = counted_steps(search, record)
    assert steps >= 17
    assert waits <= -(-steps // 8) + ends, str(record)
    assert not record.unpinned, str(record)


@torch.no_grad()
def test_the_prefix_search_asks_a_language_model_once_per_frame(tmp_path: Path) -> None:
    model, batch = small_model(seed=1), small_batch([90, 60, 41], [1] * 3)
    options = DecodeOptions(beam_size=4, lm_weight=0.4)
    with on_gpu() as record:
        there, data = (
            model.to(DEVICE),
            (batch.features.to(DEVICE), batch.feature_lengths.to(DEVICE)),
        )
        lm = make_lm("gru", tmp_path, DEVICE)
        record.clear()
        decode(there, *data, ["ctc_prefix_beam_search"], options, lm=lm)
        frames = there.encode(*data)[0].size(1)
    waits = sum(
        count for line, count in record.waits.items() if line.startswith("decode/ctc_search.py")
    )
    assert waits <= 1 + frames + 3, str(record)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_recognize_writes_the_texts_of_the_cpu(dtype: str, tmp_path: Path) -> None:
    """The command: clips are loaded beside the device, and the time of each stage waits for it."""
    folder = write_model_folder(tmp_path / "model", **HSOFTMAX)
    clips = [
        write_clip(tmp_path / f"utt{n}.wav", seconds, seed=n)
        for n, seconds in enumerate((0.5, 1.1, 0.7, 0.9))
    ]
    write_data_list(tmp_path / "data.list", clips)

    def run(device: str, *flags: str) -> dict[str, list[str]]:
        out = tmp_path / device
        line = f"--model_dir {folder} --test_data {tmp_path}/data.list --result_dir {out} --device {device} --batch_size 2"
        assert run_command(recognize, [*line.split(), *flags]) == 0
        assert json.loads((out / "rtf.json").read_text("utf-8"))["device"] == device
        return {mode: (out / mode / "text").read_text("utf-8").splitlines() for mode in MODES}

    expected = run("cpu")
    with on_gpu():
        found = run(NAME, "--dtype", dtype)
    if dtype == "fp32":
        assert found == expected
    assert {mode: len(lines) for mode, lines in found.items()} == dict.fromkeys(MODES, len(clips))
