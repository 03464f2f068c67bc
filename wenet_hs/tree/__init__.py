# SPDX-License-Identifier: Apache-2.0
"""Binary trees over the output units: built from counts, kept in `tree.json`, drawn as SVG."""

from wenet_hs.tree.tree import Tree

__all__ = ["Tree"]
