# SPDX-License-Identifier: Apache-2.0
"""One HTML page about one or more experiments."""
