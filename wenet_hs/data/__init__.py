# SPDX-License-Identifier: Apache-2.0
"""Audio to batches: `audio` → `features` → `augment` → `dataset`, put together by `batching`."""
