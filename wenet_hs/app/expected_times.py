# SPDX-License-Identifier: Apache-2.0
"""The files with the expected times of trainings that were measured."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from wenet_hs.app.projects import Project
from wenet_hs.recipes.own_options import OwnOptions, own_record


def expected_time_path(project: Project, options: OwnOptions) -> Path:
    """The file for the measured time of a training with these options; it may not exist.

    Its name is the first half of a SHA-256 of the options. The folder of the experiment and the
    stages that run are left out, because the time does not depend on them.
    """
    default = OwnOptions()
    hashed = replace(options, exp=default.exp, stage=default.stage, stop_stage=default.stop_stage)
    text = json.dumps(own_record(hashed), sort_keys=True)
    name = hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]
    return project.writable_path(".app/times") / f"{name}.json"
