# SPDX-License-Identifier: Apache-2.0
"""Every head with every tree by YAML, for the decoder and for CTC; what does not fit; weights of another tree."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from small_models import NUM_UNITS, SPECIAL, small_batch

from wenet_hs.build import AnyTree, build_model, check_routes, head_confs, load_experiment, tree_paths
from wenet_hs.config.load import dump_config, load_config
from wenet_hs.config.schema import ClassHeadConf, ExperimentConfig, HSoftmaxHeadConf
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead, class_softmax
from wenet_hs.heads.hsoftmax import RouteOption
from wenet_hs.heads.kernels.search import SearchMethod
from wenet_hs.model import AsrModel
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import NaryTree, Tree

TABLE = UnitTable.from_units("abcdefgh")
BASE = """
encoder_conf: {output_size: 16, attention_heads: 2, linear_units: 24, num_blocks: 1}
decoder: transformer
decoder_conf: {attention_heads: 2, linear_units: 24, num_blocks: 1}
tokenizer_conf: {symbol_table_path: units.txt}
dataset_conf: {fbank_conf: {num_mel_bins: 20}}
model_conf: {ctc_weight: 0.3, lsm_weight: 0.1}
"""
COUNTS = [9.0, 0.0, 30.0, 25.0, 4.0, 17.0, 3.0, 8.0, 1.0, 2.0, 6.0]
BINARY = Tree.huffman(COUNTS, units=TABLE.units)
OTHER = Tree.huffman(COUNTS[::-1], units=TABLE.units)
CLASSES = NaryTree.frequency_bins(COUNTS, 3, units=TABLE.units)
TREES: dict[str, AnyTree] = {"binary": BINARY, "classes": CLASSES}
HEADS: dict[str, tuple[type[OutputHead], str]] = {
    "softmax": (SoftmaxHead, ""),
    "hsoftmax": (HSoftmaxHead, "tree: data/t.json"),
    "class": (ClassHead, "tree: data/t.json"),
    "adaptive": (AdaptiveHead, "tree: data/t.json"),
}
Read = Callable[[str], ExperimentConfig]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A configuration from lines of YAML behind BASE."""

    def load(text: str) -> ExperimentConfig:
        (tmp_path / "a.yaml").write_text(text + BASE)
        return load_config(tmp_path / "a.yaml")

    return load


def built(config: ExperimentConfig, tree: AnyTree | None = None, ctc_tree: AnyTree | None = None) -> AsrModel:
    torch.manual_seed(0)
    return build_model(config, NUM_UNITS, SPECIAL, tree=tree, ctc_tree=ctc_tree, units=TABLE.units)


def both(kind: str, conf: str = "") -> str:
    """The decoder's head and that of CTC of one kind."""
    settings = HEADS[kind][1] + conf
    return f"head: {kind}\nhead_conf: {{{settings}}}\nctc_conf: {{head: {kind}, head_conf: {{{settings}}}}}\n"


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", HEADS)
def test_any_head_takes_any_tree(read: Read, kind: str, tree: str) -> None:
    model = built(read(both(kind)), TREES[tree], TREES[tree])
    for head in (model.head, model.ctc.head):
        assert type(head) is HEADS[kind][0]
    losses = model(small_batch([40, 33], [5, 2]))
    losses.total.backward()
    assert torch.isfinite(losses.total)
    assert all(value.grad is not None and torch.isfinite(value.grad).all() for value in model.head.parameters())
    assert all(value.grad is not None and torch.isfinite(value.grad).all() for value in model.ctc.head.parameters())
    assert not losses.nll.requires_grad
    assert 0 <= int(losses.num_correct) <= losses.num_targets


def test_both_directions_have_the_head() -> None:
    settings = {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1}}
    config = ExperimentConfig(**settings, head="class", head_conf={"tree": "t"})  # type: ignore[arg-type]
    model = built(config, CLASSES)
    assert isinstance(model.head, ClassHead) and isinstance(model.right_head, ClassHead)


def test_settings_reach_the_heads(tmp_path: Path) -> None:
    def head_of(kind: str, conf: str) -> OutputHead:
        text = BASE.replace("lsm_weight: 0.1", "lsm_weight: 0.2, lsm_kind: node")
        (tmp_path / "a.yaml").write_text(f"head: {kind}\nhead_conf: {{tree: t, {conf}}}\n" + text)
        model = built(load_config(tmp_path / "a.yaml"), BINARY)
        assert (model.lsm_kind, model.lsm_weight) == ("node", 0.2)
        return model.head

    tree_head = head_of("hsoftmax", "bias: true, sparse_grad: true, route: torch-path")
    assert isinstance(tree_head, HSoftmaxHead)
    assert tree_head.inner_vector.bias is not None
    assert (tree_head.sparse_grad, tree_head.route) == (True, "torch-path")
    class_head = head_of("class", "sparse_grad: true, route: all, search: all, num_classes: 5")
    assert isinstance(class_head, ClassHead)
    assert (class_head.sparse_grad, class_head.route, class_head.search) == (True, "all", "all")
    assert class_head.edges.offsets.tolist() == NaryTree.from_binary(BINARY, 5).offsets.tolist()
    adaptive = head_of("adaptive", "cutoffs: [2, 5], div_value: 2")
    assert isinstance(adaptive, AdaptiveHead)
    assert (adaptive.cutoffs, adaptive.div_value) == ([2, 5], 2.0)
    assert adaptive.ranked_units[:3].tolist() == [2, 3, 5]


def test_routes_and_searches_are_those_of_the_heads() -> None:
    """The schema repeats them, as configuration lies below the heads."""
    for conf, route, search in (
        (HSoftmaxHeadConf, RouteOption, SearchMethod),
        (ClassHeadConf, class_softmax.Route, class_softmax.Search),
    ):
        assert get_args(conf.model_fields["route"].annotation) == get_args(route)
        assert get_args(conf.model_fields["search"].annotation) == get_args(search)


def test_trees_become_what_the_head_needs(read: Read) -> None:
    head = built(read("head: hsoftmax\nhead_conf: {tree: t}\n"), CLASSES).head
    assert isinstance(head, HSoftmaxHead)
    assert head.tree == CLASSES.binary()
    head = built(read("head: class\nhead_conf: {tree: t}\n"), BINARY).head
    assert isinstance(head, ClassHead)
    assert head.edges.children.tolist() == NaryTree.from_binary(BINARY).children.tolist()


def test_which_trees_a_configuration_names(read: Read) -> None:
    config = read("ctc_conf: {head: hsoftmax, head_conf: {tree: data/ctc.json}}\n")
    assert tree_paths(config) == {"ctc_conf.head_conf": "data/ctc.json"}
    assert list(head_confs(config)) == ["head_conf", "ctc_conf.head_conf"]
    assert tree_paths(read(both("adaptive"))) == dict.fromkeys(head_confs(config), "data/t.json")
    assert tree_paths(read("")) == {}


# What does not fit


@pytest.mark.parametrize(
    ("text", "tree", "message"),
    [
        (
            "head: class\nhead_conf: {tree: t.json, num_classes: 3}\n",
            CLASSES,
            "^head_conf.num_classes: t.json already has classes; remove it, or name a binary tree$",
        ),
        (
            "head: adaptive\nhead_conf: {tree: t.json, cutoffs: [3, 11]}\n",
            BINARY,
            "^head_conf.cutoffs: the last is 11, but there are 11 units; it must be below their number$",
        ),
    ],
)
def test_settings_that_do_not_fit_the_tree(read: Read, text: str, tree: AnyTree, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(read(text), tree)
    of_ctc = "ctc_conf: {" + text.replace("\n", ", ", 1).strip() + "}\n"
    with pytest.raises(ConfigError, match=message.replace("^", "^ctc_conf.")):
        built(read(of_ctc), None, tree)


def test_a_head_without_its_tree_is_a_wrong_call(read: Read) -> None:
    for kind in ("hsoftmax", "class", "adaptive"):
        with pytest.raises(ValueError, match="^ctc_conf.head_conf: this head needs a tree$"):
            built(read(both(kind)), BINARY)


@pytest.mark.parametrize("kind", ["hsoftmax", "class", "adaptive"])
def test_trees_of_other_units_are_refused(read: Read, kind: str) -> None:
    with pytest.raises(DataError, match="data/t.json: a tree over 2 units, but the unit table has 11; build the tree"):
        built(read(both(kind)), BINARY, NaryTree.frequency_bins([1, 2]))
    other = NaryTree.frequency_bins(COUNTS, 3, units=(*TABLE.units[:-1], "z"))
    with pytest.raises(DataError, match="data/t.json: leaf 10 is 'z', but unit 10 of the table is 'h'; build the tree"):
        built(read(both(kind)), other)


TYPO = "must be one of softmax, hsoftmax, class, adaptive, got"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("head: clas\nhead_conf: {tree: t}", f"a.yaml:1: head: {TYPO} 'clas'"),
        ("seed: 1\nctc_conf:\n  head: hs\n  head_conf: {x: 1}", f"a.yaml:3: ctc_conf.head: {TYPO} 'hs'"),
        ("head: class", "a.yaml:1: head_conf.tree: missing; make one with `wenet-hs tree build`"),
        (
            "seed: 1\nctc_conf:\n  head: adaptive",
            "a.yaml:3: ctc_conf.head_conf.tree: missing; make one with `wenet-hs tree build`",
        ),
        (
            "ctc_conf:\n  head_conf:\n    tree: t",
            "a.yaml:3: ctc_conf.head_conf.tree: not a key of this head; remove it",
        ),
        (
            "head: class\nhead_conf: {tree: t, num_clases: 3}",
            "a.yaml:2: head_conf.num_clases: unknown key; did you mean `num_classes`?",
        ),
        (
            "head: class\nhead_conf: {tree: t, bias: true}",
            "a.yaml:2: head_conf.bias: not a key of this head; remove it",
        ),
        (
            "head: class\nhead_conf: {tree: t, num_classes: 0}",
            "a.yaml:2: head_conf.num_classes: must be greater than 0, got 0",
        ),
        (
            "head: adaptive\nhead_conf:\n  tree: t\n  cutoffs: [5, 3]",
            "a.yaml:4: head_conf.cutoffs: must be one or more ascending numbers, got [5, 3]",
        ),
        (
            "head: adaptive\nhead_conf: {tree: t, cutoffs: []}",
            "a.yaml:2: head_conf.cutoffs: must be one or more ascending numbers, got []",
        ),
        (
            "head: adaptive\nhead_conf: {tree: t, div_value: 0.5}",
            "a.yaml:2: head_conf.div_value: must be at least 1, got 0.5",
        ),
        (
            "head: hsoftmax\nhead_conf: {tree: t, route: fast}",
            "a.yaml:2: head_conf.route: must be one of auto, torch, path, nodes, torch-path, torch-nodes, got 'fast'",
        ),
        ("model_conf: {lsm_kind: tree}", "a.yaml:1: model_conf.lsm_kind: must be one of leaf, node, got 'tree'"),
        (
            "head: hsoftmax\nhead_conf:\n  tree: t\n  sparse_grad: true\noptim: adamw",
            "a.yaml:4: head_conf.sparse_grad: needs optim: adam without weight_decay, which updates only rows with "
            "a gradient; change optim, or remove sparse_grad",
        ),
        (
            "ctc_conf:\n  head: class\n  head_conf: {tree: t, sparse_grad: true}\noptim_conf: {weight_decay: 0.1}",
            "a.yaml:3: ctc_conf.head_conf.sparse_grad: needs optim: adam without weight_decay, which updates only "
            "rows with a gradient; change optim, or remove sparse_grad",
        ),
        (
            "head: class\nhead_conf: {tree: t, sparse_grad: true}\nmodel_conf:\n  lsm_weight: 0.1",
            "a.yaml:3: model_conf.lsm_kind: leaf smoothing updates every node, which head_conf.sparse_grad is to "
            "avoid; set node, or remove sparse_grad",
        ),
    ],
)
def test_faults_have_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config("a.yaml")
    assert str(caught.value) == fault


def test_routes_of_a_cpu_are_refused_elsewhere(read: Read) -> None:
    config = read("ctc_conf: {head: hsoftmax, head_conf: {tree: t, route: path}}\n")
    check_routes(config, torch.device("cpu"))
    message = "^ctc_conf.head_conf.route: path runs only on a CPU, not on cuda; use auto or torch-path$"
    with pytest.raises(ConfigError, match=message):
        check_routes(config, torch.device("cuda"))
    check_routes(read("head: hsoftmax\nhead_conf: {tree: t, route: torch-nodes}\n"), torch.device("cuda"))


@pytest.mark.parametrize(("kind", "device", "other"), [("hsoftmax", "mps", "dense"), ("class", "cuda", "all")])
def test_searches_of_a_cpu_are_refused_elsewhere(read: Read, kind: str, device: str, other: str) -> None:
    config = read(f"head: {kind}\nhead_conf: {{tree: t, search: best_first}}\n")
    check_routes(config, torch.device("cpu"))
    message = f"^head_conf.search: best_first does not run on {device}; use auto or {other}$"
    with pytest.raises(ConfigError, match=message):
        check_routes(config, torch.device(device))
    check_routes(read(f"head: {kind}\nhead_conf: {{tree: t, search: {other}}}\n"), torch.device(device))


def test_ctc_may_be_sparse_beside_leaf_smoothing(read: Read) -> None:
    config = read("ctc_conf: {head: hsoftmax, head_conf: {tree: t, sparse_grad: true}}\n")
    assert (config.model_conf.lsm_weight, config.model_conf.lsm_kind) == (0.1, "leaf")


# Experiment folders


def write_folder(folder: Path, config: ExperimentConfig, trees: tuple[AnyTree | None, AnyTree | None]) -> AsrModel:
    """As training leaves it, but for what recognition does not read."""
    folder.mkdir()
    sums = {}
    for name, tree in zip(("tree.json", "ctc_tree.json"), trees, strict=True):
        if tree is not None:
            tree.save(folder / name)
            sums[f"sha256 of {name}"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    dump_config(config, folder / "train.yaml", provenance=sums)
    TABLE.write(folder / "units.txt")
    model = built(config, *trees)
    torch.save(model.state_dict(), folder / "final.pt")
    return model.eval()


def folder_config(read: Read, kind: str, ctc_kind: str) -> ExperimentConfig:
    text = f"head: {kind}\nctc_conf: {{head: {ctc_kind}"
    if ctc_kind != "softmax":
        text += ", head_conf: {tree: ctc_tree.json}"
    text += "}\n" + ("head_conf: {tree: tree.json}\n" if kind != "softmax" else "")
    return read(text)


@pytest.mark.parametrize(
    ("kind", "ctc_kind"),
    [("hsoftmax", "softmax"), ("class", "hsoftmax"), ("adaptive", "class"), ("softmax", "adaptive")],
)
def test_a_folder_of_each_head_loads(read: Read, tmp_path: Path, kind: str, ctc_kind: str) -> None:
    config = folder_config(read, kind, ctc_kind)
    trees = (BINARY if kind != "softmax" else None, CLASSES if ctc_kind != "softmax" else None)
    model = write_folder(tmp_path / "exp", config, trees)
    experiment = load_experiment(tmp_path / "exp")
    assert experiment.config.model_dump(exclude={"provenance"}) == config.model_dump(exclude={"provenance"})
    batch = small_batch([40, 33], [5, 2])
    with torch.inference_mode():
        assert torch.equal(experiment.model(batch).total, model(batch).total)


def test_a_folder_that_names_a_kernel_of_the_cpu_is_refused_elsewhere(read: Read, tmp_path: Path) -> None:
    config = read("head: hsoftmax\nhead_conf: {tree: tree.json, route: path}\n")
    write_folder(tmp_path / "exp", config, (BINARY, None))
    with pytest.raises(ConfigError, match="^head_conf.route: path runs only on a CPU, not on cuda; use auto or torch-"):
        load_experiment(tmp_path / "exp", device="cuda")


def test_changed_or_missing_trees_of_ctc_are_refused(read: Read, tmp_path: Path) -> None:
    write_folder(tmp_path / "exp", folder_config(read, "softmax", "class"), (None, BINARY))
    OTHER.save(tmp_path / "exp" / "ctc_tree.json")
    with pytest.raises(CheckpointError, match=r"exp/ctc_tree.json: changed since the training .*; put the old file"):
        load_experiment(tmp_path / "exp")
    (tmp_path / "exp" / "ctc_tree.json").unlink()
    with pytest.raises(CheckpointError, match=r"exp/ctc_tree.json: no such file; `wenet-hs train --model_dir .*exp`"):
        load_experiment(tmp_path / "exp")
