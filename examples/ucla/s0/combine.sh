#!/usr/bin/env bash
# Several trainings as one system: the n-best lists of their seeds, combined by expected errors (chosen on the languages
# wuu cpn ell col eus). It needs the experiments of ./grid.sh and writes results/combined.md.
#   ./combine.sh                                       both heads, seed by seed 1 to 5, with and without simulated words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
seeds="1 2 3 4 5"             # of the trainings
mode=joint                    # whose n-best lists are combined
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"
PATH="$here/../../../.venv/bin:$PATH"
cd "$here"

score() {  # NAME EXPERIMENT…
  local out=exp/combined/${1//[^a-z0-9]/_} nbest=() experiment seed
  for experiment in "${@:2}"; do for seed in $seeds; do nbest+=("exp/$experiment-seed$seed/test/$mode"); done; done
  wenet-hs combine --nbest "${nbest[@]}" --by expected_errors --out "$out" > /dev/null
  wenet-hs score --metric per --by lang --ref data/test/text --hyp "$out/text" --data_list data/test/data.list \
    --name "$1: ${#nbest[@]} lists of seeds $seeds" --json "$out/score.json"
}

{
  printf '# N-best lists of several trainings, combined\n\n    ./combine.sh --seeds "%s" --mode %s\n\n```text\n' "$seeds" "$mode"
  score "softmax, real" softmax
  score "H-Softmax, real" hsoftmax
  score "softmax and H-Softmax, real" softmax hsoftmax
  score "softmax, real + simulated" softmax-simulated-14
  score "H-Softmax, real + simulated" hsoftmax-simulated-14
  score "softmax and H-Softmax, real + simulated" softmax-simulated-14 hsoftmax-simulated-14
  echo '```'
} > results/combined.md.tmp
mv results/combined.md.tmp results/combined.md
