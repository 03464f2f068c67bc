# SPDX-License-Identifier: Apache-2.0
"""Rules for the flags of `wenet-hs transcribe`: which need or exclude each other, and ranges."""

import argparse
from collections.abc import Callable
from pathlib import Path

from wenet_hs.data.pipe import PIPE
from wenet_hs.data.samples import RATES
from wenet_hs.tree.errors import ConfigError

SUFFIXES = {"elan": ".eaf", "textgrid": ".TextGrid", "srt": ".srt", "record": ".json"}
"""Flags of formats with one file per recording, and the suffix of the file."""
TABLES = ("ctm", "tsv")
"""Flags of formats with one file for all recordings."""
FORMATS = (*SUFFIXES, *TABLES)


def chosen_formats(args: argparse.Namespace) -> list[str]:
    """The formats whose flags were given; empty: the text is printed."""
    return [name for name in FORMATS if getattr(args, name) is not None]


def check_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for the first rule of RULES that the flags break."""
    for rule in RULES:
        rule(args)


def _require_stream(args: argparse.Namespace) -> None:
    """Raise ConfigError for --rate or --silence_s without --stream: `--rate 8000 clip.wav`."""
    for name in ("rate", "silence_s"):
        if getattr(args, name) is not None and not args.stream:
            to_do = "add it, or leave this out"
            raise ConfigError(f"--{name}", "has no effect without --stream", to_do)


def _require_positive_values(args: argparse.Namespace) -> None:
    """Raise ConfigError for a --rate or --silence_s of 0, below 0 or NaN: `--silence_s 0`."""
    for name in ("rate", "silence_s"):
        value = getattr(args, name)
        if value is not None and not value > 0:  # also true for NaN
            raise ConfigError(f"--{name} {value:g}", "must be above 0")


def _require_possible_rate(args: argparse.Namespace) -> None:
    """Raise ConfigError for a --rate in Hz that no stream has: `--stream --rate 16 -`."""
    lowest, highest = RATES
    if args.rate is not None and not lowest <= args.rate <= highest:
        raise ConfigError(f"--rate {args.rate:g}", f"must be from {lowest} to {highest} Hz")


def _require_pipe_for_rate(args: argparse.Namespace) -> None:
    """Raise ConfigError for --rate without a pipe: `--stream --rate 8000 clip.wav`."""
    if args.rate is not None and not _reads_pipe(args):
        fault = "is that of a pipe; a file states its own"
        raise ConfigError("--rate", fault, "leave it out, or give - for a pipe")


def _refuse_search_flags_with_stream(args: argparse.Namespace) -> None:
    """Raise ConfigError for --nbest or --simulate_streaming with --stream: `--stream --nbest 5`."""
    for name in ("nbest", "simulate_streaming"):
        if args.stream and getattr(args, name):
            raise _exclude_each_other(name, "has no effect with --stream")


def _refuse_formats_with_stream(args: argparse.Namespace) -> None:
    """Raise ConfigError for files with --stream, which only prints: `--stream --srt out`."""
    formats = chosen_formats(args)
    if args.stream and formats:
        raise _exclude_each_other(formats[0], "--stream prints its segments")


def _require_stream_for_pipe(args: argparse.Namespace) -> None:
    """Raise ConfigError for the pipe `-` without --stream: `--model_dir exp/softmax -`."""
    if _reads_pipe(args) and not args.stream:
        to_do = "add --stream, or give a file"
        raise ConfigError(PIPE, "a pipe is read only by --stream", to_do)


def _require_format(args: argparse.Namespace) -> None:
    """Raise ConfigError for a flag about files without files: `--vad silero clip.wav`."""
    for name in ("vad", "tier", "low_confidence"):
        if getattr(args, name) is not None and not chosen_formats(args):
            fault = f"has no effect without --{', --'.join(FORMATS)}"
            raise ConfigError(f"--{name}", fault, "give one, or leave it out")


def _require_files_for_skipping(args: argparse.Namespace) -> None:
    """Raise ConfigError for --skip_existing with a table, or without any file to write.

    An example: `--skip_existing --ctm all.ctm`.
    """
    formats = chosen_formats(args)
    has_only_files_per_recording = bool(formats) and set(formats) <= SUFFIXES.keys()
    if args.skip_existing and not has_only_files_per_recording:
        fault = f"only for --{', --'.join(SUFFIXES)}; --ctm and --tsv are written as a whole"
        raise ConfigError("--skip_existing", fault, "leave it out")


def _require_eaf_for_into_tier(args: argparse.Namespace) -> None:
    """Raise ConfigError for --into_tier, unless all inputs are .eaf files and --elan is given.

    An example: `--into_tier text --elan out a.wav`.
    """
    if args.into_tier is None:
        return
    has_other_files = any(path.suffix.lower() != ".eaf" for path in args.audio)
    if args.elan is None or has_other_files:
        fault = "the segments are those of .eaf files"
        raise ConfigError("--into_tier", fault, "give these, and --elan")


def _refuse_vad_with_into_tier(args: argparse.Namespace) -> None:
    """Raise ConfigError for --vad with --into_tier, whose segments are those of the tier."""
    if args.into_tier is not None and args.vad is not None:
        fault = "has no effect with --into_tier, which gives the segments"
        raise _exclude_each_other("vad", fault)


def _refuse_json_with_formats(args: argparse.Namespace) -> None:
    """Raise ConfigError for --json, which prints, with files: `--json --srt out clip.wav`."""
    formats = chosen_formats(args)
    if args.json and formats:
        raise _exclude_each_other("json", f"has no effect with --{formats[0]}")


def _require_audio_folder(args: argparse.Namespace) -> None:
    """Raise ConfigError for an --audio_dir that is no folder: `--audio_dir clip.wav`."""
    if args.audio_dir is not None and not args.audio_dir.is_dir():
        to_do = "give the folder of the recordings"
        raise ConfigError(f"--audio_dir {args.audio_dir}", "no such folder", to_do)


def _require_share_as_low_confidence(args: argparse.Namespace) -> None:
    """Raise ConfigError for a --low_confidence that is not from 0 to 1: `--low_confidence 50`."""
    if args.low_confidence is not None and not 0 <= args.low_confidence <= 1:
        raise ConfigError(f"--low_confidence {args.low_confidence:g}", "must be from 0 to 1")


RULES: tuple[Callable[[argparse.Namespace], None], ...] = (
    _require_stream,
    _require_positive_values,
    _require_possible_rate,
    _require_pipe_for_rate,
    _refuse_search_flags_with_stream,
    _refuse_formats_with_stream,
    _require_stream_for_pipe,
    _require_format,
    _require_files_for_skipping,
    _require_eaf_for_into_tier,
    _refuse_vad_with_into_tier,
    _refuse_json_with_formats,
    _require_audio_folder,
    _require_share_as_low_confidence,
)
"""In the order in which they are checked: of several faults the first one is reported."""


def _reads_pipe(args: argparse.Namespace) -> bool:
    """Whether `-`, the standard input, is among the recordings."""
    return Path(PIPE) in args.audio


def _exclude_each_other(name: str, fault: str) -> ConfigError:
    """The error about a flag that another flag excludes."""
    return ConfigError(f"--{name}", fault, "leave one of them out")
