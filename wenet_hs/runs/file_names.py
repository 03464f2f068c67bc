# SPDX-License-Identifier: Apache-2.0
"""Names of the files that one command writes and others read.

The names of the files of a model itself (`train.yaml`, `units.txt`, `final.pt`) are a part of the
public interface, and are written out where they are used.
"""

CURVES_FILE = "metrics.jsonl"
"""Curves of a training, in its folder."""
SPEED_FILE = "rtf.json"
"""Options and times of the decoding of a test set, in the folder of its results."""
HYPOTHESES_FILE = "hyps.jsonl"
"""N-best hypotheses, in the folder of a decoding mode."""
SCORE_FILE = "score.json"
"""Error rates, in the folder of a decoding mode."""
