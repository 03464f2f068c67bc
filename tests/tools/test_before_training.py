# SPDX-License-Identifier: Apache-2.0
"""What `run.sh` learns before a training: a config that fits an encoder, and the expected time."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from pretrained_folders import CONFIGS

from wenet_hs.config.load import load_config
from wenet_hs.encoders.description import EncoderDescription
from wenet_hs.encoders.kinds import make_pretrained
from wenet_hs.errors import ConfigError

ROOT = Path(__file__).parents[2]
CONF, TOOL = ROOT / "conf", ROOT / "tools" / "before_training.py"
ON_GPU = {"mms": "mms", "w2v-bert": "w2vbert", "w2v-bert-relative": "w2vbert", "w2v-bert-adapter": "w2vbert"}


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("before_training_tool", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def describe(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")  # only its place is looked for
    return folder


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_kind_gets_a_config_whose_settings_fit(
    name: str, has_gpu: bool, tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    folder = describe(tmp_path / "my encoder #1", name)
    (tmp_path / "link").symlink_to(CONF)
    path, *settings = tool.choose_config(folder, str(tmp_path / "été 1"), tmp_path / "link" / "own.yaml")
    expected = ON_GPU.get(name, name if name == "whisper" else "wav2vec2") if has_gpu or name == "mms" else "whisper"
    assert path == str(CONF / f"finetune_{expected}.yaml")
    (tmp_path / "chosen.txt").write_text("finetune_mms.yaml\n")
    given = (folder, "", tmp_path / "link" / "own.yaml", tmp_path / "chosen.txt")
    assert tool.choose_config(*given)[0] == str(CONF / "finetune_mms.yaml"), "by another machine"
    conf = load_config(path, settings).encoder_conf
    assert conf.path == str(folder) and conf.cache in (None, str(tmp_path / "été 1"))
    assert (conf.cache is None) == (conf.freeze != "all") == (expected != "whisper")
    make_pretrained(EncoderDescription(CONFIGS[name]), conf)


def test_the_steps_of_each_config_are_in_the_table() -> None:
    rows = [line.split() for line in (CONF / "own_sizes.txt").read_text("utf-8").splitlines() if ".yaml " in line]
    for path in CONF.glob("finetune_*.yaml"):
        limits = [float(row[1]) for row in rows if row[0] == path.name]
        assert limits == sorted(limits) and limits[-1] == 1e6
        for steps in (int(row[3]) for row in rows if row[0] == path.name):
            load_config(path, [f"scheduler_conf.total_steps={steps}"])


def test_a_config_without_a_pretrained_encoder_is_refused(tool: Any, tmp_path: Path) -> None:
    folder = describe(tmp_path / "e", "hubert")
    with pytest.raises(ConfigError, match=r"mini.yaml: encoder: conformer; give a YAML with encoder: pretrained"):
        tool.choose_config(folder, "o", CONF / "mini.yaml")
    assert tool.choose_config(folder, "o", CONF / "finetune_wav2vec2.yaml")[0] == str(CONF / "finetune_wav2vec2.yaml")


@pytest.mark.slow
def test_a_head_over_a_tree_is_measured_as_a_softmax(capsys: pytest.CaptureFixture[str], tool: Any) -> None:
    command = f"time --hours 1 wenet-hs train --config {CONF / 'own.yaml'} --override_config head=hsoftmax"
    smaller = "head_conf.tree=t.json encoder_conf.output_size=16 encoder_conf.num_blocks=4"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [str(TOOL), *command.split(), *smaller.split()])
        tool.main()
    assert capsys.readouterr().out.startswith("expected time of a training: ")


def test_a_folder_that_is_no_encoder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["--encoder", str(tmp_path), "--outputs", "o", "--config", str(CONF / "own.yaml")]
    monkeypatch.setattr(sys, "argv", [str(TOOL), "config", *line])
    with pytest.raises(SystemExit, match="config.json: cannot be read"):
        runpy.run_path(str(TOOL), run_name="__main__")
