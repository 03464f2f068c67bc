# SPDX-License-Identifier: Apache-2.0
"""Whisper's log-Mel features, without padding to 30 s.

They are those of `transformers.WhisperFeatureExtractor`, within 1e-4.

Dimension key: N samples, T frames, K frequencies of the Fourier transform, F Mel bins.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from wenet_hs.frontends.base import Frames, Frontend, Length
from wenet_hs.tree.errors import ConfigError

WINDOW_FRAMES = 3000
"""Frames of the input of Whisper's encoder, at most: 30 s."""
_RATE = 16000
_FFT_SIZE = 400
"""Samples per window of the Fourier transform."""
_SHIFT = 160
"""Samples from one frame to the next."""
_FLOOR = 1e-10
"""Smallest Mel energy, before its logarithm."""
_RANGE = 8.0
"""A log-Mel energy (to base 10) is at most so far below the greatest one of its window of audio."""


class WhisperMel(Frontend):
    """Whisper's features of an utterance and of the silence after it.

    Frame t is centred at t * 10 ms.

    The audio is filled with zeros to an even number of frames, because Whisper's encoder halves it.
    It is then cut into windows of `WINDOW_FRAMES - silence_frames` frames; the last one may be
    shorter. Each window is followed by `silence_frames` frames of silence, which are never cut. It
    is computed as a recording of its own: the audio is reflected at its begin, and values are
    limited by its own maximum. So the frames of n windows are those of n windows of Whisper, each
    up to the end of its silence. `audio_frames` is the number of frames of audio among them. Of 0
    samples there are 0 frames.
    """

    def __init__(self, num_mel_bins: int = 80, *, silence_s: float = 0.4) -> None:
        """Raises ConfigError if `silence_s` is out of range.

        Args:
            num_mel_bins: 80, or 128 as in Whisper large-v3.
            silence_s: 0.2 to 29; rounded to a multiple of 20 ms.
        """
        if not 0.2 <= silence_s <= 29:
            raise ConfigError("silence_s", f"{silence_s:g} s", "use 0.2 to 29 s")
        self.rate = _RATE
        self.width = num_mel_bins
        self.frame_s = _SHIFT / _RATE
        self.offset_s = -_SHIFT / 2 / _RATE  # frame 0 is centred at 0 s
        self.silence_frames = 2 * round(silence_s * 50)
        """Frames of silence after each window of audio; an even number of 10 ms each."""
        self._audio_frames = WINDOW_FRAMES - self.silence_frames
        self.window_s = self._audio_frames * _SHIFT / _RATE
        self._hann_window_N = torch.hann_window(_FFT_SIZE)
        self._mel_KF = slaney_mel_weights(num_mel_bins)

    def length(self, num_samples: Length) -> Length:
        """The number of frames of `num_samples` samples: a number, or an array of numbers (U,).

        They are an even number of frames of audio, and those of the silence after each window.
        """
        audio_frames = 2 * _divide_up(num_samples, 2 * _SHIFT)
        num_windows = _divide_up(audio_frames, self._audio_frames)
        return audio_frames + num_windows * self.silence_frames

    def audio_frames(self, total: Frames) -> Frames:
        """The frames of audio among `total` frames, which is a value of `length`.

        `total` may be a number, or an array or tensor of numbers. The frames of silence are the
        others. All windows but the last have `WINDOW_FRAMES` frames, silence included.
        """
        num_windows = _divide_up(total, WINDOW_FRAMES)
        return total - num_windows * self.silence_frames

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames of waveforms, (…, N) → (…, T, F), computed window by window.

        `generator` is not used.
        """
        num_samples = wave_N.size(-1)
        if num_samples == 0:
            return wave_N.new_empty(*wave_N.shape[:-1], 0, self.width)
        window_samples = self._audio_frames * _SHIFT
        features_TF = []
        with torch.autocast(wave_N.device.type, enabled=False):  # autocast would round the products
            for begin in range(0, num_samples, window_samples):
                window_N = wave_N[..., begin : begin + window_samples]
                features_TF.append(self._compute_window(window_N))
            return torch.cat(features_TF, dim=-2)

    def _compute_window(self, audio_N: Tensor) -> Tensor:
        """The features (…, T, F) of a window of audio (…, N) and the silence after it.

        They are (x + 4) / 4, with x the log10 of a Mel energy, which is first raised to at least
        the greatest one of the window minus `_RANGE`.

        More zeros after the silence would change no frame before them, for two reasons. The
        silence, which is reflected at its end, is longer than half a window of the Fourier
        transform. The greatest energy is never in the silence unless all is silent.
        """
        num_samples = self.length(audio_N.size(-1)) * _SHIFT
        padded_N = pad(audio_N, (0, num_samples - audio_N.size(-1)))
        hann_window_N = self._hann_window_N.to(audio_N.device)
        mel_KF = self._mel_KF.to(audio_N.device)
        spectrum_KT = torch.stft(
            padded_N, _FFT_SIZE, _SHIFT, window=hann_window_N, return_complex=True
        )
        spectrum_KT = spectrum_KT[..., :-1]  # the last frame is centred after the last sample
        energies_TF: Tensor = spectrum_KT.abs().square().mT @ mel_KF
        log_TF = energies_TF.clamp_(min=_FLOOR).log10_()
        lowest_11 = log_TF.amax((-2, -1), keepdim=True) - _RANGE  # (…, 1, 1)
        return (torch.maximum(log_TF, lowest_11) + 4.0) / 4.0


def _divide_up(number: Frames, divisor: int) -> Frames:
    """number / divisor, rounded up; of each element of an array or tensor."""
    return -(-number // divisor)


def slaney_mel_weights(num_mel_bins: int) -> Tensor:
    """Slaney's triangles from 0 to 8000 Hz: the weight of each frequency in each Mel bin.

    mel(f) = 3 f / 200 up to 1000 Hz, and 15 + 27 ln(f / 1000) / ln(6.4) from there. The triangles
    have equal widths in mel and equal areas in Hz; each ends at the peak of the next one.

    Returns: (K, F) float32.
    """
    scale = 27.0 / math.log(6.4)
    highest_mel = 15.0 + scale * math.log(0.5 * _RATE / 1000.0)
    corners_mel = torch.linspace(0.0, highest_mel, num_mel_bins + 2, dtype=torch.float64)
    linear_hz = corners_mel * (200.0 / 3.0)
    logarithmic_hz = 1000.0 * ((corners_mel - 15.0) / scale).exp()
    corners_hz = torch.where(corners_mel < 15.0, linear_hz, logarithmic_hz)
    left_F = corners_hz[:-2]
    center_F = corners_hz[1:-1]
    right_F = corners_hz[2:]
    bins_K1 = torch.arange(_FFT_SIZE // 2 + 1, dtype=torch.float64)[:, None]
    hz_K1 = bins_K1 * (_RATE / _FFT_SIZE)
    rising_KF = (hz_K1 - left_F) / (center_F - left_F)
    falling_KF = (right_F - hz_K1) / (right_F - center_F)
    triangles_KF = torch.minimum(rising_KF, falling_KF).clamp(min=0.0)  # each with the height 1
    return (triangles_KF * (2.0 / (right_F - left_F))).float()
