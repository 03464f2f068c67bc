# SPDX-License-Identifier: Apache-2.0
"""Languages as data and `--lang` name them: codes of BCP 47, and names in many languages.

`resolve_languages` gives one code per entry of the data, and one code per language.
"""

import difflib
import logging
import re
from collections import Counter
from collections.abc import Sequence

from wenet_hs.text.normalize import normalize_spelling
from wenet_hs.tree.errors import ConfigError, DataError, list_names

logger = logging.getLogger(__name__)

UNDETERMINED = "und"
"""ISO 639-2 code of an undetermined language."""
_MAYBE_CODE = re.compile(r"[a-z]{3}|[a-z]{2,3}[-_][\w-]+")
"""What may be a code though it is not known: ISO 639-3 gets new ones every year, and corpora add
their own subtags.
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


# ---- languages of data


def resolve_languages(written: Sequence[tuple[str | None, str]], given: str) -> list[str]:
    """The code of each entry's language: the one that the data name, or else that of --lang.

    All names and codes of one language become one code. If --lang is that language, it is the code
    of --lang, otherwise the first code in the data. Names and codes that were replaced are logged.
    Entries in another language than --lang get a warning, unless --lang is undetermined.

    Args:
        written: of each entry, the language as the data have it (None or empty: none), and the
            place where it stands.
        given: the value of --lang.
    Raises ConfigError if --lang is neither a code nor a name of a language, and DataError if a
        language of the data cannot be one.
    """
    try:
        usual = find_language(given)
    except ValueError as error:
        raise ConfigError("--lang", str(error)) from None
    first_place_of_value = dict[str, str]()
    for value, where in written:
        if value:
            first_place_of_value.setdefault(value, where)
    # The standard code of a language → the code of it that was found first, which is used.
    first_code_of_standard = {_standardize(usual): usual}
    code_of_value = {given: usual}
    for value, where in first_place_of_value.items():
        code = _find_language_of_data(value, where)
        standard = _standardize(code)
        if standard not in first_code_of_standard:
            first_code_of_standard[standard] = code
        code_of_value[value] = first_code_of_standard[standard]
    replaced = [f"{value!r} is {code}" for value, code in code_of_value.items() if value != code]
    if replaced:
        logger.info("languages: %s", list_names(replaced, most=8))
    resolved = [code_of_value[value or given] for value, _ in written]
    if usual != UNDETERMINED:
        _warn_of_others(resolved, usual)
    return resolved


def _find_language_of_data(value: str, where: str) -> str:
    """The code of a language as the data have it.

    An unknown value that has the form of a code is kept, with a warning. Raises DataError for any
    other unknown value, with its place `where`.
    """
    try:
        return find_language(value)
    except ValueError as error:
        if not _MAYBE_CODE.fullmatch(value):
            to_do = 'or leave it out (of a table: --columns "lang=")'
            raise DataError(where, f"language: {error}", to_do) from None
        logger.warning("%s: %r is no known code of a language; it is kept, check it", where, value)
        return value


def _standardize(code: str) -> str:
    """One code for all codes of a language: `tr` for TR and tur.

    A code that is not valid, which only the data have, is returned in lower case.
    """
    import langcodes  # takes 50 ms with its data

    try:
        return langcodes.standardize_tag(code)
    except ValueError:
        return code.casefold()


def _warn_of_others(codes: Sequence[str], usual: str) -> None:
    """Log a warning if entries have another language than --lang, with their numbers."""
    others = Counter(code for code in codes if code != usual)
    if others:
        listed = list_names([f"{code} ({num})" for code, num in others.most_common()])
        found = f"the data name another language: {listed}, which counts"
        logger.warning("--lang %s: %s; correct the data if that is wrong", usual, found)


# ---- codes and names


def find_language(text: str) -> str:
    """The code of a language that is given by its code, which stays as it is, or by a name.

    Only whole names count. English names are tried first, because Malayo, for example, is another
    language in Spanish.

    Raises ValueError for any other text. Also for a text such as `Ga`, which is a name of one
    language and the code of another one, and is written with a capital letter as names are.
    """
    import langcodes  # takes 50 ms with its data

    text = normalize_spelling(text)
    code_of_name = _find_name(text)
    if not langcodes.tag_is_valid(text):
        if code_of_name is None:
            raise ValueError(f"{text!r} is {_describe_unknown(text)}; {_REMEDY}")
        return code_of_name
    # The text is a code, and may be a name too.
    is_written_as_name = code_of_name is not None and text.istitle()
    if is_written_as_name and code_of_name != langcodes.standardize_tag(text):
        language_of_code = langcodes.Language.get(text).display_name()
        raise ValueError(
            f"{text!r} is a name of {code_of_name} and the code of {language_of_code}; "
            f"write {code_of_name} or {text.lower()}"
        )
    return text


def _describe_unknown(text: str) -> str:
    """What is wrong with a text that is no language, with languages of similar names."""
    found = "no known code or name of a language"
    similar = [f"{name} ({code})" for name, code in suggest_languages(text, 3).items()]
    return f"{found}, similar are {list_names(similar)}" if similar else found


def _find_name(name: str) -> str | None:
    """The code of a language by its whole name, first in English, then in any language, or None.

    `langcodes.find` is not used because it also accepts beginnings: Bininj Gun-Wok would be Bini.
    """
    from language_data.names import get_trie_value, load_trie, normalize_name  # type: ignore[import-untyped]
    from language_data.util import data_filename  # type: ignore[import-untyped]

    key = normalize_name(name)
    for name_language in ("en", "und"):  # und: names in all languages
        trie = load_trie(data_filename(f"trie/{name_language}/name_to_language.marisa"))
        if key in trie:
            return str(get_trie_value(trie, key))
    return _OTHER_NAMES.get(key)


def suggest_languages(text: str, most: int = 12) -> dict[str, str]:
    """Names of languages that are similar to a text → their codes; at most `most`, in English.

    First are names that begin with the text, then names that are spelt similarly, then names with a
    later word that begins with it. The result is empty for a text of fewer than two letters.
    """
    import langcodes
    from language_data.names import get_trie_value, load_trie, normalize_name
    from language_data.util import data_filename

    trie = load_trie(data_filename("trie/en/name_to_language.marisa"))
    key = normalize_name(text)
    if len(key) < 2:
        return {}
    all_names = trie.keys()
    # Names of `_OTHER_NAMES` and of the trie, the English names of the data of Unicode.
    names = [name for name in _OTHER_NAMES if name.startswith(key)]
    names += sorted(trie.keys(key), key=len)  # those that begin with `key`
    names += difflib.get_close_matches(key, all_names, n=3, cutoff=0.8)
    names += [name for name in all_names if f" {key}" in name]
    suggested = dict[str, str]()
    for name in names:
        if name in _OTHER_NAMES:
            code = _OTHER_NAMES[name]
            shown_name = name.title()
        else:
            code = str(get_trie_value(trie, name))
            shown_name = langcodes.get(code).display_name()  # the usual one of its English names
        suggested.setdefault(shown_name, code)
    first_names = list(suggested)[:most]
    return {name: suggested[name] for name in first_names}


def describe_language(code: str) -> str:
    """The English name and the code of a language: `Spanish, es`; only the code if it has no name."""
    import langcodes

    name = langcodes.get(code).display_name()
    is_unknown = "[" in name  # as in `Unknown language [x-abc]`
    return code if is_unknown else f"{name}, {code}"
