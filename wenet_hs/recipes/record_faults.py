# SPDX-License-Identifier: Apache-2.0
"""The text of a fault in a JSON record that a recipe has written."""

from pydantic import ValidationError


def describe_first_fault(error: ValidationError) -> str:
    """The first fault of a record, as `key: what is wrong`.

    The key is dotted, as in `chunk.left_chunks`; `content` stands for the record itself, which is
    no JSON object then.
    """
    fault = error.errors(include_url=False)[0]
    key = ".".join(map(str, fault["loc"])) or "content"
    return f"{key}: {fault['msg']}"
