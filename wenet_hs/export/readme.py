# SPDX-License-Identifier: Apache-2.0
"""README.md of an export: what the files are, and the command that runs them."""

from pathlib import Path

from wenet_hs.encoders.pretrained import PretrainedEncoder
from wenet_hs.experiment import Experiment
from wenet_hs.files import write_atomic
from wenet_hs.nn.layers import Chunk

_SHERPA = {
    "wenet": "sherpa-onnx-offline --tokens=tokens.txt --fire-red-asr-ctc=model.onnx clip.wav",
    "sherpa": "sherpa-onnx-offline --tokens=tokens.txt --wenet-ctc-model=model.onnx clip.wav",
    "waveform": "sherpa-onnx-offline --tokens=tokens.txt --omnilingual-asr-model=model.onnx clip.wav",
}
_ONNXRUNTIME = "python examples/runtime/decode_wav.py EXPORT_FOLDER clip.wav"


def command_of(experiment: Experiment, runtime: str, chunk: Chunk | None) -> str:
    """The command that runs the files, inside of their folder."""
    if runtime == "wenet":
        streaming = "" if chunk is None else f" --chunk_size {chunk.size}"
        return f"decoder_main --onnx_dir . --unit_path units.txt --wav_path clip.wav{streaming}"
    if runtime == "onnxruntime":
        return _ONNXRUNTIME
    if chunk is not None:
        sizes = f"--wenet-ctc-chunk-size={chunk.size} --wenet-ctc-num-left-chunks={chunk.left}"
        return f"sherpa-onnx --tokens=tokens.txt --wenet-ctc-model=model.onnx {sizes} clip.wav"
    is_waveform = isinstance(experiment.model.encoder, PretrainedEncoder)
    return _SHERPA["waveform" if is_waveform else experiment.config.dataset_conf.fbank_conf.profile]


def write_readme(folder: Path, experiment: Experiment, lines: list[str], *, runtime: str, chunk: Chunk | None) -> None:
    """`lines`: results of the comparison."""
    frontend, fbank = experiment.frontend, experiment.config.dataset_conf.fbank_conf
    features = f"log-Mel, {frontend.width} bins at {frontend.rate} Hz, profile {fbank.profile}"
    if experiment.model.encoder.own_frontend is not None:
        features = "samples" if frontend.width == 1 else f"{type(frontend).__name__}, {frontend.width} bins"
    kind = "whole utterances" if chunk is None else f"chunks of {chunk.size} encoder frames, {chunk.left} before them"
    names = ", ".join(f"`{path.name}`" for path in sorted(folder.iterdir()))
    results = "\n".join(f"- {line}" for line in lines)
    text = f"""# An exported model of wenet_hs

For {runtime}: {kind}. Input: {features}. {experiment.model.num_units} units, blank is {experiment.model.ctc.blank}.

    {command_of(experiment, runtime, chunk)}

Files: {names}. `docs/export.md` of wenet_hs lists inputs, outputs and limits.

{results}
"""
    write_atomic(folder / "README.md", text)
