# SPDX-License-Identifier: Apache-2.0
"""The version of the package."""

VERSION = "0.1.0.dev0"
"""Nothing is promised to folders of a development version; the promise begins with 0.1.0."""
