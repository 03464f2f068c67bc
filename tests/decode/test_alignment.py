# SPDX-License-Identifier: Apache-2.0
"""The best CTC alignment against all possible alignments; frames in seconds, units in words."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import noise, write_model_folder
from plain_search import ctc_paths, random_log_probs
from small_models import small_config, small_model
from torch import Tensor

from wenet_hs.annotation.tiers import TimedText
from wenet_hs.data.features import utterance_features
from wenet_hs.data.sampling import ctc_frames_needed
from wenet_hs.decode import alignment, ctc_kernels
from wenet_hs.decode.alignment import align_utterances
from wenet_hs.decode.ctc_search import align_units, viterbi_align
from wenet_hs.decode.hypothesis import Alignment
from wenet_hs.decode.recognition import timed_units, timed_words
from wenet_hs.frontends import WhisperMel, build_frontend
from wenet_hs.heads import HSoftmaxHead
from wenet_hs.heads.ctc import Ctc
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.text.tokenizer import CharTokenizer, PhoneTokenizer, make_tokenizer, train_bpe
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree
from wenet_hs.tree.errors import CheckpointError


def check_spans(found: Alignment, log_probs_TC: Tensor, labels: list[int]) -> None:
    """The spans are an alignment: in order, with a blank between equal labels, and their sum is the
    score.
    """
    path = [0] * len(log_probs_TC)
    for (start, end), label, log_prob in zip(found.spans, labels, found.log_probs, strict=True):
        assert 0 <= start < end <= len(path)
        assert not any(path[start:])
        path[start:end] = [label] * (end - start)
        assert log_prob == pytest.approx(float(log_probs_TC[start:end, label].mean()), abs=1e-5)
    assert [unit for unit, _ in itertools.groupby(path) if unit] == labels
    assert found.score == pytest.approx(
        sum(float(log_probs_TC[t, unit]) for t, unit in enumerate(path)), abs=1e-5
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    frames=st.integers(0, 5),
    labels=st.lists(st.integers(1, 2), max_size=4),
)
def test_the_alignment_is_the_best_of_all(seed: int, frames: int, labels: list[int]) -> None:
    log_probs = random_log_probs(seed, 1, max(frames, 1), 3)
    (found,) = viterbi_align(log_probs, torch.tensor([frames]), [labels])
    assert (found is not None) == (ctc_frames_needed(labels) <= frames)
    if found is not None:
        own = log_probs[0, :frames]
        best = max(score for text, score in ctc_paths(own) if text == tuple(labels))
        assert found.score == pytest.approx(best, abs=1e-5)
        check_spans(found, own, labels)


def test_a_hand_worked_alignment() -> None:
    path = [0, 3, 3, 0, 0, 3, 2, 2, 1, 0]
    log_probs = torch.full((1, len(path), 4), 0.1)
    log_probs[0, range(len(path)), path] = 0.7
    (found,) = viterbi_align(log_probs.log(), torch.tensor([len(path)]), [[3, 3, 2, 1]])
    assert found is not None
    assert found.spans == ((1, 3), (5, 6), (6, 8), (8, 9))
    assert found.log_probs == pytest.approx([math.log(0.7)] * 4)
    assert found.score == pytest.approx(10 * math.log(0.7))


def test_nan_is_an_error() -> None:
    with pytest.raises(
        CheckpointError, match="CTC output: NaN; the weights are damaged .* use another checkpoint"
    ):
        viterbi_align(torch.full((1, 4, 3), math.nan), torch.tensor([4]), [[1, 2]])


def test_batch_and_padding_change_nothing() -> None:
    log_probs, lengths = random_log_probs(2, 3, 30, 6), torch.tensor([30, 11, 19])
    labels = [[1, 2, 2, 5], [3], [4, 4, 4, 1, 2, 3, 5, 1], [5, 5], []]
    rows = [0, 1, 2, 0, 1]
    found = viterbi_align(log_probs, lengths, labels, rows)
    for row, ids, together in zip(rows, labels, found, strict=True):
        own = log_probs[row : row + 1, : lengths[row]]
        assert viterbi_align(own, lengths[row : row + 1], [ids]) == [together]


@torch.no_grad()
def test_alignment_of_units_equals_that_of_the_whole_distribution() -> None:
    torch.manual_seed(3)
    head = HSoftmaxHead(8, Tree.huffman(range(12)))
    memory, lengths = torch.randn(2, 14, 8), torch.tensor([14, 9])
    labels, rows = [[7, 7, 3, 11], [2], [5, 4, 3], [1] * 6], [0, 1, 1, 1]
    found = align_units(Ctc(head), memory, lengths, labels, rows)
    expected = viterbi_align(head.log_probs(memory), lengths, labels, rows)
    assert found[3] is expected[3] is None  # eleven frames are needed
    for one, other, ids, row in zip(found[:3], expected, labels, rows, strict=False):
        assert one is not None and other is not None
        assert one.spans == other.spans
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        check_spans(one, head.log_probs(memory)[row, : lengths[row]], ids)
    assert (
        align_units(Ctc(head), memory, lengths, [[0, 5], []])[1] is not None
    )  # a decoder may write blank


# ---- seconds and words


def test_a_frame_stands_for_its_step_in_the_middle_of_its_receptive_field() -> None:
    frontend, found = (
        build_frontend(small_config().dataset_conf),
        Alignment(((0, 1), (7, 9)), (0.0, 0.0), 0.0),
    )
    # Frames of 25 ms every 10 ms, of which conv2d8 reads 15.
    for input_layer, step_s, field_s in (("conv2d8", 0.08, 0.165), ("linear", 0.01, 0.025)):
        encoder = small_model(encoder_conf={"input_layer": input_layer}).encoder
        first, other = timed_units("ab", found, encoder, frontend, 2.0)
        start = 2 + (field_s - step_s) / 2
        times = (start, start + step_s, start + 7 * step_s, start + 9 * step_s)
        assert (first.start, first.end, other.start, other.end) == pytest.approx(times, abs=1e-4)
    # Centred windows: frame t is the middle of 10 ms, half of it before t * 10 ms; no time is
    # before the audio.
    first, other = timed_units("ab", found, encoder, WhisperMel(), 2.0)
    assert (first.start, first.end, other.start, other.end) == pytest.approx(
        (2, 2.005, 2.065, 2.085)
    )


def test_units_and_words_in_seconds() -> None:
    table = UnitTable.from_units(["▁", "a", "b", "▁c"])
    spans, log_probs = (
        tuple((2 * i, 2 * i + 1) for i in range(6)),
        tuple(map(math.log, (0.9, 0.4, 1, 0.5, 1, 1))),
    )
    found = Alignment(spans, log_probs, -9.0)
    units = timed_units(
        ["a", "b", "▁", "b", "▁c", "a"],
        found,
        small_model().encoder,
        build_frontend(small_config().dataset_conf),
    )
    assert units[1] == TimedText(text="b", start=0.1025, end=0.1425, confidence=pytest.approx(0.4))
    words = timed_words(units, CharTokenizer(table))
    expected = [("ab", 0.0225, 0.1425), ("b", 0.2625, 0.3025), ("ca", 0.3425, 0.4625)]
    assert [(word.text, word.start, word.end) for word in words] == expected
    assert words[0].confidence == pytest.approx(0.6)
    phones = [unit for unit in units if "▁" not in unit.text]
    assert [word.text for word in timed_words(phones, PhoneTokenizer(table))] == ["a b b a"]
    never = [TimedText(text="a", start=0.0, end=1.0, confidence=0.0)]
    assert timed_words(never, PhoneTokenizer(table))[0].confidence == 0.0
    assert timed_words([], PhoneTokenizer(table)) == []


def test_scripts_without_spaces_have_a_word_per_letter_with_its_marks() -> None:
    table = UnitTable.from_units(["▁"])
    for units, words in {
        ("他", "用", "p", "y", "们", "▁", "a"): ["他", "用", "py", "们", "a"],
        ("▁他用", "们", "▁", "b"): ["他用", "们", "b"],  # units of BPE
        ("ก", "ี", "่", "เ", "a"): ["กี่", "เ", "a"],
        tuple("ខ្ញុំ"): ["ខ្ញុំ"],
        tuple("한국어"): ["한국어"],
    }.items():
        timed = [
            TimedText(text=unit, start=n, end=n + 1, confidence=1.0) for n, unit in enumerate(units)
        ]
        found = timed_words(timed, CharTokenizer(table))
        assert [word.text for word in found] == words
        assert sum(word.end - word.start for word in found) == len(units) - units.count("▁")


@pytest.mark.parametrize(
    ("units", "words"),
    [
        (
            ["la▁", "ca", "sa▁"],
            [("la", 0, 1), ("casa", 1, 3)],
        ),  # of a model that was trained with the space as suffix
        (["la", "▁", "ca", "sa"], [("la", 0, 1), ("casa", 2, 4)]),
        (["▁la", "▁ca", "sa"], [("la", 0, 1), ("casa", 1, 3)]),
        (["▁la▁", "▁casa"], [("la", 0, 1), ("casa", 1, 2)]),
        (["d", "e▁l", "a"], [("de", 0, 2), ("la", 1, 3)]),  # a piece over two words belongs to both
        (["a▁b▁c"], [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]),
        (["▁", "▁"], []),
    ],
)
def test_words_end_where_the_space_is(units: list[str], words: list[tuple[str, int, int]]) -> None:
    timed = [
        TimedText(text=unit, start=n, end=n + 1, confidence=0.5) for n, unit in enumerate(units)
    ]
    found = timed_words(timed, CharTokenizer(UnitTable.from_units("▁")))
    assert [(word.text, word.start, word.end) for word in found] == words
    assert all(word.confidence == pytest.approx(0.5) for word in found)


def test_words_of_byte_pieces_and_of_a_table_with_the_unit_space(tmp_path: Path) -> None:
    """A character in bytes is one letter of its word; `<space>` separates two words."""
    (tmp_path / "bpe.model").write_bytes(train_bpe(["a b"] * 9, 6))
    bpe = make_tokenizer("bpe", UnitTable.from_units("▁ab"), tmp_path / "bpe.model")
    char = make_tokenizer("char", UnitTable.from_units(["a", "b", "<space>"]))
    好, 的 = ("<0xE5>", "<0xA5>", "<0xBD>"), ("<0xE7>", "<0x9A>", "<0x84>")
    for tokenizer, units, words in (
        (
            bpe,
            ["▁", *好, *的, "a", "▁b", "<0xC3>", "<0xA9>", "<0xC3>"],
            [("好", 1, 4), ("的", 4, 7), ("a", 7, 8), ("bé�", 8, 12)],
        ),
        (bpe, ["▁a", *好[:2], "▁b"], [("a�", 0, 3), ("b", 3, 4)]),
        (bpe, ["▁a", "<0xC2>", "<0xA0>", "b"], [("a", 0, 1), ("b", 3, 4)]),  # NO-BREAK SPACE
        (
            char,
            [char.table.units[unit] for unit in char.encode("ab a")],
            [("ab", 0, 2), ("a", 3, 4)],
        ),
    ):
        timed = [
            TimedText(text=unit, start=n, end=n + 1, confidence=0.5) for n, unit in enumerate(units)
        ]
        found = timed_words(timed, tokenizer)
        assert [(word.text, word.start, word.end) for word in found] == words
        assert [word.confidence for word in found] == pytest.approx([0.5] * len(words))


# ---- long recordings


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), block=st.integers(1, 40))
def test_blocks_of_any_size_give_the_exact_alignment(seed: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    frames, labels = int(rng.integers(1, 60)), rng.integers(1, 4, rng.integers(0, 30))
    log_probs_TC = random_log_probs(seed, 1, frames, 4)[0].numpy()
    whole = ctc_kernels.best_alignment(log_probs_TC, labels, 1000)
    in_blocks = ctc_kernels.best_alignment(log_probs_TC, labels, block)
    assert in_blocks[2] == whole[2]
    assert (in_blocks[0] == whole[0]).all() and (in_blocks[1] == whole[1]).all()


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return load_experiment(write_model_folder(tmp_path_factory.mktemp("models") / "softmax"))


@pytest.mark.parametrize("rate", [16000, 44100])
def test_windows_that_see_everything_give_the_alignment_of_the_whole(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    soundfile.write(tmp_path / "a.wav", noise(6.0, rate), rate, subtype="FLOAT")
    utterance = Utterance(key="a", wav=str(tmp_path / "a.wav"), txt="ab ba dab", start=0.7, end=5.9)
    whole = align_utterances(experiment, [utterance])["a"]
    for name, seconds in (("_LONG_S", 1.0), ("_CORE_S", 1.0), ("_CONTEXT_S", 9.0)):
        monkeypatch.setattr(alignment, name, seconds)
    in_windows = align_utterances(experiment, [utterance])["a"]
    assert not isinstance(whole, str) and not isinstance(in_windows, str)
    assert in_windows.score == pytest.approx(whole.score, abs=0.02)
    assert [(one.text, one.start, one.end) for one in in_windows.units] == [
        (one.text, one.start, one.end) for one in whole.units
    ]


def test_each_frame_is_in_one_window(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "a.wav", noise(6.0), 16000, subtype="FLOAT")
    utterance = Utterance(key="a", wav=str(tmp_path / "a.wav"), txt="ab")
    features = utterance_features(utterance, experiment.frontend)
    encoder = experiment.model.encoder
    for core_s, context_s in ((1.0, 0.4), (2.5, 0.0), (6.0, 1.0)):
        monkeypatch.setattr(alignment, "_CORE_S", core_s)
        monkeypatch.setattr(alignment, "_CONTEXT_S", context_s)
        with torch.no_grad():
            parts = list(alignment.encode_windows(experiment, utterance, 6.0, []))
        assert sum(part.size(1) for part in parts) == encoder.output_length(len(features))
        assert {part.size(1) for part in parts[:-1]} <= {round(core_s / 0.04)}


@pytest.mark.parametrize("longest_s", [0.5, 1.3, 2.96])
def test_no_window_is_longer_than_the_encoder_reads_as_one_whole(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest_s: float
) -> None:
    soundfile.write(tmp_path / "a.wav", noise(6.0), 16000, subtype="FLOAT")
    utterance = Utterance(key="a", wav=str(tmp_path / "a.wav"), txt="ab ba dab")
    encoder, lengths = experiment.model.encoder, []

    def record(part: Utterance, *more: Any) -> Tensor:
        features_TF = utterance_features(part, *more)
        lengths.append(int(encoder.output_length(len(features_TF))))
        return features_TF

    monkeypatch.setattr(alignment, "utterance_features", record)
    whole = align_utterances(experiment, [utterance])["a"]
    frames = lengths.pop()
    assert not lengths and not isinstance(whole, str)
    monkeypatch.setattr(encoder, "longest_s", longest_s)
    in_windows = align_utterances(experiment, [utterance])["a"]
    assert not isinstance(in_windows, str) and len(in_windows.units) == len(whole.units)
    assert max(lengths) <= longest_s / 0.04
    assert frames < sum(lengths) < 2 * frames  # with the contexts


def test_a_long_recording_that_does_not_fit_its_transcript_is_named(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "_LONG_S", 0.1)
    soundfile.write(tmp_path / "a.wav", noise(0.5), 16000)
    base = Utterance(key="a", wav=str(tmp_path / "a.wav"), txt="a" * 20, duration=0.5)
    cases = {
        "a.wav: 11 encoder frames, but CTC needs 39 for this transcript": base,
        "the transcript has units that the model does not know: 'x'": replace(base, txt="ax"),
        "a.wav: cut off: 0.50 s, the data list says 200.00 s": replace(
            base, txt="a", duration=200.0
        ),
        "a.wav: too long: 0.50 s, the data list says 0.20 s": replace(base, txt="a", duration=0.2),
    }
    for message, utterance in cases.items():
        found = align_utterances(experiment, [utterance])["a"]
        assert isinstance(found, str) and re.search(message, found), found
