# SPDX-License-Identifier: Apache-2.0
"""The commands of `wenet-hs`, one per module."""

import sys

if sys.platform == "win32":  # files are locked as POSIX systems do
    sys.exit(
        "wenet-hs: runs on Linux and macOS, not in Windows itself; install it in WSL (docs/app.md)"
    )
