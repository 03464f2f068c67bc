# SPDX-License-Identifier: Apache-2.0
"""How often does a descent through the tree find the most probable unit?

The p-tHSM paper (Jiang et al. 2017, section 3.2) descends from the root to the more probable child.
A beam of K keeps the K most probable nodes of each level. Both are compared with the exact search
on the states of a trained language model: the share of states with the most probable unit, and the
mean difference of the log-probabilities.

Example: python benchmarks/greedy_descent.py --model_dir exp/hsoftmax-huffman-seed1 --text wiki.valid.txt \\
             --out benchmarks/notes/greedy_descent
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from paired import publish
from torch import Tensor

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.lm.loader import load_lm
from wenet_hs.lm.score import head_inputs
from wenet_hs.lm.text import read_running_text
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree.errors import ConfigError

BEAMS = (1, 2, 4, 8, 16)


def beam_descent(head: HSoftmaxHead, hidden_ND: Tensor, beam: int) -> tuple[Tensor, Tensor]:
    """Log-probability (N,) and unit (N,) of the best leaf that a beam over the levels of the tree
    finds.

    A leaf stays in the beam with its score while other nodes are extended. With a beam of 1 this is
    the greedy descent.
    """
    num_inner = head.num_units - 1
    scores_NI = F.linear(hidden_ND, head.inner_vector.weight, head.inner_vector.bias)
    nodes_NK = torch.zeros(len(hidden_ND), 1, dtype=torch.long)  # the root
    values_NK = torch.zeros(len(hidden_ND), 1)
    children_I2 = head.node_children.long()
    while bool((nodes_NK < num_inner).any()):
        is_inner_NK = nodes_NK < num_inner
        inner_NK = torch.where(is_inner_NK, nodes_NK, 0)
        z_NK = scores_NI.gather(1, inner_NK)
        turns = torch.stack([F.logsigmoid(z_NK), F.logsigmoid(-z_NK)], dim=-1)
        longer_NK2 = torch.where(is_inner_NK[..., None], values_NK[..., None] + turns, -torch.inf)
        kept_NK = torch.where(is_inner_NK, -torch.inf, values_NK)
        values = torch.cat([longer_NK2.flatten(1), kept_NK], dim=1)
        nodes = torch.cat([children_I2[inner_NK].flatten(1), nodes_NK], dim=1)
        values_NK, order_NK = values.topk(min(beam, values.size(1)), dim=1)
        nodes_NK = nodes.gather(1, order_NK)
        nodes_NK = torch.where(values_NK.isneginf(), num_inner, nodes_NK)
    best_N = values_NK.argmax(1, keepdim=True)
    return values_NK.gather(1, best_N)[:, 0], nodes_NK.gather(1, best_N)[:, 0] - num_inner


@torch.no_grad()
def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--model_dir",
        type=Path,
        nargs="+",
        required=True,
        help="folders of language models with a tree",
    )
    add("--text", type=Path, required=True, help="text whose states are used")
    add("--states", type=int, default=20_000, help="number of states (default: %(default)s)")
    add("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args()
    rows, facts = [], {}
    for model_dir in args.model_dir:
        found = load_lm(model_dir)
        head = found.model.head
        if not isinstance(head, HSoftmaxHead):
            raise ConfigError(f"{model_dir}: has no tree; give a model with head: hsoftmax")
        text = read_running_text(
            [args.text], found.tokenizer, keep_empty_lines=found.config.text_conf.keep_empty_lines
        )
        state, done = found.model.start(1), 0
        shares = dict.fromkeys(BEAMS, 0.0)
        losses = dict.fromkeys(BEAMS, 0.0)
        for batch in text.batches(1, 200):
            hidden_ND, _, state = head_inputs(found.model, batch, state)
            exact_N, units_N = (part[:, 0] for part in head.topk(hidden_ND, 1))
            for beam in BEAMS:
                value_N, unit_N = beam_descent(head, hidden_ND, beam)
                shares[beam] += float((unit_N == units_N).sum())
                losses[beam] += float((exact_N - value_N).sum())
            done += len(hidden_ND)
            if done >= args.states:
                break
        name = model_dir.name
        facts[name] = {
            beam: {"share": shares[beam] / done, "nats": losses[beam] / done} for beam in BEAMS
        }
        rows.append(
            [
                name,
                *(
                    f"{100 * shares[beam] / done:.1f} % ({losses[beam] / done:.3f})"
                    for beam in BEAMS
                ),
            ]
        )
    header = ["model", "greedy", *(f"beam {beam}" for beam in BEAMS[1:])]
    table = markdown_table(header, rows)
    text_of_note = (
        f"States in {args.text.name}, the first {args.states:,} or a few more: share in which the descent finds "
        f"the most probable unit, and in brackets the mean loss in nats. The exact search finds it in all.\n\n{table}"
    )
    publish("Greedy descent against exact search", text_of_note, facts, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
