# SPDX-License-Identifier: Apache-2.0
"""One HTML page about one or more experiments."""

from wenet_hs.report.collect import ExperimentResults, collect
from wenet_hs.report.material import Material, gather
from wenet_hs.report.page import Heading, build_page

__all__ = ["ExperimentResults", "Heading", "Material", "build_page", "collect", "gather"]
