# SPDX-License-Identifier: Apache-2.0
"""Data lists and audio to batches.

`shards` opens data lists as a table of utterances (`sampling`), and `audio` reads the audio of an
utterance: `media` finds the file, `signatures` and `containers` tell what it is, and `decoders`
decode it. `augment` changes the waveform, `features` and `cmvn` compute and keep what a model needs
of it, and `dataset` makes examples of it. `batching` plans which examples each batch of an epoch
contains, and `loading` computes the batches ahead of their use.
"""
