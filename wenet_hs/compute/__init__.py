# SPDX-License-Identifier: Apache-2.0
"""Where a command computes: its device, and its process group if several processes share the work.

`devices` chooses the device of a `--device` flag and knows its native dtypes and its memory.
`distributed` joins the process group that torchrun or `srun` describes; `World` has the rank of
this process and the collectives, and one rank reports an error of any.
`heartbeat` has the threads by which ranks notice that another one has died.
"""
