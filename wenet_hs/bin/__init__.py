# SPDX-License-Identifier: Apache-2.0
"""The commands of `wenet-hs`, one per module: they read arguments, call the other rooms, and print.

`main` finds the module of a command, translates WeNet's flags (`wenet_flags`), parses the
arguments, runs it, and turns errors into one line and an exit code. A command module has a
docstring, which begins its `--help`, `add_arguments(parser)`, which declares the flags, and
`run(args)`, which checks them, does the work, and prints the result.
"""

import sys

if sys.platform == "win32":  # it has no locks of files as POSIX systems have
    sys.exit(
        "wenet-hs: runs on Linux and macOS, not in Windows itself; install it in WSL (docs/app.md)"
    )
