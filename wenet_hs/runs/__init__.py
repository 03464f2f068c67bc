# SPDX-License-Identifier: Apache-2.0
"""Files that trainings and recognitions write and other commands read.

`run.json` says what a training was started with, how far it is and how it ended (`record`,
`sentences`, `progress`). The curves of a training show whether it over-fitted (`curves`), and
`hyps.jsonl` has the n-best hypotheses of a recognition (`hypotheses`).
"""
