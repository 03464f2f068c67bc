# SPDX-License-Identifier: Apache-2.0
"""What a model takes from another of other units, trees or heads, and what it says of it; and what stays frozen."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import SPECIAL, small_batch, small_config
from tiny_corpus import TinyCorpus, weights_of

from wenet_hs.build import build_model
from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ModelConf
from wenet_hs.errors import CheckpointError, ConfigError
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.interop.state import to_wenet_state_dict
from wenet_hs.model import AsrModel
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.train.fine_tune import FineTuneReport, RowCount, mixed, take_weights
from wenet_hs.train.freeze import check_reached, freeze
from wenet_hs.train.mapping import map_head, match_units
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import NaryTree

AnyTree = Tree | NaryTree
Nested = Any
"""A unit, or a list of the branches of a node."""

# ---- heads by themselves


def tree_of(nested: Nested, units: Sequence[str], counts: Sequence[float] | None = None) -> NaryTree:
    """The tree of a nested list, numbered breadth first."""
    rows: list[list[int]] = []
    queue = [nested] if isinstance(nested, list) else []
    num_inner = count_inner(nested)
    for node in queue:  # grows as it is read
        row = []
        for child in node:
            if isinstance(child, list):
                queue.append(child)
                row.append(len(queue) - 1)
            else:
                row.append(num_inner + units.index(child))
        rows.append(row)
    return NaryTree.from_rows(rows, np.ones(len(units)) if counts is None else counts, units=units)


def count_inner(nested: Nested) -> int:
    return 1 + sum(map(count_inner, nested)) if isinstance(nested, list) else 0


def random_nested(units: Sequence[str], rng: np.random.Generator, most: int) -> Nested:
    if len(units) == 1:
        return units[0]
    number = int(rng.integers(2, min(most, len(units)) + 1))
    cuts = np.sort(rng.choice(np.arange(1, len(units)), number - 1, replace=False))
    return [random_nested(list(part), rng, most) for part in np.split(np.array(units), cuts)]


def shuffled(nested: Nested, rng: np.random.Generator) -> Nested:
    """The same tree with the branches of each node in another order."""
    return [shuffled(nested[i], rng) for i in rng.permutation(len(nested))] if isinstance(nested, list) else nested


def grafted(nested: Nested, unit: str, new: str) -> Nested:
    """The tree with a decision between `unit` and `new` where `unit` was."""
    if isinstance(nested, list):
        return [grafted(child, unit, new) for child in nested]
    return [new, unit] if nested == unit else nested


def head_of(kind: str, nested: Nested, units: Sequence[str], counts: dict[str, float]) -> OutputHead:
    tree = tree_of(nested, units, [counts[unit] for unit in units])
    if kind == "hsoftmax":
        binary = Tree("t", tree.units, tree.children.reshape(-1, 2), tree.frequencies)
        return HSoftmaxHead(4, binary, bias=True)
    if kind == "class":
        return ClassHead(4, tree)
    return AdaptiveHead(4, tree, div_value=2.0) if kind == "adaptive" else SoftmaxHead(4, len(units))


def carry(old: OutputHead, new: OutputHead, old_units: UnitTable, new_units: UnitTable) -> None:
    """Give a head the rows of another one."""
    state, theirs = new.state_dict(), old.state_dict()
    for name, rows in map_head(old, new, match_units(old_units, new_units).outputs).items():
        state[name] = mixed(state[name], theirs[rows.name], rows)[0]
    new.load_state_dict(state)


def table_of(units: Sequence[str]) -> UnitTable:
    ids = [units.index(name) for name in ("<blank>", "<unk>", "<sos/eos>")]
    return UnitTable(tuple(units), SpecialIds(blank=ids[0], unk=ids[1], sos=ids[2], eos=ids[2]))


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(kind=st.sampled_from(["hsoftmax", "class", "adaptive"]), number=st.integers(0, 5), seed=st.integers(0, 10**6))
def test_units_and_branches_in_another_order_change_no_probability(kind: str, number: int, seed: int) -> None:
    """And with one more unit, beside an old one, the two share what the old one had: in either direction."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    units = ["<blank>", "<unk>", "<sos/eos>", *"abcde"[:number]]
    counts = dict(zip([*units, "new"], rng.uniform(1, 99, len(units) + 1), strict=True))
    nested = random_nested([str(unit) for unit in rng.permutation(units)], rng, 2 if kind == "hsoftmax" else 4)
    permuted = [str(unit) for unit in rng.permutation(units)]
    beside = str(rng.choice(units))
    extended = [str(unit) for unit in rng.permutation([*units, "new"])]
    mirrored, more = shuffled(nested, rng), shuffled(grafted(nested, beside, "new"), rng)
    forms = [(nested, units), (mirrored, permuted)] + ([(more, extended)] if kind != "adaptive" else [])
    one, other = (forms[int(chosen)] for chosen in rng.integers(len(forms), size=2))
    tables = table_of(one[1]), table_of(other[1])
    old, new = head_of(kind, *one, counts), head_of(kind, *other, counts)
    carry(old, new, *tables)
    hidden = torch.randn(3, 4, dtype=torch.float64)  # float32 would load the kernels, which takes longer than the test
    probs = [head.log_probs(hidden).exp().detach() for head in (old, new)]
    for unit in units:
        names = [unit, "new"] if unit == beside else [unit]
        both = [
            torch.stack([prob[:, ids] for name in names if (ids := table.id_of(name)) is not None]).sum(0)
            for prob, table in zip(probs, tables, strict=True)
        ]
        torch.testing.assert_close(both[0], both[1])


UNITS = st.lists(st.sampled_from("abcdefgh"), unique=True)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(old=UNITS, new=UNITS, seed=st.integers(0, 10**6))
def test_shared_units_keep_their_scores_in_any_table(old: list[str], new: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    special = ["<blank>", "<unk>", "<sos/eos>"]
    tables = [table_of([str(unit) for unit in rng.permutation([*special, *names])]) for names in (old, new)]
    heads = [SoftmaxHead(4, len(table)) for table in tables]
    before = heads[1].output.weight.detach().clone()
    carry(heads[0], heads[1], *tables)
    weights = [head.output.weight for head in heads]
    for unit_id, unit in enumerate(tables[1].units):
        found = tables[0].id_of(unit)
        expected = before[unit_id] if found is None else weights[0][found]
        assert torch.equal(weights[1][unit_id], expected)
        assert (found is None) or heads[1].output.bias[unit_id] == heads[0].output.bias[found]


def test_special_units_are_matched_by_what_they_are_for() -> None:
    one = UnitTable(("<sos/eos>", "a", "<blank>", "<unk>"), SpecialIds(blank=2, unk=3, sos=0, eos=0))
    two = UnitTable(("<blank>", "a", "<sos>", "<eos>"), SpecialIds(blank=0, unk=None, sos=2, eos=3))
    apart, joined = match_units(one, two), match_units(two, one)
    assert (apart.inputs.tolist(), apart.outputs.tolist()) == ([2, 1, 0, 0], [2, 1, -1, 0])
    assert (joined.inputs.tolist(), joined.outputs.tolist()) == ([2, 1, 0, -1], [3, 1, 0, -1])


def test_what_a_head_cannot_match_stays_new() -> None:
    """Nodes that split the shared units otherwise; a cluster's words where its width is another; another kind."""
    units = ["<blank>", "<unk>", "<sos/eos>", *"abc"]
    table, counts = table_of(units), dict.fromkeys(units, 1.0)
    one = [[["<blank>", "<unk>"], ["<sos/eos>", "a"]], ["b", "c"]]
    other = [[["<blank>", "<unk>"], ["b", "a"]], ["<sos/eos>", "c"]]
    outputs = match_units(table, table).outputs
    heads = {kind: head_of(kind, one, units, counts) for kind in ("softmax", "hsoftmax", "class")}
    rows = map_head(heads["hsoftmax"], head_of("hsoftmax", other, units, counts), outputs)
    assert rows["inner_vector.weight"].source.tolist() == [-1, -1, -1, 3, -1]
    rows = map_head(heads["class"], head_of("class", other, units, counts), outputs)
    assert rows["output.bias"].source.tolist() == [-1, -1, 2, -1, 8, 5, 6, 7, 4, 9]
    assert map_head(heads["class"], heads["softmax"], outputs) == {}
    ranks = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    old = AdaptiveHead(16, ranks, [2, 4], 2.0)
    new = AdaptiveHead(16, ranks, [3, 4], 2.0)
    found = {name: rows.source.tolist() for name, rows in map_head(old, new, outputs).items()}
    assert found["adaptive.head.weight"] == [0, 1, -1, -1, 3]
    assert found["adaptive.tail.0.1.weight"] == [1]
    assert found["adaptive.tail.1.1.weight"] == [0, 1]
    narrow = map_head(old, AdaptiveHead(16, ranks, [2, 4], 3.0), outputs)
    assert list(narrow) == ["adaptive.head.weight"]


# ---- models from folders

TABLE = UnitTable.from_units("abcdefgh")
COUNTS = [9.0, 0.0, 30.0, 25.0, 4.0, 17.0, 3.0, 8.0, 1.0, 2.0, 6.0]
BINARY = Tree.huffman(COUNTS, units=TABLE.units)
OTHER = Tree.huffman(COUNTS[::-1], units=TABLE.units)
BIDIRECTIONAL: dict[str, Any] = {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1, "num_blocks": 1}}
Trees = tuple[AnyTree | None, AnyTree | None]


def sections(kind: str, ctc_kind: str = "softmax", **more: Any) -> dict[str, Any]:
    """Settings of the two heads, with their trees in a folder."""
    ctc: dict[str, Any] = {"head": ctc_kind}
    if ctc_kind != "softmax":
        ctc["head_conf"] = {"tree": "ctc_tree.json"}
    conf = {} if kind == "softmax" else {"tree": "tree.json"}
    return {"head": kind, "head_conf": conf, "ctc_conf": ctc, "encoder_conf": {"num_blocks": 1}, **more}


def built(table: UnitTable, trees: Trees = (None, None), *, seed: int = 0, **chosen: Any) -> AsrModel:
    torch.manual_seed(seed)
    config = small_config(**chosen)
    return build_model(config, len(table), table.special, tree=trees[0], ctc_tree=trees[1], units=table.units)


def write_base(folder: Path, trees: Trees = (None, None), **chosen: Any) -> dict[str, torch.Tensor]:
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


def same_names(model: AsrModel, theirs: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, value in model.state_dict().items() if torch.equal(value, theirs.get(name, torch.empty(0)))]


@pytest.mark.parametrize("kind", ["softmax", "hsoftmax", "class", "adaptive"])
def test_the_same_model_is_taken_whole_and_another_tree_in_part(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    trees: Trees = (None, None) if kind == "softmax" else (BINARY, OTHER)
    chosen = sections(kind, kind)
    theirs = write_base(tmp_path / "exp", trees, **chosen)
    step = tmp_path / "exp" / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)
    shutil.copy(tmp_path / "exp" / "final.pt", step / "model.pt")
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "exp" / "final.pt", tmp_path / "alone" / "other.pt")
    for checkpoint in (tmp_path / "exp", tmp_path / "exp" / "final.pt", step, tmp_path / "alone" / "other.pt"):
        model = built(TABLE, trees, **chosen)
        report = take_weights(model, checkpoint, TABLE)
        assert same_names(model, theirs) == list(theirs)
        assert (report.units_kept, report.units_new, report.units_dropped) == (11, [], [])
        assert (report.parameters_taken, report.parameters_in_part) == (len(theirs), {})
        assert report.parameters_new == report.parameters_unused == []
        assert all(head.matched == head.of > 0 and head.old == head.new for head in report.heads.values())
        is_alone = checkpoint.name == "other.pt"
        assert {head.is_assumed for head in report.heads.values()} == {is_alone and kind != "softmax"}
    caplog.clear()
    report.log()
    assert ("ctc_conf.head_conf: no tree of it beside" in caplog.text) == (kind != "softmax")
    if kind != "softmax":
        model = built(TABLE, (OTHER, OTHER), **chosen)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        report = take_weights(model, tmp_path / "exp", TABLE)
        changed = [name for name in theirs if name not in same_names(model, theirs)]
        assert changed and all(name.startswith("head.") for name in changed)
        assert set(changed) == {*report.parameters_in_part, *report.parameters_new}
        assert report.heads["head_conf"].matched < report.heads["head_conf"].of
        assert set(report.parameters_new) == {name for name in same_names(model, before) if name.startswith("head.")}


def test_nothing_is_taken_between_heads_of_two_kinds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor between a softmax and classes of a single node, which have parameters of the same names and shapes."""
    flat = sections("class", head_conf={"tree": "tree.json", "num_classes": 1})
    softmax_state = write_base(tmp_path / "softmax", **sections("softmax"))
    write_base(tmp_path / "flat", (BINARY, None), **flat)
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "softmax" / "final.pt", tmp_path / "alone")
    both = ["head.output.weight", "head.output.bias"]
    for source, trees, chosen in (
        ("softmax", (BINARY, None), flat),
        ("alone", (BINARY, None), flat),
        ("flat", (None, None), sections("softmax")),
    ):
        report = take_weights(built(TABLE, trees, **chosen), tmp_path / source, TABLE)
        assert report.parameters_new == report.parameters_unused == both
    model = built(TABLE, (BINARY, None), **sections("hsoftmax"))
    with caplog.at_level(logging.INFO):
        report = take_weights(model, tmp_path / "softmax", TABLE)
        report.log()
    assert (report.parameters_new, report.parameters_unused) == (["head.inner_vector.weight"], both)
    assert set(same_names(model, softmax_state)) == set(softmax_state) - set(both)
    assert "head_conf: HSoftmaxHead from SoftmaxHead, 0 of 10 rows matched" in caplog.text


def test_other_classes_of_the_same_tree_are_matched_by_their_units(tmp_path: Path) -> None:
    """How many branches are classes stands in the train.yaml; without it nothing is known of a binary tree's."""
    three, five = (sections("class", head_conf={"tree": "tree.json", "num_classes": number}) for number in (3, 5))
    write_base(tmp_path / "exp", (BINARY, None), **three)
    old = built(TABLE, (BINARY, None), seed=1, **three).head
    model = built(TABLE, (BINARY, None), **five)
    report = take_weights(model, tmp_path / "exp", TABLE)
    assert isinstance(model.head, ClassHead) and isinstance(old, ClassHead)
    shared = {tuple(units) for units in classes_of(old)} & {tuple(units) for units in classes_of(model.head)}
    leaves = TABLE.units  # every unit's own row is taken, wherever it hangs, and so are the classes of both
    assert report.heads["head_conf"].matched == len(leaves) + len(shared)
    (tmp_path / "exp" / "train.yaml").unlink()
    report = take_weights(built(TABLE, (BINARY, None), **three), tmp_path / "exp", TABLE)
    assert report.parameters_new == ["head.output.weight", "head.output.bias"]
    assert report.heads["head_conf"].old is None


def classes_of(head: ClassHead) -> list[list[int]]:
    """The units of each class of two levels."""
    offsets, inner = head.edges.offsets, head.edges.num_inner
    return [
        sorted(head.edges.children[start:end] - inner) for start, end in zip(offsets[1:], offsets[2:], strict=False)
    ]


def test_more_units_in_both_directions(tmp_path: Path) -> None:
    """A right-to-left decoder and its head are as the other; the report says it all, and is JSON."""
    write_base(tmp_path / "exp", (BINARY, BINARY), **sections("hsoftmax", "adaptive", **BIDIRECTIONAL))
    table = UnitTable.from_units("bcdefghij")
    counts = {**dict(zip(TABLE.units, COUNTS, strict=True)), "i": 0.5, "j": 40.0}
    tree = Tree.huffman([counts[unit] for unit in table.units], units=table.units)
    chosen = sections("hsoftmax", "adaptive", **BIDIRECTIONAL)
    model, old = built(table, (tree, tree), **chosen), built(TABLE, (BINARY, BINARY), seed=1, **chosen)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    report = take_weights(model, tmp_path / "exp", table)
    assert (report.units_kept, report.units_new, report.units_dropped) == (10, ["i", "j"], ["a"])
    state, theirs = model.state_dict(), old.state_dict()
    unit_map = match_units(TABLE, table)
    new_ids, old_ids = (torch.tensor(ids) for ids in ([0, 1, 2, 3, 9], [0, 1, 2, 4, 10]))
    for side in ("left", "right"):
        name = f"decoder.{side}_decoder.embed.0.weight"
        assert torch.equal(state[name][new_ids], theirs[name][old_ids])
        assert torch.equal(state[name][-2:], fresh[name][-2:])
        assert report.parameters_in_part[name] == RowCount(10, 12)
    rows = map_head(old.head, model.head, unit_map.outputs)["inner_vector.weight"]
    assert 0 < (rows.source >= 0).sum() == report.heads["head_conf"].matched < 11
    for name in ("head.inner_vector.weight", "right_head.inner_vector.weight"):
        assert torch.equal(state[name], mixed(fresh[name], theirs[name], rows)[0])
        assert report.parameters_in_part[name].taken == report.heads["head_conf"].matched
    assert report.heads["ctc_conf.head_conf"].new == "AdaptiveHead"
    report.write(tmp_path / "fine_tune.json")
    read = json.loads((tmp_path / "fine_tune.json").read_text("utf-8"))
    assert read["parameters_in_part"]["head.inner_vector.weight"]["rows"] == 11
    assert read["unit_table"] == str(tmp_path / "exp" / "units.txt")


def test_wenets_folder_with_its_own_table_and_old_convention(tmp_path: Path) -> None:
    """<sos/eos> is the last unit there, and the third one here."""
    units = ("<blank>", "<unk>", *"abcdefgh", "<sos/eos>")
    old = UnitTable(units, SpecialIds(blank=0, unk=1, sos=10, eos=10))
    chosen = sections("softmax")
    theirs = built(old, seed=1, **chosen)
    dump_config(small_config(**chosen), tmp_path / "train.yaml")
    old.write(tmp_path / "lang_char.txt")
    torch.save(to_wenet_state_dict(theirs), tmp_path / "final.pt")
    model = built(TABLE, **chosen)
    report = take_weights(model, tmp_path, TABLE)
    assert (report.units_kept, report.unit_table) == (11, str(tmp_path / "lang_char.txt"))
    order = [0, 1, 10, *range(2, 10)]
    for name in ("decoder.embed.0.weight", "head.output.weight", "ctc.head.output.bias"):
        assert torch.equal(model.state_dict()[name], theirs.state_dict()[name][order])
    (tmp_path / "lang_char.txt").rename(tmp_path / "words.txt")
    assert take_weights(model, tmp_path, TABLE) == FineTuneReport(
        **{**vars(report), "unit_table": str(tmp_path / "words.txt")}
    )


def test_the_original_tree_head_brings_its_tree(tmp_path: Path) -> None:
    """Its train.yaml knows nothing of it, and its softmax layer was never used."""
    chosen = sections("hsoftmax")
    old = built(TABLE, (BINARY, None), seed=1, **chosen)
    nodes, turns = BINARY.paths()
    state = {name: value for name, value in old.state_dict().items() if not name.startswith(("head.", "ctc.head."))}
    state |= {f"ctc.ctc_lo.{name}": old.state_dict()[f"ctc.head.output.{name}"] for name in ("weight", "bias")}
    state["decoder.output_layer.weight"] = torch.zeros(11, 16)
    state["hsoftmax.inner_vector.weight"] = old.state_dict()["head.inner_vector.weight"]
    for name, values in (("index", nodes), ("sign", turns), ("bias", turns != 1)):
        state[f"hsoftmax.path_{name}"] = torch.from_numpy(values.astype(np.int64))
    torch.save(state, tmp_path / "final.pt")
    TABLE.write(tmp_path / "units.txt")
    dump_config(small_config(tokenizer_conf={"special_tokens": {"<sos>": 2, "<eos>": 2}}), tmp_path / "train.yaml")
    permuted = UnitTable((*TABLE.units[:3], *reversed(TABLE.units[3:])), SPECIAL)
    children = np.where(BINARY.children >= 13, 33 - BINARY.children, BINARY.children)
    tree = Tree("t", permuted.units, children, np.ones(11))
    model = built(permuted, (tree, None), **chosen)
    report = take_weights(model, tmp_path, permuted)
    assert report.parameters_new == []
    assert torch.equal(model.state_dict()["head.inner_vector.weight"], old.state_dict()["head.inner_vector.weight"])


# ---- what does not fit


def test_weights_without_their_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_base(tmp_path / "exp", **sections("softmax"))
    for name in ("units.txt", "train.yaml"):
        (tmp_path / "exp" / name).unlink()
    bigger = UnitTable.from_units("abcdefghi")
    expected = r"^.*exp/final.pt: made for 11 units, here are 12, and its unit table is not beside it; put its units.t"
    with pytest.raises(CheckpointError, match=expected + rf"xt into {tmp_path / 'exp'}$"):
        take_weights(built(bigger, **sections("softmax")), tmp_path / "exp", bigger)
    report = take_weights(built(TABLE, **sections("softmax")), tmp_path / "exp", TABLE)
    report.log()
    assert report.unit_table is None and report.parameters_new == []
    assert "final.pt: no unit table beside it; its units are taken to be the same" in caplog.text


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    write_base(tmp_path / "exp", (BINARY, None), **sections("hsoftmax"))
    model = built(TABLE, (BINARY, None), **sections("hsoftmax"))
    dump_config(small_config(**sections("class")), tmp_path / "exp" / "train.yaml")
    message = r"final.pt: its head.\* are not those of the ClassHead that .*exp/train.yaml and the tree beside it desc"
    with pytest.raises(CheckpointError, match=message):
        take_weights(model, tmp_path / "exp", TABLE)
    dump_config(small_config(), tmp_path / "exp" / "train.yaml", {"sha256 of units.txt": "0"})
    with pytest.raises(CheckpointError, match="exp/units.txt: changed since the training .*; put the old file back"):
        take_weights(model, tmp_path / "exp", TABLE)
    UnitTable.from_units("abc").write(tmp_path / "exp" / "units.txt")
    dump_config(small_config(), tmp_path / "exp" / "train.yaml")
    with pytest.raises(CheckpointError, match="final.pt: made for 11 units, but .*units.txt has 6; use the same units"):
        take_weights(model, tmp_path / "exp", TABLE)


def test_another_body_is_refused(tmp_path: Path) -> None:
    write_base(tmp_path / "exp", **sections("softmax"))
    deeper = built(TABLE, **sections("softmax", encoder_conf={"num_blocks": 2}))
    with pytest.raises(CheckpointError, match=r"final.pt: weights of another model: missing encoder.encoders.1."):
        take_weights(deeper, tmp_path / "exp", TABLE)
    wider = sections("softmax", encoder_conf={"num_blocks": 1, "output_size": 8})
    with pytest.raises(CheckpointError, match=r"of another shape .*, expected "):
        take_weights(built(TABLE, **wider), tmp_path / "exp", TABLE)
    both = built(TABLE, **sections("softmax", **BIDIRECTIONAL))
    state = both.state_dict()
    for name, message in (
        ("decoder.right_decoder.embed.0.weight", "is of 7 units, the first of 11; take another checkpoint of this"),
        ("right_head.output.weight", r"its right_head.\* has other shapes than its head.\*; take another checkpoint"),
    ):
        torch.save({**state, name: state[name][:7]}, tmp_path / "odd.pt")
        with pytest.raises(CheckpointError, match=f"odd.pt: .*{message}"):
            take_weights(both, tmp_path / "odd.pt", TABLE)
    with pytest.raises(CheckpointError, match="missing decoder.left_decoder"):
        take_weights(both, tmp_path / "exp", TABLE)


def test_the_statistics_of_the_features_stay_with_the_encoder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cmvn = {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": "global_cmvn"}, **sections("softmax")}
    models = [
        build_model(small_config(**cmvn), 11, SPECIAL, cmvn=(torch.full((20,), mean), torch.ones(20)))
        for mean in (1.0, 1.0, 2.0)
    ]
    torch.save(models[0].state_dict(), tmp_path / "final.pt")
    take_weights(models[1], tmp_path, TABLE)
    assert not caplog.records
    take_weights(models[2], tmp_path, TABLE)
    assert "final.pt: features are normalised with its own statistics, not with those of cmvn_conf.cm" in caplog.text
    assert models[2].encoder.global_cmvn is not None and float(models[2].encoder.global_cmvn.mean[0]) == 1.0


# ---- freezing


def test_frozen_parts_stay_as_they_are(tiny_corpus: TinyCorpus, trained: Path, tmp_path: Path) -> None:
    """Weights and running statistics, to the bit; the optimizer does not know them, and a resume must not change it."""
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


def test_a_frozen_part_without_a_checkpoint_is_random(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And of a head with sparse gradients all but the head may be frozen: nothing is left for the dense optimizer."""
    sparse = ("head_conf.sparse_grad=true", "model_conf.lsm_weight=0", "max_minutes=1e-9")
    folder = tiny_corpus.train(tmp_path / "m", "freeze=[encoder, decoder, ctc]", *sparse, head="hsoftmax")
    assert "freeze without --checkpoint: what is frozen stays as it was drawn at random" in caplog.text
    newest = max((folder / "checkpoints").glob("step-*"))
    optimizer = torch.load(newest / "optimizer.pt", weights_only=True)
    assert (len(optimizer["dense"]["state"]), len(optimizer["sparse"]["state"])) == (0, 1)


def test_a_frozen_module_computes_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    """No dropout and no batch statistics, though the rest trains; `encoders.1` is not `encoders.10`."""
    layers = {"encoder_conf": {"num_blocks": 11, "output_size": 8, "attention_heads": 1, "linear_units": 4}}
    model = built(TABLE, **layers)
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
        (
            ["encoder.zzzzzzzzz"],
            ".*'encoder.zzzzzzzzz' .*; did you mean encoder.embed or encoder.after_norm or encoder.",
        ),
        (["qqq"], ".*'qqq' .*; did you mean encoder or decoder or head or ctc"),
        (["encoder.global_cmvn"], "no parameter is called 'encoder.global_cmvn'"),
        (["encoder.encoder"], "no parameter is called 'encoder.encoder' or begins so; did you mean encoder.encoders"),
        (["encoder", "decoder", "head", "ctc"], "holds every parameter, so that nothing is left to train; remove a "),
    ],
)
def test_wrong_names_to_freeze(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^a.yaml: freeze: {message}"):
        freeze(built(TABLE), names, where="a.yaml")


def test_what_is_left_to_train_must_be_reached() -> None:
    model = built(TABLE, **BIDIRECTIONAL)
    freeze(model, ["encoder", "ctc", "decoder.left_decoder", "head"], where="a.yaml")
    check_reached(model, ModelConf(ctc_weight=0.3, reverse_weight=0.1), where="a.yaml")
    for conf, message in (
        ({"ctc_weight": 0.3}, "while model_conf.ctc_weight makes CTC's share 0.3; remove a name$"),
        ({"reverse_weight": 0.1, "ctc_only_steps": 5}, "while model_conf.ctc_only_steps makes CTC's share 1; remove a"),
    ):
        with pytest.raises(ConfigError, match=f"^a.yaml: freeze: nothing that is left to train .*{message}"):
            check_reached(model, ModelConf(**conf), where="a.yaml")  # type: ignore[arg-type]
    other = built(TABLE)
    freeze(other, ["encoder", "decoder", "head"], where="a.yaml")
    check_reached(other, ModelConf(ctc_weight=0.3, ctc_only_steps=5), where="a.yaml")
    with pytest.raises(ConfigError, match="model_conf.ctc_weight_final makes CTC's share 0; "):
        check_reached(other, ModelConf(ctc_weight=0.3, ctc_weight_final=0.0, ctc_weight_steps=9), where="a.yaml")
