# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning with --checkpoint: weights copied from a model with other units, trees or heads, and
the report.
"""

import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import wenet_state_dict
from small_models import CTC_ONLY, SPECIAL, small_config
from tiny_corpus import TinyCorpus, cut_back, newest, outcome, weights_of, write_tiny_corpus

from wenet_hs.base.files import file_sha256
from wenet_hs.config.heads import HEADS, has_tree
from wenet_hs.config.load import dump_config
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import build_model
from wenet_hs.model.checkpoint import checkpoint_path, hash_weights, list_checkpoints
from wenet_hs.model.experiment import load_experiment
from wenet_hs.runs.record import FirstWeights, RunRecord, read_run, write_run
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.train.finetune import (
    FineTuneReport,
    RowCount,
    load_base_weights,
    map_head,
    match_units,
    mix_rows,
    read_base_model,
)
from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.errors import CheckpointError, ConfigError

AnyTree = Tree | NaryTree
TABLE = UnitTable.from_units("abcdefgh")
COUNTS = [9.0, 0.0, 30.0, 25.0, 4.0, 17.0, 3.0, 8.0, 1.0, 2.0, 6.0]
BINARY = Tree.huffman(COUNTS, units=TABLE.units)
OTHER = Tree.huffman(COUNTS[::-1], units=TABLE.units)
BIDIRECTIONAL: dict[str, Any] = {
    "decoder": "bitransformer",
    "decoder_conf": {"r_num_blocks": 1, "num_blocks": 1},
}
Trees = tuple[AnyTree | None, AnyTree | None]
Weights = dict[str, torch.Tensor]


def sections(kind: str, ctc_kind: str = "softmax", **more: Any) -> dict[str, Any]:
    """Settings of the two heads, with their trees in a folder."""
    conf, ctc_conf = ({"tree": f"{name}.json"} for name in ("tree", "ctc_tree"))
    ctc = {"head": ctc_kind, "head_conf": ctc_conf if has_tree(ctc_kind) else {}}
    one_layer = {"encoder_conf": {"num_blocks": 1}, "decoder_conf": {"num_blocks": 1}}
    return {
        "head": kind,
        "head_conf": conf if has_tree(kind) else {},
        "ctc_conf": ctc,
        **one_layer,
        **more,
    }


SOFTMAX = sections("softmax")
HSOFTMAX = sections("hsoftmax")


def built(
    table: UnitTable, trees: Trees = (None, None), *, seed: int = 0, **chosen: Any
) -> AsrModel:
    torch.manual_seed(seed)
    config = small_config(**chosen)
    return build_model(config, len(table), table.special, tree=trees[0], ctc_tree=trees[1])


def take_weights(model: AsrModel, path: Path, table: UnitTable) -> FineTuneReport:
    """Copy the matching weights of the trained model in `path`, as `--checkpoint` does."""
    return load_base_weights(model, read_base_model(path), table)


def loaded(
    path: Path,
    trees: Trees = (None, None),
    chosen: dict[str, Any] = SOFTMAX,
    table: UnitTable = TABLE,
) -> tuple[Weights, FineTuneReport]:
    """The weights of a model, another one's copied into it, and the report."""
    model = built(table, trees, **chosen)
    report = take_weights(model, path, table)
    return model.state_dict(), report


def write_base(
    folder: Path, trees: Trees = (None, None), chosen: dict[str, Any] = SOFTMAX
) -> Weights:
    """A model folder over TABLE; its weights."""
    folder.mkdir(parents=True)
    for name, tree in zip(("tree.json", "ctc_tree.json"), trees, strict=True):
        if tree is not None:
            tree.save(folder / name)
    dump_config(small_config(**chosen), folder / "train.yaml")
    TABLE.write(folder / "units.txt")
    state = built(TABLE, trees, seed=1, **chosen).state_dict()
    torch.save(state, folder / "final.pt")
    return state


def same_names(state: Weights, theirs: Weights) -> list[str]:
    return [
        name
        for name, value in state.items()
        if torch.equal(value, theirs.get(name, torch.empty(0)))
    ]


@pytest.mark.parametrize("kind", HEADS)
def test_an_equal_model_is_copied_completely_and_another_tree_in_part(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    trees: Trees = (BINARY, OTHER) if has_tree(kind) else (None, None)
    chosen = sections(kind, kind)
    theirs = write_base(tmp_path / "exp", trees, chosen)
    step = tmp_path / "exp" / "checkpoints" / "step-00000001"
    for folder, name in ((step, "model.pt"), (tmp_path / "weights-only", "other.pt")):
        folder.mkdir(parents=True)
        shutil.copy(tmp_path / "exp" / "final.pt", folder / name)
    for checkpoint in (
        tmp_path / "exp",
        tmp_path / "exp" / "final.pt",
        step,
        tmp_path / "weights-only" / "other.pt",
    ):
        state, report = loaded(checkpoint, trees, chosen)
        assert same_names(state, theirs) == list(theirs)
        assert (report.units_kept, report.units_new, report.units_dropped) == (11, [], [])
        assert (report.parameters_taken, report.parameters_in_part, report.parameters_new) == (
            len(theirs),
            {},
            [],
        )
        is_assumed = checkpoint.name == "other.pt" and kind != "softmax"
        warning = re.search(
            r"ctc_conf\.head_conf: no (tree of it|train\.yaml) next to .*other\.pt; ", caplog.text
        )
        assert (warning is not None) == is_assumed
    if has_tree(kind):
        state, report = loaded(tmp_path / "exp", (OTHER, OTHER), chosen)
        changed = set(theirs) - set(same_names(state, theirs))
        assert changed and all(name.startswith("head.") for name in changed)
        assert changed == {*report.parameters_in_part, *report.parameters_new}


def test_heads_of_two_classes_share_nothing(tmp_path: Path) -> None:
    """Also a softmax and classes with one node, whose parameters have equal names and shapes."""
    flat = sections("class", head_conf={"tree": "tree.json", "num_classes": 1})
    softmax_state = write_base(tmp_path / "softmax")
    write_base(tmp_path / "flat", (BINARY, None), flat)
    (tmp_path / "weights-only").mkdir()
    shutil.copy(tmp_path / "softmax" / "final.pt", tmp_path / "weights-only")
    both = ["head.output.weight", "head.output.bias"]
    assert loaded(tmp_path / "softmax", (BINARY, None), flat)[1].parameters_new == both
    assert loaded(tmp_path / "weights-only", (BINARY, None), flat)[1].parameters_new == both
    assert loaded(tmp_path / "flat")[1].parameters_new == both
    state, report = loaded(tmp_path / "softmax", (BINARY, None), HSOFTMAX)
    assert report.parameters_new == ["head.inner_vector.weight"]
    assert set(same_names(state, softmax_state)) == set(softmax_state) - set(both)


def test_new_and_dropped_units_of_a_bidirectional_decoder(tmp_path: Path) -> None:
    chosen = sections("hsoftmax", "adaptive", **BIDIRECTIONAL)
    theirs = write_base(tmp_path / "exp", (BINARY, BINARY), chosen)
    table = UnitTable.from_units("bcdefghij")
    counts = {**dict(zip(TABLE.units, COUNTS, strict=True)), "i": 0.5, "j": 40.0}
    tree = Tree.huffman([counts[unit] for unit in table.units], units=table.units)
    fresh = built(table, (tree, tree), **chosen).state_dict()
    state, report = loaded(tmp_path / "exp", (tree, tree), chosen, table)
    assert (report.units_kept, report.units_new, report.units_dropped) == (10, ["i", "j"], ["a"])
    new_ids, old_ids = (torch.tensor(ids) for ids in ([0, 1, 2, 3, 9], [0, 1, 2, 4, 10]))
    for side in ("left", "right"):
        name = f"decoder.{side}_decoder.embed.0.weight"
        assert torch.equal(state[name][new_ids], theirs[name][old_ids])
        assert torch.equal(state[name][-2:], fresh[name][-2:])
        assert report.parameters_in_part[name] == RowCount(10, 12)
    outputs = match_units(TABLE, table).outputs
    rows = map_head(HSoftmaxHead(16, BINARY), HSoftmaxHead(16, tree), outputs)[
        "inner_vector.weight"
    ]
    assert 0 < (rows.source >= 0).sum() < 11
    for name in ("head.inner_vector.weight", "right_head.inner_vector.weight"):
        assert torch.equal(state[name], mix_rows(fresh[name], theirs[name], rows)[0])
        assert report.parameters_in_part[name].taken == (rows.source >= 0).sum()
    read = json.loads(report.to_json())
    assert read["parameters_in_part"]["head.inner_vector.weight"]["rows"] == 11
    assert read["unit_table"] == str(tmp_path / "exp" / "units.txt")


@pytest.mark.parametrize("kind", HEADS)
def test_between_models_with_and_without_a_decoder(tmp_path: Path, kind: str) -> None:
    trees: Trees = (None, BINARY if has_tree(kind) else None)
    both, none = sections("softmax", kind), sections("softmax", kind, **CTC_ONLY)
    theirs = {
        name: write_base(tmp_path / name, trees, of)
        for name, of in (("both", both), ("none", none))
    }
    of_decoder = [name for name in theirs["both"] if name.startswith(("decoder.", "head."))]
    for base, chosen, new, dropped in (
        ("none", none, [], []),
        ("none", both, of_decoder, []),
        ("both", none, [], of_decoder),
    ):
        state, report = loaded(tmp_path / base, trees, chosen)
        assert (report.parameters_new, report.parameters_dropped) == (new, dropped)
        assert same_names(state, theirs[base]) == [name for name in theirs["none"] if name in state]
        assert report.parameters_taken == len(theirs["none"])
    assert load_experiment(tmp_path / "none").model.num_units == len(TABLE)
    table = UnitTable.from_units("bcdefghi")
    _, report = loaded(
        tmp_path / "none", (None, Tree.huffman(COUNTS, units=table.units)), none, table
    )
    assert (report.units_new, report.units_dropped) == (["i"], ["a"])
    if kind == "softmax":
        assert report.parameters_in_part["ctc.head.output.weight"] == RowCount(10, 11)
    for name in ("units.txt", "train.yaml", "ctc_tree.json"):
        (tmp_path / "none" / name).unlink(missing_ok=True)
    if kind in ("softmax", "hsoftmax"):  # their shapes tell the number of units
        assert loaded(tmp_path / "none", trees, none)[1].parameters_new == []
    else:
        with pytest.raises(
            CheckpointError, match=r"and its unit table is not next to it; put its units\.txt into"
        ):
            loaded(tmp_path / "none", trees, none)


def test_a_wenet_folder_with_sos_eos_as_the_last_unit(tmp_path: Path) -> None:
    units = ("<blank>", "<unk>", *"abcdefgh", "<sos/eos>")
    old = UnitTable(units, SpecialIds(blank=0, unk=1, sos=10, eos=10))
    theirs = built(old, seed=1, **SOFTMAX)
    dump_config(small_config(**SOFTMAX), tmp_path / "train.yaml")
    torch.save(wenet_state_dict(theirs), tmp_path / "final.pt")
    for table_name in ("words.txt", "lang_char.txt"):
        old.write(tmp_path / table_name)
        state, report = loaded(tmp_path)
        assert (report.units_kept, report.unit_table) == (11, str(tmp_path / table_name))
    order = [0, 1, 10, *range(2, 10)]
    for name in ("decoder.embed.0.weight", "head.output.weight", "ctc.head.output.bias"):
        assert torch.equal(state[name], theirs.state_dict()[name][order])


def test_a_checkpoint_of_the_original_tree_head_contains_its_tree(tmp_path: Path) -> None:
    """Its train.yaml does not describe the tree head, and its softmax layer is not used."""
    old = built(TABLE, (BINARY, None), seed=1, **HSOFTMAX)
    nodes, turns = BINARY.paths()
    state = {
        name: value
        for name, value in old.state_dict().items()
        if not name.startswith(("head.", "ctc.head."))
    }
    state |= {
        f"ctc.ctc_lo.{name}": old.state_dict()[f"ctc.head.output.{name}"]
        for name in ("weight", "bias")
    }
    state["decoder.output_layer.weight"] = torch.zeros(11, 16)
    state["hsoftmax.inner_vector.weight"] = old.state_dict()["head.inner_vector.weight"]
    for name, values in (("index", nodes), ("sign", turns), ("bias", turns != 1)):
        state[f"hsoftmax.path_{name}"] = torch.from_numpy(values.astype(np.int64))
    torch.save(state, tmp_path / "final.pt")
    TABLE.write(tmp_path / "units.txt")
    Tree.huffman([1, 2]).save(tmp_path / "tree.json")  # it does not belong to these weights
    dump_config(
        small_config(tokenizer_conf={"special_tokens": {"<sos>": 2, "<eos>": 2}}),
        tmp_path / "train.yaml",
    )
    permuted = UnitTable((*TABLE.units[:3], *reversed(TABLE.units[3:])), SPECIAL)
    children = np.where(BINARY.children >= 13, 33 - BINARY.children, BINARY.children)
    tree = Tree("t", permuted.units, children, np.ones(11))
    loaded_state, report = loaded(tmp_path, (tree, None), HSOFTMAX, permuted)
    assert report.parameters_new == []
    assert torch.equal(
        loaded_state["head.inner_vector.weight"], old.state_dict()["head.inner_vector.weight"]
    )


def test_weights_without_a_unit_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_base(tmp_path / "exp")
    for name in ("units.txt", "train.yaml"):
        (tmp_path / "exp" / name).unlink()
    expected = r"^.*exp/final.pt: made for 11 units, here are 12, and its unit table is not next to it; put its units.t"
    with pytest.raises(CheckpointError, match=expected + rf"xt into {tmp_path / 'exp'}$"):
        loaded(tmp_path / "exp", table=UnitTable.from_units("abcdefghi"))
    _, report = loaded(tmp_path / "exp")
    report.log()
    assert report.unit_table is None and report.parameters_new == []
    assert "final.pt: no unit table next to it; its units are assumed to be the same" in caplog.text


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    write_base(exp, (BINARY, None), HSOFTMAX)
    others = UnitTable.from_units("abc")
    for config, sums, table, message in (
        (
            sections("class"),
            {},
            TABLE,
            r"final.pt: its head.\* are not those of the ClassHead that .*exp/train.yaml",
        ),
        (
            {},
            {"units.txt": "0"},
            TABLE,
            "exp/units.txt: changed since the training .*; put the old file",
        ),
        ({}, {}, others, "final.pt: trained with 11 units, but .*units.txt has 6; use the same"),
    ):
        dump_config(small_config(**config), exp / "train.yaml")
        write_run(exp, RunRecord(files=sums))
        table.write(exp / "units.txt")
        with pytest.raises(CheckpointError, match=message):
            loaded(exp, (BINARY, None), HSOFTMAX)


def test_another_encoder_or_decoder_is_refused(tmp_path: Path) -> None:
    write_base(tmp_path / "exp")
    both = sections("softmax", **BIDIRECTIONAL)
    for chosen, message in (
        (
            sections("softmax", encoder_conf={"num_blocks": 2}),
            "weights of another model: missing encoder.encoders.1.",
        ),
        (
            sections("softmax", encoder_conf={"num_blocks": 1, "output_size": 8}),
            "of another shape .*, expected ",
        ),
        (both, "missing decoder.left_decoder"),
    ):
        with pytest.raises(CheckpointError, match=f"final.pt: .*{message}"):
            loaded(tmp_path / "exp", chosen=chosen)
    state = built(TABLE, **both).state_dict()
    for name in ("decoder.right_decoder.embed.0.weight", "right_head.output.weight"):
        torch.save({**state, name: state[name][:7]}, tmp_path / "odd.pt")
        with pytest.raises(
            CheckpointError,
            match=rf"odd.pt: .*of another shape {name} \(7, 16\), expected \(11, 16\)",
        ):
            loaded(tmp_path / "odd.pt", chosen=both)


def test_feature_statistics_of_the_checkpoint_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(cmvn="global_cmvn", cmvn_conf={"cmvn_file": "global_cmvn"}, **SOFTMAX)
    means = (torch.full((20,), mean) for mean in (1.0, 1.0, 2.0))
    models = [build_model(config, 11, SPECIAL, cmvn=(mean, torch.ones(20))) for mean in means]
    torch.save(models[0].state_dict(), tmp_path / "final.pt")
    take_weights(models[1], tmp_path, TABLE)
    assert not caplog.records
    take_weights(models[2], tmp_path, TABLE)
    assert (
        "final.pt: features are normalised with its own statistics, not with those of cmvn_conf.cm"
        in caplog.text
    )
    assert (
        models[2].encoder.global_cmvn is not None
        and float(models[2].encoder.global_cmvn.mean[0]) == 1.0
    )


def test_training_starts_with_the_weights_of_a_model_with_other_units(
    tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    UnitTable.from_units("abdex").write(corpus.folder / "units.txt")
    newest = list_checkpoints(trained / "checkpoints")[-1]
    with caplog.at_level(logging.INFO):
        # The learning rate of its only step is so small that no weight changes.
        settings = (
            "optim_conf.lr=1e-30",
            "max_minutes=1e-9",
            "dataset_conf.max_unknown_units=0.2",
        )  # 'c'
        folder = corpus.train(tmp_path / "m", *settings, checkpoint=newest)
    assert f"weights from {newest}; new: none" in caplog.text
    assert f"units of {trained / 'units.txt'}: 7 kept; new: 'x'; dropped: 'c'" in caplog.text
    parts = [
        f"{head}.output.{kind}" for head in ("ctc.head", "head") for kind in ("weight", "bias")
    ]
    parts.append("decoder.embed.0.weight")
    report = json.loads((folder / "fine_tune.json").read_text("utf-8"))
    assert report["parameters_in_part"] == {name: {"taken": 7, "rows": 8} for name in parts}
    final, started = weights_of(trained), weights_of(folder)
    assert all(torch.equal(started[name][:7], final[name][[0, 1, 2, 3, 4, 6, 7]]) for name in parts)
    differing = [name for name, value in final.items() if not torch.equal(started[name], value)]
    assert sorted(
        name for name in differing if "running_" not in name and "num_batches" not in name
    ) == sorted(parts)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.pt", b"x", "sha256 of model.pt differs from the manifest"),
        ("model.pt", None, "model.pt cannot be read .*"),
        ("manifest.json", b"{", "manifest.json is damaged"),
        (
            "manifest.json",
            b'{"format": "other/1"}',
            "manifest.json is of format 'other/1', expected .*",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    tmp_path: Path, trained: Path, name: str, content: bytes | None, message: str
) -> None:
    damaged = shutil.copytree(
        list_checkpoints(trained / "checkpoints")[-1], tmp_path / "step-00000001"
    )
    (damaged / name).unlink()
    if content is not None:
        (damaged / name).write_bytes(content)
    for path in (damaged, damaged / "model.pt"):
        with pytest.raises(
            CheckpointError, match=f"^--checkpoint {path}: {message}; use another checkpoint$"
        ):
            take_weights(built(TABLE, **SOFTMAX), path, TABLE)


@pytest.mark.slow
def test_a_resume_does_not_load_the_weights_again(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    whole = tiny_corpus.train(tmp_path / "whole", checkpoint=trained / "final.pt")
    assert outcome(whole) != outcome(trained)
    copy = cut_back(whole, tmp_path / "m", 3)
    assert outcome(tiny_corpus.train(copy, checkpoint=trained / "final.pt")) == outcome(whole)


@pytest.mark.slow
def test_the_first_weights_are_recorded_and_a_resume_must_have_the_same(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    def recorded(folder: Path) -> FirstWeights | None:
        record = read_run(folder)
        assert record is not None
        return record.first_weights

    base = shutil.copytree(trained, tmp_path / "base")
    folder = tiny_corpus.train(tmp_path / "m", "max_epoch=1", checkpoint=base)
    first = file_sha256(base / "final.pt")
    weights_of_base = FirstWeights(kind="checkpoint", name=str(base), sha256=first)
    assert recorded(folder) == weights_of_base
    assert recorded(trained) == FirstWeights(kind="random")
    part = cut_back(folder, tmp_path / "part", 2)
    without_record = cut_back(folder, tmp_path / "without_record", 2)
    weights = newest(base) / "model.pt"
    assert hash_weights(weights.parent) == hash_weights(weights) == file_sha256(weights)
    shutil.copy(checkpoint_path(base / "checkpoints", 1) / "model.pt", base / "final.pt")
    now = file_sha256(base / "final.pt")
    for resumed in (folder, part):
        message = f"sha256 of checkpoint was {first[:12]}, is now {now[:12]} ({base}); a resumed run must be the same: "
        with pytest.raises(
            ConfigError, match=rf"^{resumed}/[\w.]+: {re.escape(message)}.*, or use another"
        ):
            tiny_corpus.train(resumed, "max_epoch=1", checkpoint=base)
    with pytest.raises(
        CheckpointError, match="gone: cannot be read .*; a resumed run needs no --checkpoint$"
    ):
        tiny_corpus.train(part, "max_epoch=1", checkpoint=tmp_path / "gone")
    with pytest.raises(ConfigError, match="sha256 of checkpoint was none, is now"):
        tiny_corpus.train(cut_back(trained, tmp_path / "fresh", 2), checkpoint=base)
    (without_record / "run.json").unlink()  # as its message for a damaged file says
    tiny_corpus.train(without_record, "max_epoch=1", checkpoint=base)
    unchecked = FirstWeights(kind="checkpoint", name=str(base))
    assert recorded(without_record) == unchecked, (
        "no weights are recorded, so they cannot be checked"
    )
    tiny_corpus.train(part, "max_epoch=1")
    assert recorded(part) == weights_of_base, "that command named no weights"
    assert outcome(part) == outcome(folder)


# Row mapping between heads with different units, orders and trees

Nested = Any
"""A unit, or a list of the branches of a node."""


def tree_of(nested: Nested, units: Sequence[str], counts: Sequence[float]) -> NaryTree:
    """The tree of a nested list, numbered breadth first."""
    nodes = [nested]
    for node in nodes:  # grows as it is read
        nodes += [child for child in node if isinstance(child, list)]
    numbers = {id(node): number for number, node in enumerate(nodes)}
    rows = [
        [numbers.get(id(child)) or len(nodes) + units.index(child) for child in node]
        for node in nodes
    ]
    return NaryTree.from_rows(rows, counts, units=units)


def random_nested(units: Sequence[str], rng: np.random.Generator, most: int) -> Nested:
    if len(units) == 1:
        return units[0]
    number = int(rng.integers(2, min(most, len(units)) + 1))
    cuts = np.sort(rng.choice(np.arange(1, len(units)), number - 1, replace=False))
    return [random_nested(list(part), rng, most) for part in np.split(np.array(units), cuts)]


def shuffled(nested: Nested, rng: np.random.Generator) -> Nested:
    """The same tree with the branches of each node in another order."""
    return (
        [shuffled(nested[i], rng) for i in rng.permutation(len(nested))]
        if isinstance(nested, list)
        else nested
    )


def grafted(nested: Nested, unit: str, new: str) -> Nested:
    """The tree with a decision between `unit` and `new` where `unit` was."""
    if isinstance(nested, list):
        return [grafted(child, unit, new) for child in nested]
    return [new, unit] if nested == unit else nested


def head_of(
    kind: str, nested: Nested, units: Sequence[str], counts: dict[str, float]
) -> OutputHead:
    tree = tree_of(nested, units, [counts[unit] for unit in units])
    if kind == "hsoftmax":
        binary = Tree("t", tree.units, tree.children.reshape(-1, 2), tree.frequencies)
        return HSoftmaxHead(4, binary, bias=True)
    if kind == "class":
        return ClassHead(4, tree)
    return (
        AdaptiveHead(4, tree.frequencies, div_value=2.0)
        if kind == "adaptive"
        else SoftmaxHead(4, len(units))
    )


def table_of(units: Sequence[str]) -> UnitTable:
    ids = [units.index(name) for name in ("<blank>", "<unk>", "<sos/eos>")]
    return UnitTable(tuple(units), SpecialIds(blank=ids[0], unk=ids[1], sos=ids[2], eos=ids[2]))


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(number=st.integers(0, 5), seed=st.integers(0, 10**6))
def test_another_order_of_units_and_branches_changes_no_probability(number: int, seed: int) -> None:
    """A new unit next to an old one shares its probability, in both directions."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    units = ["<blank>", "<unk>", "<sos/eos>", *"abcde"[:number]]
    counts = dict(zip([*units, "new"], rng.uniform(1, 99, len(units) + 1), strict=True))
    nested = random_nested([str(unit) for unit in rng.permutation(units)], rng, 2)
    permuted = [str(unit) for unit in rng.permutation(units)]
    beside = str(rng.choice(units))
    extended = [str(unit) for unit in rng.permutation([*units, "new"])]
    mirrored, more = shuffled(nested, rng), shuffled(grafted(nested, beside, "new"), rng)
    forms = [(nested, units), (mirrored, permuted), (more, extended)]
    one, other = (forms[int(chosen)] for chosen in rng.integers(len(forms), size=2))
    tables = table_of(one[1]), table_of(other[1])
    old, new = head_of("hsoftmax", *one, counts), head_of("hsoftmax", *other, counts)
    state, theirs = new.state_dict(), old.state_dict()
    for name, rows in map_head(old, new, match_units(*tables).outputs).items():
        state[name] = mix_rows(state[name], theirs[rows.old_name], rows)[0]
    new.load_state_dict(state)
    hidden = torch.randn(
        3, 4, dtype=torch.float64
    )  # float32 would load the kernels, which takes longer than the test
    probs = [head.log_probs(hidden).exp().detach() for head in (old, new)]
    for unit in units:
        names = [unit, "new"] if unit == beside else [unit]
        both = [
            torch.stack(
                [prob[:, ids] for name in names if (ids := table.id_of(name)) is not None]
            ).sum(0)
            for prob, table in zip(probs, tables, strict=True)
        ]
        torch.testing.assert_close(both[0], both[1])


def test_special_units_are_matched_by_role() -> None:
    one = UnitTable(
        ("<sos/eos>", "a", "<blank>", "<unk>"), SpecialIds(blank=2, unk=3, sos=0, eos=0)
    )
    two = UnitTable(("<blank>", "a", "<sos>", "<eos>"), SpecialIds(blank=0, unk=None, sos=2, eos=3))
    apart, joined = match_units(one, two), match_units(two, one)
    assert (apart.inputs.tolist(), apart.outputs.tolist()) == ([2, 1, 0, 0], [2, 1, -1, 0])
    assert (joined.inputs.tolist(), joined.outputs.tolist()) == ([2, 1, 0, -1], [3, 1, 0, -1])


def test_rows_without_a_match_are_new() -> None:
    """Nodes that split the shared units differently; classes and clusters of another structure."""
    units = ["<blank>", "<unk>", "<sos/eos>", *"abc"]
    table, counts = table_of(units), dict.fromkeys(units, 1.0)
    one = [[["<blank>", "<unk>"], ["<sos/eos>", "a"]], ["b", "c"]]
    other = [[["<blank>", "<unk>"], ["b", "a"]], ["<sos/eos>", "c"]]
    outputs = match_units(table, table).outputs
    heads = [head_of("hsoftmax", nested, units, counts) for nested in (one, other)]
    assert map_head(*heads, outputs)["inner_vector.weight"].source.tolist() == [-1, -1, -1, 3, -1]
    classes = [head_of("class", nested, units, counts) for nested in (one, other, one)]
    ranks = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    clusters = [AdaptiveHead(16, ranks, cutoffs, 2.0) for cutoffs in ([2, 4], [3, 4], [2, 4])]
    for old, different, equal in (classes, clusters):
        assert map_head(old, different, outputs) == {} == map_head(old, equal, outputs[::-1].copy())
        found = map_head(old, equal, outputs)
        assert {*found} == {name for name, _ in old.named_parameters()}
        assert all((rows.source == np.arange(len(rows.source))).all() for rows in found.values())
