# SPDX-License-Identifier: Apache-2.0
"""Convert audio files to text: one line `path: text` per file, or one JSON object per line.

Example: wenet-hs transcribe --model_dir exp/hsoftmax clip.mp3 interview.flac

A file that cannot be read gets one line on stderr and makes the exit code 2; the others are transcribed.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from wenet_hs.bin.main import main_of
from wenet_hs.bin.recognize import MODES_HELP, add_search_arguments, search_options
from wenet_hs.decode.modes import DEFAULT_MODE, MODES
from wenet_hs.errors import DataError
from wenet_hs.recognizer import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("audio", nargs="+", type=Path, metavar="AUDIO", help="audio files: wav, flac, mp3, ogg, …")
    add("--model_dir", type=Path, required=True, help="experiment folder, ours or WeNet's")
    json_help = "print JSON: path, text, score, nbest, duration, and units with their times"
    add("--json", action="store_true", help=json_help)
    add("--mode", choices=MODES, default=DEFAULT_MODE, metavar="MODE", help=f"{MODES_HELP} (default: {DEFAULT_MODE})")
    add("--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)")
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Transcribe one file after the other."""
    recognizer = load_model(args.model_dir, args.device, options=search_options(args), lm=args.lm)
    num_failed = 0
    for path in args.audio:
        try:
            transcript = recognizer.transcribe(path, mode=args.mode, max_segment_s=args.max_segment_s)
        except DataError as error:
            num_failed += 1
            print(error, file=sys.stderr)
            continue
        record = {"path": str(path), **asdict(transcript)}
        line = json.dumps(record, ensure_ascii=False) if args.json else f"{path}: {transcript.text}"
        print(line, flush=True)
    if num_failed:
        raise DataError(f"{num_failed} of {len(args.audio)} files could not be read; see the lines above")


if __name__ == "__main__":
    main_of(__name__)
