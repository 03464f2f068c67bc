# SPDX-License-Identifier: Apache-2.0
"""The fixture of a server, for all tests of this folder."""

from app_client import app

__all__ = ["app"]
