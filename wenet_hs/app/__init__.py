# SPDX-License-Identifier: Apache-2.0
"""The local page of `wenet-hs app`. Its design is in docs/design/0019-app.md."""
