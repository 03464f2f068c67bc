# SPDX-License-Identifier: Apache-2.0
"""TextGrids of Praat, long or short: their tiers, and new tiers in a file or in a copy of the
user's.

praatio drops intervals without a message, so they are read by Praat's own rule.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from wenet_hs.annotation.tiers import AnnotationFile, Tier, TimedSpan
from wenet_hs.base.files import read_bytes
from wenet_hs.manifest.file_forms import check_form
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, one_line

_MAX_DIFFERENCE_S = 0.1  # of a TextGrid and its audio
_GRID_TOKEN = re.compile(r'"((?:[^"]|"")*)"|<exists>|<absent>|(?<!\S)-?\d\S*(?!\S)|!.*')
"""By Praat's own rule: quoted strings, flags, numbers with white space around them, and comments."""


def read_textgrid(path: Path) -> AnnotationFile:
    """A TextGrid, long or short, UTF-8 or UTF-16.

    Every interval and point that the file declares is there. Raises DataError if one is missing.
    """
    remedy = "save it as text file in Praat"
    try:
        data = read_bytes(path)
        if not data.strip():
            raise DataError(path, "empty", remedy)
        check_form(path, data, "prepare praat")
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        tiers, extent = _parse_grid(text)
    except UnicodeDecodeError as error:
        raise DataError(path, "neither UTF-8 nor UTF-16", "save it again in Praat") from error
    except StopIteration as error:
        raise DataError(
            path, "cut off, or not a TextGrid", f"restore the file, or {remedy}"
        ) from error
    except ValueError as error:
        raise DataError(path, f"not a TextGrid ({one_line(error)})", remedy) from error
    return AnnotationFile(path=path, media=(path.stem,), tiers=tiers, extent=extent)


def find_shift(start: float, end: float, duration_s: float) -> float | str:
    """Seconds to add to the times of a TextGrid, so that they count from the beginning of its
    audio.

    A TextGrid of a part of a recording may keep the times of the recording. The length of the audio
    decides whether that is the recording up to the end of the part, or the part. Returns: the
    seconds, or why neither fits.
    """
    if abs(start) < 0.001:
        return 0.0
    distances = {0.0: abs(duration_s - end), -start: abs(duration_s - (end - start))}
    shift = min(distances, key=distances.__getitem__)
    if distances[shift] <= _MAX_DIFFERENCE_S:
        return shift
    expected = f"{end:g} s (with the times of the recording) or {end - start:g} s (of this part)"
    return f"times: begins at {start:g} s and its audio has {duration_s:.3f} s; give the audio that has {expected}"


def _parse_grid(text: str) -> tuple[list[Tier], tuple[float, float]]:
    """The tiers, and begin and end.

    Raises StopIteration at the end of a file that is cut off, ValueError for other content.
    """
    if '"TextGrid"' not in text:
        raise ValueError('no "TextGrid" in it')
    found = _GRID_TOKEN.finditer(text, text.index('"TextGrid"') + len('"TextGrid"'))
    tokens = (
        one[0] if one[1] is None else one[1].replace('""', '"') for one in found if one[0][0] != "!"
    )
    start, end, flag = float(next(tokens)), float(next(tokens)), next(tokens)
    if flag not in ("<exists>", "<absent>"):
        raise ValueError(f"{flag!r} instead of <exists>")
    tiers = []
    for _ in range(int(next(tokens)) if flag == "<exists>" else 0):
        kind, name, _, _, size = (
            next(tokens),
            next(tokens),
            next(tokens),
            next(tokens),
            next(tokens),
        )
        if kind not in ("IntervalTier", "TextTier"):
            raise ValueError(f"a tier of the kind {kind!r}")
        is_interval, spans = kind == "IntervalTier", []
        for number in range(1, int(size) + 1):
            try:
                begin = float(next(tokens))
                spans.append((begin, float(next(tokens)) if is_interval else begin, next(tokens)))
            except ValueError as error:
                raise ValueError(f"tier {name!r}, number {number}: {error}") from error
        tiers.append(
            Tier(
                name=name,
                kind="" if is_interval else "points",
                is_interval=is_interval,
                spans=spans,
            )
        )
    return tiers, (start, end)


def write_textgrid(
    path: Path, tiers: Sequence[Tier], end_s: float, source: Path | None = None
) -> None:
    """Write a long TextGrid with the tiers of `source`, a TextGrid, and new ones of their intervals
    with text.

    It ends with the longer one of both. Where there is no interval, one without text is added. If
    `source` has the times of a longer recording (`find_shift`), the new tiers get them too.
    """
    old = (
        AnnotationFile(path=path, media=(), tiers=(), extent=(0.0, end_s))
        if source is None
        else read_textgrid(source)
    )
    shift = find_shift(*old.extent, end_s)
    if isinstance(shift, str):
        raise DataError(old.path, shift)
    start_s, end_s = 0.0 - shift, end_s - shift
    end_s = end_s if end_s - old.extent[1] > 0.001 else old.extent[1]
    found = [(tier, tier.timed_spans) for tier in old.tiers]
    found += [
        (
            tier,
            [
                (begin + start_s, end + start_s, text)
                for begin, end, text in tier.timed_spans
                if text
            ],
        )
        for tier in tiers
    ]
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        f"xmin = {start_s!r}\nxmax = {end_s!r}",
    ]
    lines += ["tiers? <exists>", f"size = {len(found)}", "item []:"]
    for number, (tier, spans) in enumerate(found, start=1):
        kind, plural, label = (
            ("IntervalTier", "intervals", "text")
            if tier.is_interval
            else ("TextTier", "points", "mark")
        )
        spans = _fill(spans, start_s, end_s) if tier.is_interval else spans
        name = tier.name.replace('"', '""')
        lines += [f"    item [{number}]:", f'        class = "{kind}"', f'        name = "{name}"']
        lines += [
            f"        xmin = {start_s!r}",
            f"        xmax = {end_s!r}",
            f"        {plural}: size = {len(spans)}",
        ]
        for position, (begin, end, text) in enumerate(spans, start=1):
            times = (
                f"xmin = {begin!r}\n            xmax = {end!r}"
                if tier.is_interval
                else f"number = {begin!r}"
            )
            quoted = text.replace('"', '""')
            lines += [
                f"        {plural} [{position}]:",
                f"            {times}",
                f'            {label} = "{quoted}"',
            ]
    write_atomic(path, "\n".join(lines) + "\n")


def _fill(spans: Sequence[TimedSpan], start_s: float, end_s: float) -> list[TimedSpan]:
    """The intervals, and those without text between them, from `start_s` to `end_s`."""
    filled, last = list[TimedSpan](), start_s
    for begin, end, text in (*spans, (end_s, end_s, "")):
        if begin - last > 1e-5:  # not for a difference of rounding
            filled.append((last, begin, ""))
        filled.append((begin, min(end, end_s), text))
        last = max(last, end)
    return filled[:-1]
