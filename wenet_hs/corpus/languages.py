# SPDX-License-Identifier: Apache-2.0
"""Languages as data and `--lang` name them: codes of BCP 47, and names in English and other
languages.
"""

import difflib
import logging
import re
from collections import Counter
from collections.abc import Sequence

from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.errors import ConfigError, DataError, list_names

logger = logging.getLogger(__name__)

UNDETERMINED = "und"
"""ISO 639-2 code of an undetermined language."""
_MAYBE_CODE = re.compile(r"[a-z]{3}|[a-z]{2,3}[-_][\w-]+")
"""Codes of data that are no known ones: ISO 639-3 gets new ones every year, and corpora add their
own subtags.
"""
_REMEDY = "write its code (ISO 639), or x-NAME for a language without one"


_OTHER_NAMES = {
    "mboshi": "mdw",
    "embosi": "mdw",
    "castellano": "es",
    "tikuna": "tca",
    "shipibo": "shp",
}
"""Names in use that the data of Unicode lack → code."""


def find_language(text: str) -> str:
    """The code of a language that is given by its code, which stays as it is, or by a name.

    Only whole names count, first those in English: Malayo is another language in Spanish.
    Raises ValueError for anything else, and for a name that is the code of another language: `Ga`.
    """
    import langcodes  # takes 50 ms with its data

    text = normalize_phones(text)
    named = _find_name(text)
    if not langcodes.tag_is_valid(text):
        if named is None:
            similar = list_names(
                [f"{name} ({code})" for name, code in suggest_languages(text, 3).items()]
            )
            found = f"no known code or name of a language{f', similar are {similar}' if similar else ''}"
            raise ValueError(f"{text!r} is {found}; {_REMEDY}")
        return named
    if named and text.istitle() and named != langcodes.standardize_tag(text):
        of_code = langcodes.Language.get(text).display_name()
        raise ValueError(
            f"{text!r} is a name of {named} and the code of {of_code}; write {named} or {text.lower()}"
        )
    return text


def _find_name(name: str) -> str | None:
    """The code of a name.

    `langcodes.find` also takes beginnings of names: Bininj Gun-Wok is not Bini.
    """
    from language_data.names import get_trie_value, load_trie, normalize_name  # type: ignore[import-untyped]
    from language_data.util import data_filename  # type: ignore[import-untyped]

    key = normalize_name(name)
    tries = (load_trie(data_filename(f"trie/{of}/name_to_language.marisa")) for of in ("en", "und"))
    return next(
        (str(get_trie_value(trie, key)) for trie in tries if key in trie), _OTHER_NAMES.get(key)
    )


def suggest_languages(text: str, most: int = 12) -> dict[str, str]:
    """English names that begin with a text, are spelt similarly or contain it, the most similar
    first → code.
    """
    import langcodes
    from language_data.names import get_trie_value, load_trie, normalize_name
    from language_data.util import data_filename

    trie, key = load_trie(data_filename("trie/en/name_to_language.marisa")), normalize_name(text)
    if len(key) < 2:
        return {}
    names = trie.keys()
    found = [name for name in _OTHER_NAMES if name.startswith(key)] + sorted(
        trie.keys(key), key=len
    )
    found += difflib.get_close_matches(key, names, 3, 0.8)
    found += [name for name in names if f" {key}" in name]
    shown = dict[str, str]()
    for name in found:
        code = _OTHER_NAMES.get(name) or str(get_trie_value(trie, name))
        shown.setdefault(
            name.title() if name in _OTHER_NAMES else langcodes.get(code).display_name(), code
        )
    return dict([*shown.items()][:most])


def describe_language(code: str) -> str:
    """Its English name and the code, as `Spanish, es`; only the code if it has no name."""
    import langcodes

    name = langcodes.get(code).display_name()
    return code if "[" in name else f"{name}, {code}"  # Unknown language [x-abc]


def resolve_languages(written: Sequence[tuple[str | None, str]], given: str) -> list[str]:
    """The code of each entry's language: that which the data name, or else `given`.

    All names and codes of one language become one code: `given` if it is one, or else the first
    that is found. What was replaced is printed, and which languages of the data are not `given`.

    Args:
        written: the language as the data have it, and where.
        given: --lang.
    Raises ConfigError for `given`, and DataError for languages of the data, that are neither code
        nor name.
    """
    try:
        usual = find_language(given)
    except ValueError as error:
        raise ConfigError("--lang", str(error)) from None
    where = {value: place for value, place in reversed(written) if value}
    spelling, codes = {_standard(usual): usual}, {given: usual}
    for value in dict.fromkeys(value for value, _ in written if value):
        code = _language_of(value, where[value])
        codes[value] = spelling.setdefault(_standard(code), code)
    if replaced := [f"{value!r} is {code}" for value, code in codes.items() if value != code]:
        logger.info("languages: %s", list_names(replaced, most=8))
    resolved = [codes[value or given] for value, _ in written]
    others = Counter(code for code in resolved if code != usual)
    if others and usual != UNDETERMINED:
        named = list_names([f"{code} ({num})" for code, num in others.most_common()])
        found = f"the data name another language: {named}, which counts"
        logger.warning("--lang %s: %s; correct the data if that is wrong", usual, found)
    return resolved


def _language_of(value: str, where: str) -> str:
    try:
        return find_language(value)
    except ValueError as error:
        if not _MAYBE_CODE.fullmatch(value):
            raise DataError(
                where, f"language: {error}", 'or leave it out (of a table: --columns "lang=")'
            ) from None
        logger.warning("%s: %r is no known code of a language; it is kept, check it", where, value)
        return value


def _standard(code: str) -> str:
    """One form of the codes of a language: `tr` of TR and tur."""
    import langcodes

    try:
        return langcodes.standardize_tag(code)
    except ValueError:  # a code that only the data have
        return code.casefold()
