# SPDX-License-Identifier: Apache-2.0
"""Recordings and transcripts in any form to data lists: `wenet-hs prepare`.

A reader per form (`elan`, `praat`, `folder`, `table`, `kaldi`) gives one `entries.Entry` per
annotation. `own_recordings` makes utterances of the entries, checks their audio, divides them into
sets and hands these to `output`, which writes the lists. Public corpora (`commonvoice`, `ucla`) and
simulated speech (`synthetic`, `phones`) make their own sets and hand them to `output` too; `check`
reads finished lists and names their faults.
"""
