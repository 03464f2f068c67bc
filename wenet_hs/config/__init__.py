# SPDX-License-Identifier: Apache-2.0
"""The settings of an experiment, from a YAML file and overrides to a checked config, and back.

`yaml_file` reads a file into settings with the place of each, and `wenet_translation` converts
WeNet's settings by the tables of `wenet_keys`.
`schema`, with the sections in `dataset`, `encoders`, `heads`, `optim` and `lm`, has the type,
default and meaning of every setting and says which settings do not fit each other; what it refuses,
`schema_faults` phrases.
`load` does all this and raises the faults as one error with their lines; it also writes a config,
which `commented_yaml` does with an explanation of each setting.
"""
