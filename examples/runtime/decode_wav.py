#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode WAV files with an exported model: greedy CTC, with numpy and onnxruntime only.

Example: wenet-hs export --model_dir exp/softmax --out exported
         python decode_wav.py exported clip.wav

Dimension key: N samples, T frames, T' encoder frames, S samples per window, K frequencies,
F Mel bins.
"""

import math
import sys
import unicodedata
import wave
from pathlib import Path

import numpy as np
import onnxruntime

WINDOW, SHIFT, FFT, RATE = 400, 160, 512, 16000  # 25 ms every 10 ms
WHISPER_FFT = 400
SILENT_UNITS = ("<blank>", "<sos/eos>", "<sos>", "<eos>")


CONVERT = f"convert it to {RATE} Hz, 16 bits, 1 channel: sox IN -r {RATE} -b 16 -c 1 OUT.wav"


def read_wav(path: str) -> np.ndarray:
    """The samples (N,) in [-1, 1) of a file of 16 kHz, 16 bits and one channel.

    Exits with one line for a file that is missing, no WAV, or another kind of WAV.
    """
    try:
        with wave.open(path) as file:
            rate = file.getframerate()
            bits = 8 * file.getsampwidth()
            channels = file.getnchannels()
            content = file.readframes(file.getnframes())
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
    except (wave.Error, EOFError):
        sys.exit(f"{path}: not a WAV with integer samples; {CONVERT}")
    if (rate, bits, channels) != (RATE, 16, 1):
        sys.exit(f"{path}: {rate} Hz, {bits} bits, {channels} channels; {CONVERT}")
    return np.frombuffer(content, "<i2") / 32768.0


def mel_weights(num_bins: int, highest_hz: float) -> np.ndarray:
    """Kaldi's triangles (K, F), of equal widths in Mel from 20 Hz on."""
    low, high = (1127.0 * math.log(1.0 + hz / 700.0) for hz in (20.0, highest_hz))
    edges = low + (high - low) / (num_bins + 1) * np.arange(num_bins + 2)
    mel_K1 = 1127.0 * np.log(1.0 + np.arange(FFT // 2 + 1)[:, None] * (RATE / FFT) / 700.0)
    rising_KF = (mel_K1 - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling_KF = (edges[2:] - mel_K1) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(rising_KF, falling_KF))


def fbank(wave_N: np.ndarray, num_bins: int, profile: str) -> np.ndarray:
    """Log-Mel features (T, F) as Kaldi computes them; profile `sherpa`: mirrored ends, Mel bins end
    400 Hz lower.
    """
    if profile == "sherpa":
        num_frames, before = (len(wave_N) + SHIFT // 2) // SHIFT, (WINDOW - SHIFT) // 2
        after = (num_frames - 1) * SHIFT + WINDOW - before - len(wave_N)
        wave_N = np.concatenate(
            [wave_N[:before][::-1], wave_N, wave_N[len(wave_N) - after :][::-1]]
        )
    windows_TS = np.lib.stride_tricks.sliding_window_view(wave_N * 32768.0, WINDOW)[::SHIFT]
    windows_TS = windows_TS - windows_TS.mean(1, keepdims=True)
    windows_TS = windows_TS - 0.97 * np.concatenate([windows_TS[:, :1], windows_TS[:, :-1]], axis=1)
    spectrum_TK = np.abs(np.fft.rfft(windows_TS * np.hanning(WINDOW) ** 0.85, FFT)) ** 2
    energies_TF = spectrum_TK @ mel_weights(
        num_bins, RATE / 2 - (400 if profile == "sherpa" else 0)
    )
    return np.log(np.maximum(energies_TF, np.finfo(np.float32).eps))


def slaney_mel_weights(num_bins: int) -> np.ndarray:
    """Slaney's triangles (K, F) of equal areas: linear in Mel to 1000 Hz, logarithmic to 8000 Hz."""
    scale = 27.0 / math.log(6.4)
    mel = np.linspace(0.0, 15.0 + scale * math.log(RATE / 2 / 1000.0), num_bins + 2)
    hz = np.where(mel < 15.0, mel * (200.0 / 3.0), 1000.0 * np.exp((mel - 15.0) / scale))
    left_F, center_F, right_F = hz[:-2], hz[1:-1], hz[2:]
    hz_K1 = np.arange(WHISPER_FFT // 2 + 1)[:, None] * (RATE / WHISPER_FFT)
    rising_KF = (hz_K1 - left_F) / (center_F - left_F)
    falling_KF = (right_F - hz_K1) / (right_F - center_F)
    return np.maximum(0.0, np.minimum(rising_KF, falling_KF)) * (2.0 / (right_F - left_F))


def whisper_mel(wave_N: np.ndarray, num_bins: int, silence_frames: int) -> np.ndarray:
    """Whisper's log-Mel features (T, F) of one window.

    It has an even number of frames of audio, and then `silence_frames` of silence.
    """
    num_frames = -(-len(wave_N) // (2 * SHIFT)) * 2 + silence_frames
    filled_N = np.pad(wave_N, (0, num_frames * SHIFT - len(wave_N)))
    reflected_N = np.pad(filled_N, WHISPER_FFT // 2, mode="reflect")
    windows_TS = np.lib.stride_tricks.sliding_window_view(reflected_N, WHISPER_FFT)[::SHIFT]
    windows_TS = windows_TS[:num_frames]
    hann_S = np.hanning(WHISPER_FFT + 1)[:-1]
    spectrum_TK = np.abs(np.fft.rfft(windows_TS * hann_S)) ** 2
    log_TF = np.log10(np.maximum(spectrum_TK @ slaney_mel_weights(num_bins), 1e-10))
    return (np.maximum(log_TF, log_TF.max() - 8.0) + 4.0) / 4.0


def compute_inputs(
    session: onnxruntime.InferenceSession, name: str, wave_N: np.ndarray
) -> np.ndarray:
    """Samples (N,) or features (T, F), as the model was trained with. Exits if it cannot be."""
    metadata = session.get_modelmeta().custom_metadata_map
    profile = metadata["feature_profile"]
    longest_s = float(metadata.get("longest_s", math.inf))
    if len(wave_N) > longest_s * RATE:
        found = f"{len(wave_N) / RATE:.1f} s, but this model reads at most {longest_s:g} s"
        sys.exit(f"{name}: {found}; cut it at pauses")
    if profile == "Waveform":
        return wave_N
    num_bins = session.get_inputs()[0].shape[2]
    if profile == "WhisperMel":
        return whisper_mel(wave_N, num_bins, int(metadata["silence_frames"]))
    if profile not in ("wenet", "sherpa"):
        sys.exit(f"feature_profile {profile}: this program does not compute these features")
    return fbank(wave_N, num_bins, profile)


def run_chunks(session: onnxruntime.InferenceSession, features_TF: np.ndarray) -> np.ndarray:
    """The best unit (T',) of each encoder frame in all whole chunks of an export for streams."""
    metadata = session.get_modelmeta().custom_metadata_map
    size = int(metadata["chunk_size"])
    kept = size * int(metadata["left_chunks"])
    shapes = {one.name: one.shape for one in session.get_inputs()}
    window, shift = shapes["x"][1], size * int(metadata["subsampling_factor"])
    attention = np.zeros(shapes["attn_cache"], np.float32)
    convolution = np.zeros(shapes["conv_cache"], np.float32)
    best = [np.zeros(0, np.int64)]
    for number, begin in enumerate(range(0, len(features_TF) - window + 1, shift)):
        inputs = {
            "x": features_TF[None, begin : begin + window].astype(np.float32),
            "offset": np.array([kept + number * size]),
            "required_cache_size": np.array([kept]),
            "attn_cache": attention,
            "conv_cache": convolution,
            # The frames that exist:
            "attn_mask": np.arange(kept + size)[None, None] >= kept - number * size,
        }
        names = ["log_probs", "next_att_cache", "next_conv_cache"]
        log_probs, attention, convolution = session.run(names, inputs)
        best.append(log_probs[0].argmax(1))
    return np.concatenate(best)


def run_whole(session: onnxruntime.InferenceSession, inputs: np.ndarray) -> np.ndarray:
    """The best unit (T',) of each encoder frame, of features (T, F) or samples (N,).

    Empty if there are too few of them for an output.
    """
    if len(inputs) <= int(session.get_modelmeta().custom_metadata_map.get("right_context", 0)):
        return np.zeros(0, np.int64)
    all_values = {"x": inputs[None].astype(np.float32), "x_lens": np.array([len(inputs)])}
    # Models of samples for sherpa-onnx have no x_lens.
    names = [model_input.name for model_input in session.get_inputs()]
    values = {name: all_values[name] for name in names}
    return session.run(["log_probs"], values)[0][0].argmax(1)


def decode(session: onnxruntime.InferenceSession, units: list[str], name: str) -> str:
    """The text of the best alignment of a file, without repeats, blanks and the sign of an end."""
    wave_N = read_wav(name)
    if len(wave_N) < WINDOW:
        return ""
    shape, is_stream = session.get_inputs()[0].shape, len(session.get_inputs()) > 2
    if is_stream:  # with silence, so that the last chunk is complete
        wave_N = np.pad(wave_N, (0, shape[1] * SHIFT))
    inputs = compute_inputs(session, name, wave_N)
    best_T = run_chunks(session, inputs) if is_stream else run_whole(session, inputs)
    text = ""
    for unit, before in zip(best_T, [-1, *best_T], strict=False):
        if unit != before and units[unit] not in SILENT_UNITS:
            text += "⁇" if units[unit] == "<unk>" else units[unit]
    # The units of a table may be letters and accents; texts are in NFC, as those of wenet_hs.
    return unicodedata.normalize("NFC", text.replace("▁", " ").strip())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: decode_wav.py EXPORT_FOLDER WAV...")
    folder = Path(sys.argv[1])
    if not (folder / "model.onnx").exists():
        sys.exit(f"{folder}: no model.onnx; export with --for onnxruntime or sherpa")
    model = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    table = [
        line.rsplit(" ", 1)[0] for line in (folder / "tokens.txt").read_text("utf-8").splitlines()
    ]
    for name in sys.argv[2:]:
        print(f"{name}\t{decode(model, table, name)}")
