# SPDX-License-Identifier: Apache-2.0
"""A transcribed recording in a Chromium: waveform, borders and texts by keyboard; a recording of a
fake microphone.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from app_client import write_audio, write_elan
from browser import find_browser
from test_browser import address
from waiting import within

from wenet_hs.annotation.recordings import Record, write_record
from wenet_hs.annotation.tiers import TimedText, TranscribedRecording, TranscribedSegment

pytestmark = pytest.mark.browser
__all__ = ["address"]
NUM = 25


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a transcribed recording of 60 s and 25 segments, and an ELAN file with a
    translation.
    """
    folder, media = tmp_path / "projects/Field", write_audio(tmp_path / "talk.wav", 60.0)
    (folder / ".app").mkdir(parents=True)
    segments = []
    for number in range(NUM):
        start = 2.0 * number + 0.5
        words = tuple(
            TimedText(text=f"w{n}", start=start + n, end=start + n + 0.5, confidence=0.4)
            for n in (0, 1)
        )
        segments.append(
            TranscribedSegment(
                start=start, end=start + 1.5, text="w0 w1", words=words, confidence=0.4
            )
        )
    source = write_elan(
        tmp_path / "talk.eaf", {"translation": [f"meaning {n}" for n in range(NUM)]}, step_ms=2000
    )
    (folder / "transcribed").mkdir()
    recording = TranscribedRecording(media=media, duration_s=60.0, segments=tuple(segments))
    write_record(folder / "transcribed/talk.json", Record(recording, source))
    return folder


@pytest.fixture
def page(address: str, project: Path, tmp_path: Path) -> Iterator[Any]:
    """A page of a browser whose microphone plays two seconds of a tone again and again; it must
    have no faults.
    """
    from playwright import sync_api as playwright

    tone = 0.5 * np.sin(np.arange(2 * 48000) * 2 * np.pi * 440 / 48000)
    soundfile.write(tmp_path / "voice.wav", tone, 48000, subtype="PCM_16")
    flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    flags += [
        f"--use-file-for-fake-audio-capture={tmp_path / 'voice.wav'}",
        "--autoplay-policy=no-user-gesture-required",
    ]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=flags)
        page, faults = browser.new_context().new_page(), list[str]()
        page.on(
            "console",
            lambda one: faults.append(one.text) if one.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())  # leave the page
        page.goto(address)
        yield page
        browser.close()
    assert [
        fault for fault in faults if "400 (Bad Request)" not in fault
    ] == []  # refused requests are shown


def corrections(project: Path) -> Any:
    path = project / "transcribed/talk.corrections.json"
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found.pop("segments", None)
    return found


def fits(page: Any) -> bool:
    """Whether nothing is wider than the window, in both widths."""
    found = []
    for width in (480, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        found.append(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
    return all(found)


def test_texts_and_borders_by_keyboard(page: Any, project: Path) -> None:
    from playwright.sync_api import expect

    page.goto(page.url.split("?")[0] + "p/Field/text?name=talk")
    first, second = page.locator("#segment-0"), page.locator("#segment-1")
    expect(page.locator("#wave .time")).to_contain_text("0:00.0 of 1:00.0")
    assert "translation" in first.inner_text() and "meaning 0" in first.inner_text()
    text = page.get_by_label("Text of segment 1", exact=True)
    text.focus()
    expect(first).to_have_attribute("aria-current", "true")
    page.keyboard.press("Control+Space")
    expect(first.locator(".facts .play")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Control+Space")
    expect(first.locator(".facts .play")).to_have_attribute("aria-pressed", "false")
    text.fill("the right words")
    page.keyboard.press("Control+Enter")
    expect(second.locator("textarea")).to_be_focused()
    assert corrections(project) == {"0": {"text": "the right words"}} or corrections(project) == {
        "0": "the right words"
    }
    page.keyboard.press("Tab")  # to Begin
    page.keyboard.press("ArrowUp")
    page.keyboard.press("PageUp")
    page.keyboard.press("Tab")  # to End
    page.keyboard.press("ArrowDown")
    assert second.locator(".facts .play").inner_text() == "▶ 2: 2.6–4.0 s"
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator("#segment-2 textarea")).to_be_focused()
    assert corrections(project)["1"] == {"start": 2.61, "end": 3.99, "confirmed": True}
    end = page.locator("#segment-2 [name=end]")
    end.fill("9")
    end.press("Control+Enter")
    expect(page.locator("#segment-2 .status")).to_contain_text(
        "not saved: segment 3: 4.500 to 9.000 s: crosses segment 4"
    )
    expect(end).to_be_focused()
    end.fill("6")
    page.locator("#segment-19 textarea").press("Control+Enter")  # the last one of this page
    page.wait_for_url("**page=2#edit-20")
    expect(page.locator("#segment-20 textarea")).to_be_focused()
    assert [*corrections(project)] == ["0", "1"]
    assert fits(page)


def test_a_text_that_was_typed_before_the_script_ran_is_saved(page: Any, project: Path) -> None:
    early = "document.querySelector('#segment-0 textarea').value = 'typed early'"  # the deferred scripts run later
    page.add_init_script(
        f"document.addEventListener('readystatechange', () => {{ {early}; }}, {{ once: true }})"
    )
    page.goto(page.url.split("?")[0] + "p/Field/text?name=talk")
    assert within(10, lambda: corrections(project) == {"0": "typed early"})


def test_typed_text_is_saved_before_the_field_is_left_and_an_old_tab_is_told(
    page: Any, project: Path
) -> None:
    from playwright.sync_api import expect

    address = page.url.split("?")[0] + "p/Field/text?name=talk"
    page.goto(address)
    old = page.context.new_page()
    old.goto(address)
    text = page.get_by_label("Text of segment 1", exact=True)
    text.press("End")
    text.press_sequentially(" typed")
    assert within(10, lambda: corrections(project) == {"0": "w0 w1 typed"})
    text.press_sequentially(" on")  # this tab knows what it has saved
    assert within(10, lambda: corrections(project) == {"0": "w0 w1 typed on"})
    old.locator("#segment-0 [name=confirmed]").check()
    expect(old.locator("#segment-0 .status")).to_contain_text(
        "segment 1: changed in another tab since"
    )
    assert corrections(project) == {"0": "w0 w1 typed on"}
    old.reload()
    assert old.get_by_label("Text of segment 1", exact=True).input_value() == "w0 w1 typed on"
    old.close()


def test_a_click_in_the_waveform_plays_from_there_and_chooses_the_segment(
    page: Any, project: Path
) -> None:
    from playwright.sync_api import expect

    page.goto(page.url.split("?")[0] + "p/Field/text?name=talk")
    canvas, play = page.locator("canvas.overview"), page.locator("#wave .play")
    expect(page.locator("#wave .time")).to_contain_text("0:00.0")
    drawn = page.evaluate(
        "[...document.querySelectorAll('#wave canvas')].map(one => new Set(one.getContext('2d')"
        ".getImageData(0, 0, one.width, one.height).data.filter((_, index) => index % 4 === 3)).size)"
    )
    assert min(drawn) > 1
    expect(page.locator("#wave [role=status]")).to_have_text("")  # the waveform is there
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 13.0 / 60, "y": 20})
    expect(page.locator("#segment-6")).to_have_attribute("aria-current", "true")
    expect(play).to_have_attribute("aria-pressed", "true")
    assert re.search(r"start=1[23]\.\d+&end=60", play.get_attribute("data-audio"))
    expect(play).to_have_text("⏸ Stop playing")
    play.click()
    expect(play).to_have_text("▶ Play from here")
    of_segment = page.locator("#segment-6 .facts .play")
    of_segment.click()
    expect(of_segment).to_have_text(re.compile("^⏸ 7: "))
    page.keyboard.press("Escape")
    expect(of_segment).to_have_text(re.compile("^▶ 7: "))
    expect(of_segment).to_have_attribute("aria-pressed", "false")
    page.get_by_role("slider", name="Position").focus()
    page.keyboard.press("End")
    expect(page.locator("#wave .time")).to_contain_text("1:00.0 of 1:00.0")
    assert page.locator("[aria-current=true].segment").count() == 0
    page.get_by_role("slider", name="Position").fill("8.6")
    expect(page.locator("#segment-4")).to_have_attribute("aria-current", "true")
    canvas.click(position={"x": box["width"] * 49.0 / 60, "y": 20})  # a segment of another page
    page.wait_for_url("**page=2#at-4*")
    expect(page.locator("#segment-24")).to_have_attribute("aria-current", "true")
    assert len([*(project / ".app/peaks").iterdir()]) == 1


def test_a_speaker_and_a_card_are_saved_where_they_are(page: Any, project: Path) -> None:
    from playwright.sync_api import expect

    (project / "cards").mkdir()
    (project / "cards/mine.md").write_text("old")
    asked = list[str]()
    page.on("dialog", lambda dialog: asked.append(dialog.type))
    for view, label, field, value in (
        ("text?name=talk", "Save the speaker", "[name=speaker]", "Carla"),
        ("share", "Save", "textarea[name=text]", "a new card"),
    ):
        page.goto(page.url.split("/p/")[0].split("?")[0].rstrip("/") + f"/p/Field/{view}")
        page.locator(field).fill(value)
        button = page.get_by_role("button", name=label, exact=True).first
        button.click()
        status = page.locator("form", has=page.locator(field)).first.get_by_role("status")
        expect(status).to_have_text("saved")
        page.locator(field).press("End")
        page.keyboard.type("!")
        expect(status).to_have_text("")
    assert (project / "cards/mine.md").read_text() == "a new card"
    page.get_by_role("button", name="Save", exact=True).first.click()
    expect(status).to_have_text("saved")  # a second time: the field of what was seen follows
    assert (project / "cards/mine.md").read_text() == "a new card!"
    page.reload()
    assert asked == ["beforeunload"], "what is saved is left without a question"
    (project / "cards/mine.md").write_text("by hand")
    page.locator(field).fill("of an old page")
    page.get_by_role("button", name="Save", exact=True).first.click()
    expect(status).to_contain_text("not saved: ")
    expect(status).to_contain_text("changed in another tab, or in the file, since")
    assert asked == ["beforeunload"], "the speaker was left unsaved"


def test_a_recording_of_the_microphone_is_ready_to_be_transcribed(page: Any, project: Path) -> None:
    from playwright.sync_api import expect

    page.goto(page.url.split("?")[0] + "p/Field/transcribe")
    assert fits(page)
    page.get_by_label("Name of the recording").fill("my word")
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator("#mic [role=status]")).to_have_text("It records.")
    assert within(10, lambda: page.evaluate("document.querySelector('#mic meter').value") > 0.3)
    page.wait_for_timeout(1500)
    page.get_by_role("button", name="Stop and save").click()
    page.wait_for_url("**folder=*to_transcribe&saved=my%20word.wav*")
    samples, rate = soundfile.read(project / "to_transcribe/my word.wav")
    assert 1.0 < len(samples) / rate < 10.0 and rate >= 16000
    assert 0.3 < np.abs(samples).max() < 0.7
    spectrum = np.abs(np.fft.rfft(samples[rate // 2 : rate // 2 + rate]))
    assert abs(int(spectrum.argmax()) - 440) <= 2
    page.get_by_label("Name of the recording").fill("my word")  # it is there already
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator("#mic [role=status]")).to_have_text("It records.")
    page.wait_for_timeout(500)
    page.get_by_role("button", name="Stop and save").click()
    expect(page.locator("#mic [role=status]")).to_contain_text("has a file 'my word.wav' already")
    expect(
        page.get_by_role("button", name="Record", exact=True)
    ).to_be_disabled()  # it would replace this one
    page.get_by_label("Name of the recording").fill("another")
    page.get_by_role("button", name="Save again").click()
    assert within(10, lambda: (project / "to_transcribe/another.wav").exists())
    page.wait_for_load_state()


@pytest.mark.parametrize(
    ("name", "text"), [("NotAllowedError", "does not allow"), ("NotFoundError", "No microphone")]
)
def test_without_a_microphone_there_is_a_sentence(
    page: Any, project: Path, name: str, text: str
) -> None:
    from playwright.sync_api import expect

    page.goto(page.url.split("?")[0] + "p/Field/transcribe")
    fault = f"async () => {{ throw new DOMException('x', '{name}'); }}"
    page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = {fault}; }}")
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator("#mic [role=status]")).to_contain_text(text)
    assert page.get_by_role("button", name="Record", exact=True).is_enabled()
