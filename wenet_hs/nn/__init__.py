# SPDX-License-Identifier: Apache-2.0
"""Layers of encoders and decoders, without output heads.

Features are subsampled and get positions (`subsampling`, `layers`). They pass through the layers of
the encoder (`conformer`), and units through those of the decoder, which attends to the encoder
output (`transformer`). Both kinds of layers consist of attention, feed-forward, residual branches
and dropout (`attention`, `layers`, `dropout`).
"""
