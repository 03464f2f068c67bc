# SPDX-License-Identifier: Apache-2.0
"""Kernels of the output heads: Numba for CPUs and Triton for GPUs, in float32.

They compute the costs of targets with their gradients (`tree_numba`, `classes`, `tree_triton`,
`softmax_triton`, `ctc_triton`), and search the k best units (`search`, `search_numba`, `classes`).
`scores`, `numba_common` and `triton_launch` contain what several of them use. The heads compute the
same in plain PyTorch, which is the reference of the tests.
"""
