# SPDX-License-Identifier: Apache-2.0
"""Data lists and audio to batches: `audio` → `features`, `augment` → `dataset`, in the order of
`batching`.
"""
