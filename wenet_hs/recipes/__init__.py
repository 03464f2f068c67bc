# SPDX-License-Identifier: Apache-2.0
"""What recipes decide by the data and the machine: size, steps, config and time of a training."""
