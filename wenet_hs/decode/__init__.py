# SPDX-License-Identifier: Apache-2.0
"""Decoding: from features or audio to hypotheses with times.

`modes.decode` computes the encoder once and runs the search of each mode (`ctc_search`,
`attention_search`, `joint`, `rescoring`), which returns the n-best lists of a batch (`hypothesis`).
`job` decodes a data list with it: it cuts long clips into segments (`segments`), saves each batch
for a restart (`partial_results`), and makes texts, times and result files (`recognition`). Beside
it `stream` recognises a stream until an endpoint (`endpoints`), `alignment` aligns known
transcripts, `known_units` limits the units per language, and `combine` joins the n-best lists of
several models.
"""

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.modes import decode
from wenet_hs.model.modes import MODES

__all__ = ["MODES", "DecodeOptions", "Hypothesis", "decode"]
