# SPDX-License-Identifier: Apache-2.0
"""The settings of the section `dataset_conf`.

A new frontend needs one class here, with its name in `FRONTENDS` and `FrontendConf`. A frontend of
an installed package has a class of settings too (docs/design/0024-extensions.md).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import SkipJsonSchema

from wenet_hs.config.extensions import make_name_validator, settings_class
from wenet_hs.config.section import (
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    FreeOnResume,
    Positive,
    PositiveOrZero,
    Section,
    read_section,
)


class FilterConf(Section):
    """Limits on the training utterances. Utterances outside of them are left out and counted."""

    max_length: CountOrZero = 10240
    """Largest length of an utterance, in frames of 10 ms."""
    min_length: CountOrZero = 10
    """Smallest length of an utterance, in frames of 10 ms."""
    token_max_length: CountOrZero = 200
    """Largest length of a transcript, in units."""
    token_min_length: CountOrZero = 1
    """Smallest length of a transcript, in units."""
    min_output_input_ratio: PositiveOrZero = 0.0005
    """Smallest number of units per frame of 10 ms."""
    max_output_input_ratio: Positive = 1.0
    """Largest number of units per frame of 10 ms."""

    def conflicts(self) -> Iterator[Conflict]:
        """Smallest values above the largest ones: the settings `min_…` and `max_…` are pairs."""
        for lower_name in ("min_length", "token_min_length", "min_output_input_ratio"):
            upper_name = lower_name.replace("min", "max")
            lower, upper = getattr(self, lower_name), getattr(self, upper_name)
            if lower > upper:
                yield lower_name, f"must not be above {upper_name}, {upper}, got {lower}"


class ResampleConf(Section):
    """Resampling. All audio is first converted to one sampling rate."""

    resample_rate: Count = 16000
    """Samples per second."""


class FbankConf(Section):
    """Log-Mel filter bank features as Kaldi computes them, from samples scaled by 2^15."""

    num_mel_bins: Count = 80
    """Number of features per frame. (WeNet has no default for it.)"""
    frame_length: Positive = 25.0
    """Window length, ms."""
    frame_shift: Positive = 10.0
    """Distance between frames, ms."""
    dither: PositiveOrZero = 0.0
    """Standard deviation of the noise that is added to the scaled samples, in training only."""
    profile: Literal["wenet", "sherpa"] = "wenet"
    """`wenet`: whole windows, Mel bins up to half the rate.

    `sherpa`, for a model that is to stream in sherpa-onnx (docs/export.md): the ends are mirrored,
    and the Mel bins end 400 Hz lower.
    """

    def conflicts(self) -> Iterator[Conflict]:
        """The profile of sherpa with other windows than its own."""
        has_windows_of_sherpa = self.frame_length == 25.0 and self.frame_shift == 10.0
        if self.profile == "sherpa" and not has_windows_of_sherpa:
            to_do = "set frame_length: 25, frame_shift: 10"
            yield "profile", f"sherpa has windows of 25 ms every 10 ms; {to_do}"


class FbankFrontendConf(Section):
    """`frontend: fbank` has its settings in `fbank_conf`, as in WeNet."""


FRONTENDS: dict[str, type[Section]] = {"fbank": FbankFrontendConf}
FrontendKind = Annotated[
    str,
    BeforeValidator(make_name_validator("frontend", FRONTENDS)),
    WithJsonSchema({"type": "string", "enum": [*FRONTENDS]}),
]
"""A name of FRONTENDS, or a frontend of an installed package."""
FrontendConf = FbankFrontendConf | SkipJsonSchema[SerializeAsAny[Section]]


def read_frontend(value: Any, info: ValidationInfo) -> Any:
    """A `frontend_conf`, read by the class that the setting `frontend` beside it selects.

    `value`: what the file has, or the default. `info.data`: the settings before it that are valid.
    Raises ConfigError if the package of the frontend cannot be used.
    """
    frontend = info.data.get("frontend")
    if frontend is None:  # its name is wrong
        classes = FRONTENDS
    else:
        classes = {**FRONTENDS, frontend: settings_class("frontend", FRONTENDS, frontend)}
    return read_section(value, frontend, classes)


class SpecAugConf(Section):
    """SpecAugment (Park et al. 2019): blocks in time and in frequency are set to the utterance's
    mean, before CMVN.

    `data/augment.py` describes why not to WeNet's 0.
    """

    num_t_mask: CountOrZero = 2
    """Number of masked blocks in time per utterance."""
    num_f_mask: CountOrZero = 2
    """Number of masked blocks in frequency per utterance."""
    max_t: CountOrZero = 50
    """Largest length of a block in time, frames."""
    max_t_share: Fraction = 0.5
    """Largest share of an utterance's frames that all blocks in time mask together.

    Two blocks of up to 50 frames are then possible from 200 frames (2 s) on, with 1.0 from 100
    frames on.
    """
    max_f: CountOrZero = 10
    """Largest width of a block in frequency, Mel bins."""


class BatchConf(Section):
    """How utterances are combined to batches."""

    batch_type: Literal["static", "dynamic", "bucket"] = "static"
    """`static`: `batch_size` utterances; `dynamic`: up to `max_frames_in_batch` frames; `bucket`:
    sizes by length.
    """
    batch_size: Count = 16
    """Utterances per batch; for `static` only."""
    max_frames_in_batch: Count = 12000
    """Frames per batch, including padding; for `dynamic` only."""
    bucket_boundaries: tuple[Count, ...] = Field(default=(), strict=False)
    """Ascending lengths in frames that separate the buckets; for `bucket` only."""
    bucket_batch_sizes: tuple[Count, ...] = Field(default=(), strict=False)
    """Utterances per batch of each bucket, one more than there are boundaries; for `bucket` only."""

    def conflicts(self) -> Iterator[Conflict]:
        """Boundaries of buckets that do not ascend, and sizes that are not one per bucket."""
        boundaries = self.bucket_boundaries
        if any(left >= right for left, right in pairwise(boundaries)):
            yield "bucket_boundaries", f"must ascend, got {list(boundaries)}"
        num_buckets = len(boundaries) + 1
        num_sizes = len(self.bucket_batch_sizes)
        if self.batch_type == "bucket" and num_sizes != num_buckets:
            buckets = f"{len(boundaries)} bucket_boundaries make {num_buckets} buckets"
            yield "bucket_batch_sizes", f"{buckets}, got {num_sizes} sizes"


class SamplingConf(Section):
    """Sampling of the utterances of an epoch. Without this section each utterance is used once.

    An epoch always has as much speech as the lists. `data/sampling.py` describes how.
    """

    by: Literal["lang"] = "lang"
    """The field of the data lists that is balanced."""
    temperature: Positive = 1.0
    """T of p ∝ seconds^(1/T) over the languages of a list.

    1 keeps their shares; larger values make them more equal.
    """
    weights: tuple[Positive, ...] | None = Field(default=None, strict=False)
    """Relative shares of the lists in the speech of an epoch, one value per list; null: their own
    shares.
    """


class NoiseConf(Section):
    """Noise that is added to the speech, in training only."""

    list: str
    """File with the path or URL of one noise recording per line."""
    prob: Fraction = 0.5
    """Probability that noise is added to an utterance."""
    snr_db: tuple[float, float] = Field(default=(5.0, 20.0), strict=False)
    """Lowest and highest signal-to-noise ratio, dB; it is drawn uniformly."""

    def conflicts(self) -> Iterator[Conflict]:
        """A lowest ratio above the highest one."""
        low, high = self.snr_db
        if low > high:
            yield "snr_db", f"must be lowest and highest, got {low:g} and {high:g}"


class ReverbConf(Section):
    """Reverberation, in training only."""

    list: str
    """File with the path or URL of one recorded room impulse response per line."""
    prob: Fraction = 0.5
    """Probability that reverberation is added to an utterance."""


class DatasetConf(Section):
    """From the data list to batches. Limits and augmentation apply in training only."""

    filter_conf: FilterConf = Field(default_factory=FilterConf)
    resample_conf: ResampleConf = Field(default_factory=ResampleConf)
    speed_perturb: bool = False
    """Whether the speed of an utterance is changed at random, to 0.9, 1.0 or 1.1."""
    frontend: FrontendKind = "fbank"
    """What computes the features: `fbank`, or a frontend of an installed package."""
    frontend_conf: FrontendConf = Field(default_factory=FbankFrontendConf)
    """The settings of a frontend of an installed package."""
    fbank_conf: FbankConf = Field(default_factory=FbankConf)
    spec_aug: bool = True
    """Whether SpecAugment is used."""
    spec_aug_conf: SpecAugConf = Field(default_factory=SpecAugConf)
    batch_conf: BatchConf = Field(default_factory=BatchConf)
    cache_features: bool = False
    """Whether features are kept after their first computation, in a file in the temporary folder
    that all processes of a machine map into memory (with `dither` 0 results do not change).
    """
    features_on: Literal["worker", "device"] = "worker"
    """`worker`: features are computed where audio is read; `device`: per batch, on the device of
    the model.
    """
    max_bad_clips: FreeOnResume[Fraction] = 0.01
    """Fraction of clips that may be unreadable.

    They are left out; above it training and `cmvn` end. 0: none may be.
    """
    max_unknown_units: FreeOnResume[Fraction] = 0.1
    """Fraction of the training units that may be `<unk>`; above it training ends: the table belongs
    to other data.
    """
    sampling: SamplingConf | None = None
    """Balancing of languages and lists; null: an epoch has every utterance once."""
    noise_conf: NoiseConf | None = None
    """Added noise; null: none."""
    reverb_conf: ReverbConf | None = None
    """Reverberation; null: none."""

    _frontend_selects = field_validator("frontend_conf", mode="before")(read_frontend)

    def feature_settings(self) -> dict[str, Any]:
        """The settings that decide which features a clip has: frontend, rate, and its own settings.

        Dither is left out, because it is noise.
        """
        settings = {"frontend": self.frontend, "resample_rate": self.resample_conf.resample_rate}
        if self.frontend == "fbank":
            settings |= self.fbank_conf.model_dump(exclude={"dither"})
        else:
            settings |= self.frontend_conf.model_dump()
        return settings

    def conflicts(self) -> Iterator[Conflict]:
        """Settings that do not fit the place of the features, the frontend or the cache."""
        if self.features_on == "device":
            yield from self._conflicts_of_device()
        if self.frontend != "fbank" and self.fbank_conf != FbankConf():
            reason = f"has no effect with frontend: {self.frontend}"
            yield "fbank_conf", f"{reason}; remove it, or set null"
        text = "cache_features would repeat the same noise; set cache_features: false"
        if self.cache_features and self.noise_conf is not None:
            yield "noise_conf", text
        if self.cache_features and self.reverb_conf is not None:
            yield "reverb_conf", text

    def _conflicts_of_device(self) -> Iterator[Conflict]:
        """The settings that do not fit `features_on: device`."""
        if self.cache_features:
            to_do = "set cache_features: false, or worker"
            yield "features_on", f"device does not keep features; {to_do}"
        if self.fbank_conf.dither:
            yield "features_on", "device has no dither; set fbank_conf.dither: 0, or worker"
        if self.fbank_conf.profile == "sherpa":
            to_do = "set fbank_conf.profile: wenet, or worker"
            yield "features_on", f"device pads before it mirrors the ends; {to_do}"
