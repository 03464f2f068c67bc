# SPDX-License-Identifier: Apache-2.0
"""Transcripts as text, as units and as ids.

A transcript is normalized first (`normalize`). A tokenizer then splits it into units and gives the
ids of a unit table (`tokenizer`, `matching`, `units`). Two modules describe the units themselves:
the units of each language (`inventory`), and how near phones are to each other (`articulatory`).
"""
