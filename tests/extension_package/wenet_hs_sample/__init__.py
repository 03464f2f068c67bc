# SPDX-License-Identifier: Apache-2.0
"""A head, a frontend, a corpus and a decoding mode for wenet_hs, which the tests install and use."""
