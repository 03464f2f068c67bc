# SPDX-License-Identifier: Apache-2.0
"""The page in a real headless Chromium: no error in its console; sorting, filtering, themes, phone,
paper, sound.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, find_browser
from made_up_experiment import REF, write_data, write_experiment

from wenet_hs.report.page import build_page
from wenet_hs.results.experiment import read_experiments
from wenet_hs.results.report_data import gather_data

pytestmark = pytest.mark.slow
SHOWN = "[...document.querySelectorAll('.utterance')].filter(item => !item.hidden).map(item => item.dataset.key)"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Page]:
    """A page of two experiments with audio, open in a window of a desk."""
    browser = find_browser()
    attention = REF | {"ca1": "bon", "ky2": "кыргызча"}
    folders = [
        write_experiment(tmp_path / "a"),
        write_experiment(tmp_path / "b", head="softmax", attention=attention),
    ]
    stats = write_data(tmp_path / "data", simulated=True)
    data = gather_data(read_experiments(folders), mode="attention", stats=stats)
    path = tmp_path / "report.html"
    path.write_text(build_page(data, title="a against b", command="wenet-hs"), "utf-8")
    with Page(browser, tmp_path / "profile") as page:
        page.resize(1280)
        page.open(path)
        yield page
        assert page.console == []


def choose(page: Page, control: str, value: str) -> None:
    page.run(f"{control}.value = {value!r}; {control}.dispatchEvent(new Event('input', {{bubbles: true}})); "
             f"{control}.dispatchEvent(new Event('change'))")  # fmt: skip


def test_tables_are_sorted_and_filtered(opened: Page) -> None:
    column = "[...document.querySelector('#errors table').tBodies[0].rows].map(row => row.cells[0].textContent)"
    button = "document.querySelectorAll('#errors table')[0].tHead.rows[1].cells[2].querySelector('button')"
    sort = f"{button}.parentElement.getAttribute('aria-sort')"
    assert opened.run(column) == ["ca", "ky"]
    opened.run(f"{button}.click()")
    assert (opened.run(column), opened.run(sort)) == (["ky", "ca"], "ascending"), (
        "b: 15 % of ky, 30 % of ca"
    )
    opened.run(f"{button}.click()")
    assert (opened.run(column), opened.run(sort)) == (["ca", "ky"], "descending")
    rows = "[...document.querySelectorAll('#confusions-1 tbody tr:not([hidden])')].map(row => row.cells[0].textContent)"
    assert set(opened.run(rows)) == {"all"}
    choose(opened, "document.querySelector('[data-filter=confusions-1]')", "ky")
    assert set(opened.run(rows)) == {"ky"}


def test_utterances_are_found_ordered_and_heard(opened: Page) -> None:
    by_id = "document.getElementById('{}')".format
    assert opened.run(SHOWN) == ["ca1", "ky2", "ca2", "ky1"]
    assert opened.run(f"{by_id('count')}.textContent") == "4 of 4 shown"
    choose(opened, by_id("order"), "length")
    assert opened.run(SHOWN) == ["ca2", "ca1", "ky2", "ky1"]
    choose(opened, by_id("order"), "d1-0")
    assert opened.run(SHOWN)[0] == "ca1", "where a is most better than b"
    choose(opened, by_id("lang"), "ky")
    choose(opened, by_id("find"), "КЫРГЫЗ")
    assert opened.run(SHOWN) == ["ky2"]
    choose(opened, by_id("find"), "")
    opened.run(f"{by_id('wrong')}.click()")
    assert opened.run(SHOWN) == ["ky2"]
    heard = (
        "new Promise((done, fail) => { const sound = document.querySelector('audio'); sound.onerror = fail; \
        sound.onloadedmetadata = () => done(sound.duration); sound.load(); })"
    )
    assert 0.4 < opened.run(heard) < 0.8


def test_it_fits_a_phone_paper_and_both_themes(opened: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    opened.resize(390, 844)
    assert opened.run("document.documentElement.scrollWidth") == 390, (
        "wide tables scroll in their own boxes"
    )
    box = "document.querySelector('#errors .scroll')"
    assert opened.run(f"{box}.scrollWidth > {box}.clientWidth")
    second = f"{box}.querySelector('tbody tr').cells[2].getBoundingClientRect().right"
    assert opened.run(second) < 390, "both systems can be seen without scrolling"
    hint = "getComputedStyle(document.querySelector('{} .table figcaption'), '::after').content"
    assert "scroll" in opened.run(hint.format("#errors")), "it shows that it scrolls"
    opened.run(f"{box}.scrollLeft = 150")
    edges = f"{box}.querySelector('tbody th').getBoundingClientRect().left - {box}.getBoundingClientRect().left"
    assert abs(opened.run(edges)) < 1.5, "the first column stands still"
    opened.resize(1280, scheme="dark")
    opened.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert opened.run(hint.format("#errors")) == "none", "the table fits"
    dark = opened.run(colour)
    opened.run("document.getElementById('theme').click()")
    assert opened.run("document.getElementById('theme').textContent") == "Theme: light"
    assert dark != opened.run(colour) == "rgb(255, 255, 255)"
    pdf = opened.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)[
        "data"
    ]
    assert len(pdf) > 10_000


def test_the_verdict_is_in_the_first_screen_and_no_label_is_cut(opened: Page) -> None:
    bottom = "document.querySelector('.verdict').getBoundingClientRect().bottom"
    inside = """[...document.querySelectorAll('figure svg text')].filter(text => {
        const box = text.getBoundingClientRect(), svg = text.ownerSVGElement.getBoundingClientRect();
        return box.width && (box.left < svg.left - 1 || box.right > svg.right + 1);
    }).map(text => text.textContent)"""
    for width in (1280, 480):
        opened.resize(width)
        assert 0 < opened.run(bottom) < 500
        assert opened.run(inside) == []
