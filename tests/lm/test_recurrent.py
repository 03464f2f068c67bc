# SPDX-License-Identifier: Apache-2.0
"""Recurrent language models: running text, exact scores with every head, sampled losses, training,
resume, fusion.
"""

import errno
import itertools
import json
import lzma
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from command_line import Capsys, error_line, run_line
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import write_model_folder

from wenet_hs.base.files import file_sha256
from wenet_hs.bin import lm as command
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.decode.hypothesis import Hypothesis
from wenet_hs.decode.modes import _rescore_texts
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.lm.language_model import LanguageModel, TextModel
from wenet_hs.lm.loader import build_lm, load_language_model, load_lm
from wenet_hs.lm.recurrent import RecurrentModel, RnnLm
from wenet_hs.lm.sampled import SampledLoss
from wenet_hs.lm.score import head_inputs, sample_sentences, text_nll, text_scores
from wenet_hs.lm.text import RunningText, read_running_text
from wenet_hs.model.checkpoint import list_checkpoints
from wenet_hs.runs.record import read_run
from wenet_hs.text.tokenizer import CharTokenizer, make_tokenizer
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.train import training
from wenet_hs.train.optim import learning_rate
from wenet_hs.train.step import MAX_SKIPPED_IN_A_ROW
from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.errors import ConfigError, DataError, Stopped

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
TABLE = UnitTable.from_units(WORDS)
COUNTING = [" ".join(WORDS[first : first + 3]) for first in range(5)] * 12


def running_text(folder: Path, lines: Sequence[str], *, keep: bool = False) -> RunningText:
    path = folder / "text.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return read_running_text([path], make_tokenizer("word", TABLE), keep_empty_lines=keep)


def small_lm(head: OutputHead | None = None, kind: str = "gru", layers: int = 1) -> RnnLm:
    torch.manual_seed(0)
    head = SoftmaxHead(8, len(TABLE)) if head is None else head
    options = {"kind": kind, "embedding_size": 6, "num_layers": layers, "dropout_rate": 0.0}
    return RnnLm(head, **options).eval()


def heads() -> list[OutputHead]:
    torch.manual_seed(1)
    counts = torch.arange(1.0, len(TABLE) + 1).tolist()
    return [
        SoftmaxHead(8, len(TABLE)),
        HSoftmaxHead(8, Tree.huffman(counts)),
        HSoftmaxHead(8, Tree.random(counts, seed=3)),
        ClassHead(8, NaryTree.frequency_bins(counts)),
        AdaptiveHead(8, counts),
    ]


# ---- running text


def test_a_text_is_one_sequence_with_an_end_per_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"one two one two one two\n\nthree eight <unk>\n"))
    text = read_running_text([path], make_tokenizer("word", TABLE))
    eos, unk = TABLE.special.eos, TABLE.special.unk
    one, two, three = (TABLE.id_of(word) for word in WORDS[:3])
    assert text.ids.tolist() == [one, two, one, two, one, two, eos, three, unk, unk, eos]
    assert (text.num_sentences, text.num_empty, text.num_unknown) == (2, 1, 2)
    assert text.num_characters == len("one two one two one two\nthree eight <unk>\n")
    kept = read_running_text([path], make_tokenizer("word", TABLE), keep_empty_lines=True)
    assert (len(kept), kept.num_sentences, kept.ids.tolist().count(eos)) == (12, 3, 3)
    assert text.count_units(len(TABLE)).sum() == 11


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 9))
def test_each_unit_is_a_target_once_after_the_unit_before_it(
    num_units: int, batch_size: int, num_steps: int
) -> None:
    ids = torch.arange(10, 10 + num_units).int().numpy()
    text = RunningText(ids, 2, 1, 0, 0, 1)
    batches = list(text.batches(batch_size, num_steps))
    assert len(batches) == text.num_batches(batch_size, num_steps)
    inputs, targets = (torch.cat([batch[part] for batch in batches], dim=1) for part in (0, 1))
    assert [unit for unit in targets.flatten().tolist() if unit >= 0] == ids.tolist(), (
        "row by row the whole text"
    )
    for row, (before, after) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        for position, unit in enumerate(after):
            if unit >= 0:
                assert before[position] == (2 if unit == 10 else unit - 1), (row, position)
    later = list(text.batches(batch_size, num_steps, start=1))
    assert all(
        torch.equal(one.targets, two.targets) for one, two in zip(later, batches[1:], strict=True)
    )


def test_a_sentence_starts_after_an_end_also_where_sos_is_another_unit(tmp_path: Path) -> None:
    table = UnitTable(("<blank>", "<unk>", "<sos>", "<eos>", "a", "b"), SpecialIds(0, 1, 2, 3))
    (tmp_path / "a.txt").write_text("a b\n")
    tokenizer = make_tokenizer("word", table)
    (batch,) = read_running_text([tmp_path / "a.txt"], tokenizer).batches(1, 3)
    assert batch.inputs.tolist() == [[3, 4, 5]] and batch.targets.tolist() == [[4, 5, 3]]
    model = small_lm(SoftmaxHead(8, len(table)))
    after_end, _ = model(torch.tensor([[3]]), model.start(1))
    lm = RecurrentModel("m", model, lm_units=table, recogniser_units=table)
    states, ids = lm.start(1), torch.arange(6)[None]
    expected = model.head.log_probs(after_end[0]).detach()
    scores = lm.score(states, ids)[0, 3:]
    assert scores.tolist() == pytest.approx(expected[0, 3:].tolist())
    (score,) = TextModel("m", lm, tokenizer, tokenizer).score_texts([[]])
    assert score == pytest.approx(float(expected[0, 3]))
    first = [
        next(sample_sentences(model, table.special, 1, temperature=1.0, max_units=1, seed=n))
        for n in range(9)
    ]
    noise = [torch.Generator().manual_seed(n) for n in range(9)]
    weights = expected[0].index_fill(0, torch.tensor([0]), -torch.inf).softmax(-1)
    drawn = [int(torch.multinomial(weights, 1, generator=one)) for one in noise]
    assert first == [[] if unit == 3 else [unit] for unit in drawn]


# ---- scores


@pytest.mark.parametrize("head", heads(), ids=lambda head: type(head).__name__)
@pytest.mark.parametrize(("kind", "layers"), [("gru", 1), ("lstm", 2)])
def test_the_score_of_a_text_is_the_sum_over_its_units_for_every_head(
    tmp_path: Path, head: OutputHead, kind: str, layers: int
) -> None:
    model, text = small_lm(head, kind, layers), running_text(tmp_path, COUNTING[:9])
    total = text_nll(model, text, num_steps=4)
    units = [TABLE.special.sos, *text.ids.tolist()]
    hidden, _ = model(torch.tensor([units[:-1]]), model.start(1))
    hidden = hidden.detach()
    expected = (
        -model.head.log_probs(hidden[0])
        .detach()
        .double()
        .gather(1, torch.tensor(units[1:])[:, None])
        .sum()
    )
    assert total == pytest.approx(float(expected), rel=1e-5)
    assert model.head.log_probs(hidden[0]).exp().sum(-1).sub(1).abs().max() < 1e-5


@pytest.mark.parametrize(("kind", "layers"), [("gru", 1), ("gru", 2), ("lstm", 1), ("lstm", 2)])
def test_the_state_has_the_input_of_the_head(kind: str, layers: int) -> None:
    model = small_lm(kind=kind, layers=layers)
    hidden, state = model(torch.tensor([[3, 4, 5], [6, 7, 8]]), model.start(2))
    assert torch.equal(model.head_input(state), hidden[:, -1])


def test_training_drops_input_vectors_and_inputs_of_the_head() -> None:
    model, inputs = (
        RnnLm(SoftmaxHead(50, 10), kind="gru", embedding_size=40, num_layers=1, dropout_rate=0.3),
        [],
    )
    model.rnn.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    hidden, _ = model.train()(torch.ones(20, 20, dtype=torch.long), model.start(20))
    for values in (inputs[0], hidden):
        assert float((values == 0).float().mean()) == pytest.approx(0.3, abs=0.02)
    hidden, _ = model.eval()(torch.ones(20, 20, dtype=torch.long), model.start(20))
    assert not bool((hidden == 0).any()) and not bool((inputs[1] == 0).any())


def test_scores_of_a_uniform_model_are_those_of_its_number_of_units(tmp_path: Path) -> None:
    model, text = small_lm(), running_text(tmp_path, ["one two", "three"])
    torch.nn.init.zeros_(model.head.output.weight)
    torch.nn.init.zeros_(model.head.output.bias)
    total = text_nll(model, text)
    assert total is not None
    scores = text_scores(total, text)
    assert scores["perplexity"] == pytest.approx(
        len(TABLE)
    )  # 10 units, each as probable as the others
    assert scores["bits_per_unit"] == pytest.approx(math.log2(len(TABLE)))
    assert scores["bits_per_character"] == pytest.approx(
        5 * math.log2(len(TABLE)) / 14
    )  # 3 words, 2 ends; 8 + 6


def test_sentences_are_drawn_from_the_distribution(tmp_path: Path) -> None:
    model = small_lm()
    drawn = list(sample_sentences(model, TABLE.special, 400, temperature=1.0, max_units=1, seed=5))
    assert drawn == list(
        sample_sentences(model, TABLE.special, 400, temperature=1.0, max_units=1, seed=5)
    )
    assert all(TABLE.special.blank not in ids and TABLE.special.eos not in ids for ids in drawn)
    cold = list(sample_sentences(model, TABLE.special, 20, temperature=1e-4, max_units=3, seed=1))
    assert len({tuple(ids) for ids in cold[1:]}) <= 4, (
        "at a low temperature the most probable unit follows"
    )


# ---- sampled losses


def test_sampled_losses_are_the_formulas_of_the_papers() -> None:
    torch.manual_seed(0)
    head, hidden, targets = SoftmaxHead(4, 5), torch.randn(2, 4), torch.tensor([1, 3])
    frequencies = torch.tensor([0.0, 4.0, 3.0, 2.0, 1.0])
    scores = head.output(hidden).detach()
    for kind in ("nce", "blackout"):
        loss = SampledLoss(kind, frequencies, 3, 0.5)  # type: ignore[arg-type]
        weights = frequencies if kind == "nce" else frequencies.sqrt()
        noise = weights / weights.sum()
        assert loss.log_noise.exp().tolist() == pytest.approx(noise.tolist())
        torch.manual_seed(7)
        found = loss(head, hidden, targets).detach()
        torch.manual_seed(7)
        drawn = torch.multinomial(loss.log_noise.exp(), 3, replacement=True).tolist()
        for row, target in enumerate(targets.tolist()):
            own = scores[row].exp()
            if kind == "nce":  # Jiang et al. 2017, Eq. 2
                expected = -torch.log(own[target] / (own[target] + 3 * noise[target]))
                expected -= sum(torch.log(3 * noise[j] / (own[j] + 3 * noise[j])) for j in drawn)
            else:  # Ji et al. 2016, Eq. 4 to 6
                others = [j for j in drawn if j != target]
                total = own[target] / noise[target] + sum(own[j] / noise[j] for j in others)
                expected = -torch.log(own[target] / noise[target] / total)
                expected -= sum(torch.log(1 - own[j] / noise[j] / total) for j in others)
            assert float(found[row]) == pytest.approx(float(expected), rel=1e-4)


# ---- training


CONFIG = """
rnn_conf: {embedding_size: 8, hidden_size: 8, dropout_rate: 0.1, sparse_grad: true}
head: hsoftmax
head_conf: {tree: tree.json, sparse_grad: true}
tokenizer_conf: {symbol_table_path: units.txt}
text_conf: {batch_size: 2, num_steps: 5}
optim_conf: {lr: 0.02}
scheduler_conf: {warmup_steps: 10}
max_epoch: 2
save_interval: 10
keep_checkpoints: 20
"""


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    TABLE.write("units.txt")
    Tree.huffman(range(1, len(TABLE) + 1), TABLE.units).save(tmp_path / "tree.json")
    (tmp_path / "lm.yaml").write_text(CONFIG)
    (tmp_path / "train.txt").write_text("\n".join(COUNTING) + "\n")
    (tmp_path / "valid.txt").write_text("\n".join(COUNTING[:10]) + "\n")
    return tmp_path


def train(folder: str, *overrides: str) -> int:
    flags = (
        f"train --config lm.yaml --train_text train.txt --valid_text valid.txt --model_dir {folder}"
    )
    return run_line(command, " ".join([flags, "--override_config", "seed=3", *overrides]))


def records(folder: str, kind: str) -> list[dict[str, float]]:
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


@pytest.mark.parametrize("head", ["softmax", "hsoftmax", "class", "nce", "blackout"])
def test_a_model_learns_and_is_scored_by_every_head_and_loss(
    corpus: Path, head: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wenet_hs.train.language_model.VALIDATION_PARTS", 1)
    options = {
        "softmax": ["head=softmax", "head_conf=null", "rnn=lstm"],
        "nce": ["head=softmax", "head_conf=null", "loss=nce", "sampling_conf.num_samples=6"],
        "blackout": [
            "head=softmax",
            "head_conf=null",
            "loss=blackout",
            "sampling_conf.num_samples=6",
        ],
        "class": ["head=class"],
    }
    assert train(head, "max_epoch=4", "optim_conf.lr=0.04", *options.get(head, [])) == 0
    losses = [record["loss"] for record in records(head, "valid")]
    assert losses[-1] < 0.7 * losses[0] < 0.7 * math.log(len(TABLE)) + 1
    assert losses[-1] < 1.5, "a uniform model has 2.3"
    capsys.readouterr()
    assert run_line(command, f"score --model_dir {head} --text valid.txt --json {head}.json") == 0
    assert capsys.readouterr().out.startswith("perplexity ")
    scores = json.loads(Path(f"{head}.json").read_text())
    assert math.log(scores["perplexity"]) == pytest.approx(losses[-1], rel=1e-5)
    assert run_line(command, f"sample --model_dir {head} --count 3 --max_units 9") == 0
    assert {*capsys.readouterr().out.split()} <= {*WORDS, "⁇"}


FLAT = [
    "head=softmax",
    "head_conf=null",
    "rnn_conf.sparse_grad=false",
    "rnn_conf.dropout_rate=0",
    "max_epoch=1",
]


def test_training_is_adam_on_the_clipped_gradient_of_the_mean_loss(corpus: Path) -> None:
    assert train("m", *FLAT, "text_conf.num_steps=13", "grad_clip=0.6") == 0
    config = load_config(Path("m/train.yaml"), (), LmConfig)
    torch.manual_seed(config.seed)
    model = build_lm(config, TABLE, Path("m"))
    optimizer, state, norms = torch.optim.Adam(model.parameters()), model.start(2), []
    text = read_running_text([Path("train.txt")], make_tokenizer("word", TABLE))
    for step, batch in enumerate(text.batches(2, 13), start=1):
        hidden, after = model(batch.inputs, state)
        logits = model.head.output(hidden).flatten(0, 1)
        torch.nn.functional.cross_entropy(
            logits, batch.targets.flatten(), ignore_index=-1
        ).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.6)))
        optimizer.param_groups[0]["lr"] = learning_rate(step, config)
        optimizer.step()
        optimizer.zero_grad()
        state = after.detach()
    assert min(norms) < 0.6 < max(norms), norms
    found = torch.load("m/final.pt")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def test_a_cosine_schedule_without_an_end_ends_with_the_last_epoch(
    corpus: Path, capsys: Capsys
) -> None:
    schedule = ["scheduler=warmup_cosine", "scheduler_conf.warmup_steps=5", "log_interval=1"]
    assert train("m", *FLAT, *schedule, "text_conf.num_steps=13", "max_epoch=2") == 0
    steps = records("m", "train")
    text = read_running_text([Path("train.txt")], make_tokenizer("word", TABLE))
    assert (
        steps[-1]["step"] == 2 * text.num_batches(2, 13) and steps[-1]["lr"] == 0 < steps[-2]["lr"]
    )
    refused = train("m", *FLAT, *schedule, "text_conf.num_steps=13", "max_epoch=3")
    assert "m/train.yaml: max_epoch was 2, is now 3; a resumed run must be the same" in error_line(
        refused, capsys
    )
    fault = "scheduler_conf.warmup_steps: 500, but 2 epochs have "
    assert error_line(
        train("n", *FLAT, *schedule, "max_epoch=2", "scheduler_conf.warmup_steps=500"), capsys
    ).startswith(fault)


def test_a_step_that_is_not_finite_is_skipped_and_many_in_a_row_end_the_training(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    bad, step = {3}, itertools.count(1)

    def spoil(*arguments: Any) -> Any:
        hidden, targets, after = head_inputs(*arguments)
        return hidden * (math.nan if next(step) in bad else 1), targets, after

    monkeypatch.setattr("wenet_hs.train.language_model.head_inputs", spoil)
    assert train("m", *FLAT, "log_interval=1") == 0
    found = {record["step"]: record["skipped_steps"] for record in records("m", "train")}
    assert (found[2], found[4], found[max(found)]) == (0, 1, 1)
    assert all(bool(value.isfinite().all()) for value in torch.load("m/final.pt").values())
    bad.update(range(1000))
    capsys.readouterr()
    assert f"not finite {MAX_SKIPPED_IN_A_ROW} times in a row" in error_line(
        train("n", *FLAT), capsys
    )


def test_validations_without_a_finite_loss_are_one_line(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(
        "wenet_hs.train.language_model.text_nll", lambda *arguments, **options: math.nan
    )
    found = error_line(train("m", *FLAT, "early_stopping.metric=loss"), capsys)
    assert (
        found.startswith("m: loss was not finite in any validation")
        and "lower optim_conf.lr" in found
    )


@pytest.mark.parametrize("is_reset", [False, True])
def test_each_batch_starts_from_the_state_after_the_one_before_and_each_epoch_from_none(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    states = []

    def record(*arguments: Any) -> Any:
        found = head_inputs(*arguments)
        begins = arguments[1].inputs[:, :1] == TABLE.special.eos
        states.append((arguments[2], found[2].detach(), begins))
        return found

    monkeypatch.setattr("wenet_hs.train.language_model.head_inputs", record)
    assert train("m", f"text_conf.reset_at_sentences={is_reset}") == 0
    first_of_epoch = len(states) // 2
    for step, (before, _, begins) in enumerate(states):
        expected = states[step - 1][1] if step % first_of_epoch else torch.zeros(2, 8)
        assert torch.equal(before, expected.masked_fill(begins, 0.0) if is_reset else expected), (
            step
        )
    assert all(after.abs().max() > 0 for _, after, _ in states)
    assert 0 < sum(int(begins.sum()) for *_, begins in states) < len(states)


def test_the_training_of_a_language_model_has_a_record(corpus: Path) -> None:
    assert train("m", "max_epoch=1") == 0
    record = read_run(Path("m"))
    assert record is not None
    assert (record.model, record.head, record.ctc_head, record.seed) == (
        "language model",
        "hsoftmax",
        None,
        3,
    )
    assert (record.lists.kind, record.lists.train_paths, record.lists.valid_paths) == (
        "text",
        ["train.txt"],
        ["valid.txt"],
    )
    assert record.lists.train_sums == [file_sha256("train.txt")]
    assert record.steps is not None and record.progress is not None
    assert record.progress.step == record.steps.planned == record.progress.dev_step
    assert record.progress.dev_error_rate is None
    assert record.resources is not None and record.resources.lists == ()
    assert record.end is not None and record.end.state == "trained"


@pytest.mark.slow
def test_a_stopped_training_resumes_bit_for_bit(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    assert train("whole") == 0
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(
            training.TrainingLoop,
            "_is_asked_to_stop",
            lambda running, **_: running.state.progress.step == 13,
        )
        from wenet_hs.train.language_model import train_lm
        from wenet_hs.train.start import TrainOptions

        paths = {
            "config": corpus / "lm.yaml",
            "train_data": [Path("train.txt")],
            "cv_data": Path("valid.txt"),
        }
        train_lm(TrainOptions(**paths, model_dir=Path("cut"), override_config=["seed=3"]))
    assert [path.name for path in list_checkpoints(Path("cut/checkpoints"))][-1] == "step-00000013"
    assert train("cut") == 0
    one, two = (torch.load(f"{folder}/final.pt") for folder in ("whole", "cut"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    (corpus / "train.txt").write_text("one two\n" * 30)
    capsys.readouterr()
    assert train("cut", "max_epoch=3") == 2
    assert "was trained with another training text" in capsys.readouterr().err


def test_a_full_folder_of_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=full))
    with pytest.raises(
        DataError, match=rf"^{tmp_path}: No space left on device; the units .* folder in TMPDIR$"
    ):
        running_text(tmp_path, ["one two"])


# ---- recognition


def test_a_recurrent_model_takes_part_in_searches_with_the_score_of_the_whole_text(
    corpus: Path,
) -> None:
    assert train("lm", "max_epoch=1") == 0
    found = load_lm(Path("lm"))
    other = UnitTable.from_units(
        [*reversed(WORDS), "eight"]
    )  # other ids, and a unit that the model does not know
    lm = load_language_model(Path("lm"), make_tokenizer("phone", other))
    assert isinstance(lm, LanguageModel) and lm.unknown == ["eight"]
    texts = [["two", "one"], ["seven"], ["one", "two", "three"], []]
    for words in texts:
        ids, states, total = [other.id_of(word) for word in words], lm.start(2), 0.0
        for unit in [*ids, other.special.eos]:
            total += float(lm.score(states, torch.tensor([[unit], [unit]]))[1, 0])
            states = lm.advance(states, torch.tensor([unit, unit]))
        units = [TABLE.special.sos, *(TABLE.id_of(word) for word in words), TABLE.special.eos]
        hidden, _ = found.model(torch.tensor([units[:-1]]), found.model.start(1))
        expected = -float(found.model.head.nll(hidden[0], torch.tensor(units[1:])).detach().sum())
        assert total == pytest.approx(expected, rel=1e-5)
    letters = CharTokenizer(UnitTable.from_units("▁onetwhrfuivsx"))
    texts_of = [
        [letters.table.id_of(unit) for unit in letters.split(" ".join(words))] for words in texts
    ]
    words_model = load_language_model(Path("lm"), letters)
    assert isinstance(words_model, TextModel)
    alone = list(itertools.chain(*(words_model.score_texts([ids]) for ids in texts_of)))
    assert words_model.score_texts(texts_of) == pytest.approx(alone, rel=1e-5), (
        "padding does not change a score"
    )
    assert alone[2] == pytest.approx(total_of(found.model, ["one", "two", "three"]), rel=1e-5)
    nbest = [Hypothesis(tuple(ids), 0.0) for ids in texts_of]
    ranked = _rescore_texts([nbest], words_model, 0.5)[0]
    assert [one.score for one in ranked] == pytest.approx(
        sorted((0.5 * score for score in alone), reverse=True)
    )


def test_a_recurrent_model_of_words_needs_a_unit_for_other_words(corpus: Path) -> None:
    (corpus / "units.txt").write_text(
        "".join(f"{unit} {n}\n" for n, unit in enumerate(["<blank>", "<sos/eos>", *WORDS]))
    )
    assert train("lm", *FLAT, "max_epoch=1") == 0
    with pytest.raises(
        DataError,
        match=r"lm/units.txt: has no <unk>, so the model cannot score words of other text",
    ):
        load_language_model(Path("lm"), CharTokenizer(UnitTable.from_units("▁onetwhr")))


@torch.no_grad()
def total_of(model: RnnLm, words: Sequence[str]) -> float:
    units = [TABLE.special.sos, *(TABLE.id_of(word) for word in words), TABLE.special.eos]
    hidden, _ = model(torch.tensor([units[:-1]]), model.start(1))
    return -float(model.head.nll(hidden[0], torch.tensor(units[1:])).detach().sum())


# ---- wrong input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "train.txt: contains no sentences; write one per line"),
        (
            "ein zwei drei\n",
            "train.txt: 3 of 4 units are <unk> or not in the unit table; give text of this",
        ),
        ("one\n", "train.txt: 2 units, but text_conf.batch_size is 3; give more text, or lower it"),
    ],
)
def test_a_text_without_units_is_one_line(
    corpus: Path, text: str, message: str, capsys: Capsys
) -> None:
    (corpus / "train.txt").write_text(text)
    assert error_line(train("m", "text_conf.batch_size=3"), capsys).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss=nce", "loss: nce estimates a flat softmax; set head: softmax, or loss: exact"),
        (
            "sampling_conf.num_samples=3",
            "sampling_conf.num_samples: has no effect with loss: exact; remove it",
        ),
        ("optim=adamw", "rnn_conf.sparse_grad: needs optim: adam without weight_decay"),
        ("keep_best_by=loss_ctc", "keep_best_by: a language model has no loss_ctc; use loss"),
        ("rnn_conf.hidden=3", "rnn_conf.hidden: unknown key; did you mean `hidden_size`?"),
        ("encoder=conformer", "encoder: unknown key"),
    ],
)
def test_a_setting_that_does_not_fit_is_one_line(corpus: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(corpus / "lm.yaml", [override], LmConfig)
    assert any(message in line for line in str(caught.value).splitlines())


def test_faults_of_the_commands_are_one_line(corpus: Path, capsys: Capsys) -> None:
    assert train("m", "max_epoch=1") == 0
    capsys.readouterr()
    for line, message in [
        (
            "score --model_dir none --text valid.txt",
            "none: no such file or folder; give the --model_dir of a training",
        ),
        (
            "score --model_dir . --text valid.txt",
            "train.yaml: no such file; `wenet-hs lm train --model_dir .`",
        ),
        (
            "score --model_dir m --text none.txt",
            "none.txt: cannot be read (No such file or directory)",
        ),
        (
            "sample --model_dir m --temperature 0",
            "--temperature 0: must be greater than 0 and finite; 1 is the model",
        ),
        ("sample --model_dir m --count 0", "--count 0: must be at least 1"),
    ]:
        assert error_line(run_line(command, line), capsys).startswith(message)
    Path("m/final.pt").rename("final.pt")
    fault = error_line(run_line(command, "score --model_dir m --text valid.txt"), capsys)
    assert fault.startswith("m/final.pt: no such file; `wenet-hs lm train --model_dir m` writes it")
    Path("final.pt").rename("m/final.pt")
    with pytest.raises(
        DataError, match="m: knows none of the 2 units of the recogniser, or has no <unk>; train it"
    ):
        load_language_model(Path("m"), make_tokenizer("phone", UnitTable.from_units(["a", "b"])))
    for path, kind, message in [
        (
            write_model_folder(corpus / "asr"),
            LmConfig,
            "`encoder` is a setting of a recogniser; give the file or",
        ),
        (Path("m"), ExperimentConfig, "`rnn` is a setting of a language model; give the file or"),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            load_config(path / "train.yaml", (), kind)
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ConfigError, match=r"--lm n: no such file; give the folder of `lm train` or an n-gram model"
    ):
        load_language_model(Path("n"), make_tokenizer("phone", TABLE))
