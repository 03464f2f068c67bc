# SPDX-License-Identifier: Apache-2.0
"""From configs to models with every head and tree; experiment folders: ours, WeNet's, moved,
contradictory.
"""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from model_folders import HSOFTMAX, TABLE, write_model_folder
from small_models import NUM_BINS, NUM_UNITS, SPECIAL, small_batch, small_config, small_model

from wenet_hs.config.heads import HEADS, has_tree
from wenet_hs.config.load import dump_config, load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.cmvn import write_cmvn
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead
from wenet_hs.model.asr_model import AsrModel, LossWeights
from wenet_hs.model.build import AnyTree, build_model
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.experiment import load_experiment
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder
from wenet_hs.runs.record import RunRecord, write_run
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError

FILES = {"tokenizer_conf": {"symbol_table_path": "far/away/units.txt"}}
CMVN = {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": "far/away/global_cmvn"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment folder as training leaves it; paths in its config point where it was made."""
    folder = write_model_folder(tmp_path / "exp", **FILES, **CMVN)
    write_cmvn(folder / "global_cmvn", torch.cat([torch.zeros(NUM_BINS), torch.ones(NUM_BINS + 1)]))
    return folder


def same_losses(one: AsrModel, other: AsrModel) -> None:
    batch = small_batch([40, 33], [5, 2])
    with torch.inference_mode():
        torch.testing.assert_close(one(batch).total, other(batch).total, rtol=0, atol=0)


def test_a_config_and_its_seed_become_a_model() -> None:
    first, second, other = (small_model(seed).state_dict() for seed in (1, 1, 2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first["head.output.weight"], other["head.output.weight"])
    model = small_model(
        model_conf={"ctc_weight": 0.25, "lsm_weight": 0.05}, encoder_conf={"num_blocks": 3}
    )
    assert isinstance(model.encoder, EncoderStack)
    assert isinstance(model.decoder, TransformerDecoder)
    assert model.loss_weights == LossWeights(ctc=0.25, smoothing=0.05)
    assert (len(model.encoder.encoders), len(model.decoder.decoders)) == (3, 2)
    assert (model.num_units, model.ctc.blank, model.special) == (NUM_UNITS, 0, SPECIAL)
    for first, last, trained in ((0.0, 0.3, 0.3), (0.5, 0.0, 0.5), (0.5, 0.3, 0.3)):
        conf = {"ctc_weight": first, "ctc_weight_final": last, "ctc_weight_steps": 9}
        assert small_model(model_conf=conf).loss_weights.ctc == trained
    both = small_model(
        decoder="bitransformer",
        decoder_conf={"r_num_blocks": 1},
        model_conf={"reverse_weight": 0.3},
    )
    assert isinstance(both.decoder, BiTransformerDecoder)
    assert (len(both.decoder.left_decoder.decoders), len(both.decoder.right_decoder.decoders)) == (
        2,
        1,
    )
    assert both.loss_weights.reverse == 0.3


@pytest.mark.parametrize("decoder", ["transformer", "bitransformer"])
def test_all_heads_of_one_seed_have_the_same_other_weights_and_random_state(decoder: str) -> None:
    config = small_config(
        decoder=decoder,
        **({"decoder_conf": {"r_num_blocks": 1}} if decoder != "transformer" else {}),
    )
    trees = [of(range(NUM_UNITS)) for of in (Tree.huffman, Tree.random, Tree.balanced)]
    heads: list[tuple[str, Tree | None]] = [("hsoftmax", tree) for tree in trees[1:]]
    heads += [(head, trees[0] if has_tree(head) else None) for head in HEADS]
    found = []
    for head, tree in heads:
        torch.manual_seed(7)
        conf = {} if tree is None else {"tree": "tree.json"}
        changed = ExperimentConfig(
            **config.model_dump(exclude={"head", "head_conf"}), head=head, head_conf=conf
        )
        state = build_model(changed, NUM_UNITS, SPECIAL, tree=tree).state_dict()
        others = {
            name: value
            for name, value in state.items()
            if not name.startswith(("head.", "right_head."))
        }
        found.append((others, torch.get_rng_state()))
    assert {name.split(".")[0] for name in found[0][0]} == {"encoder", "decoder", "ctc"}
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def test_settings_reach_the_layers() -> None:
    model = small_model(
        encoder_conf={
            "norm_eps": 1e-12,
            "attention_dropout_rate": 0.2,
            "cnn_module_kernel": 7,
            "dropout_rate": 0.3,
        },
        decoder_conf={
            "norm_eps": 1e-6,
            "src_attention_dropout_rate": 0.4,
            "activation_type": "gelu",
        },
    )
    layer, decoder_layer = model.encoder.encoders[0], model.decoder.decoders[0]
    assert layer.norm_mha.eps == model.encoder.after_norm.eps == 1e-12
    assert layer.conv_module.norm.eps == 1e-5  # WeNet's conv_norm_eps, a setting of its own
    assert decoder_layer.norm3.eps == model.decoder.after_norm.eps == 1e-6
    assert layer.self_attn.dropout_rate == 0.2
    assert layer.feed_forward.dropout.p == layer.residual.dropout.p == 0.3
    assert (decoder_layer.src_attn.dropout_rate, decoder_layer.self_attn.dropout_rate) == (0.4, 0.0)
    assert layer.conv_module.depthwise_conv.kernel_size == (7,)
    assert isinstance(decoder_layer.feed_forward.activation, torch.nn.GELU)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"output_dim": 12},
            r"output_dim: 12, expected 11 \(the unit table has that many units\); remove the line",
        ),
        (
            {"ctc_conf": {"ctc_blank_id": 3}},
            r"ctc_conf.ctc_blank_id: 3, expected 0 \(<blank> of the unit table\)",
        ),
        (CMVN, "far/away/global_cmvn: statistics of 3 features, but the model has 20; compute"),
    ],
)
def test_sizes_that_do_not_fit(sections: dict[str, Any], message: str) -> None:
    cmvn = (torch.zeros(3), torch.ones(3)) if sections is CMVN else None
    with pytest.raises((ConfigError, DataError), match=message):
        build_model(small_config(**sections), NUM_UNITS, SPECIAL, cmvn=cmvn)


def test_a_folder_loads_wherever_it_was_moved(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "été x"
    shutil.move(folder, moved)
    experiment = load_experiment(str(moved))
    assert experiment.model_dir == moved
    assert not experiment.model.training
    assert experiment.tokenizer.table.units == TABLE.units
    assert experiment.model.special == TABLE.special
    same_losses(experiment.model, small_model(seed=5))
    other = small_model()
    (moved / "checkpoints/step-00000007").mkdir(parents=True)
    torch.save(other.state_dict(), moved / "checkpoints/step-00000007/model.pt")
    (moved / "final.pt").unlink()
    same_losses(load_experiment(moved, checkpoint=moved / "checkpoints/step-00000007").model, other)


def test_weights_of_another_model_bring_its_own_files(tmp_path: Path) -> None:
    """Units in another order, or another tree, have the same shapes."""
    folder, other = (write_model_folder(tmp_path / name, **HSOFTMAX) for name in ("a", "b"))
    same_losses(load_experiment(folder, checkpoint=other).model, small_model(seed=5, **HSOFTMAX))
    Tree.huffman(range(len(TABLE), 0, -1), units=TABLE.units).save(other / "tree.json")
    message = r"b: its tree \(.*b/tree.json\) is not that of .*a; give --model_dir .*b$"
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder, checkpoint=other)
    config = yaml.safe_load((other / "train.yaml").read_text("utf-8"))
    shutil.copy(folder / "tree.json", other)
    for key, value in (
        ("resample_conf", {"resample_rate": 8000}),
        ("fbank_conf", {"profile": "sherpa"}),
    ):
        changed = config | {
            "dataset_conf": {
                **config["dataset_conf"],
                key: {**config["dataset_conf"][key], **value},
            }
        }
        (other / "train.yaml").write_text(yaml.safe_dump(changed), "utf-8")
        (name,) = value
        with pytest.raises(
            CheckpointError,
            match=rf"b: a model with {name} {value[name]}, not .*; give --model_dir",
        ):
            load_experiment(folder, checkpoint=other)
    UnitTable.from_units("▁abcdefh").write(other / "units.txt")
    message = r"its units \(.*b/units.txt\) are not those of .*a; give --model_dir"
    for checkpoint in (other, other / "final.pt"):
        with pytest.raises(CheckpointError, match=message):
            load_experiment(folder, checkpoint=checkpoint)


def test_the_clusters_of_an_adaptive_head_follow_from_frequencies(tmp_path: Path) -> None:
    sections = {"head": "adaptive", "head_conf": {"tree": "tree.json"}}
    folder, other = (write_model_folder(tmp_path / name, **sections) for name in ("a", "b"))
    tree = Tree.huffman(range(len(TABLE)), units=TABLE.units)
    replace(tree, options={"text": "text"}).save(other / "tree.json")
    same_losses(load_experiment(folder, checkpoint=other).model, small_model(seed=5, **sections))
    replace(tree, frequencies=tree.frequencies[::-1].copy()).save(other / "tree.json")
    with pytest.raises(CheckpointError, match=r"its tree \(.*b/tree.json\) is not that of"):
        load_experiment(folder, checkpoint=other)


def test_files_next_to_other_weights_that_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same structure from other counts, a list of words, settings of another program, a folder
    far above.
    """
    folder, other = (write_model_folder(tmp_path / name, **HSOFTMAX) for name in ("a", "b"))
    expected = small_model(seed=5, **HSOFTMAX)
    tree = Tree.huffman(range(len(TABLE)), units=TABLE.units)
    replace(tree, frequencies=2 * tree.frequencies, options={"text": "text"}).save(
        other / "tree.json"
    )
    same_losses(load_experiment(folder, checkpoint=other).model, expected)
    (below := tmp_path / "c/averages/best").mkdir(parents=True)
    shutil.copy(folder / "final.pt", below)
    UnitTable.from_units("▁abcdefh").write(tmp_path / "c/units.txt")
    same_losses(load_experiment(folder, checkpoint=below).model, expected)
    assert not caplog.records
    for name, content in (("words.txt", "the 1\n"), ("train.yaml", "collate_conf: {}\n")):
        (below / name).write_text(content)
        same_losses(load_experiment(folder, checkpoint=below / "final.pt").model, expected)
        assert "whether these weights are of" in caplog.text
        (below / name).unlink()
        caplog.clear()


CTC_ONLY: dict[str, Any] = {"decoder": "none", "decoder_conf": None, "model_conf": None}
TREE_OF_CTC = {"head": "hsoftmax", "head_conf": {"tree": "ctc_tree.json"}}
CLASSES_OF_CTC = {"head": "class", "head_conf": {"tree": "ctc_tree.json"}}


@pytest.mark.parametrize("ctc_conf", [{}, TREE_OF_CTC])
def test_a_unit_too_many_of_a_model_without_decoder(
    ctc_conf: dict[str, Any], tmp_path: Path
) -> None:
    """A softmax and a binary tree of CTC tell the number of units."""
    folder = write_model_folder(tmp_path / "exp", **CTC_ONLY, ctc_conf=ctc_conf)
    with (folder / "units.txt").open("a", encoding="utf-8") as file:
        file.write(f"z {len(TABLE)}\n")
    message = (
        "exp/final.pt: trained with 11 units, but .*exp/units.txt has 12; use the same units.txt$"
    )
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)


def test_classes_of_ctc_do_not_tell_the_number_of_units(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "exp", **CTC_ONLY, ctc_conf=CLASSES_OF_CTC)
    Tree.huffman(range(len(TABLE)), units=TABLE.units).save(folder / "ctc_tree.json")
    assert load_experiment(folder).model.ctc is not None


@pytest.mark.parametrize("name", ["run.json", "tree.json"])
def test_damaged_files_next_to_other_weights_are_a_warning(
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write_model_folder(tmp_path / "a", **HSOFTMAX)
    other = write_model_folder(tmp_path / "b", **HSOFTMAX)
    (other / name).write_text("{")
    same_losses(load_experiment(folder, checkpoint=other).model, small_model(seed=5, **HSOFTMAX))
    (record,) = caplog.records
    line = record.getMessage()
    assert line.startswith(f"{other}: whether these weights are of {folder} is not known (")
    assert f"{other / name}: " in line


def test_other_units_are_refused_also_beside_a_damaged_record(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "a")
    other = write_model_folder(tmp_path / "b")
    (other / "run.json").write_text("{")
    UnitTable.from_units("▁abcdefh").write(other / "units.txt")
    with pytest.raises(
        CheckpointError, match="its units .* are not those of .*a; give --model_dir"
    ):
        load_experiment(folder, checkpoint=other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "train.yaml",
            r"exp/train.yaml: no such file; `wenet-hs train --model_dir .*exp` writes it, or copy it",
        ),
        ("units.txt", r"exp/units.txt: no such file; copy the unit table of the recipe there, "),
        ("final.pt", r"exp/final.pt: no such file; `wenet-hs average --model_dir .*exp` writes it"),
        ("", "exp: no such file or folder; give the --model_dir of a training"),
    ],
)
def test_an_incomplete_folder(folder: Path, name: str, message: str) -> None:
    shutil.move(folder / name, folder.parent / "elsewhere")
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)


def test_weights_that_do_not_fit(folder: Path) -> None:
    UnitTable.from_units("abcdefghij").write(folder / "units.txt")
    message = (
        r"exp/final.pt: trained with 11 units, but .*exp/units.txt has 13; use the same units.txt"
    )
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)
    TABLE.write(folder / "units.txt")
    state = {
        name: value for name, value in torch.load(folder / "final.pt").items() if "cmvn" not in name
    }
    torch.save(state, folder / "final.pt")
    with pytest.raises(
        CheckpointError, match="missing encoder.global_cmvn.mean, encoder.global_cmvn.istd; use the"
    ):
        load_experiment(folder)


def test_a_wenet_folder(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "wenet", wenet=True)
    config = yaml.safe_load((folder / "train.yaml").read_text("utf-8"))
    config |= {
        "input_dim": 20,
        "output_dim": 11,
        "vocab_size": 11,
        "model": "asr_model",
        "ctc": "ctc",
    }
    config["tokenizer_conf"]["symbol_table_path"] = "/export/lang_char.txt"
    (folder / "train.yaml").write_text(yaml.safe_dump(config), "utf-8")
    same_losses(load_experiment(folder).model, small_model(seed=5))
    config["tokenizer_conf"]["special_tokens"]["<eos>"] = 10
    (folder / "train.yaml").write_text(yaml.safe_dump(config), "utf-8")
    with pytest.raises(
        ConfigError, match=r"train.yaml: tokenizer_conf.special_tokens: <eos> is 10, but is 2"
    ):
        load_experiment(folder)
    # Without `special_tokens`, WeNet trains with <sos/eos> = V - 1, even if the table has another
    # unit there.
    del config["tokenizer_conf"]["special_tokens"]
    (folder / "train.yaml").write_text(yaml.safe_dump(config), "utf-8")
    message = r"units.txt: <sos/eos> is 2, but WeNet trained this model with 10 \(its train.yaml has no tokenizer_conf"
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)
    last = SpecialIds(blank=0, unk=1, sos=10, eos=10)
    UnitTable((*TABLE.units[:2], *TABLE.units[3:], "<sos/eos>"), last).write(folder / "units.txt")
    assert load_experiment(folder).model.special.eos == 10


def test_a_wenet_folder_without_a_unit_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """WeNet's training leaves train.yaml and final.pt in exp/NAME; the table is where the recipe
    made it.
    """
    folder = write_model_folder(tmp_path / "exp/conformer", wenet=True)
    config = yaml.safe_load((folder / "train.yaml").read_text("utf-8"))
    config["tokenizer_conf"]["symbol_table_path"] = "data/dict/lang_char.txt"
    (folder / "train.yaml").write_text(yaml.safe_dump(config), "utf-8")
    table = tmp_path / "data/dict/lang_char.txt"
    table.parent.mkdir(parents=True)
    (folder / "units.txt").rename(table)
    with pytest.raises(
        CheckpointError,
        match="units.txt: no such file; copy the unit table of the recipe there, data/",
    ):
        load_experiment(folder)
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("INFO"):
        same_losses(load_experiment(folder).model, small_model(seed=5))
    assert (
        "has no unit table; data/dict/lang_char.txt is used, which its train.yaml names"
        in caplog.text
    )
    shutil.copy(table, folder / "words.txt")
    monkeypatch.chdir(folder)
    same_losses(load_experiment(folder).model, small_model(seed=5))


def test_settings_of_training_do_not_stop_the_decoding_of_a_wenet_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model_folder(tmp_path / "wenet", wenet=True)
    config = yaml.safe_load((folder / "train.yaml").read_text("utf-8"))
    config["dataset_conf"] |= {"spec_sub": True, "spec_sub_conf": {"max_t": 30}, "shuffle": True}
    config |= {"lfmmi_dir": "data/lfmmi", "train_engine": "deepspeed"}
    (folder / "train.yaml").write_text(yaml.safe_dump(config), "utf-8")
    same_losses(load_experiment(folder).model, small_model(seed=5))
    assert not caplog.text, "nothing of a training matters for decoding"
    with pytest.raises(ConfigError, match="spec_sub: true is not supported"):
        load_config(folder / "train.yaml")


# ---- heads and trees

COUNTS = [9.0, 0.0, 30.0, 25.0, 4.0, 17.0, 3.0, 8.0, 1.0, 2.0, 6.0]
BINARY = Tree.huffman(COUNTS, units=TABLE.units)
CLASSES = NaryTree.frequency_bins(COUNTS, 3, units=TABLE.units)
TREES: dict[str, AnyTree] = {"binary": BINARY, "classes": CLASSES}


def with_head(kind: str, section: str = "head_conf", **settings: Any) -> ExperimentConfig:
    """A small config with this head for the decoder (`head_conf`) or for CTC."""
    tree = {"tree": "t.json"} if has_tree(kind) else {}
    head = {"head": kind, "head_conf": {**tree, **settings}}
    return small_config(**(head if section == "head_conf" else {"ctc_conf": head}))


def built(
    config: ExperimentConfig, tree: AnyTree | None = None, ctc_tree: AnyTree | None = None
) -> AsrModel:
    torch.manual_seed(0)
    return build_model(config, NUM_UNITS, SPECIAL, tree=tree, ctc_tree=ctc_tree)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", HEADS)
def test_any_head_takes_any_tree(kind: str, tree: str) -> None:
    head = {"head": kind, "head_conf": {"tree": "t"} if has_tree(kind) else {}}
    more = {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1}}
    model = built(small_config(**head, ctc_conf=head, **more), TREES[tree], TREES[tree])
    assert type(model.head) is type(model.right_head) is type(model.ctc.head)
    losses = model(small_batch([40, 33], [5, 2]))
    losses.total.backward()
    for value in (*model.head.parameters(), *model.ctc.head.parameters()):
        assert value.grad is not None and torch.isfinite(value.grad).all()
    assert torch.isfinite(losses.total) and not losses.nll.requires_grad
    assert 0 <= int(losses.num_correct) <= losses.num_targets


def test_settings_reach_the_heads() -> None:
    tree_head = built(with_head("hsoftmax", bias=True), CLASSES).head
    assert isinstance(tree_head, HSoftmaxHead)
    assert tree_head.inner_vector.bias is not None
    assert tree_head.tree == CLASSES.binary()
    class_head = built(with_head("class", num_classes=5), BINARY).head
    assert isinstance(class_head, ClassHead)
    assert class_head.tree == NaryTree.from_binary(BINARY, 5)
    assert built(with_head("class"), BINARY).head.tree == NaryTree.from_binary(BINARY)
    adaptive = built(with_head("adaptive", cutoffs=[2, 5], div_value=2), BINARY).head
    assert isinstance(adaptive, AdaptiveHead)
    assert (adaptive.cutoffs, adaptive.div_value) == ([2, 5], 2.0)
    assert adaptive.ranked_units[:3].tolist() == [2, 3, 5]
    sparse = with_head(
        "hsoftmax", "ctc_conf.head_conf", sparse_grad=True
    )  # beside leaf smoothing of the decoder
    assert built(sparse, ctc_tree=BINARY).ctc.head.sparse_parameters()


@pytest.mark.parametrize("section", ["head_conf", "ctc_conf.head_conf"])
def test_settings_that_do_not_fit_the_tree(section: str) -> None:
    for kind, settings, tree, message in (
        (
            "class",
            {"num_classes": 3},
            CLASSES,
            "num_classes: t.json already has classes; remove it, or name a binary",
        ),
        (
            "adaptive",
            {"cutoffs": [3, 11]},
            BINARY,
            "cutoffs: the last is 11, but there are 11 units; it must be below",
        ),
    ):
        with pytest.raises(ConfigError, match=f"^{section}.{message}"):
            built(with_head(kind, section, **settings), tree, tree)


@pytest.mark.parametrize(("kind", "ctc_kind"), [("hsoftmax", "adaptive"), ("class", "hsoftmax")])
def test_a_folder_of_each_head_loads_unless_its_trees_were_changed(
    tmp_path: Path, kind: str, ctc_kind: str
) -> None:
    ctc = {"head": ctc_kind, "head_conf": {"tree": "ctc_tree.json"}}
    config = small_config(head=kind, head_conf={"tree": "tree.json"}, ctc_conf=ctc)
    sums = {}
    for path, tree in ((tmp_path / "tree.json", BINARY), (tmp_path / "ctc_tree.json", CLASSES)):
        tree.save(path)
        sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    dump_config(config, tmp_path / "train.yaml")
    write_run(tmp_path, RunRecord(files=sums))
    TABLE.write(tmp_path / "units.txt")
    model = built(config, BINARY, CLASSES).eval()
    torch.save(model.state_dict(), tmp_path / "final.pt")
    experiment = load_experiment(tmp_path)
    assert experiment.config == config
    same_losses(experiment.model, model)
    Tree.huffman(COUNTS[::-1], units=TABLE.units).save(tmp_path / "tree.json")
    with pytest.raises(
        CheckpointError, match=r"/tree.json: changed since the training .*; put the old file"
    ):
        load_experiment(tmp_path)


def test_folders_with_a_tree_of_other_units_are_refused(tmp_path: Path) -> None:
    exp = write_model_folder(tmp_path / "exp", head="hsoftmax", head_conf={"tree": "tree.json"})
    (exp / "tree.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"exp/tree.json: no such file; `wenet-hs train --model_dir .*exp`"
    ):
        load_experiment(exp)
    other = NaryTree.frequency_bins(COUNTS, 3, units=(*TABLE.units[:-1], "z"))
    for tree, message in (
        (
            NaryTree.frequency_bins([1, 2]),
            "a tree over 2 units, but the unit table has 11; build the tree",
        ),
        (other, "leaf 10 is 'z', but unit 10 of the table is '▁'; build the"),
    ):
        tree.save(exp / "tree.json")
        with pytest.raises(DataError, match=f"exp/tree.json: {message}"):
            load_experiment(exp)
