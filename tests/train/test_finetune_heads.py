# SPDX-License-Identifier: Apache-2.0
"""--checkpoint with heads whose parameters have names that are not known: of a package, or like
those of a softmax.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sample_extension import importable, install_sample
from small_models import CTC_ONLY, small_config
from torch import Tensor

from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, SoftmaxHead
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import build_model
from wenet_hs.model.experiment import load_experiment
from wenet_hs.model.foreign_weights import (
    find_num_units,
    is_binary_tree,
    is_softmax,
    require_num_units,
)
from wenet_hs.text.units import UnitTable
from wenet_hs.train.finetune import FineTuneReport, load_base_weights, read_base_model
from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.errors import CheckpointError

TABLE = UnitTable.from_units("abcdefgh")
COUNTS = [float(count) for count in range(1, 12)]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path) -> Iterator[None]:
    """The package with the head `cosine`, whose parameter is `weight`."""
    with importable(install_sample(tmp_path / "site")):
        yield


def cosine_config(*, has_decoder: bool, output_size: int = 16) -> ExperimentConfig:
    sections = {} if has_decoder else CTC_ONLY
    head = "cosine" if has_decoder else "softmax"
    size = {"output_size": output_size}
    return small_config(head=head, ctc_conf={"head": "cosine"}, encoder_conf=size, **sections)


def build(config: ExperimentConfig, seed: int, table: UnitTable = TABLE) -> AsrModel:
    torch.manual_seed(seed)
    return build_model(config, len(table), table.special)


def write_model(folder: Path, config: ExperimentConfig) -> dict[str, Tensor]:
    """A model folder; its weights."""
    folder.mkdir()
    dump_config(config, folder / "train.yaml")
    TABLE.write(folder / "units.txt")
    state = build(config, seed=1).state_dict()
    torch.save(state, folder / "final.pt")
    return state


def start_from(
    folder: Path,
    config: ExperimentConfig,
    table: UnitTable = TABLE,
) -> tuple[dict[str, Tensor], FineTuneReport]:
    """The weights of a new model that starts from those in the folder, and the report."""
    model = build(config, seed=2, table=table)
    report = load_base_weights(model, read_base_model(folder), table)
    return model.state_dict(), report


@pytest.mark.parametrize("has_decoder", [True, False])
def test_a_model_folder_is_loaded_and_copied_completely(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    has_decoder: bool,
) -> None:
    config = cosine_config(has_decoder=has_decoder)
    theirs = write_model(tmp_path / "exp", config)
    assert load_experiment(tmp_path / "exp").model.num_units == len(TABLE)
    state, report = start_from(tmp_path / "exp", config)
    assert all(torch.equal(state[name], theirs[name]) for name in theirs)
    assert (report.parameters_new, report.parameters_in_part) == ([], {})
    assert not caplog.records


def test_other_units_give_a_new_head(tmp_path: Path) -> None:
    config = cosine_config(has_decoder=False)
    write_model(tmp_path / "exp", config)
    _, report = start_from(tmp_path / "exp", config, UnitTable.from_units("abcdefghi"))
    assert report.parameters_new == ["ctc.head.weight"]


def test_another_width_is_a_fault_of_the_encoder_and_not_of_the_files(tmp_path: Path) -> None:
    write_model(tmp_path / "exp", cosine_config(has_decoder=False))
    message = r"exp/final.pt: weights of another model: of another shape encoder\..*\), expected "
    with pytest.raises(CheckpointError, match=message):
        start_from(tmp_path / "exp", cosine_config(has_decoder=False, output_size=8))


@pytest.mark.parametrize("files", [("train.yaml", "units.txt"), ("units.txt",)])
def test_the_unit_table_is_needed_if_the_weights_do_not_tell_the_number(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    config = cosine_config(has_decoder=False)
    write_model(tmp_path / "exp", config)
    for name in files:
        (tmp_path / "exp" / name).unlink()
    with pytest.raises(CheckpointError) as error:
        start_from(tmp_path / "exp", config)
    assert str(error.value) == (
        f"{tmp_path}/exp/final.pt: its number of units is not known, and its unit table is not next to it; "
        f"put its units.txt into {tmp_path}/exp"
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_head_without_its_config_is_not_taken_for_a_softmax(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has the `output.weight` of a softmax, with a row per unit, and something else."""
    state = build(small_config(**CTC_ONLY), seed=1).state_dict()
    state["ctc.head.mixture.weight"] = torch.zeros(3, 16)
    torch.save(state, tmp_path / "final.pt")
    TABLE.write(tmp_path / "units.txt")
    _, report = start_from(tmp_path, small_config(**CTC_ONLY))
    assert report.parameters_new == ["ctc.head.output.weight", "ctc.head.output.bias"]
    place = f"ctc_conf.head_conf: no train.yaml next to {tmp_path}/final.pt"
    assert warnings_of(caplog) == [f"{place}; its head is not recognized: nothing of it is taken"]


def test_a_head_without_its_config_is_assumed_to_be_the_new_one(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = cosine_config(has_decoder=False)
    theirs = write_model(tmp_path / "exp", config)
    (tmp_path / "exp/train.yaml").unlink()
    state, report = start_from(tmp_path / "exp", config)
    assert (
        torch.equal(state["ctc.head.weight"], theirs["ctc.head.weight"])
        and report.parameters_new == []
    )
    place = f"ctc_conf.head_conf: no train.yaml next to {tmp_path}/exp/final.pt"
    assert warnings_of(caplog) == [
        f"{place}; its head is not recognized: it is assumed to be that of the new model"
    ]


def test_the_file_beside_the_weights_decides_what_a_head_is(tmp_path: Path) -> None:
    """A config of another head than that of the weights is refused, also if the names are those of
    a softmax.
    """
    write_model(tmp_path / "exp", cosine_config(has_decoder=False))
    softmax = build(small_config(**CTC_ONLY), seed=1).state_dict()
    torch.save(softmax, tmp_path / "exp/final.pt")
    with pytest.raises(
        CheckpointError,
        match=r"its ctc\.head\.\* are not those of the CosineHead that .*train\.yaml",
    ):
        start_from(tmp_path / "exp", cosine_config(has_decoder=False))


# ---- the number of units that weights tell


def test_heads_by_the_names_of_their_parameters() -> None:
    names = {
        "softmax": SoftmaxHead(4, 11).state_dict().keys(),
        "tree": HSoftmaxHead(4, Tree.huffman(COUNTS)).state_dict().keys(),
        "tree+bias": HSoftmaxHead(4, Tree.huffman(COUNTS), bias=True).state_dict().keys(),
        "adaptive": AdaptiveHead(4, COUNTS).state_dict().keys(),
        "class": ClassHead(4, NaryTree.frequency_bins(COUNTS)).state_dict().keys(),
    }
    assert [kind for kind, of_kind in names.items() if is_softmax(of_kind)] == ["softmax", "class"]
    assert [kind for kind, of_kind in names.items() if is_binary_tree(of_kind)] == [
        "tree",
        "tree+bias",
    ]


def test_the_number_of_units() -> None:
    softmax = {"ctc.head.output.weight": torch.zeros(7, 4), "ctc.head.output.bias": torch.zeros(7)}
    tree = {"ctc.head.inner_vector.weight": torch.zeros(7, 4)}
    assert find_num_units(softmax) == 7
    assert find_num_units(tree) == 8
    assert find_num_units({**softmax, "ctc.head.more": torch.zeros(3)}) is None
    assert find_num_units({"decoder.left_decoder.embed.0.weight": torch.zeros(9, 4), **tree}) == 9
    with pytest.raises(
        CheckpointError,
        match="^final.pt: contains no decoder embedding, and no output layer of CTC",
    ):
        require_num_units({"ctc.head.weight": torch.zeros(7, 4)}, "final.pt")
