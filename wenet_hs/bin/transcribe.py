# SPDX-License-Identifier: Apache-2.0
"""Convert recordings to text: lines, JSON, or files for ELAN, Praat or subtitles.

Example: wenet-hs transcribe --model_dir exp/hsoftmax clip.mp3 interview.flac
         wenet-hs transcribe --model_dir exp/hsoftmax --elan transcribed --srt transcribed interview.wav session.eaf

With --elan, --textgrid, --srt, --record, --ctm or --tsv a recording may last hours. Speech is
found, and each segment gets its text, its words with their times, and its confidence. An .eaf or
.TextGrid may be given instead of its recording: the new tiers are added to a copy of the file, and
the file itself is never changed. `--into_tier NAME` takes the annotations of this tier of the .eaf
as segments, and writes the text into those that have none.

--stream recognises while the audio arrives, with a model that was trained with chunks
(docs/streaming.md); `-` is a pipe of raw samples: arecord -q -f S16_LE -r 16000 -c 1 -t raw |
wenet-hs transcribe --stream --model_dir exp/stream - A WAV in the pipe is read by its header,
whatever its rate and channels.

A file that cannot be read gets one line on stderr and makes the exit code 2; the others are
transcribed.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from wenet_hs.annotation.eaf import read_segments
from wenet_hs.annotation.eaf_writing import write_eaf
from wenet_hs.annotation.recordings import (
    TSV_HEADER,
    Record,
    check_tier_names,
    ctm_lines,
    find_media,
    find_record,
    tsv_lines,
    write_record,
    write_srt,
)
from wenet_hs.annotation.textgrid import write_textgrid
from wenet_hs.annotation.tiers import (
    DEFAULT_LOW_CONFIDENCE,
    DEFAULT_TIER,
    TranscribedRecording,
    make_tiers,
)
from wenet_hs.bin.main import MODEL_HELP, add_device_argument, main_of
from wenet_hs.bin.search_flags import (
    MODES_HELP,
    ModeNames,
    add_search_arguments,
    progress_bar,
    search_options,
)
from wenet_hs.bin.stream_audio import print_stream
from wenet_hs.data.audio import read_duration
from wenet_hs.data.samples import RATES
from wenet_hs.decode.endpoints import EndpointRules
from wenet_hs.decode.recognition import mark_confidence
from wenet_hs.decode.segments import DEFAULT_MAX_SEGMENT_S, VADS
from wenet_hs.decode.stream import StreamedSegment
from wenet_hs.model.modes import DEFAULT_MODE, modes_with, usual_mode
from wenet_hs.recognizer import Recognizer, load_model
from wenet_hs.tree.errors import ConfigError, DataError

_SUFFIXES = {"elan": ".eaf", "textgrid": ".TextGrid", "srt": ".srt", "record": ".json"}
"""Formats with one file per recording."""
_FORMATS = (*_SUFFIXES, "ctm", "tsv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    audio_help = "recordings: wav, flac, mp3, ogg, …, or the .eaf or .TextGrid beside one"
    add("audio", nargs="+", type=Path, metavar="AUDIO", help=audio_help)
    audio_dir_help = (
        "folder with the recordings of .eaf and .TextGrid files (default: that of each file)"
    )
    add("--audio_dir", type=Path, metavar="DIR", help=audio_dir_help)
    add("--model_dir", type=Path, required=True, help=MODEL_HELP)
    json_help = "print JSON: path, text, score, nbest, duration, and units with their times"
    add("--json", action="store_true", help=json_help)
    add(
        "--elan",
        type=Path,
        metavar="DIR",
        help="write DIR/NAME.eaf: tiers of segments, words and confidence",
    )
    add("--textgrid", type=Path, metavar="DIR", help="write DIR/NAME.TextGrid with the same tiers")
    add("--srt", type=Path, metavar="DIR", help="write DIR/NAME.srt: subtitles")
    record_help = (
        "write DIR/NAME.json: segments, words, times and confidence, as `wenet-hs app` reads them"
    )
    add("--record", type=Path, metavar="DIR", help=record_help)
    add("--ctm", type=Path, metavar="FILE", help="write the words of all recordings as NIST's CTM")
    add(
        "--tsv",
        type=Path,
        metavar="FILE",
        help="write a table of the segments: file, start, end, text, confidence",
    )
    skip_help = "go on after an interruption: files that exist are neither written nor an error; a --record of another"
    skip_help += " recording or model stays, and the new one is NAME-2.json"
    add("--skip_existing", action="store_true", help=skip_help)
    add(
        "--vad",
        choices=VADS,
        help="how speech is found: by its level, or by Silero VAD (default: energy)",
    )
    add(
        "--tier",
        metavar="NAME",
        help=f"name of the new tier; its children begin with it (default: {DEFAULT_TIER})",
    )
    into_help = (
        "take the segments from this tier of the .eaf, and fill its annotations that have no text"
    )
    add("--into_tier", metavar="NAME", help=into_help)
    low_help = f"words below are listed in a tier of their own, from 0 to 1 (default: {DEFAULT_LOW_CONFIDENCE:g})"
    add("--low_confidence", type=float, metavar="C", help=low_help)
    default_of_ctc = usual_mode(modes_with({"ctc"}))
    mode_help = (
        f"{MODES_HELP} (default: {DEFAULT_MODE}; of a model without a decoder {default_of_ctc})"
    )
    add("--mode", choices=ModeNames(), metavar="MODE", help=mode_help)
    stream_help = "print a line per segment while the audio arrives; AUDIO may be -, a pipe of"
    stream_help += " raw samples (16 bits, mono) or of a WAV"
    add("--stream", action="store_true", help=stream_help)
    add(
        "--rate",
        type=int,
        metavar="HZ",
        help="samples per second of raw samples in - (default: 16000)",
    )
    silence_help = "seconds of silence that end a segment of --stream, which --max_segment_s (20) ends too (default: 1)"
    add("--silence_s", type=float, metavar="S", help=silence_help)
    add_device_argument(parser)
    add_search_arguments(parser)
    parser.set_defaults(max_segment_s=None)


def run(args: argparse.Namespace) -> None:
    """Transcribe one file after the other."""
    # oneDNN keeps kernels for 1,024 shapes by default, and segments have many: 170 MB in an hour,
    # no time gained.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    formats = [name for name in _FORMATS if getattr(args, name) is not None]
    _check_flags(args, formats)
    if args.max_segment_s is None:
        args.max_segment_s = EndpointRules.max_segment_s if args.stream else DEFAULT_MAX_SEGMENT_S
    if formats:
        _check_outputs(args)
    recognizer = load_model(args.model_dir, args.device, options=search_options(args), lm=args.lm)
    if formats and not recognizer.has_times:
        if args.ctm is not None:
            raise ConfigError(
                "--ctm",
                "this model was trained without CTC and gives no times of words",
                "leave it out",
            )
        print(
            "this model was trained without CTC: segments get no words and no confidence",
            file=sys.stderr,
        )
    has_confidence = recognizer.has_times and (args.json or bool(formats))
    mark, num_failed = mark_confidence(has_confidence and recognizer.is_overfitted), 0
    for path in args.audio:
        if args.skip_existing and all(output.exists() for output in _outputs(args, path).values()):
            print(f"{path}: transcribed already", flush=True)
            continue
        try:
            if formats:
                recording = _annotate(args, recognizer, path)
                _append(args.tsv, tsv_lines(recording), header=TSV_HEADER)
                _append(args.ctm, ctm_lines(recording.media.stem, recording.words))
            elif args.stream:
                _stream(args, recognizer, path, mark)
            else:
                _print(args, recognizer, path, mark)
        except DataError as error:
            num_failed += 1
            print(error, file=sys.stderr)
    if num_failed:
        what = f"{num_failed} of {len(args.audio)} files could not be transcribed"
        raise DataError(what, to_do="see the lines above")


def _print(
    args: argparse.Namespace, recognizer: Recognizer, path: Path, mark: Mapping[str, bool]
) -> None:
    """Print the text of a file, or its JSON with the mark of its confidences."""
    transcript = recognizer.transcribe(
        find_media(path, args.audio_dir), mode=args.mode, max_segment_s=args.max_segment_s
    )
    record = {"path": str(path), **asdict(transcript), **mark}
    print(
        json.dumps(record, ensure_ascii=False) if args.json else f"{path}: {transcript.text}",
        flush=True,
    )


def _stream(
    args: argparse.Namespace, recognizer: Recognizer, path: Path, mark: Mapping[str, bool]
) -> None:
    """Print the segments of a file or a pipe as they end."""

    def format_line(segment: StreamedSegment) -> str:
        if args.json:
            return json.dumps({"path": str(path), **asdict(segment), **mark}, ensure_ascii=False)
        name = f"{path}: " if len(args.audio) > 1 else ""
        return f"{name}{segment.start:8.2f} {segment.end:8.2f}  {segment.text}"

    silence_s = EndpointRules.silence_s if args.silence_s is None else args.silence_s
    endpoints = EndpointRules(silence_s=silence_s, max_segment_s=args.max_segment_s or math.inf)
    stream = recognizer.stream(mode=args.mode, endpoints=endpoints)
    source = path if path == Path("-") else find_media(path, args.audio_dir)
    print_stream(stream, source, rate=args.rate, format_line=format_line)


def _check_flags(args: argparse.Namespace, formats: Sequence[str]) -> None:
    """Raise ConfigError for flags that have no effect or are out of range."""
    for name in ("rate", "silence_s"):
        if (value := getattr(args, name)) is not None and not args.stream:
            raise ConfigError(
                f"--{name}", "has no effect without --stream", "add it, or leave this out"
            )
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} {value:g}", "must be above 0")
    if args.rate is not None and not (RATES[0] <= args.rate <= RATES[1]):
        raise ConfigError(f"--rate {args.rate:g}", f"must be from {RATES[0]} to {RATES[1]} Hz")
    if args.rate is not None and Path("-") not in args.audio:
        raise ConfigError(
            "--rate",
            "is that of a pipe; a file states its own",
            "leave it out, or give - for a pipe",
        )
    for name in ("nbest", "simulate_streaming"):
        if args.stream and getattr(args, name):
            raise ConfigError(f"--{name}", "has no effect with --stream", "leave one of them out")
    if args.stream and formats:
        raise ConfigError(
            f"--{formats[0]}", "--stream prints its segments", "leave one of them out"
        )
    if not args.stream and Path("-") in args.audio:
        raise ConfigError("-", "a pipe is read only by --stream", "add --stream, or give a file")
    given = [name for name in ("vad", "tier", "low_confidence") if getattr(args, name) is not None]
    if given and not formats:
        found = f"has no effect without --{', --'.join(_FORMATS)}"
        raise ConfigError(f"--{given[0]}", found, "give one, or leave it out")
    if args.skip_existing and not (formats and set(formats) <= _SUFFIXES.keys()):
        found = f"only for --{', --'.join(_SUFFIXES)}; --ctm and --tsv are written as a whole"
        raise ConfigError("--skip_existing", found, "leave it out")
    if args.into_tier is not None:
        if args.elan is None or any(path.suffix.lower() != ".eaf" for path in args.audio):
            raise ConfigError(
                "--into_tier", "the segments are those of .eaf files", "give these, and --elan"
            )
        if args.vad is not None:
            found = "has no effect with --into_tier, which gives the segments"
            raise ConfigError("--vad", found, "leave one of them out")
    if args.json and formats:
        raise ConfigError("--json", f"has no effect with --{formats[0]}", "leave one of them out")
    if args.audio_dir is not None and not args.audio_dir.is_dir():
        raise ConfigError(
            f"--audio_dir {args.audio_dir}", "no such folder", "give the folder of the recordings"
        )
    if args.low_confidence is not None and not 0 <= args.low_confidence <= 1:
        raise ConfigError(f"--low_confidence {args.low_confidence:g}", "must be from 0 to 1")


def _outputs(args: argparse.Namespace, path: Path) -> dict[str, Path]:
    """Format → the file for a recording.

    With --skip_existing it is not the record of another recording or model.
    """
    folders = {name: getattr(args, name) for name in _SUFFIXES}
    found = {
        name: folder / (path.stem + _SUFFIXES[name])
        for name, folder in folders.items()
        if folder is not None
    }
    if args.skip_existing and args.record is not None:
        found["record"] = find_record(args.record, path, _model_name(args))
    return found


def _model_name(args: argparse.Namespace) -> str:
    return str(args.model_dir.absolute() if args.model_dir.exists() else args.model_dir)


def _check_outputs(args: argparse.Namespace) -> None:
    """Raise DataError if results cannot be written.

    A file that exists may have been corrected by hand.
    """
    for name in _SUFFIXES:
        if (folder := getattr(args, name)) is not None and folder.exists() and not folder.is_dir():
            raise DataError(f"--{name} {folder}", "not a folder", "name another one")
    by_stem = dict[str, Path]()
    is_by_name = args.ctm is not None or any(getattr(args, name) is not None for name in _SUFFIXES)
    for path in args.audio if is_by_name else ():  # a table has the whole path
        if (same := by_stem.setdefault(path.stem, path)) is not path:
            raise DataError(
                f"{same} and {path}",
                "the results would have the same name",
                "transcribe them one by one",
            )
    for name in ("ctm", "tsv"):
        if (file := getattr(args, name)) is not None:
            if file.exists():
                raise DataError(
                    file, "exists already", f"name another file with --{name}, or delete this one"
                )
            file.parent.mkdir(parents=True, exist_ok=True)
    for path in args.audio:
        for name, output in _outputs(args, path).items():
            if output.exists() and path.exists() and output.samefile(path):
                raise DataError(output, "is the input itself", f"name another folder with --{name}")
            if output.exists() and not args.skip_existing:
                found = "exists already"
                raise DataError(
                    output,
                    found,
                    f"name another folder with --{name}, or go on with --skip_existing",
                )


def _annotate(args: argparse.Namespace, recognizer: Recognizer, path: Path) -> TranscribedRecording:
    """Transcribe a recording and write its files."""
    media, tier = find_media(path, args.audio_dir), args.tier or DEFAULT_TIER
    if any(
        path.suffix.lower() == output.suffix.lower() for output in _outputs(args, path).values()
    ):
        check_tier_names(path, tier, read_duration(media))
    with progress_bar(path.name) as advance:
        options = {
            "mode": args.mode,
            "max_segment_s": args.max_segment_s,
            "vad": args.vad or VADS[0],
        }
        spans = None if args.into_tier is None else read_segments(path, args.into_tier)
        recording = recognizer.transcribe_recording(
            media, **options, spans=spans, on_progress=advance
        )
    num_filled = 0
    low = DEFAULT_LOW_CONFIDENCE if args.low_confidence is None else args.low_confidence
    for name, output in _outputs(args, path).items():
        if output.exists():
            continue
        source = path if path.suffix.lower() == output.suffix.lower() else None
        if name == "srt":
            write_srt(output, recording)
        elif name == "record":
            write_record(output, Record(recording, path, _model_name(args)))
        elif name == "textgrid":
            write_textgrid(output, make_tiers(recording, tier, low), recording.duration_s, source)
        else:
            num_filled = write_eaf(
                output, recording, tier, low, source=source, into_tier=args.into_tier
            )
    num_low = sum(word.confidence < low for word in recording.words)
    counts = (
        f"{len(recording.segments)} segments, {len(recording.words)} words, {num_low} below {low:g}"
    )
    if args.into_tier is not None:
        counts += f", {num_filled} without text in tier {args.into_tier!r} were filled"
    print(f"{path}: {counts}", flush=True)
    return recording


def _append(path: Path | None, lines: str, *, header: str = "") -> None:
    """Add the lines of a recording to a file of all recordings."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines if file.tell() else header + lines)


if __name__ == "__main__":
    main_of(__name__)
