# SPDX-License-Identifier: Apache-2.0
"""The words of the option `--prepare` of examples/own, split as xargs splits them."""

import shlex


def split_words(text: str) -> list[str]:
    """The words of a text with quotes and backslashes.

    Raises ValueError for a quote without an end.
    As in xargs, and unlike in a shell: a backslash in quotes is an ordinary character, and `#`
    begins no comment.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace = " \t\n"
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escapedquotes = ""
    return list(lexer)


def has_open_quote(text: str) -> bool:
    """Whether a quote has no end."""
    try:
        split_words(text)
    except ValueError:
        return True
    return False
