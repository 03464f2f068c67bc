# SPDX-License-Identifier: Apache-2.0
"""What a training is, what it was started with and how far it is: `run.json` of a model folder."""
