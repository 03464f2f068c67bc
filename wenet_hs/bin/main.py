# SPDX-License-Identifier: Apache-2.0
"""wenet-hs: speech recognition with tree-structured output layers.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list --result_dir exp/hsoftmax/test
"""

import importlib
import os
import signal
import sys
from types import FrameType, ModuleType

from wenet_hs.bin.command import run_command

COMMANDS = {
    "prepare": "make the data lists of a corpus",
    "units": "make the unit table: characters, phones or BPE",
    "tree": "build a tree over the units, show, import or export one",
    "cmvn": "compute the global feature statistics",
    "shards": "pack a data list into tars",
    "train": "train a model",
    "average": "average checkpoints into final.pt",
    "recognize": "decode a data list",
    "align": "forced alignment: times of units and words of transcripts, also for Praat",
    "score": "error rates of a decoded list",
    "compare": "paired bootstrap test of two systems",
    "report": "one HTML page about one or more experiments",
    "transcribe": "decode audio files",
}


def main() -> None:
    """Entry point of the `wenet-hs` console script."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        listing = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
        print(f"{__doc__}\nCommands (wenet-hs COMMAND --help shows the options):\n{listing}")
        sys.exit(0)
    if arguments[0] not in COMMANDS:
        print(f"wenet-hs: no command {arguments[0]!r}; there are: {' '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run_command(_load(arguments[0]), arguments[1:]))


def _load(name: str) -> ModuleType:
    """Import the module of a command. Ctrl-C during the import, which takes a second, prints one line too.

    An exception would not work: the library that is being imported turns it into an ImportError, or ignores it.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        print(f"wenet-hs {name}: stopped", file=sys.stderr, flush=True)
        os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # a background job may ignore it
        return importlib.import_module(f"wenet_hs.bin.{name}")
    signal.signal(signal.SIGINT, stop)
    module = importlib.import_module(f"wenet_hs.bin.{name}")
    signal.signal(signal.SIGINT, before)
    return module


if __name__ == "__main__":
    main()
