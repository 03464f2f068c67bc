# SPDX-License-Identifier: Apache-2.0
"""Computation of the output heads: the plain PyTorch reference, Numba kernels for CPUs and Triton
kernels for GPUs.
"""
