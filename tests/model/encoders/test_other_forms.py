# SPDX-License-Identifier: Apache-2.0
"""Models that are published in other forms: named with what to download, wherever a folder of a
model is expected.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from command_line import Capsys, error_line, run_line
from model_folders import write_model_folder

import wenet_hs
from wenet_hs.bin import transcribe
from wenet_hs.interop.huggingface import import_model
from wenet_hs.model.encoders.description import read_description
from wenet_hs.model.encoders.other_forms import hub_name_of, recognise_other_form
from wenet_hs.tree.errors import CheckpointError, WenetHsError

ROOT = Path(__file__).parents[3]
PYTORCH = "is a checkpoint of PyTorch, as fairseq and OpenAI publish them, not a folder in Hugging Face's layout"
XLSR_53 = (
    f"{PYTORCH}; `hf download facebook/wav2vec2-large-xlsr-53 --local-dir wav2vec2-large-xlsr-53` downloads this model "
    "in Hugging Face's layout"
)


def write_fairseq(path: Path) -> None:
    torch.save(
        {"args": None, "cfg": {}, "model": {"w2v_encoder.proj.weight": torch.zeros(3, 3)}}, path
    )


def write_fairseq_folder(path: Path) -> None:
    path.mkdir()
    write_fairseq(path / "xlsr_53_56k.pt")


def write_old_pytorch(path: Path) -> None:
    torch.save({"model": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)


def write_faster_whisper(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text('{"lang_ids": [50259], "suppress_ids": []}')
    (path / "model.bin").write_bytes(bytes(99))
    (path / "vocabulary.json").write_text('["a"]')


def write_cache(path: Path) -> None:
    (path / "refs").mkdir(parents=True)
    (path / "refs/main").write_text("abc")
    for revision in ("abc", "def"):
        (path / "snapshots" / revision).mkdir(parents=True)
        (path / "snapshots" / revision / "config.json").write_text("{}")


def write_whole_cache(path: Path) -> None:
    write_cache(path / "models--u--m")


def write_empty_cache(path: Path) -> None:
    (path / "snapshots/abc").mkdir(parents=True)


def write_peft(path: Path) -> None:
    path.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "facebook/mms-300m"}
    (path / "adapter_config.json").write_text(json.dumps(config))


def write_parent(path: Path) -> None:
    (path / "whisper-base").mkdir(parents=True)
    (path / "whisper-base/config.json").write_text("{}")


def write_whisper_cpp(path: Path) -> None:
    path.write_bytes(b"lmgg" + bytes(99))


FORMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "xlsr_53_56k.pt": (write_fairseq, XLSR_53),
    "fairseq": (write_fairseq_folder, f"has no config.json, but xlsr_53_56k.pt, which {XLSR_53}"),
    "mine.pt": (
        write_old_pytorch,
        f"{PYTORCH}; download the same model as a folder in Hugging Face's layout (docs/pretrained.md has a table)",
    ),
    "base.pt": (
        write_fairseq,
        f"{PYTORCH}; `hf download openai/whisper-base --local-dir whisper-base` downloads this",
    ),
    "ggml-base.bin": (
        write_whisper_cpp,
        "is a model of whisper.cpp or another program of GGML, not a folder in Hugging Face's layout; ",
    ),
    "faster-whisper-small": (
        write_faster_whisper,
        "is a model of CTranslate2 (faster-whisper), which cannot be trained; "
        "`hf download openai/whisper-small --local-dir whisper-small` downloads the original",
    ),
    "models--u--m": (
        write_cache,
        "is a folder of the Hugging Face Hub's cache; give the model in it: models--u--m/snapshots/abc",
    ),
    "models--u--n": (
        write_empty_cache,
        "is a folder of the Hugging Face Hub's cache without a complete model; `hf download u/n --local-dir n`",
    ),
    "hub": (
        write_whole_cache,
        "is the Hugging Face Hub's cache; give a model in it, such as hub/models--u--m/snapshots/abc",
    ),
    "peft": (
        write_peft,
        "is an adapter of PEFT for facebook/mms-300m, not a whole model; merge both with PEFT's `merge_and_unload` and "
        "give the folder that you save; `hf download facebook/mms-300m --local-dir mms-300m` downloads",
    ),
    "downloads": (
        write_parent,
        "has no config.json, but a folder in it has one; give downloads/whisper-base",
    ),
}
"""Name of a file or folder → what writes it, and the line after the name."""


@pytest.mark.parametrize("name", FORMS)
def test_the_same_line_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """In `train` and run.sh, which read the description of an encoder, `import`, `transcribe` and
    `load_model`.
    """
    monkeypatch.chdir(tmp_path)
    write, message = FORMS[name]
    write(Path(name))
    lines = []
    for read in (
        read_description,
        lambda path: import_model(path, Path("out"), None, command=()),
        wenet_hs.load_model,
    ):
        with pytest.raises(WenetHsError) as caught:
            read(Path(name))
        lines.append(str(caught.value))
    lines.append(error_line(run_line(transcribe, f"--model_dir {name} clip.wav"), capsys))
    assert {*lines} == {lines[0]} and lines[0].startswith(f"{name}: {message}")


def test_a_name_of_the_hub_that_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = Path("facebook/mms-300m")
    expected = "facebook/mms-300m: no such folder; if it is a name on the Hugging Face Hub, `hf download facebook/mms-300m"
    for read in (read_description, lambda path: import_model(path, Path("out"), None, command=())):
        with pytest.raises(WenetHsError, match=f"^{expected} --local-dir mms-300m` downloads it$"):
            read(name)
    expected = "no such file or folder; give the --model_dir of a training, or hf://facebook/mms-300m if it is a packed"
    with pytest.raises(
        CheckpointError, match=f"^facebook/mms-300m: {expected} model on the Hugging Face Hub$"
    ):
        wenet_hs.load_model(name)
    for written in ("hf://facebook/mms-300m", "https://huggingface.co/facebook/mms-300m/"):
        assert hub_name_of(Path(written)) == "facebook/mms-300m"
    assert hub_name_of("exp/of/mms-300m") is None
    Path("facebook").mkdir()  # then it is the path of a folder that is missing
    assert recognise_other_form(name) is None
    with pytest.raises(
        CheckpointError, match="no such file or folder; give the --model_dir of a training$"
    ):
        wenet_hs.load_model(name)


def test_the_remedies_name_what_can_be_read(tmp_path: Path) -> None:
    """The folder of the cache is read as any other, and the program `hf` has the flags that the
    lines name.
    """
    write_cache(tmp_path / "models--u--m")
    assert recognise_other_form(tmp_path / "models--u--m/snapshots/abc") is None
    pytest.importorskip("huggingface_hub")
    command = [str(Path(sys.executable).with_name("hf")), "download", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "--local-dir" in done.stdout


def test_model_folders_and_their_files(tmp_path: Path) -> None:
    """Where an encoder is expected, and a file or a folder in Hugging Face's layout where a model
    folder is.
    """
    folder = write_model_folder(tmp_path / "exp")
    expected = (
        "exp: is a model folder of wenet_hs or WeNet; give it as --checkpoint, in run.sh as --base"
    )
    with pytest.raises(CheckpointError, match=expected):
        read_description(folder)
    with pytest.raises(
        CheckpointError,
        match=r"final.pt: is a file of the model folder .*exp; give that as --checkpoint",
    ):
        read_description(folder / "final.pt")
    with pytest.raises(
        CheckpointError, match=r"final.pt: a file of a model folder; give --model_dir .*exp$"
    ):
        wenet_hs.load_model(folder / "final.pt")
    write_parent(tmp_path / "hf")
    encoder = tmp_path / "hf/whisper-base"
    (encoder / "model.safetensors").write_bytes(b"x")
    expected = r"whisper-base: is a folder in Hugging Face's layout; `wenet-hs import --hf .*whisper-base --out NEW`"
    with pytest.raises(CheckpointError, match=expected):
        wenet_hs.load_model(encoder)
    with pytest.raises(
        CheckpointError,
        match=r"model.safetensors: is a file of a model; give its folder .*whisper-base",
    ):
        read_description(encoder / "model.safetensors")


def test_other_zips_are_no_checkpoints(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "notes.zip", "w") as archive:
        archive.writestr("notes.txt", "x")
    assert recognise_other_form(tmp_path / "notes.zip") is None
    assert recognise_other_form(tmp_path / "exp/encoder.json") is None


@pytest.mark.slow
def test_run_sh_prints_the_whole_line(tmp_path: Path) -> None:
    write_fairseq(tmp_path / "xlsr_53_56k.pt")
    command = [
        str(ROOT / "examples/own/s0/run.sh"),
        "--encoder",
        str(tmp_path / "xlsr_53_56k.pt"),
        "--corpus",
        "x.tsv",
    ]
    command += ["--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout + done.stderr == f"{tmp_path}/xlsr_53_56k.pt: {XLSR_53}\n"
