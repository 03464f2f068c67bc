# SPDX-License-Identifier: Apache-2.0
"""Reads the results of trainings from their folders, and compares trainings.

`folder` says where the files of a training are and reads each of them. From these, `experiment`,
`running`, `scorings` and `model_scores` read what a report, the page of a running training, a model
card and the page of one model show.
For a report, `report_data` joins experiments on one test set with their data (`corpora`, `speech`).
Systems are compared over seeds (`systems`), and single trainings with the first one
(`single_trainings`), after `pairing` has checked that they may be compared.
For a study, `collect` writes what its tables need of one training into a results file
(`results_file`), and `study` reads a folder of these files as one table.
"""
