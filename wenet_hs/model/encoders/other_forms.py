# SPDX-License-Identifier: Apache-2.0
"""Published models in other forms than a folder in Hugging Face's layout, and what to do with them.

A form is recognised by names of files and by first bytes; nothing is loaded.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

_HUB_NAME = re.compile(r"(?:hf:/{1,2}|https?:/{1,2}huggingface\.co/)?([\w.-]+/[\w.-]+)/?")
_CTRANSLATE2_NAME = re.compile(r"faster-whisper-([\w.-]+)")
_CHECKPOINT_NAMES = (
    ".pt",
    ".pth",
    ".ckpt",
    ".nemo",
    ".onnx",
    ".h5",
    ".msgpack",
    ".gguf",
    ".bin",
    ".safetensors",
)
_BARE_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".nemo")
"""Those of them that no folder in Hugging Face's layout has."""
_GGML_MARKS = (b"lmgg", b"ggml", b"GGUF")
_PICKLE_MARK = b"\x80\x02"
"""What files of PyTorch before 1.6 begin with."""
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
    """What a file or folder is, and what to do, for an error message."""

    found: str
    to_do: str


def download_command(hub_name: str) -> str:
    return f"`hf download {hub_name} --local-dir {hub_name.rpartition('/')[2]}`"


def hub_name_of(reference: Path | str) -> str | None:
    """USER/NAME, if a path looks like this, and neither it nor the folder USER exists."""
    path = Path(reference)
    match = _HUB_NAME.fullmatch(str(reference))
    is_missing = not path.exists() and not path.parent.exists()
    return match[1] if match and is_missing and path.suffix != ".json" else None


def recognise_other_form(path: Path) -> OtherForm | None:
    """What is given instead of a folder in Hugging Face's layout.

    None if it may be such a folder, `encoder.json` of a model folder, or something unknown.
    """
    if hub_name := hub_name_of(path):
        command = download_command(hub_name)
        to_do = f"if it is a name on the Hugging Face Hub, {command} downloads it"
        return OtherForm("no such folder", to_do)
    return _form_of_folder(path) if path.is_dir() else _form_of_file(path)


def _form_of_folder(folder: Path) -> OtherForm | None:
    if (folder / "model.bin").is_file() and any(folder.glob("vocabulary.*")):
        return _ctranslate2_form(folder)
    if (folder / "config.json").exists():
        return None
    if (folder / "train.yaml").is_file():
        to_do = "give it as --checkpoint, in run.sh as --base"
        return OtherForm("is a model folder of wenet_hs or WeNet", to_do)
    if (folder / "adapter_config.json").is_file():
        return _adapter_form(folder)
    if (folder / "snapshots").is_dir():
        return _cache_form(folder)
    if cached := sorted(folder.glob("models--*/snapshots/*/config.json")):
        return OtherForm(
            "is the Hugging Face Hub's cache", f"give a model in it, such as {cached[0].parent}"
        )
    inner = sorted(file.parent for file in folder.glob("*/config.json"))
    if len(inner) == 1:
        return OtherForm("has no config.json, but a folder in it has one", f"give {inner[0]}")
    for file in sorted(folder.iterdir()):
        form = _form_of_file(file) if file.suffix in _BARE_CHECKPOINTS else None
        if form is not None:
            return OtherForm(f"has no config.json, but {file.name}, which {form.found}", form.to_do)
    return None


def _ctranslate2_form(folder: Path) -> OtherForm:
    match = _CTRANSLATE2_NAME.search(str(folder.resolve()))
    hub_name = f"openai/whisper-{match[1]}" if match else "openai/whisper-SIZE"
    found = "is a model of CTranslate2 (faster-whisper), which cannot be trained"
    return OtherForm(found, f"{download_command(hub_name)} downloads the original")


def _adapter_form(folder: Path) -> OtherForm:
    """PEFT's: its config names the model that it belongs to, on the Hub or by a path."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        base = config.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    base_name = base or "a model that it does not name"
    found = f"is an adapter of PEFT for {base_name}, not a whole model"
    to_do = "merge both with PEFT's `merge_and_unload` and give the folder that you save"
    if base and (hub_name := hub_name_of(str(base))):
        to_do += f"; {download_command(hub_name)} downloads the model without it"
    return OtherForm(found, to_do)


def _cache_form(folder: Path) -> OtherForm:
    """The Hub's cache of a model, `models--USER--NAME`: each revision has a folder of its own."""
    complete = sorted(file.parent for file in folder.glob("snapshots/*/config.json"))
    main = folder / "refs/main"
    if main.is_file():
        latest = folder / "snapshots" / main.read_text("utf-8").strip()
        complete = [latest] if latest in complete else complete
    found = "is a folder of the Hugging Face Hub's cache"
    if complete:
        return OtherForm(found, f"give the model in it: {complete[-1]}")
    hub_name = folder.name.removeprefix("models--").replace("--", "/")
    to_do = f"{download_command(hub_name)} downloads it"
    return OtherForm(f"{found} without a complete model", to_do)


def _form_of_file(file: Path) -> OtherForm | None:
    """The form of a file with weights; None for other files."""
    kind = _kind_of_weights(file)
    if kind is None:
        return None
    if (file.parent / "train.yaml").is_file():
        return OtherForm(
            f"is a file of the model folder {file.parent}",
            "give that as --checkpoint, in run.sh as --base",
        )
    if (file.parent / "config.json").is_file():
        return OtherForm("is a file of a model", f"give its folder {file.parent}")
    layout = "Hugging Face's layout"
    to_do = f"download the same model as a folder in {layout} (docs/pretrained.md has a table)"
    if file.name in _PUBLISHED:
        command = download_command(_PUBLISHED[file.name])
        to_do = f"{command} downloads this model in {layout}"
    return OtherForm(f"is {kind}, not a folder in {layout}", to_do)


def _kind_of_weights(file: Path) -> str | None:
    """What kind of file with weights this is, by its first bytes or its name; None: none."""
    if not file.is_file():
        return None
    with file.open("rb") as content:
        mark = content.read(4)
    if mark in _GGML_MARKS:
        return "a model of whisper.cpp or another program of GGML"
    if mark.startswith(_PICKLE_MARK) or _is_zip_of_pytorch(file):
        return "a checkpoint of PyTorch, as fairseq and OpenAI publish them"
    return f"a file of weights ({file.suffix})" if file.suffix in _CHECKPOINT_NAMES else None


def _is_zip_of_pytorch(file: Path) -> bool:
    try:
        with ZipFile(file) as zipped:
            return any(name.endswith("data.pkl") for name in zipped.namelist())
    except (BadZipFile, OSError, ValueError):
        return False
