#!/usr/bin/env bash
# Tables 4, 5 and 6 of Liu et al. (2023) on SIMULATED speech: espeak-ng speaks sentences of Common Voice in 15 languages.
#   ./grid.sh --sentences DIR --statistics cv-corpus-11.0-2022-09-21.json     all tables; run it again to go on
#   ./grid.sh … --tables table5 --minutes 150          one table; starts no training after 150 minutes
#   ./grid.sh --list true                              only lists the trainings that are to do
# DIR has one LANG.txt per language. A training has results if results/TABLE/SYSTEM-seedN.json exists.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sentences=                    # folder with one LANG.txt per language, one sentence per line
statistics=                   # official statistics of a Common Voice release (JSON): the languages' shares of the hours
hours=7.5                     # of training speech, over all languages
tables="table4 table4_bpe table5"  # folders of results/
# shellcheck source=tools/grid.sh
. "$here/../../../tools/grid.sh"

declare -A langs=([romance]="ca es fr it pt" [slavic]="be cs pl ru uk" [turkic]="ba ky tr tt uz")
langs[all]="${langs[*]}"

cells() {  # seed by seed, so that every system has the first seeds early
  local seed family of
  for seed in 1 2 3; do
    for family in romance slavic turkic; do
      of="--data data-$family --exp exp-$family"
      cell table4 "softmax-mini-$family" 3 "$of" --head softmax
      cell table4 "hsoftmax-mini-$family" 3 "$of" --head hsoftmax
      cell table4 "hsoftmax-brown-mini-$family" 3 "$of" --head hsoftmax --tree brown
      cell table4_bpe "softmax-bpe_500-mini-$family" 3 "$of" --head softmax --unit bpe:500
      cell table4_bpe "hsoftmax-bpe_500-mini-$family" 3 "$of" --head hsoftmax --unit bpe:500
    done
    of="--data data-all --exp exp-all"
    cell table5 softmax-mini-all 3 "$of" --head softmax
    cell table5 hsoftmax-mini-all 3 "$of" --head hsoftmax
  done
}

if [ "$list" = true ]; then cells; exit; fi
[ -f "$here/simulated/stats.json" ] || wenet-hs prepare synthetic --langs "${langs[all]}" --sentences "$sentences" \
  --hours "$hours" --statistics "$statistics" --out "$here/simulated"
release=(--corpus "$here/simulated/corpus" --ratio 1 --config "$here/../../../conf/mini.yaml" --average_num 3)
for family in romance slavic turkic all; do
  for unit in char bpe:500; do
    "$here/run.sh" "${release[@]}" --langs "${langs[$family]}" --data "$here/data-$family" --unit "$unit" --stop_stage 3
  done
done
run_cells "${release[@]}" --modes "ctc_greedy_search attention joint attention_rescoring"
