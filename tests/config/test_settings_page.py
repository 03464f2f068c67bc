# SPDX-License-Identifier: Apache-2.0
"""docs/settings.md has every setting of the YAML files, as `wenet_hs/config` has them."""

import runpy
from pathlib import Path

from wenet_hs.config.lm import LmConfig
from wenet_hs.config.schema import ExperimentConfig

ROOT = Path(__file__).parents[2]


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (ROOT / "docs/settings.md").read_text("utf-8")
    assert page == runpy.run_path(str(ROOT / "tools/settings_page.py"))["write_page"](), (
        page.partition("\n")[0]
    )
    for config in (ExperimentConfig, LmConfig):
        schema = config.model_json_schema()
        for section in (schema, *schema["$defs"].values()):
            missing = [name for name in section.get("properties", {}) if f"`{name}`" not in page]
            assert not [name for name in missing if f".{name}`" not in page]
