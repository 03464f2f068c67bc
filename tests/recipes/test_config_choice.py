# SPDX-License-Identifier: Apache-2.0
"""Which config a training gets by `--config`, `--base`, `--encoder` and the machine."""

from pathlib import Path
from typing import Any

import pytest
from model_folders import write_model_folder
from pretrained_folders import CONFIGS
from recipe_projects import write_description

from wenet_hs.config.load import load_config
from wenet_hs.model.encoders.description import EncoderDescription
from wenet_hs.model.encoders.kinds import make_pretrained
from wenet_hs.recipes.conf_files import conf_file
from wenet_hs.recipes.config_choice import choose_config, is_own
from wenet_hs.tree.errors import CheckpointError, ConfigError

OWN = conf_file("own.yaml")
TRAINED_ON_GPU = {
    "whisper": "finetune_whisper.yaml",
    "w2v-bert": "finetune_w2vbert.yaml",
    "w2v-bert-relative": "finetune_w2vbert.yaml",
    "w2v-bert-adapter": "finetune_w2vbert.yaml",
}
"""Kind → its config where there is a GPU; that of the others is finetune_wav2vec2.yaml."""


def set_gpu(monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)


def expected_config(name: str, has_gpu: bool) -> str:
    if name == "mms":
        return "finetune_mms.yaml"
    if not has_gpu:
        return "finetune_whisper.yaml"
    return TRAINED_ON_GPU.get(name, "finetune_wav2vec2.yaml")


def refusal(**options: Any) -> str:
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        choose_config(**options)
    return str(caught.value)


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_kind_gets_a_config_whose_settings_fit(
    name: str,
    has_gpu: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_gpu(monkeypatch, has_gpu)
    folder = write_description(tmp_path / "my encoder #1", name)
    outputs = tmp_path / "été 1"
    (tmp_path / "link").symlink_to(OWN.parent)
    own_by_link = tmp_path / "link" / "own.yaml"
    choice = choose_config(own_by_link, encoder=folder, outputs=outputs)
    assert choice.path == conf_file(expected_config(name, has_gpu))
    assert choice.start == "pretrained encoder"
    conf = load_config(choice.path, choice.settings).encoder_conf
    assert conf.path == str(folder)
    is_frozen = choice.path.name == "finetune_whisper.yaml"
    assert (conf.freeze == "all") == is_frozen
    assert conf.cache == (str(outputs) if is_frozen else None)
    assert conf.adapter == ("new" if name == "mms" else None)
    make_pretrained(EncoderDescription(CONFIGS[name]), conf)


def test_another_machine_keeps_the_config_that_was_chosen(tmp_path: Path) -> None:
    folder = write_description(tmp_path / "e", "hubert")
    choice = choose_config(OWN, encoder=folder, chosen_before="finetune_w2vbert.yaml")
    assert choice.path == conf_file("finetune_w2vbert.yaml")
    named = conf_file("finetune_wav2vec2.yaml")
    choice = choose_config(named, encoder=folder, chosen_before="finetune_w2vbert.yaml")
    assert (choice.path, choice.reason) == (named, "named by --config")


def test_the_reason_names_what_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hubert = write_description(tmp_path / "hubert", "hubert")
    mms = write_description(tmp_path / "mms", "mms")
    set_gpu(monkeypatch, True)
    expected = "the config of encoders of the kind hubert, as there is a GPU here"
    assert choose_config(OWN, encoder=hubert).reason == expected
    assert choose_config(OWN, encoder=mms).reason.startswith(
        "the config of encoders with language adapters"
    )
    set_gpu(monkeypatch, False)
    expected = "the config of encoders that are not trained, as there is no GPU here"
    assert choose_config(OWN, encoder=hubert).reason == expected


def test_without_base_and_encoder_the_config_is_the_named_one() -> None:
    choice = choose_config(OWN)
    assert choice.path == OWN
    assert (choice.settings, choice.start) == ((), "random weights")
    mini = conf_file("mini.yaml")
    named = choose_config(mini)
    assert (named.path, named.settings) == (mini, ())
    assert (named.start, named.reason) == ("random weights", "named by --config")


def test_the_config_of_a_base_is_its_own(tmp_path: Path) -> None:
    base = write_model_folder(tmp_path / "base")
    choice = choose_config(OWN, base=base, size="tiny")
    assert choice.path == base / "train.yaml"
    assert (choice.settings, choice.start) == ((), "trained model")


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    encoder = write_description(tmp_path / "e", "hubert")
    base = tmp_path / "base"
    own_config = "has a config of its own; leave out --base and --size"
    assert refusal(config=Path("c.yaml"), base=base) == (
        "--config c.yaml: --base has the settings; change them with --override"
    )
    assert refusal(config=OWN, encoder=encoder, base=base) == f"--encoder {encoder}: {own_config}"
    assert refusal(config=OWN, encoder=encoder, size="tiny") == f"--encoder {encoder}: {own_config}"


def test_folders_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    no_model = f"{missing}: contains no final.pt; give the folder of a trained model"
    assert refusal(config=OWN, base=missing) == no_model
    assert refusal(config=OWN, encoder=missing).startswith(f"{missing}: cannot be read (No such")
    no_weights = write_description(tmp_path / "e", "hubert")
    (no_weights / "model.safetensors").unlink()
    assert "no weights (model.safetensors or" in refusal(config=OWN, encoder=no_weights)


def test_a_config_without_a_pretrained_encoder_is_refused(tmp_path: Path) -> None:
    folder = write_description(tmp_path / "e", "hubert")
    mini = conf_file("mini.yaml")
    expected = "encoder: conformer; give a YAML with encoder: pretrained, or no --encoder"
    assert refusal(config=mini, encoder=folder) == f"{mini}: {expected}"


def test_an_equal_copy_of_own_yaml_is_own(tmp_path: Path) -> None:
    """As in a checkout beside an installed package."""
    copy = tmp_path / "conf/own.yaml"
    copy.parent.mkdir()
    copy.write_bytes(OWN.read_bytes())
    assert is_own(copy) and is_own(OWN)
    copy.write_bytes(OWN.read_bytes() + b"# mine\n")
    assert not is_own(copy) and not is_own(tmp_path / "none/own.yaml")
