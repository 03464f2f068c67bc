# SPDX-License-Identifier: Apache-2.0
"""The local page of `wenet-hs app`. Its design is in docs/design/0019-app.md.

A server on this computer passes each request through a guard (`server`, `guard`) to the handler of
its address, which reads the form and the files of the project that it may read (`places`,
`projects`, `lists`, `results`).
The handlers of forms make a command from the fields and start it as a job of the project
(`commands`, `job_details`, `expected_times`, `pages`); a few write a small file themselves.
The other handlers show pages or send files, in the order of a user's work: recordings and their
check (`data_views`, `media_views`), training and results (`train_views`, `job_views`),
transcripts and their correction (`transcript_views`), models to share (`share_views`).
"""
