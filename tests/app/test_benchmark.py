# SPDX-License-Identifier: Apache-2.0
"""benchmarks/app_pages.py makes a project that every page shows."""

import runpy
from pathlib import Path

import pytest
from app_client import TOKEN, new_client

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_every_page_of_the_large_project_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = runpy.run_path(str(BENCHMARKS / "app_pages.py"), run_name="imported")
    script["make_project"](tmp_path / "projects/large", hours=0.01)
    client, site = new_client(tmp_path / "projects", tmp_path)
    client.get("/", params={"token": TOKEN})
    for path in script["PAGES"].values():
        assert client.get(f"/p/large/{path}").status_code == 200, path
    assert "u00000" in client.get("/p/large/check?kind=digits").text
    site.projects.close()
