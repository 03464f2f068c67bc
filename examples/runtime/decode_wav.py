#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode WAV files with an exported model: greedy CTC, with numpy and onnxruntime alone.

Example: wenet-hs export --model_dir exp/softmax --out exported
         python decode_wav.py exported clip.wav

Dimension key: N samples, T frames, S samples per window, K frequencies, F Mel bins.
"""

import math
import sys
import wave
from pathlib import Path

import numpy as np
import onnxruntime

WINDOW, SHIFT, FFT, RATE = 400, 160, 512, 16000  # 25 ms every 10 ms


def read_wav(path: str) -> np.ndarray:
    """The samples (N,) in [-1, 1) of a file of 16 kHz, 16 bits and one channel."""
    with wave.open(path) as file:
        found = file.getframerate(), 8 * file.getsampwidth(), file.getnchannels()
        if found != (RATE, 16, 1):
            sys.exit(f"{path}: {found}; convert it to {RATE} Hz, 16 bits, 1 channel: sox IN -r 16000 -b 16 -c 1 OUT")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0


def mel_weights(num_bins: int, highest_hz: float) -> np.ndarray:
    """Kaldi's triangles (K, F), of equal widths in Mel from 20 Hz on."""
    low, high = (1127.0 * math.log(1.0 + hz / 700.0) for hz in (20.0, highest_hz))
    edges = low + (high - low) / (num_bins + 1) * np.arange(num_bins + 2)
    mel_K1 = 1127.0 * np.log(1.0 + np.arange(FFT // 2 + 1)[:, None] * (RATE / FFT) / 700.0)
    rising_KF = (mel_K1 - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling_KF = (edges[2:] - mel_K1) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(rising_KF, falling_KF))


def fbank(wave_N: np.ndarray, num_bins: int, profile: str) -> np.ndarray:
    """Log-Mel features (T, F) as Kaldi computes them; profile `sherpa`: mirrored ends, Mel bins end 400 Hz lower."""
    if profile == "sherpa":
        num_frames, before = (len(wave_N) + SHIFT // 2) // SHIFT, (WINDOW - SHIFT) // 2
        after = (num_frames - 1) * SHIFT + WINDOW - before - len(wave_N)
        wave_N = np.concatenate([wave_N[:before][::-1], wave_N, wave_N[len(wave_N) - after :][::-1]])
    windows_TS = np.lib.stride_tricks.sliding_window_view(wave_N * 32768.0, WINDOW)[::SHIFT]
    windows_TS = windows_TS - windows_TS.mean(1, keepdims=True)
    windows_TS = windows_TS - 0.97 * np.concatenate([windows_TS[:, :1], windows_TS[:, :-1]], axis=1)
    spectrum_TK = np.abs(np.fft.rfft(windows_TS * np.hanning(WINDOW) ** 0.85, FFT)) ** 2
    energies_TF = spectrum_TK @ mel_weights(num_bins, RATE / 2 - (400 if profile == "sherpa" else 0))
    return np.log(np.maximum(energies_TF, np.finfo(np.float32).eps))


def decode(session: onnxruntime.InferenceSession, units: list[str], wave_N: np.ndarray) -> str:
    """The text of the best alignment without repeats and blanks."""
    shape, metadata = session.get_inputs()[0].shape, session.get_modelmeta().custom_metadata_map
    if (profile := metadata["feature_profile"]) not in ("wenet", "sherpa", "Waveform"):
        sys.exit(f"feature_profile {profile}: this program does not compute these features")
    inputs = wave_N if len(shape) == 2 or len(wave_N) < WINDOW else fbank(wave_N, shape[2], profile)
    if len(wave_N) < WINDOW or len(inputs) <= int(metadata.get("right_context", 0)):  # too few for an output
        return ""
    inputs = {"x": inputs[None].astype(np.float32), "x_lens": np.array([len(inputs)])}
    best_T = session.run(["log_probs"], inputs)[0][0].argmax(1)
    kept = best_T[np.append(True, best_T[1:] != best_T[:-1]) & (best_T != units.index("<blank>"))]
    return "".join(units[unit] for unit in kept).replace("▁", " ").strip()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: decode_wav.py EXPORT_FOLDER WAV...")
    folder = Path(sys.argv[1])
    if not (folder / "model.onnx").exists():
        sys.exit(f"{folder}: no model.onnx; export with --for onnxruntime or sherpa")
    model = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    if len(model.get_inputs()) > 2:
        sys.exit(f"{folder}: an export for streams; this program decodes whole utterances")
    table = [line.rsplit(" ", 1)[0] for line in (folder / "tokens.txt").read_text("utf-8").splitlines()]
    for name in sys.argv[2:]:
        print(f"{name}\t{decode(model, table, read_wav(name))}")
