#!/usr/bin/env bash
# Several trainings as one system: the n-best lists of their seeds, combined by expected errors (chosen on the languages
# wuu cpn ell col eus). It needs the experiments of ./grid.sh and writes results/combinedSUFFIX.md.
#   ./combine.sh                                       table3: real speech
#   ./combine.sh --suffix -simulated-14                table3_pretrained: real + simulated
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
seeds="1 2 3"                 # of the trainings
mode=joint                    # whose n-best lists are combined
suffix=                       # of the names of the systems
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"
PATH="$here/../../../.venv/bin:$PATH"
cd "$here"

score() {  # SYSTEM…
  local out="exp/combined/$*$suffix" nbest=() system seed
  out=${out// /-}
  for system in "$@"; do for seed in $seeds; do nbest+=("exp/$system$suffix-seed$seed/test/$mode"); done; done
  wenet-hs combine --nbest "${nbest[@]}" --by expected_errors --out "$out" > /dev/null
  wenet-hs score --metric per --by lang --ref data/test/text --hyp "$out/text" --data_list data/test/data.list \
    --name "$*: ${#nbest[@]} lists of seeds $seeds" --json "$out/score.json"
}

out=results/combined$suffix.md
speech=real; [ -z "$suffix" ] || speech="real + simulated"
{
  printf '# N-best lists of several trainings, combined (%s)\n\n' "$speech"
  printf '    ./combine.sh --seeds "%s" --mode %s --suffix "%s"\n\n```text\n' "$seeds" "$mode" "$suffix"
  score softmax
  score hsoftmax
  score softmax hsoftmax
  echo '```'
} > "$out.tmp"
mv "$out.tmp" "$out"
