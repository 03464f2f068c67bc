# SPDX-License-Identifier: Apache-2.0
"""The settings of an experiment: `schema` types them, `load` reads them from YAML and writes them
back.
"""
