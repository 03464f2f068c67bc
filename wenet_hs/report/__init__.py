# SPDX-License-Identifier: Apache-2.0
"""One HTML page about one or more experiments, and the other forms of their results.

To build the page (`page`), the variables of each section are computed (`verdict`, `error_rates`,
`utterances`, `confusions`, `speed`, `sections`), with records as tables (`page_table`) and SVG as
charts (`plots`, `curve_charts`), and inserted into the templates (`render`). The page of
`wenet-hs check` is built in the same way (`check_page`). The error rates of a page are also written
as plain text (`summary`), and those of a study over seeds as Markdown with a chart (`tables`,
`study_chart`).
"""
