# SPDX-License-Identifier: Apache-2.0
"""Trees built from data lists, text and embeddings, what they cost, and their drawings.

`counts.py` counts the units in transcripts, and `embedding.py` reads their vectors and clusters
them. `kinds.py` has the table of all kinds of trees, and builds a tree of any kind from these
inputs. `counts.py` also computes the code lengths by language. `plot.py` draws a tree as SVG, PNG
and an HTML page, which has these code lengths.
"""
