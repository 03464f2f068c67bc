# SPDX-License-Identifier: Apache-2.0
"""What the rooms above need of the system around them: options, packages, files and processes.

`options` makes flags of a command from dataclasses, and `extensions` finds the names that other
installed packages add to ours.
`files` reads text files and JSON in all their forms, caches what was read, and locks folders.
`jobs` starts commands that go on without their parent, by way of `job_process`, and reads their
state from the disk.
"""
