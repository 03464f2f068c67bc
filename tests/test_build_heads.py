# SPDX-License-Identifier: Apache-2.0
"""Every head with every tree by YAML, for the decoder and for CTC; faults of settings, trees and folders."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from small_models import NUM_UNITS, SPECIAL, small_batch, small_config

from wenet_hs.build import AnyTree, build_model, check_routes, head_confs, load_experiment, tree_paths
from wenet_hs.config.load import dump_config, load_config
from wenet_hs.config.schema import ClassHeadConf, ExperimentConfig, HSoftmaxHeadConf
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, SoftmaxHead, class_softmax
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
HEADS = {"softmax": SoftmaxHead, "hsoftmax": HSoftmaxHead, "class": ClassHead, "adaptive": AdaptiveHead}
Read = Callable[[str], ExperimentConfig]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """A configuration from lines of YAML before BASE, in the file a.yaml of the current folder."""
    monkeypatch.chdir(tmp_path)

    def load(text: str) -> ExperimentConfig:
        Path("a.yaml").write_text(text + BASE)
        return load_config("a.yaml")

    return load


def built(config: ExperimentConfig, tree: AnyTree | None = None, ctc_tree: AnyTree | None = None) -> AsrModel:
    torch.manual_seed(0)
    return build_model(config, NUM_UNITS, SPECIAL, tree=tree, ctc_tree=ctc_tree, units=TABLE.units)


def both(kind: str) -> str:
    """The same head for the decoder and for CTC."""
    settings = "" if kind == "softmax" else "tree: data/t.json"
    return f"head: {kind}\nhead_conf: {{{settings}}}\nctc_conf: {{head: {kind}, head_conf: {{{settings}}}}}\n"


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", HEADS)
def test_any_head_takes_any_tree(read: Read, kind: str, tree: str) -> None:
    model = built(read(both(kind)), TREES[tree], TREES[tree])
    for head in (model.head, model.ctc.head):
        assert type(head) is HEADS[kind]
    losses = model(small_batch([40, 33], [5, 2]))
    losses.total.backward()
    for value in (*model.head.parameters(), *model.ctc.head.parameters()):
        assert value.grad is not None and torch.isfinite(value.grad).all()
    assert torch.isfinite(losses.total) and not losses.nll.requires_grad
    assert 0 <= int(losses.num_correct) <= losses.num_targets


def test_both_directions_have_the_head() -> None:
    decoder = {"r_num_blocks": 1, "num_blocks": 1}
    config = small_config(decoder="bitransformer", decoder_conf=decoder, head="class", head_conf={"tree": "t"})
    model = built(config, CLASSES)
    assert isinstance(model.head, ClassHead) and isinstance(model.right_head, ClassHead)


def test_settings_reach_the_heads(read: Read) -> None:
    tree_head = built(read("head: hsoftmax\nhead_conf: {tree: t, bias: true, route: torch-path}\n"), CLASSES).head
    assert isinstance(tree_head, HSoftmaxHead)
    assert tree_head.inner_vector.bias is not None
    assert (tree_head.tree, tree_head.route) == (CLASSES.binary(), "torch-path")
    text = "head: class\nhead_conf: {tree: t, route: all, search: all, num_classes: 5}\n"
    class_head = built(read(text), BINARY).head
    assert isinstance(class_head, ClassHead)
    assert (class_head.tree, class_head.route, class_head.search) == (NaryTree.from_binary(BINARY, 5), "all", "all")
    assert built(read("head: class\nhead_conf: {tree: t}\n"), BINARY).head.tree == NaryTree.from_binary(BINARY)
    adaptive = built(read("head: adaptive\nhead_conf: {tree: t, cutoffs: [2, 5], div_value: 2}\n"), BINARY).head
    assert isinstance(adaptive, AdaptiveHead)
    assert (adaptive.cutoffs, adaptive.div_value) == ([2, 5], 2.0)
    assert adaptive.ranked_units[:3].tolist() == [2, 3, 5]
    sparse = read("ctc_conf: {head: hsoftmax, head_conf: {tree: t, sparse_grad: true}}\n")  # beside leaf smoothing
    assert built(sparse, ctc_tree=BINARY).ctc.head.sparse_parameters()


def test_the_schema_repeats_the_routes_and_searches_of_the_heads() -> None:
    classes = ClassHeadConf, class_softmax.Route, class_softmax.Search
    for conf, route, search in ((HSoftmaxHeadConf, RouteOption, SearchMethod), classes):
        assert get_args(conf.model_fields["route"].annotation) == get_args(route)
        assert get_args(conf.model_fields["search"].annotation) == get_args(search)


def test_trees_that_a_configuration_names(read: Read) -> None:
    config = read("ctc_conf: {head: hsoftmax, head_conf: {tree: data/ctc.json}}\n")
    assert tree_paths(config) == {"ctc_conf.head_conf": "data/ctc.json"}
    assert list(head_confs(config)) == ["head_conf", "ctc_conf.head_conf"]
    assert tree_paths(read(both("adaptive"))) == dict.fromkeys(head_confs(config), "data/t.json")
    assert tree_paths(read("")) == {}


# ---- faults


@pytest.mark.parametrize(
    ("head", "conf", "tree", "message"),
    [
        ("class", "num_classes: 3", CLASSES, "num_classes: t.json already has classes; remove it, or name a binary"),
        ("adaptive", "cutoffs: [3, 11]", BINARY, "cutoffs: the last is 11, but there are 11 units; it must be below"),
    ],
)
def test_settings_that_do_not_fit_the_tree(read: Read, head: str, conf: str, tree: AnyTree, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^head_conf.{message}"):
        built(read(f"head: {head}\nhead_conf: {{tree: t.json, {conf}}}\n"), tree)
    with pytest.raises(ConfigError, match=f"^ctc_conf.head_conf.{message}"):
        built(read(f"ctc_conf: {{head: {head}, head_conf: {{tree: t.json, {conf}}}}}\n"), None, tree)


@pytest.mark.parametrize("kind", ["hsoftmax", "class", "adaptive"])
def test_missing_trees_and_trees_of_other_units_are_refused(read: Read, kind: str) -> None:
    config = read(both(kind))
    with pytest.raises(ValueError, match="^ctc_conf.head_conf: this head needs a tree$"):
        built(config, BINARY)
    with pytest.raises(DataError, match="data/t.json: a tree over 2 units, but the unit table has 11; build the tree"):
        built(config, BINARY, NaryTree.frequency_bins([1, 2]))
    other = NaryTree.frequency_bins(COUNTS, 3, units=(*TABLE.units[:-1], "z"))
    with pytest.raises(DataError, match="data/t.json: leaf 10 is 'z', but unit 10 of the table is 'h'; build the tree"):
        built(config, other)


HEAD = "head: class\nhead_conf: {tree: t, "


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ctc_conf:\n  head: hs", "2: ctc_conf.head: must be one of softmax, hsoftmax, class, adaptive, got 'hs'"),
        ("ctc_conf:\n  head: class", "2: ctc_conf.head_conf.tree: missing; make one with `wenet-hs tree build`"),
        ("ctc_conf:\n  head_conf:\n    tree: t", "3: ctc_conf.head_conf.tree: not a key of this head; remove it"),
        (HEAD + "num_clases: 3}", "2: head_conf.num_clases: unknown key; did you mean `num_classes`?"),
        (HEAD + "bias: true}", "2: head_conf.bias: not a key of this head; remove it"),
        (HEAD + "num_classes: 0}", "2: head_conf.num_classes: must be greater than 0, got 0"),
        (HEAD + "route: fast}", "2: head_conf.route: must be one of auto, path, all, got 'fast'"),
        ("head: adaptive\nhead_conf: {tree: t, div_value: 0.5}", "2: head_conf.div_value: must be at least 1, got 0.5"),
        ("model_conf: {lsm_kind: tree}", "1: model_conf.lsm_kind: must be one of leaf, node, got 'tree'"),
        (
            "ctc_conf:\n  head: class\n  head_conf: {tree: t, sparse_grad: true}\noptim_conf: {weight_decay: 0.1}",
            "3: ctc_conf.head_conf.sparse_grad: needs optim: adam without weight_decay, which updates only "
            "rows with a gradient; change optim, or remove sparse_grad",
        ),
    ],
)
def test_faults_have_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config("a.yaml")
    assert str(caught.value) == f"a.yaml:{fault}"


@pytest.mark.parametrize(
    ("head", "conf", "device", "message"),
    [
        ("hsoftmax", "route: path", "cuda", "route: path runs only on a CPU, not on cuda; use auto or torch-path"),
        ("hsoftmax", "search: best_first", "mps", "search: best_first does not run on mps; use auto or dense"),
        ("class", "search: best_first", "cuda", "search: best_first does not run on cuda; use auto or all"),
    ],
)
def test_kernels_of_a_cpu_are_refused_on_other_devices(
    read: Read, head: str, conf: str, device: str, message: str
) -> None:
    for section, text in (
        ("head_conf", f"head: {head}\nhead_conf: {{tree: t, CONF}}\n"),
        ("ctc_conf.head_conf", f"ctc_conf: {{head: {head}, head_conf: {{tree: t, CONF}}}}\n"),
    ):
        config = read(text.replace("CONF", conf))
        check_routes(config, torch.device("cpu"))
        with pytest.raises(ConfigError, match=f"^{section}.{message}$"):
            check_routes(config, torch.device(device))
        check_routes(read(text.replace("CONF", "route: auto")), torch.device(device))


# ---- experiment folders


def write_folder(folder: Path, config: ExperimentConfig, trees: tuple[AnyTree | None, AnyTree | None]) -> AsrModel:
    """The files of a trained model that recognition reads."""
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


@pytest.mark.parametrize(("kind", "ctc_kind"), [("hsoftmax", "adaptive"), ("class", "hsoftmax")])
def test_a_folder_of_each_head_loads(read: Read, tmp_path: Path, kind: str, ctc_kind: str) -> None:
    ctc = f"ctc_conf: {{head: {ctc_kind}, head_conf: {{tree: ctc_tree.json}}}}\n"
    config = read(f"head: {kind}\nhead_conf: {{tree: tree.json}}\n" + ctc)
    model = write_folder(tmp_path / "exp", config, (BINARY, CLASSES))
    experiment = load_experiment(tmp_path / "exp")
    assert experiment.config.model_dump(exclude={"provenance"}) == config.model_dump(exclude={"provenance"})
    batch = small_batch([40, 33], [5, 2])
    with torch.inference_mode():
        assert torch.equal(experiment.model(batch).total, model(batch).total)


def test_folders_with_an_unsuitable_route_or_a_changed_or_missing_tree_are_refused(read: Read, tmp_path: Path) -> None:
    route = "ctc_conf: {head: hsoftmax, head_conf: {tree: ctc_tree.json, route: path}}\n"
    write_folder(tmp_path / "exp", read(route), (None, BINARY))
    with pytest.raises(ConfigError, match="head_conf.route: path runs only on a CPU, not on cuda; use auto or torch-"):
        load_experiment(tmp_path / "exp", device="cuda")
    OTHER.save(tmp_path / "exp" / "ctc_tree.json")
    with pytest.raises(CheckpointError, match=r"exp/ctc_tree.json: changed since the training .*; put the old file"):
        load_experiment(tmp_path / "exp")
    (tmp_path / "exp" / "ctc_tree.json").unlink()
    with pytest.raises(CheckpointError, match=r"exp/ctc_tree.json: no such file; `wenet-hs train --model_dir .*exp`"):
        load_experiment(tmp_path / "exp")
