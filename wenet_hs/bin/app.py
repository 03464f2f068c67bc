# SPDX-License-Identifier: Apache-2.0
"""Open a page on this computer: recordings, check, training, results, transcription and sharing, without a shell.

Example: wenet-hs app --dir projects

It prints an address, which only works on this computer: open it in a browser. A project is a folder below --dir with
the layout of examples/own/s0, so shell commands work in it too. Trainings go on when the page or this command is ended.
"""

import argparse
from pathlib import Path

from wenet_hs.bin.main import main_of
from wenet_hs.errors import ConfigError

_PORT = 8642


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    folder = Path("~/wenet_hs")
    parser.add_argument("--dir", type=Path, default=folder, help=f"folder of the projects (default: {folder})")
    port_help = f"port of the address on this computer (default: {_PORT}; 0: any free one)"
    parser.add_argument("--port", type=int, default=_PORT, help=port_help)


def run(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    if not 0 <= args.port < 1 << 16:
        raise ConfigError(f"--port {args.port}", "must be from 0 to 65535")
    try:
        from wenet_hs.app.server import serve
    except ImportError as error:
        if (error.name or "wenet_hs").startswith("wenet_hs"):
            raise
        to_do = "run pip install '.[app]' in the folder of wenet_hs"
        raise ConfigError("wenet-hs app", f"{error.name} is not installed", to_do) from error

    def show(address: str) -> None:
        print(f"open this address in a browser; Ctrl-C ends the page, not the trainings:\n{address}", flush=True)

    serve(args.dir.expanduser(), args.port, show)


if __name__ == "__main__":
    main_of(__name__)
