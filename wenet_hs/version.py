# SPDX-License-Identifier: Apache-2.0
"""The version of the package."""

VERSION = "0.1.0.dev0"
"""Version 0.1.0 and later ones will read the folders of earlier releases.

Those of a development version may have to be made again.
"""
