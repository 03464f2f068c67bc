# SPDX-License-Identifier: Apache-2.0
"""Published models in other forms than a folder in Hugging Face's layout, and what to do with them.

A form is recognised by the names of files and by their first bytes; no weights are loaded. For each
form there is one function, which returns what was found and what to do.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

_LAYOUT = "Hugging Face's layout"
_HUB_NAME = re.compile(r"(?:hf:/{1,2}|https?:/{1,2}huggingface\.co/)?([\w.-]+/[\w.-]+)/?")
"""USER/NAME, perhaps after hf:// or the address of the Hub. `Path` makes one slash of two."""
_CTRANSLATE2_NAME = re.compile(r"faster-whisper-([\w.-]+)")
_BARE_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".nemo")
"""Suffixes of files with weights that no folder in Hugging Face's layout has."""
_CHECKPOINT_SUFFIXES = (
    *_BARE_CHECKPOINTS,
    ".onnx",
    ".h5",
    ".msgpack",
    ".gguf",
    ".bin",
    ".safetensors",
)
"""Suffixes of all files with weights."""
_GGML_MARKS = (b"lmgg", b"ggml", b"GGUF")
"""The first bytes of a file of GGML."""
_PICKLE_MARK = b"\x80\x02"
"""The first bytes of a file of PyTorch before 1.6."""
_PUBLISHED = {
    "xlsr_53_56k.pt": "facebook/wav2vec2-large-xlsr-53",
    "xlsr2_300m.pt": "facebook/wav2vec2-xls-r-300m",
    "xlsr2_960m_1000k.pt": "facebook/wav2vec2-xls-r-1b",
    "xlsr2_2B_1000k.pt": "facebook/wav2vec2-xls-r-2b",
    "wav2vec_small.pt": "facebook/wav2vec2-base",
    "libri960_big.pt": "facebook/wav2vec2-large",
    "wav2vec_vox_new.pt": "facebook/wav2vec2-large-lv60",
    "hubert_base_ls960.pt": "facebook/hubert-base-ls960",
    "hubert_large_ll60k.pt": "facebook/hubert-large-ll60k",
    "hubert_xtralarge_ll60k.pt": "facebook/hubert-xlarge-ll60k",
    "base_300m.pt": "facebook/mms-300m",
    "base_1b.pt": "facebook/mms-1b",
    "mms1b_fl102.pt": "facebook/mms-1b-fl102",
    "mms1b_l1107.pt": "facebook/mms-1b-l1107",
    "mms1b_all.pt": "facebook/mms-1b-all",
    "WavLM-Base.pt": "microsoft/wavlm-base",
    "WavLM-Base+.pt": "microsoft/wavlm-base-plus",
    "WavLM-Large.pt": "microsoft/wavlm-large",
    "tiny.pt": "openai/whisper-tiny",
    "base.pt": "openai/whisper-base",
    "small.pt": "openai/whisper-small",
    "medium.pt": "openai/whisper-medium",
    "large-v1.pt": "openai/whisper-large",
    "large-v2.pt": "openai/whisper-large-v2",
    "large-v3.pt": "openai/whisper-large-v3",
}
"""Files of fairseq, Microsoft and OpenAI → the same model on the Hugging Face Hub."""


@dataclass(frozen=True)
class OtherForm:
    """The form of a file or folder, for an error message."""

    found: str
    """What the file or folder is."""
    to_do: str
    """What the user should do."""


def recognise_other_form(path: Path) -> OtherForm | None:
    """The form of what is given instead of a folder in Hugging Face's layout.

    None if it may be such a folder, `encoder.json` of a model folder, or something unknown.
    """
    hub_name = hub_name_of(path)
    if hub_name is not None:
        command = _download_command(hub_name)
        to_do = f"if it is a name on the Hugging Face Hub, {command} downloads it"
        return OtherForm("no such folder", to_do)
    return _form_of_folder(path) if path.is_dir() else _form_of_file(path)


def hub_name_of(reference: Path | str) -> str | None:
    """The name USER/NAME on the Hub that a path may mean; None if it is a path on this machine.

    It may be written USER/NAME, hf://USER/NAME or as the address of the Hub's page. It is taken for
    a path if the path or its parent folder exists, or if it ends in `.json`.
    """
    path = Path(reference)
    match = _HUB_NAME.fullmatch(str(reference))
    is_missing = not path.exists() and not path.parent.exists()
    if match is None or not is_missing or path.suffix == ".json":
        return None
    return match[1]


def _download_command(hub_name: str) -> str:
    """The command that downloads a model of the Hub into a folder with its name, without the user."""
    folder = hub_name.rpartition("/")[2]
    return f"`hf download {hub_name} --local-dir {folder}`"


# ---- folders


def _form_of_folder(folder: Path) -> OtherForm | None:
    """The form of a folder by the first rule that holds; None if none holds.

    A folder with config.json is taken for one in Hugging Face's layout, unless it is of
    CTranslate2, which has that file too.
    """
    form = _ctranslate2_form(folder)
    if form is not None or (folder / "config.json").exists():
        return form
    for rule in (
        _model_folder_form,
        _adapter_form,
        _cached_model_form,
        _cache_form,
        _outer_folder_form,
        _bare_checkpoint_form,
    ):
        form = rule(folder)
        if form is not None:
            return form
    return None


def _ctranslate2_form(folder: Path) -> OtherForm | None:
    """A model of CTranslate2: model.bin beside vocabulary.json or vocabulary.txt.

    The name of the original model is in the path, for example in
    `models--Systran--faster-whisper-small/snapshots/536b0662`.
    """
    if not (folder / "model.bin").is_file() or not any(folder.glob("vocabulary.*")):
        return None
    match = _CTRANSLATE2_NAME.search(str(folder.resolve()))
    hub_name = f"openai/whisper-{match[1]}" if match else "openai/whisper-SIZE"
    found = "is a model of CTranslate2 (faster-whisper), which cannot be trained"
    return OtherForm(found, f"{_download_command(hub_name)} downloads the original")


def _model_folder_form(folder: Path) -> OtherForm | None:
    """A model folder of wenet_hs or WeNet: it has train.yaml."""
    if not (folder / "train.yaml").is_file():
        return None
    to_do = "give it as --checkpoint, in run.sh as --base"
    return OtherForm("is a model folder of wenet_hs or WeNet", to_do)


def _adapter_form(folder: Path) -> OtherForm | None:
    """An adapter of PEFT: it has adapter_config.json.

    This file names the model that the adapter belongs to, on the Hub or by a path.
    """
    config_file = folder / "adapter_config.json"
    if not config_file.is_file():
        return None
    try:
        config = json.loads(config_file.read_text("utf-8"))
        base = config.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    base_name = base or "a model that it does not name"
    found = f"is an adapter of PEFT for {base_name}, not a whole model"
    to_do = "merge both with PEFT's `merge_and_unload` and give the folder that you save"
    hub_name = hub_name_of(str(base)) if base else None
    if hub_name is not None:
        to_do += f"; {_download_command(hub_name)} downloads the model without it"
    return OtherForm(found, to_do)


def _cached_model_form(folder: Path) -> OtherForm | None:
    """The folder of one model in the Hub's cache, `models--USER--NAME`: it has `snapshots`.

    Each revision of the model has a folder there. The one to use is that which `refs/main` names,
    if it is complete, or else the last complete one by name.
    """
    if not (folder / "snapshots").is_dir():
        return None
    complete = sorted(file.parent for file in folder.glob("snapshots/*/config.json"))
    found = "is a folder of the Hugging Face Hub's cache"
    if complete:
        to_use = complete[-1]
        main = folder / "refs/main"
        if main.is_file():
            latest = folder / "snapshots" / main.read_text("utf-8").strip()
            if latest in complete:
                to_use = latest
        return OtherForm(found, f"give the model in it: {to_use}")
    hub_name = folder.name.removeprefix("models--").replace("--", "/")
    to_do = f"{_download_command(hub_name)} downloads it"
    return OtherForm(f"{found} without a complete model", to_do)


def _cache_form(folder: Path) -> OtherForm | None:
    """The Hub's whole cache: it has folders such as `models--facebook--mms-300m`."""
    config_files = sorted(folder.glob("models--*/snapshots/*/config.json"))
    if not config_files:
        return None
    to_do = f"give a model in it, such as {config_files[0].parent}"
    return OtherForm("is the Hugging Face Hub's cache", to_do)


def _outer_folder_form(folder: Path) -> OtherForm | None:
    """A folder around the right one: exactly one folder in it has config.json."""
    config_files = list(folder.glob("*/config.json"))
    if len(config_files) != 1:
        return None
    found = "has no config.json, but a folder in it has one"
    return OtherForm(found, f"give {config_files[0].parent}")


def _bare_checkpoint_form(folder: Path) -> OtherForm | None:
    """A folder with a file of weights of another program, such as `xlsr2_300m.pt`.

    The message is about the first such file by name.
    """
    for file in sorted(folder.iterdir()):
        if file.suffix not in _BARE_CHECKPOINTS:
            continue
        form = _form_of_file(file)
        if form is not None:
            found = f"has no config.json, but {file.name}, which {form.found}"
            return OtherForm(found, form.to_do)
    return None


# ---- files


def _form_of_file(file: Path) -> OtherForm | None:
    """The form of a file with weights; None for other files.

    If the file is in a model folder or in a folder in Hugging Face's layout, the user is told to
    give that folder; otherwise to download the same model in that layout.
    """
    kind = _kind_of_weights(file)
    if kind is None:
        return None
    if (file.parent / "train.yaml").is_file():
        found = f"is a file of the model folder {file.parent}"
        return OtherForm(found, "give that as --checkpoint, in run.sh as --base")
    if (file.parent / "config.json").is_file():
        return OtherForm("is a file of a model", f"give its folder {file.parent}")
    to_do = f"download the same model as a folder in {_LAYOUT} (docs/pretrained.md has a table)"
    if file.name in _PUBLISHED:
        command = _download_command(_PUBLISHED[file.name])
        to_do = f"{command} downloads this model in {_LAYOUT}"
    return OtherForm(f"is {kind}, not a folder in {_LAYOUT}", to_do)


def _kind_of_weights(file: Path) -> str | None:
    """The kind of a file with weights, for a message; None if it is no such file.

    It is known by the first bytes, or else by the suffix of the name.
    """
    if not file.is_file():
        return None
    with file.open("rb") as content:
        mark = content.read(4)
    if mark in _GGML_MARKS:
        return "a model of whisper.cpp or another program of GGML"
    if mark.startswith(_PICKLE_MARK) or _is_zip_of_pytorch(file):
        return "a checkpoint of PyTorch, as fairseq and OpenAI publish them"
    if file.suffix in _CHECKPOINT_SUFFIXES:
        return f"a file of weights ({file.suffix})"
    return None


def _is_zip_of_pytorch(file: Path) -> bool:
    """Whether a file is a ZIP with a pickle of PyTorch (since 1.6); False if it cannot be read."""
    try:
        with ZipFile(file) as zipped:
            return any(name.endswith("data.pkl") for name in zipped.namelist())
    except (BadZipFile, OSError, ValueError):
        return False
