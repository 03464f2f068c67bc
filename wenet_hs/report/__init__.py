# SPDX-License-Identifier: Apache-2.0
"""One HTML page about one or more experiments."""

from wenet_hs.report.collect import Experiment, collect
from wenet_hs.report.page import build_page

__all__ = ["Experiment", "build_page", "collect"]
