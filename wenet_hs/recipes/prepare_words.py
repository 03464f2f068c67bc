# SPDX-License-Identifier: Apache-2.0
"""The arguments in the text of the option `--prepare` of examples/own, split as xargs does."""

import shlex


def split_words(text: str) -> list[str]:
    """The words of a text, in which quotes and backslashes protect spaces.

    Example: `--tier 'my tier' a\\ b` has the words `--tier`, `my tier` and `a b`. As in xargs, and
    unlike in a shell, a backslash in quotes is an ordinary character, and `#` begins no comment.

    Raises ValueError for a quote without an end, or a backslash with nothing after it.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace = " \t\n"
    lexer.whitespace_split = True  # all characters but spaces and quotes belong to a word
    lexer.commenters = ""  # no character begins a comment
    lexer.escapedquotes = ""  # in no kind of quotes a backslash protects the next character
    return list(lexer)


def has_open_quote(text: str) -> bool:
    """Whether the text has a quote without an end, or a backslash with nothing after it."""
    try:
        split_words(text)
    except ValueError:
        return True
    return False
