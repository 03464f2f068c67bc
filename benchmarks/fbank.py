# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features: our torch operations against torchaudio's.

Milliseconds per second of audio, and how many times faster ours are: the median over the rounds, in which the sides
alternate. Both sides compute the same bits, which every run checks.

Example: python benchmarks/fbank.py --threads 1 --out benchmarks/notes/fbank_cpu
"""

import torch
from paired import Facts, alternate, body_of, make_parser, medians_ms, number, publish, ratios
from torch import Tensor
from torchaudio.compliance import kaldi

from wenet_hs.frontends import Fbank
from wenet_hs.score.tables import markdown_table


def torchaudio_fbank(wave_N: Tensor, dither: float, seed: int) -> Tensor:
    """WeNet's call, with dither from the global generator."""
    torch.manual_seed(seed)
    scaled_1N = wave_N[None] * 32768
    features: Tensor = kaldi.fbank(scaled_1N, num_mel_bins=80, dither=dither, energy_floor=0.0)
    return features


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=21)
    parser.add_argument("--seconds", type=int, nargs="+", default=[1, 4, 15], help="lengths of the audio")
    args = parser.parse_args()
    if args.device != "cpu":
        parser.error("--device: torchaudio's fbank is compared on a CPU only")
    torch.set_num_threads(args.threads)
    rows, records = list[list[str]](), list[Facts]()
    for seconds in args.seconds:
        wave_N = 0.1 * torch.randn(16000 * seconds, generator=torch.Generator().manual_seed(seconds))
        for dither in (0.0, 0.1):
            fbank = Fbank(dither=dither)
            sides = {
                "ours": lambda fbank=fbank, wave_N=wave_N: fbank.compute(wave_N, torch.Generator().manual_seed(1)),
                "torchaudio": lambda dither=dither, wave_N=wave_N: torchaudio_fbank(wave_N, dither, 1),
            }
            assert torch.equal(sides["ours"](), sides["torchaudio"]()), "the features differ"
            times = alternate(sides, args.rounds, seconds=0.05)
            ms, faster = medians_ms(times), ratios(times, "torchaudio")["ours"]
            records.append({"seconds": seconds, "dither": dither, "ms": ms, "faster": faster})
            per_second = (ms[name] / seconds for name in ("ours", "torchaudio"))
            rows.append([str(seconds), f"{dither:g}", *(f"{one:.3f}" for one in per_second), f"{number(faster)}×"])
    table = markdown_table(["audio, s", "dither", "ours, ms/s", "torchaudio, ms/s", "ours, faster by"], rows)
    text = f"{body_of(__doc__)}\n\n{table}"
    publish("Log-Mel features against torchaudio", text, {"records": records}, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
