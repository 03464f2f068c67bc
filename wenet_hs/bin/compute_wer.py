# SPDX-License-Identifier: Apache-2.0
"""Scorer with the command line and output of WeNet's compute-wer.py.

Example: wenet-hs compute-wer --char=0 --v=1 data/test/text exp/test/attention_rescoring/text

The numbers are those of `wenet-hs score`.

The same as `wenet-hs compute-cer`, but its units are words unless --char=1 is given.
"""

from wenet_hs.bin.compute_cer import add_arguments, run
from wenet_hs.bin.main import main_of

__all__ = ["add_arguments", "run"]

if __name__ == "__main__":
    main_of(__name__)
