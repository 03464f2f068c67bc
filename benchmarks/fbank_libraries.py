# SPDX-License-Identifier: Apache-2.0
"""Compares kaldi-native-fbank with torchaudio's Kaldi filterbanks: the largest difference and the time of both.

    pip install kaldi-native-fbank
    python benchmarks/fbank_libraries.py /data/ucla          # a folder with WAV or FLAC files, searched recursively

torchaudio is in maintenance; kaldi-native-fbank is the candidate to replace it (docs/design/0002-libraries.md).
"""

import argparse
import time
from importlib.metadata import version
from pathlib import Path

import kaldi_native_fbank as knf
import numpy as np
import soundfile
import torch
from torchaudio.compliance.kaldi import fbank


def native_fbank(samples: np.ndarray, rate: int) -> np.ndarray:
    """(T, 80) log mel energies of kaldi-native-fbank; samples (N,) in the range of 16-bit integers."""
    options = knf.FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither, options.energy_floor = float(rate), 0.0, 0.0
    options.mel_opts.num_bins = 80
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(float(rate), samples.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(index) for index in range(computer.num_frames_ready)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=200, help="number of clips, spread over the folder")
    args = parser.parse_args()
    paths = sorted(path for path in args.folder.rglob("*") if path.suffix in (".wav", ".flac"))
    worst, frames, seconds = 0.0, 0, [0.0, 0.0]
    for path in paths[:: max(1, len(paths) // args.clips)]:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        samples = samples[:, 0] * 2**15
        if len(samples) < 0.025 * rate:
            continue
        start = time.perf_counter()
        expected = fbank(torch.from_numpy(samples)[None], num_mel_bins=80, dither=0.0, energy_floor=0.0,
                         sample_frequency=rate).numpy()  # fmt: skip
        middle = time.perf_counter()
        found = native_fbank(samples, rate)
        seconds = [seconds[0] + middle - start, seconds[1] + time.perf_counter() - middle]
        worst, frames = max(worst, float(np.abs(found - expected).max())), frames + len(found)
    print(f"kaldi-native-fbank {version('kaldi-native-fbank')}, torchaudio {version('torchaudio')}: {frames} frames, "
          f"largest difference {worst:.1e}, time {seconds[1] / seconds[0]:.2f} of torchaudio's")  # fmt: skip


if __name__ == "__main__":
    main()
