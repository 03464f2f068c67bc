# SPDX-License-Identifier: Apache-2.0
"""Trees over the output units: built from frequencies, contexts or features; saved as `tree.json`; drawn."""

from wenet_hs.tree.tree import NaryTree, Tree, load_tree

__all__ = ["NaryTree", "Tree", "load_tree"]
