# SPDX-License-Identifier: Apache-2.0
"""The README.md of an export, with the command that runs its files."""

from collections.abc import Sequence

from wenet_hs.export.graphs import WHOLE_UTTERANCES, Runtime, describe_features
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
"""The features that examples/runtime/decode_wav.py computes."""


def make_readme(
    experiment: Experiment,
    runtime: Runtime,
    chunk: Chunk | None,
    results: Sequence[str],
) -> str:
    """The text of the file: what was exported, the command that runs it, and the comparison.

    Args:
        chunk: the chunks of a stream; None: whole utterances.
        results: lines about the comparison with PyTorch.
    """
    command = _command(experiment, runtime, chunk)
    if chunk is None:
        kind = "whole utterances"
    else:
        kind = f"chunks of {chunk.size} encoder frames that see {chunk.left} chunks before"
    return _TEXT.format(
        runtime=runtime,
        kind=kind,
        features=describe_features(experiment),
        command=_NO_COMMAND if command is None else f"    {command}",
        results="\n".join(f"- {line}" for line in results),
    )


def _command(experiment: Experiment, runtime: Runtime, chunk: Chunk | None) -> str | None:
    """The command that recognises clip.wav with the exported files.

    It is a program of the runtime, or decode_wav.py for onnxruntime. None if that does not compute
    the features of the model.
    """
    if runtime == "wenet":
        frontend = experiment.frontend
        stated_chunk = WHOLE_UTTERANCES if chunk is None else chunk
        return _WENET.format(
            bins=frontend.width,
            rate=frontend.rate,
            chunk=stated_chunk.size,
            left=stated_chunk.left,
        )
    if runtime == "sherpa" and chunk is not None:
        return _SHERPA_STREAM.format(chunk=chunk.size, left=chunk.left)
    features = describe_features(experiment)
    if runtime == "sherpa":
        return _SHERPA_OFFLINE.format(slot=_SHERPA_SLOTS[features])
    return _DECODE_WAV if features in _DECODE_WAV_FEATURES else None
