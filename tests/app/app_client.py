# SPDX-License-Identifier: Apache-2.0
"""A server with one project, and a client that has its cookie."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from pympi import Eaf
from starlette.testclient import TestClient

from wenet_hs.annotation.recordings import Record, write_record
from wenet_hs.annotation.tiers import TimedText, TranscribedRecording, TranscribedSegment
from wenet_hs.app.pages import Site
from wenet_hs.app.server import make_app
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.tree.atomic import write_atomic

PORT, TOKEN = 8642, "the-token"
ORIGIN = f"http://127.0.0.1:{PORT}"


@dataclass
class App:
    """A server in this process."""

    client: TestClient
    site: Site
    home: Path
    project: Path

    def get(self, path: str, **options: Any) -> Any:
        """The answer to GET, with redirections followed."""
        return self.client.get(path, **options)

    def post(
        self, path: str, headers: dict[str, str] | None = None, /, **fields: str | list[str]
    ) -> Any:
        """The answer to a form of the page, without the redirection."""
        sent = {"Origin": ORIGIN} | (headers or {})
        return self.client.post(path, data=fields or {"": ""}, headers=sent, follow_redirects=False)


def new_client(site_folder: Path, home: Path) -> tuple[TestClient, Site]:
    app, site = make_app(site_folder, PORT, TOKEN, home=home)
    return TestClient(app, base_url=ORIGIN, headers={"Accept": "text/html"}), site


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A server with the project `first`, whose lists have two utterances."""
    home = tmp_path / "home"
    (home / "projects").mkdir(parents=True)
    client, site = new_client(home / "projects", home)
    assert client.get("/", params={"token": TOKEN}).status_code == 200
    project = site.projects.create("first").folder
    write_audio(home / "talk.wav")
    clips = [
        Utterance(key=f"u{n}", wav=str(home / "talk.wav"), txt="a", start=n / 2, end=n / 2 + 0.4)
        for n in (0, 1)
    ]
    write_lists(project, clips)
    yield App(client, site, home, project)
    site.projects.close()


def write_lists(
    project: Path, clips: list[Utterance], findings: str = "", rejected: str = ""
) -> None:
    """The files of `data` that the pages show."""
    write_data_list(project / "data/train/data.list", clips)
    write_atomic(project / "data/check.tsv", "set\tkey\tkind\tdetails\n" + findings)
    write_atomic(project / "data/rejected.tsv", "key\tpath\treason\n" + rejected)
    total = f'{{"total": {{"hours": {{"train": 0.5}}, "utterances": {{"train": {len(clips)}}}}}}}'
    write_atomic(project / "data/stats.json", total)


def write_audio(path: Path, seconds: float = 2.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, round(16000 * seconds))
    soundfile.write(path, samples, 16000, subtype="PCM_16")
    return path


def write_elan(path: Path, tiers: dict[str, list[str]], step_ms: int = 100) -> Path:
    """An ELAN file with a tier of texts per name."""
    eaf = Eaf(author="")
    eaf.remove_tier("default")
    for name, texts in tiers.items():
        eaf.add_tier(name, part=name.partition("@")[2] or None)
        for number, text in enumerate(texts):
            eaf.add_annotation(name, step_ms * number, step_ms * (number + 1), text)
    path.parent.mkdir(parents=True, exist_ok=True)
    eaf.to_file(str(path))
    return path


def write_transcript(
    project: Path,
    media: Path,
    name: str = "talk",
    text: str = "old words",
    *,
    source: Path | None = None,
    model: str = "",
) -> None:
    """A transcribed recording of two segments."""
    words = [
        TimedText(text=word, start=0.1 * n, end=0.1 * n + 0.1, confidence=0.35)
        for n, word in enumerate(text.split())
    ]
    first = TranscribedSegment(start=0.0, end=0.5, text=text, words=tuple(words), confidence=0.35)
    segments = (first, TranscribedSegment(start=0.6, end=1.0, text="end"))
    (project / "transcribed").mkdir(exist_ok=True)
    recording = TranscribedRecording(media=media, duration_s=2.0, segments=segments)
    write_record(project / f"transcribed/{name}.json", Record(recording, source or media, model))
