# SPDX-License-Identifier: Apache-2.0
"""The whole way in a Chromium, on a field corpus of SIMULATED speech: from dropped ELAN files to a
packed model.

The server is killed in a training and in a correction. With WENET_HS_SCREENSHOTS=docs/app it makes
the pictures of docs/app.md.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from chromium import Server, chromium, look, wait_for_job
from pympi import Eaf

from wenet_hs.annotation.textgrid import read_textgrid, write_textgrid
from wenet_hs.annotation.tiers import DEFAULT_TIER, Tier
from wenet_hs.manifest.data_list import read_data_list

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
MINUTES = os.environ.get("WENET_HS_PART_MINUTES", "1")
"""Length of each part of a training; longer for pictures of a model that has learned something."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.end()


@pytest.fixture
def fieldwork(tmp_path: Path) -> Path:
    """Four ELAN files with their recordings.

    The fourth is not in the corpus: it is there to be transcribed.
    """
    pytest.importorskip("espeakng_loader")
    folder = tmp_path / "fieldwork"
    sentences = ROOT / "examples/mini/s0/sentences/es.txt"
    options = [
        "--sentences",
        sentences,
        "--lang",
        "es",
        "--out",
        folder,
        "--minutes",
        "3",
        "--files",
        "4",
    ]
    subprocess.run([sys.executable, ROOT / "tools/field_corpus.py", *options], check=True)
    return folder


def open_project(page: Any, server: Server, name: str) -> None:
    """Open the page with the token, and the project, which is made if there is none."""
    page.goto(server.address)
    if page.get_by_role("link", name=name, exact=True).count():
        page.get_by_role("link", name=name, exact=True).click()
    else:
        look(page, "projects")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Name").press("Enter")
    page.wait_for_url("**/recordings")


def go(page: Any, step: str) -> None:
    """Choose a step in the menu."""
    page.get_by_role("navigation", name="Steps").get_by_role("link", name=step).click()
    page.wait_for_url(re.compile(rf"/{step.lower()}$"))


def make_lists(page: Any, files: list[Path], tier: str) -> None:
    """Drop files, choose the tier and the language, and check the lists."""
    look(page, "recordings")
    page.set_input_files("input[type=file] >> nth=0", files)
    page.wait_for_url("**path=**")
    page.get_by_label("Language").fill("Spanish")
    page.get_by_label("Language").press("Enter")
    page.wait_for_url("**lang=Spanish*")
    for box in page.locator("input[name=tier]:enabled").all():
        box.set_checked(tier in box.get_attribute("value"))
    page.get_by_label("Stop with less training speech").fill("0")
    look(page, "tiers")
    page.get_by_role("button", name="Make the lists").click()
    page.wait_for_url("**/check")
    wait_for_job(page, "prepare")
    page.get_by_role("heading", name="Findings").wait_for()
    look(page, "check")
    page.get_by_role("link", name=re.compile("not used, each with its reason")).click()
    look(page, "rejected")


def begin_training(page: Any, minutes: str, **fields: str) -> None:
    """Start a training of two short parts; `fields`: label → option."""
    go(page, "Train")
    for label, option in fields.items():
        page.get_by_label(label.replace("_", " ")).select_option(option)
    page.get_by_label("end each part after").fill(minutes)
    look(page, "train")
    page.get_by_role("button", name="Start the training").click()
    page.wait_for_url("**/train")


def record(page: Any, name: str) -> None:
    """Speak into the microphone for two seconds."""
    page.get_by_label("Name of the recording").fill(name)
    page.get_by_role("button", name="Record", exact=True).click()
    page.get_by_text("It records.").wait_for()
    page.wait_for_timeout(2000)
    page.get_by_role("button", name="Stop and save").click()
    page.get_by_label(f"{name}.wav").wait_for()


def transcribe(page: Any, files: list[Path], model: str, spoken: str = "") -> None:
    """Drop recordings, speak one, and transcribe those that the page has chosen."""
    go(page, "Transcribe")
    page.set_input_files("input[type=file] >> nth=0", files)
    page.wait_for_url("**folder=**")
    if spoken:
        record(page, spoken)
    page.locator("select[name=model]").select_option(model)
    page.get_by_role("button", name="Transcribe the chosen files").click()
    page.wait_for_url("**/transcribe")
    wait_for_job(page, "transcribe")
    look(page, "transcribe")


def correct(page: Any, number: int, text: str) -> None:
    """Correct the text of a segment (from 1) by keyboard, which goes to the next one when it is
    saved.
    """
    page.locator("#wave .time", has_text=" of ").wait_for()  # the script runs
    page.get_by_label(f"Text of segment {number}", exact=True).fill(text)
    page.keyboard.press("Control+Enter")
    page.locator(f"#segment-{number} textarea:focus").wait_for()  # numbered from 0


def download_eaf(page: Any, path: Path) -> Eaf:
    """The file that the page gives."""
    with page.expect_download() as download:
        page.get_by_role("link", name="ELAN (.eaf)").click()
    download.value.save_as(path)
    return Eaf(str(path))


def pack_and_open(page: Any, server: Server, path: Path) -> None:
    """Pack the first model, save the ZIP at `path` and open it in another project."""
    go(page, "Share")
    page.get_by_label("Licence").fill("cc-by-4.0")
    page.get_by_label("What the training data are").fill("Simulated Spanish of two speakers")
    page.get_by_role("button", name="Pack", exact=True).click()
    wait_for_job(page, "pack")
    with page.expect_download() as download:
        page.get_by_role("link", name="Field.zip").click()
    download.value.save_as(path)
    look(page, "share", "Pack a model")
    open_project(page, server, "Second")
    go(page, "Share")
    page.set_input_files("input[type=file]", path)
    page.get_by_text("Card of Field.zip").click()
    page.get_by_text("Simulated Spanish of two speakers").wait_for()
    look(page, "opened", "Models of others")


def test_from_elan_files_to_a_model_that_others_open(
    server: Server, fieldwork: Path, tmp_path: Path
) -> None:
    speech = f"--use-file-for-fake-audio-capture={fieldwork / 'REC_02.wav'}"
    with chromium(
        "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", speech
    ) as page:
        open_project(page, server, "Field")
        make_lists(page, sorted(fieldwork.glob("REC_0[123].*")), "utterance@")
        begin_training(page, MINUTES, Size_of_the_model="tiny")
        page.get_by_text(re.compile(r"Step [1-9]\d+")).first.wait_for(timeout=90_000)
        server.kill()  # the training goes on
        server.start()
        open_project(page, server, "Field")
        go(page, "Train")
        page.get_by_text("Training 0002: running").wait_for()
        wait_for_job(page, "train")
        look(page, "training")
        go(page, "Results")
        page.get_by_text("of the test set are wrong").wait_for()
        look(page, "results")

        transcribe(
            page, [fieldwork / "REC_04.wav", fieldwork / "REC_04.eaf"], "exp/softmax", "spoken"
        )
        page.get_by_role("link", name="REC_04", exact=True).click()
        page.get_by_label("Speaker").fill("Carla")
        page.get_by_role("button", name="Save the speaker").click()
        page.wait_for_load_state()
        correct(page, 1, "árbol corregido")
        correct(page, 2, "otra corrección")
        server.kill()
        server.start()
        open_project(page, server, "Field")
        go(page, "Transcribe")
        page.get_by_role("link", name="REC_04", exact=True).click()
        assert page.get_by_label("Text of segment 1", exact=True).input_value() == "árbol corregido"
        look(page, "text")
        old, new = Eaf(str(fieldwork / "REC_04.eaf")), download_eaf(page, tmp_path / "new.eaf")
        for tier in old.get_tier_names():
            assert sorted(new.get_annotation_data_for_tier(tier)) == sorted(
                old.get_annotation_data_for_tier(tier)
            )
        texts = [one[2] for one in sorted(new.get_annotation_data_for_tier(DEFAULT_TIER))]
        assert texts[:2] == ["árbol corregido", "otra corrección"]

        go(page, "Transcribe")
        page.get_by_label("end each part after").fill("0.3")
        page.get_by_role("button", name="Make the lists again and train").click()
        wait_for_job(page, "train")
        added = [
            one.key
            for one in read_data_list(server.projects / "Field/data/train/data.list")
            if "added" in one.key
        ]
        assert len(added) == 2
        go(page, "Transcribe")
        page.get_by_text("exp-2/softmax began from exp/softmax").wait_for()
        look(page, "compare", "Old and new model")
        pack_and_open(page, server, tmp_path / "Field.zip")


def write_praat_and_m4a(fieldwork: Path, folder: Path) -> list[Path]:
    """The field corpus as TextGrids beside m4a files."""
    av = pytest.importorskip("av")
    files = []
    for path in sorted(fieldwork.glob("REC_0[123].eaf")):
        eaf, name = Eaf(str(path)), folder / path.stem
        samples, rate = soundfile.read(path.with_suffix(".wav"), dtype="float32")
        names = [name for name in eaf.get_tier_names() if name.startswith("utterance")]
        spans = [
            [(a / 1000, b / 1000, text) for a, b, text, *_ in eaf.get_annotation_data_for_tier(one)]
            for one in names
        ]
        tiers = [Tier(name=name, spans=of_tier) for name, of_tier in zip(names, spans, strict=True)]
        folder.mkdir(exist_ok=True)
        write_textgrid(name.with_suffix(".TextGrid"), tiers, len(samples) / rate)
        with av.open(str(name.with_suffix(".m4a")), "w") as container:
            stream = container.add_stream("aac", rate=rate, layout="mono")
            frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate, 0
            for packet in (*stream.encode(frame), *stream.encode(None)):
                container.mux(packet)
        files += [name.with_suffix(".TextGrid"), name.with_suffix(".m4a")]
    return files


def test_from_praat_and_m4a_to_a_textgrid(server: Server, fieldwork: Path, tmp_path: Path) -> None:
    files = write_praat_and_m4a(fieldwork, tmp_path / "praat")
    with chromium() as page:
        open_project(page, server, "Praat")
        make_lists(page, files, "utterance@")
        begin_training(page, "0.3", Size_of_the_model="tiny")
        wait_for_job(page, "train")
        transcribe(page, files[:2], "exp/softmax")
        page.get_by_role("link", name="REC_01", exact=True).click()
        correct(page, 1, "corregido")
        with page.expect_download() as download:
            page.get_by_role("link", name="Praat (.TextGrid)").click()
        download.value.save_as(tmp_path / "new.TextGrid")
        tiers = {tier.name: tier.spans for tier in read_textgrid(tmp_path / "new.TextGrid").tiers}
        assert {
            tier.name: tier.spans for tier in read_textgrid(files[0]).tiers
        }.items() <= tiers.items()
        assert "corregido" in str(tiers)
