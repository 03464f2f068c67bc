# SPDX-License-Identifier: Apache-2.0
"""Record what the program does for small cases, and compare it with an earlier record bit for bit.

    python tests/equal/run.py record --out DIR
    python tests/equal/run.py compare --before DIR
    python tests/equal/run.py against COMMIT

The program is the `wenet_hs` that Python imports; PYTHONPATH chooses another checkout. `against`
records COMMIT from a temporary worktree, and then this checkout. README.md beside this file
explains cases and reasons.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from process_environment import prepare_environment

if __name__ == "__main__":
    prepare_environment()  # before anything imports PyTorch

from comparing import compare_records
from recording import choose_cases, record_cases
from records import check_same_processor, current_header, read_header
from scratch import scratch_folder
from worktrees import record_checkout, record_commit


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the three commands. Returns 1 if a difference has no reason, otherwise 0."""
    args = _make_parser().parse_args(argv)
    names = choose_cases(args.only, args.skip)
    if args.command == "record":
        record_cases(args.out, names, args.jobs)
        return 0
    if args.command == "compare":
        return _compare(args, names)
    return _compare_with_commit(args, names)


def _compare(args: argparse.Namespace, names: Sequence[str]) -> int:
    """Run the recorded cases again, unless `--after` has them, and compare."""
    before = read_header(args.before)
    check_same_processor(before, current_header([]), args.before)
    recorded = [name for name in names if name in before.cases]
    for name in names:
        if name not in recorded:
            print(f"warning: {args.before} has no case {name}, which is not compared")
    if args.after is not None:
        return compare_records(args.before, args.after, recorded)
    with scratch_folder() as scratch:
        now = scratch / "now"
        record_cases(now, recorded, args.jobs)
        return compare_records(args.before, now, recorded)


def _compare_with_commit(args: argparse.Namespace, names: Sequence[str]) -> int:
    """Record the commit and this checkout, each in a process of its own, and compare."""
    out = args.out or Path(tempfile.mkdtemp(prefix="equal-"))
    before = out / "before"
    now = out / "now"
    record_commit(args.commit, before, names, args.jobs)
    record_checkout(now, names, args.jobs)
    print(f"both records are in {out}")
    return compare_records(before, now, names)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--only", nargs="+", default=[], metavar="CASE", help="run these cases")
    common.add_argument("--skip", nargs="+", default=[], metavar="CASE", help="leave these out")
    jobs_help = "cases that run at the same time (default: 2)"
    common.add_argument("--jobs", type=int, default=2, help=jobs_help)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", parents=[common], help="run all cases")
    record.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder")
    compare = commands.add_parser("compare", parents=[common], help="run them again and compare")
    compare.add_argument("--before", type=Path, required=True, metavar="DIR", help="a record")
    after_help = "a second record, instead of running the cases"
    compare.add_argument("--after", type=Path, metavar="DIR", help=after_help)
    against = commands.add_parser("against", parents=[common], help="compare with a commit")
    against.add_argument("commit", metavar="COMMIT")
    out_help = "folder for both records (default: a temporary one, which stays)"
    against.add_argument("--out", type=Path, metavar="DIR", help=out_help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
