# SPDX-License-Identifier: Apache-2.0
"""Names of the files of a plan in the folder of an experiment, and of the first part's model."""

PLAN = "plan.yaml"
"""The config of the trainings, which the user may edit."""
FIRST_PART = "first_part.yaml"
"""The config of the first part of training, which follows from the plan."""
BASE_NAME = "base"
"""The folder of the first part of training, in that of the experiment."""
