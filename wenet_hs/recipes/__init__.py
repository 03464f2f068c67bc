# SPDX-License-Identifier: Apache-2.0
"""What recipes decide by the data and the machine, and the stages of `wenet-hs own`.

The options of a recipe are read and checked, and written into the folders that they made
(`own_options`, `option_values`, `folder_options`). The config, the size, the steps and the expected
time of a training follow from the options, the hours of speech and the machine (`config_choice`,
`sizes`, `plan`, `expected_time`), and are written as the plan of an experiment (`plan_files`,
`plan_text`, `plan_record`). `wenet-hs own` runs its stages from the data lists to the report
(`own`, `run_stages`), and each of its commands ends at the latest with it (`guarded_process`).
"""
