# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features of Whisper, within 1e-4 of `transformers.WhisperFeatureExtractor`, without
padding to 30 s.

Dimension key: N samples, T frames, K frequencies of the Fourier transform, F Mel bins.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from wenet_hs.frontends.base import Frames, Frontend, Length
from wenet_hs.tree.errors import ConfigError

WINDOW_FRAMES = 3000  # the input of Whisper's encoder has at most 30 s
_RATE, _FFT_SIZE, _SHIFT = 16000, 400, 160
_FLOOR, _RANGE = (
    1e-10,
    8.0,
)  # of a Mel energy, and of its logarithm to base 10 below the greatest one of a window


class WhisperMel(Frontend):
    """Whisper's features of an utterance and of the silence after it.

    Frame t is centred at t * 10 ms.

    The audio is filled with zeros to an even number of frames, because Whisper's encoder halves it,
    and is cut into windows of `WINDOW_FRAMES - silence_frames` frames; the last one may be shorter.
    Each window is followed by `silence_frames` frames of silence, which are never cut. It is
    computed as a recording of its own: the audio is reflected at its begin, and values are limited
    by its own maximum. So the frames of n windows are those of n windows of Whisper, each up to the
    end of its silence. Frames of audio: `audio_frames`. Of 0 samples there are 0 frames.
    """

    def __init__(self, num_mel_bins: int = 80, *, silence_s: float = 0.4) -> None:
        """Raises ConfigError if `silence_s` is out of range.

        Args:
            num_mel_bins: 80, or 128 as in Whisper large-v3.
            silence_s: 0.2 to 29; rounded to a multiple of 20 ms.
        """
        if not 0.2 <= silence_s <= 29:
            raise ConfigError("silence_s", f"{silence_s:g} s", "use 0.2 to 29 s")
        self.rate, self.width = _RATE, num_mel_bins
        self.frame_s, self.offset_s = _SHIFT / _RATE, -_SHIFT / 2 / _RATE
        self.silence_frames = 2 * round(silence_s * 50)
        """Frames of silence after each window of audio."""
        self._audio_frames = WINDOW_FRAMES - self.silence_frames
        self.window_s = self._audio_frames * _SHIFT / _RATE
        self._window_N = torch.hann_window(_FFT_SIZE)
        self._mel_KF = slaney_mel_weights(num_mel_bins)

    def length(self, num_samples: Length) -> Length:
        audio = -(-num_samples // (2 * _SHIFT)) * 2
        return audio + -(-audio // self._audio_frames) * self.silence_frames

    def audio_frames(self, total: Frames) -> Frames:
        """The frames of audio among `total` frames, a value of `length`: without those of the
        silence. Or of each.
        """
        return total - -(-total // WINDOW_FRAMES) * self.silence_frames

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if not wave_N.size(-1):
            return wave_N.new_empty(*wave_N.shape[:-1], 0, self.width)
        with torch.autocast(wave_N.device.type, enabled=False):  # autocast would round the products
            size = self._audio_frames * _SHIFT
            begins = range(0, wave_N.size(-1), size)
            return torch.cat(
                [self._of_window(wave_N[..., begin : begin + size]) for begin in begins], -2
            )

    def _of_window(self, wave_N: Tensor) -> Tensor:
        """The features (…, T, F) of a window of audio (…, N) and the silence after it.

        Zeros at the end change no frame before them: the silence, which is reflected at its end, is
        longer than half a window of the Fourier transform, and the greatest energy is never theirs
        unless all is silent.
        """
        filled_N = pad(wave_N, (0, self.length(wave_N.size(-1)) * _SHIFT - wave_N.size(-1)))
        window_N, mel_KF = self._window_N.to(wave_N.device), self._mel_KF.to(wave_N.device)
        spectrum_KT = torch.stft(filled_N, _FFT_SIZE, _SHIFT, window=window_N, return_complex=True)[
            ..., :-1
        ]
        energies_TF: Tensor = spectrum_KT.abs().square().mT @ mel_KF
        log_TF = energies_TF.clamp_(min=_FLOOR).log10_()
        return (torch.maximum(log_TF, log_TF.amax((-2, -1), keepdim=True) - _RANGE) + 4.0) / 4.0


def slaney_mel_weights(num_mel_bins: int) -> Tensor:
    """Slaney's triangles from 0 to 8000 Hz, (K, F) float32: the weight of each frequency in each
    Mel bin.

    mel(f) = 3 f / 200 up to 1000 Hz, and 15 + 27 ln(f / 1000) / ln(6.4) from there. The triangles
    have equal widths in mel and equal areas in Hz; each ends at the peak of the next one.
    """
    scale = 27.0 / math.log(6.4)
    mel = torch.linspace(
        0.0, 15.0 + scale * math.log(0.5 * _RATE / 1000.0), num_mel_bins + 2, dtype=torch.float64
    )
    hz = torch.where(mel < 15.0, mel * (200.0 / 3.0), 1000.0 * ((mel - 15.0) / scale).exp())
    left_F, center_F, right_F = hz[:-2], hz[1:-1], hz[2:]
    hz_K1 = torch.arange(_FFT_SIZE // 2 + 1, dtype=torch.float64)[:, None] * (_RATE / _FFT_SIZE)
    rising_KF, falling_KF = (
        (hz_K1 - left_F) / (center_F - left_F),
        (right_F - hz_K1) / (right_F - center_F),
    )
    return (
        torch.minimum(rising_KF, falling_KF).clamp(min=0.0) * (2.0 / (right_F - left_F))
    ).float()
