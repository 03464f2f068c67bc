# SPDX-License-Identifier: Apache-2.0
"""The section `dataset_conf`: which utterances are used, their features, augmentation and batches."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from wenet_hs.config.section import Count, CountOrZero, Fraction, Positive, PositiveOrZero, Section, setting_error


class FilterConf(Section):
    """The utterances of the training list that are used; the others are left out and counted."""

    max_length: CountOrZero = 10240
    """Longest utterance, in frames of 10 ms."""
    min_length: CountOrZero = 10
    """Shortest utterance, in frames of 10 ms."""
    token_max_length: CountOrZero = 200
    """Longest transcript, in units."""
    token_min_length: CountOrZero = 1
    """Shortest transcript, in units."""
    min_output_input_ratio: PositiveOrZero = 0.0005
    """Fewest units a frame of 10 ms."""
    max_output_input_ratio: Positive = 1.0
    """Most units a frame of 10 ms."""

    @field_validator("min_length", "token_min_length", "max_output_input_ratio")
    @classmethod
    def _ordered(cls, value: float, info: ValidationInfo) -> float:
        name = info.field_name or ""
        is_lower = "min" in name
        other = name.replace("min", "max") if is_lower else name.replace("max", "min")
        limit = info.data.get(other, value)
        if (value > limit) if is_lower else (value < limit):
            raise setting_error(name, f"must not be {'above' if is_lower else 'below'} {other}, {limit}, got {value}")
        return value


class ResampleConf(Section):
    """Audio is brought to one sampling rate before anything else."""

    resample_rate: Count = 16000
    """Samples a second."""


class FbankConf(Section):
    """Log-Mel filter bank as Kaldi computes it, on samples scaled by 2^15."""

    num_mel_bins: Count = 80
    """Features a frame. (WeNet's function says 23, but WeNet does not start without this key.)"""
    frame_length: Positive = 25.0
    """Window, ms."""
    frame_shift: Positive = 10.0
    """Step between frames, ms."""
    dither: PositiveOrZero = 0.0
    """Standard deviation of the noise added to the scaled samples, in training only."""


class SpecAugConf(Section):
    """SpecAugment (Park et al. 2019): blocks of time and of frequency set to the utterance's mean, before CMVN.

    `data/augment.py` says why the mean and not WeNet's 0, and how much of a short utterance is hidden at the most.
    """

    num_t_mask: CountOrZero = 2
    """Blocks of time an utterance."""
    num_f_mask: CountOrZero = 2
    """Blocks of frequency an utterance."""
    max_t: CountOrZero = 50
    """Longest block of time, frames."""
    max_f: CountOrZero = 10
    """Widest block of frequency, Mel bins."""


class BatchConf(Section):
    """How utterances are put together."""

    batch_type: Literal["static", "dynamic", "bucket"] = "static"
    """`static`: `batch_size` utterances; `dynamic`: up to `max_frames_in_batch` frames; `bucket`: a size a bucket."""
    batch_size: Count = 16
    """Utterances a batch; for `static` only."""
    max_frames_in_batch: Count = 12000
    """Frames a batch, padding included; for `dynamic` only."""
    bucket_boundaries: tuple[Count, ...] = Field(default=(), strict=False)
    """Ascending lengths in frames between the buckets; for `bucket` only."""
    bucket_batch_sizes: tuple[Count, ...] = Field(default=(), strict=False)
    """Utterances a batch in each bucket, one more than there are boundaries; for `bucket` only."""

    @field_validator("bucket_boundaries")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(left >= right for left, right in zip(value, value[1:], strict=False)):
            raise setting_error("bucket_boundaries", f"must ascend, got {list(value)}")
        return value

    @field_validator("bucket_batch_sizes")
    @classmethod
    def _one_for_each_bucket(cls, value: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        boundaries = info.data.get("bucket_boundaries")
        if info.data.get("batch_type") == "bucket" and boundaries is not None and len(value) != len(boundaries) + 1:
            raise setting_error(
                "bucket_batch_sizes",
                f"{len(boundaries)} bucket_boundaries make {len(boundaries) + 1} buckets, got {len(value)} sizes",
            )
        return value


class SamplingConf(Section):
    """Which utterances an epoch draws, and how often; without this section each one once.

    An epoch has as much speech as the lists, whatever is drawn. `data/sampling.py` says how.
    """

    by: Literal["lang"] = "lang"
    """What is balanced: the `lang` of the data lists."""
    temperature: Positive = 1.0
    """T of p ∝ seconds^(1/T) over the languages of a list: 1 takes them as they are, larger values flatten."""
    weights: tuple[Positive, ...] | None = Field(default=None, strict=False)
    """Relative shares of the lists in the speech of an epoch, one a list; null: as they are."""


class NoiseConf(Section):
    """Noise added to the speech, in training only."""

    list: str
    """File with the path or URL of a noise recording a line."""
    prob: Fraction = 0.5
    """Probability that an utterance gets noise."""
    snr_db: tuple[float, float] = Field(default=(5.0, 20.0), strict=False)
    """Lowest and highest ratio of the powers of speech and noise, dB, drawn uniformly."""

    @field_validator("snr_db")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise setting_error("snr_db", f"must be lowest and highest, got {value[0]:g} and {value[1]:g}")
        return value


class ReverbConf(Section):
    """Speech as it sounds in a room, in training only."""

    list: str
    """File with the path or URL of a recorded room impulse response a line."""
    prob: Fraction = 0.5
    """Probability that an utterance is put into a room."""


class DatasetConf(Section):
    """From the data list to batches. Filtering and augmentation are for training alone."""

    filter_conf: FilterConf = Field(default_factory=FilterConf)
    """Limits on the utterances used."""
    resample_conf: ResampleConf = Field(default_factory=ResampleConf)
    """Sampling rate."""
    speed_perturb: bool = False
    """Play an utterance at 0.9, 1.0 or 1.1 of its speed, at random."""
    fbank_conf: FbankConf = Field(default_factory=FbankConf)
    """Features."""
    spec_aug: bool = True
    """Whether SpecAugment is on."""
    spec_aug_conf: SpecAugConf = Field(default_factory=SpecAugConf)
    """SpecAugment."""
    batch_conf: BatchConf = Field(default_factory=BatchConf)
    """Batches."""
    cache_features: bool = False
    """Keep the features of an utterance in memory after they were computed once (with `dither` 0 nothing changes)."""
    features_on: Literal["worker", "device"] = "worker"
    """`worker`: features are computed where audio is read; `device`: of a whole batch, where the model is."""
    max_bad_clips: Fraction = 0.01
    """Share of clips that may turn out unreadable before training ends; each one is left out. 0: the first ends it."""
    sampling: SamplingConf | None = None
    """Balance of languages and lists; null: an epoch is every utterance once."""
    noise_conf: NoiseConf | None = None
    """Noise; null: none."""
    reverb_conf: ReverbConf | None = None
    """Rooms; null: none."""

    @field_validator("filter_conf", "resample_conf", "fbank_conf", "spec_aug_conf", "batch_conf", mode="before")
    @classmethod
    def _empty_section_is_all_defaults(cls, value: object) -> object:
        return {} if value is None else value

    @field_validator("features_on")
    @classmethod
    def _device_has_neither_cache_nor_dither(cls, value: str, info: ValidationInfo) -> str:
        if value == "worker":
            return value
        if info.data.get("cache_features"):
            raise setting_error("features_on", "device computes features anew; set cache_features: false, or worker")
        fbank_conf = info.data.get("fbank_conf")
        if fbank_conf is not None and fbank_conf.dither:
            raise setting_error("features_on", "device has no dither; set fbank_conf.dither: 0, or worker")
        return value

    @field_validator("noise_conf", "reverb_conf")
    @classmethod
    def _not_cached(cls, value: Section | None, info: ValidationInfo) -> Section | None:
        if value is not None and info.data.get("cache_features"):
            name = info.field_name or ""
            raise setting_error(name, "cache_features would keep one noise for ever; set cache_features: false")
        return value
