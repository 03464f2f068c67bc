# SPDX-License-Identifier: Apache-2.0
"""The README.md of an export, with the command that runs its files."""

from collections.abc import Sequence

from wenet_hs.export.graphs import Runtime, features_name
from wenet_hs.model.experiment import Experiment
from wenet_hs.nn.layers import Chunk

_TEXT = """# An exported model of wenet_hs

For {runtime}, {kind}; features: {features}. docs/export.md of wenet_hs describes inputs,
outputs and limits.

{command}

{results}
"""
_NO_COMMAND = "No program of wenet_hs or of the runtimes computes these features; docs/export.md describes the inputs."
_SHERPA_OFFLINE = "sherpa-onnx-offline --tokens=tokens.txt {slot}=model.onnx clip.wav"
_SHERPA_SLOTS = {
    "wenet": "--fire-red-asr-ctc",
    "sherpa": "--wenet-ctc-model",
    "Waveform": "--omnilingual-asr-model",
}
"""Features → the flag of sherpa-onnx for models of whole utterances with them."""
_SHERPA_STREAM = (
    "sherpa-onnx --tokens=tokens.txt --wenet-ctc-model=model.onnx --wenet-ctc-chunk-size={chunk} "
    "--wenet-ctc-num-left-chunks={left} clip.wav"
)
_WENET = (
    "decoder_main --onnx_dir . --unit_path units.txt --language_type 1 --num_bins {bins} "
    "--sample_rate {rate} --chunk_size {chunk} --num_left_chunks {left} --wav_path clip.wav"
)
_DECODE_WAV = (
    "python examples/runtime/decode_wav.py THIS_FOLDER clip.wav    # in the folder of wenet_hs"
)
_DECODE_WAV_FEATURES = ("wenet", "sherpa", "Waveform", "WhisperMel")


def make_readme(
    experiment: Experiment,
    runtime: Runtime,
    chunk: Chunk | None,
    results: Sequence[str],
) -> str:
    """The text of the file.

    Args:
        chunk: of a stream; None: whole utterances.
        results: lines about the comparison with PyTorch.
    """
    command = _command(experiment, runtime, chunk)
    kind = "whole utterances"
    if chunk is not None:
        kind = f"chunks of {chunk.size} encoder frames that see {chunk.left} chunks before"
    return _TEXT.format(
        runtime=runtime,
        kind=kind,
        features=features_name(experiment),
        command=f"    {command}" if command else _NO_COMMAND,
        results="\n".join(f"- {line}" for line in results),
    )


def _command(experiment: Experiment, runtime: Runtime, chunk: Chunk | None) -> str | None:
    """What recognises clip.wav; None if no known program computes the features."""
    features = features_name(experiment)
    frontend = experiment.frontend
    if runtime == "wenet":
        size, left = chunk or (-1, -1)
        return _WENET.format(bins=frontend.width, rate=frontend.rate, chunk=size, left=left)
    if runtime == "sherpa" and chunk is not None:
        return _SHERPA_STREAM.format(chunk=chunk.size, left=chunk.left)
    if runtime == "sherpa":
        return _SHERPA_OFFLINE.format(slot=_SHERPA_SLOTS[features])
    return _DECODE_WAV if features in _DECODE_WAV_FEATURES else None
