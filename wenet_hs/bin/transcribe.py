# SPDX-License-Identifier: Apache-2.0
"""Convert recordings to text: lines, JSON, or files for ELAN, Praat or subtitles.

Example: wenet-hs transcribe --model_dir exp/hsoftmax clip.mp3 interview.flac
         wenet-hs transcribe --model_dir exp/hsoftmax --elan transcribed --srt transcribed \\
             interview.wav session.eaf

With --elan, --textgrid, --srt, --record, --ctm or --tsv a recording may last hours. Speech is
found, and each segment gets its text, its words with their times, and its confidence. An .eaf or
.TextGrid may be given instead of its recording: the new tiers are added to a copy of the file, and
the file itself is never changed. `--into_tier NAME` takes the annotations of this tier of the .eaf
as segments, and writes the text into those that have none.

--stream recognises while the audio arrives, with a model that was trained with chunks
(docs/streaming.md). `-` is a pipe of raw samples:

         arecord -q -f S16_LE -r 16000 -c 1 -t raw | \\
             wenet-hs transcribe --stream --model_dir exp/stream -

A WAV in the pipe is read by its header, whatever its rate and channels.

A file that cannot be read gets one line on stderr and makes the exit code 2; the others are
transcribed.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
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
from wenet_hs.bin.transcribe_flags import SUFFIXES, TABLES, check_flags, chosen_formats
from wenet_hs.data.audio import read_duration
from wenet_hs.data.pipe import PIPE
from wenet_hs.decode.endpoints import EndpointRules
from wenet_hs.decode.recognition import mark_confidence
from wenet_hs.decode.segments import DEFAULT_MAX_SEGMENT_S, VADS
from wenet_hs.decode.stream import StreamedSegment
from wenet_hs.model.modes import DEFAULT_MODE, modes_with, usual_mode
from wenet_hs.recognizer import Recognizer, load_model
from wenet_hs.tree.errors import ConfigError, DataError

_PRIMITIVE_CACHE = "16"
"""How many kernels oneDNN keeps.

Segments have many shapes. With its default of 1,024 it needs 170 MB more after an hour, and is not
faster.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs transcribe`."""
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
    skip_help = (
        "go on after an interruption: files that exist are neither written nor an error; "
        "a --record of another recording or model stays, and the new one is NAME-2.json"
    )
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
    low_help = (
        "words below are listed in a tier of their own, from 0 to 1 "
        f"(default: {DEFAULT_LOW_CONFIDENCE:g})"
    )
    add("--low_confidence", type=float, metavar="C", help=low_help)
    default_without_decoder = usual_mode(modes_with({"ctc"}))
    mode_help = (
        f"{MODES_HELP} (default: {DEFAULT_MODE}; "
        f"of a model without a decoder {default_without_decoder})"
    )
    add("--mode", choices=ModeNames(), metavar="MODE", help=mode_help)
    stream_help = (
        "print a line per segment while the audio arrives; "
        "AUDIO may be -, a pipe of raw samples (16 bits, mono) or of a WAV"
    )
    add("--stream", action="store_true", help=stream_help)
    add(
        "--rate",
        type=int,
        metavar="HZ",
        help="samples per second of raw samples in - (default: 16000)",
    )
    silence_help = (
        "seconds of silence that end a segment of --stream, "
        "which --max_segment_s (20) ends too (default: 1)"
    )
    add("--silence_s", type=float, metavar="S", help=silence_help)
    add_device_argument(parser)
    add_search_arguments(parser)
    parser.set_defaults(max_segment_s=None)  # the default depends on --stream: `run` decides it


def run(args: argparse.Namespace) -> None:
    """Transcribe one file after the other: to files of the chosen formats, or print the texts.

    With --stream the segments are printed as they end. A file that cannot be read gets a line on
    stderr, and the next one follows.

    Raises ConfigError for flags that do not fit each other or the model, DataError if results
    cannot be written, and DataError at the end if files could not be transcribed.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _PRIMITIVE_CACHE)
    check_flags(args)
    formats = chosen_formats(args)
    if args.max_segment_s is None:
        args.max_segment_s = EndpointRules.max_segment_s if args.stream else DEFAULT_MAX_SEGMENT_S
    if formats:
        _check_outputs(args)
    recognizer = load_model(args.model_dir, args.device, options=search_options(args), lm=args.lm)
    if formats and not recognizer.has_times:
        _report_missing_times(args)
    shows_confidence = recognizer.has_times and (args.json or bool(formats))
    confidence_mark = mark_confidence(shows_confidence and recognizer.is_overfitted)
    num_failed = 0
    for path in args.audio:
        if args.skip_existing and _has_all_outputs(args, path):
            print(f"{path}: transcribed already", flush=True)
            continue
        try:
            if formats:
                _transcribe_to_files(args, recognizer, path)
            elif args.stream:
                _print_segments(args, recognizer, path, confidence_mark)
            else:
                _print_text(args, recognizer, path, confidence_mark)
        except DataError as error:
            num_failed += 1
            print(error, file=sys.stderr)
    if num_failed:
        fault = f"{num_failed} of {len(args.audio)} files could not be transcribed"
        raise DataError(fault, to_do="see the lines above")


def _report_missing_times(args: argparse.Namespace) -> None:
    """Print that a model without CTC gives no words and no confidence.

    Raises ConfigError for --ctm, which is a list of words.
    """
    if args.ctm is not None:
        fault = "this model was trained without CTC and gives no times of words"
        raise ConfigError("--ctm", fault, "leave it out")
    print(
        "this model was trained without CTC: segments get no words and no confidence",
        file=sys.stderr,
    )


def _print_text(
    args: argparse.Namespace,
    recognizer: Recognizer,
    path: Path,
    confidence_mark: Mapping[str, bool],
) -> None:
    """Print the text of a file, or its JSON with the fields of `mark_confidence`."""
    media = find_media(path, args.audio_dir)
    transcript = recognizer.transcribe(media, mode=args.mode, max_segment_s=args.max_segment_s)
    if args.json:
        line = json.dumps(
            {"path": str(path), **asdict(transcript), **confidence_mark}, ensure_ascii=False
        )
    else:
        line = f"{path}: {transcript.text}"
    print(line, flush=True)


def _print_segments(
    args: argparse.Namespace,
    recognizer: Recognizer,
    path: Path,
    confidence_mark: Mapping[str, bool],
) -> None:
    """Print the segments of a file or of the pipe `-` as they end.

    A line is the JSON of the segment, or start and end in seconds and the text, after the path if
    there are several files. --max_segment_s 0 means that length does not end a segment.
    """

    def format_line(segment: StreamedSegment) -> str:
        if args.json:
            record = {"path": str(path), **asdict(segment), **confidence_mark}
            return json.dumps(record, ensure_ascii=False)
        source_name = f"{path}: " if len(args.audio) > 1 else ""
        return f"{source_name}{segment.start:8.2f} {segment.end:8.2f}  {segment.text}"

    silence_s = EndpointRules.silence_s if args.silence_s is None else args.silence_s
    endpoints = EndpointRules(silence_s=silence_s, max_segment_s=args.max_segment_s or math.inf)
    stream = recognizer.stream(mode=args.mode, endpoints=endpoints)
    source = path if path == Path(PIPE) else find_media(path, args.audio_dir)
    print_stream(stream, source, rate=args.rate, format_line=format_line)


def _transcribe_to_files(args: argparse.Namespace, recognizer: Recognizer, path: Path) -> None:
    """Transcribe a recording of any length, write it in the chosen formats, and print its counts.

    With --tsv or --ctm its lines are added to these files. Files that exist are skipped:
    `_check_outputs` has refused them without --skip_existing. If the input is an .eaf or .TextGrid
    and so is an output, the output is a copy of it with new tiers, whose names must be free.
    """
    media = find_media(path, args.audio_dir)
    tier = args.tier or DEFAULT_TIER
    outputs = _output_files(args, path)
    if any(_is_of_same_format(path, output) for output in outputs.values()):
        check_tier_names(path, tier, read_duration(media))
    with progress_bar(path.name) as advance:
        spans = None if args.into_tier is None else read_segments(path, args.into_tier)
        recording = recognizer.transcribe_recording(
            media,
            mode=args.mode,
            max_segment_s=args.max_segment_s,
            vad=args.vad or VADS[0],
            spans=spans,
            on_progress=advance,
        )
    low_confidence = args.low_confidence
    if low_confidence is None:
        low_confidence = DEFAULT_LOW_CONFIDENCE
    num_filled = 0  # annotations of --into_tier
    for name, output in outputs.items():
        if output.exists():
            continue
        source = path if _is_of_same_format(path, output) else None
        if name == "elan":
            num_filled = write_eaf(
                output, recording, tier, low_confidence, source=source, into_tier=args.into_tier
            )
        elif name == "textgrid":
            tiers = make_tiers(recording, tier, low_confidence)
            write_textgrid(output, tiers, recording.duration_s, source)
        elif name == "srt":
            write_srt(output, recording)
        elif name == "record":
            write_record(output, Record(recording, path, _model_name(args)))
    num_low = sum(word.confidence < low_confidence for word in recording.words)
    counts = f"{len(recording.segments)} segments, {len(recording.words)} words"
    counts += f", {num_low} below {low_confidence:g}"
    if args.into_tier is not None:
        counts += f", {num_filled} without text in tier {args.into_tier!r} were filled"
    print(f"{path}: {counts}", flush=True)
    if args.tsv is not None:
        _append(args.tsv, tsv_lines(recording), header=TSV_HEADER)
    if args.ctm is not None:
        _append(args.ctm, ctm_lines(recording.media.stem, recording.words))


def _is_of_same_format(path: Path, output: Path) -> bool:
    """Whether two files have the same suffix: `a.eaf` and `out/a.eaf`.

    Then the input is an annotation file, and the output is a copy of it with the new tiers.
    """
    return path.suffix.lower() == output.suffix.lower()


def _append(path: Path, lines: str, *, header: str = "") -> None:
    """Add the lines of a recording to a file of all recordings, at first after the header."""
    with path.open("a", encoding="utf-8") as file:
        is_empty = file.tell() == 0
        file.write(header + lines if is_empty else lines)


# ---- the files of a recording


def _output_files(args: argparse.Namespace, path: Path) -> dict[str, Path]:
    """The file of a recording in each chosen format, by the flag of the format.

    With --skip_existing the record is one of this recording and this model, or does not exist.
    """
    files = {}
    for name, suffix in SUFFIXES.items():
        folder = getattr(args, name)
        if folder is not None:
            files[name] = folder / (path.stem + suffix)
    if args.skip_existing and args.record is not None:
        files["record"] = find_record(args.record, path, _model_name(args))
    return files


def _model_name(args: argparse.Namespace) -> str:
    """The model of a record: the whole path of a folder or ZIP, or an address such as hf://a/b."""
    return str(args.model_dir.absolute() if args.model_dir.exists() else args.model_dir)


def _has_all_outputs(args: argparse.Namespace, path: Path) -> bool:
    """Whether the files of a recording exist in all chosen formats."""
    return all(output.exists() for output in _output_files(args, path).values())


def _check_outputs(args: argparse.Namespace) -> None:
    """Raise DataError if the results cannot be written; make the folders of --ctm and --tsv.

    No file that exists is replaced, because it may have been corrected by hand.
    """
    for name in SUFFIXES:
        folder = getattr(args, name)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise DataError(f"--{name} {folder}", "not a folder", "name another one")
    _check_names_differ(args)
    for name in TABLES:
        table = getattr(args, name)
        if table is None:
            continue
        if table.exists():
            to_do = f"name another file with --{name}, or delete this one"
            raise DataError(table, "exists already", to_do)
        table.parent.mkdir(parents=True, exist_ok=True)
    for path in args.audio:
        for name, output in _output_files(args, path).items():
            if not output.exists():
                continue
            if path.exists() and output.samefile(path):
                raise DataError(output, "is the input itself", f"name another folder with --{name}")
            if not args.skip_existing:
                to_do = f"name another folder with --{name}, or go on with --skip_existing"
                raise DataError(output, "exists already", to_do)


def _check_names_differ(args: argparse.Namespace) -> None:
    """Raise DataError for two recordings whose results would have the same name: a/x.wav, b/x.wav.

    --tsv alone has no such names, because the table has the whole paths.
    """
    uses_stem = any(name != "tsv" for name in chosen_formats(args))
    if not uses_stem:
        return
    path_of_stem: dict[str, Path] = {}
    for path in args.audio:
        earlier = path_of_stem.setdefault(path.stem, path)
        if earlier is not path:
            fault = "the results would have the same name"
            raise DataError(f"{earlier} and {path}", fault, "transcribe them one by one")


if __name__ == "__main__":
    main_of(__name__)
