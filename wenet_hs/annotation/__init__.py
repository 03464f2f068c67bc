# SPDX-License-Identifier: Apache-2.0
"""Annotation files of ELAN and Praat, and transcribed recordings.

ELAN files and TextGrids are read as tiers, and the recording of such a file is found. A transcribed
recording becomes tiers, which are written as an ELAN file or a TextGrid, also as a copy of the
user's file with all of its own tiers; it is also written as subtitles, as a list or as a JSON
record. Corrections that a person makes to such a record are stored in a second file beside it, and
are applied when the record is exported or used for training.
"""
