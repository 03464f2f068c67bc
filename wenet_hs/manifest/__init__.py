# SPDX-License-Identifier: Apache-2.0
"""Lists of utterances and texts, and the forms of text files that users bring.

`data_list` reads and writes `data.list` and `text`, reads plain text, and names each fault of a
line.
`file_forms` has the table of known forms of annotations and transcripts, by which every command
says what an unexpected file is and what to do with it.
`nist` recognises CTM and STM, whose lines may look like text.
"""
