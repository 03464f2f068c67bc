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
hours=9                       # of speech over all languages, about 7.5 for training
tables="table4 table4_bpe table5"  # folders of results/
seeds="1 2 3"                 # of the trainings
# shellcheck source=tools/grid.sh
. "$here/../../../tools/grid.sh"

declare -A langs=([romance]="ca es fr it pt" [slavic]="be cs pl ru uk" [turkic]="ba ky tr tt uz")
langs[all]="${langs[*]}"
options_of() {  # GROUP: its languages and folders, and the two parts of a training: CTC alone, once per seed; then each head
  local first=2000 second=1600 guide=1000  # a compromise between dev error and cost (design 0009)
  [ "$1" != all ] || first=3000 second=2400 guide=1600
  echo "--langs '${langs[$1]}' --data '$here/data-$1' --exp '$here/exp-$1'" \
    "--base_override 'model_conf.ctc_only_steps=$first scheduler_conf.total_steps=$first'" \
    "--override 'model_conf.ctc_only_steps=0 model_conf.attention_guide_steps=$guide scheduler_conf.total_steps=$second'"
}

cells() {
  local family of
  for family in romance slavic turkic; do
    of=$(options_of "$family")
    case $table in
      table4)
        cell "softmax-mini-$family" 3 "$of" --head softmax
        cell "hsoftmax-mini-$family" 3 "$of" --head hsoftmax
        cell "hsoftmax-brown-mini-$family" 3 "$of" --head hsoftmax --tree brown
        ;;
      table4_bpe)
        cell "softmax-bpe_500-mini-$family" 3 "$of" --head softmax --unit bpe:500
        cell "hsoftmax-bpe_500-mini-$family" 3 "$of" --head hsoftmax --unit bpe:500
        ;;
    esac
  done
  [ "$table" = table5 ] || return 0
  cell softmax-mini-all 3 "$(options_of all)" --head softmax
  cell hsoftmax-mini-all 3 "$(options_of all)" --head hsoftmax
}

prepare_table() {
  local group groups="romance slavic turkic" unit=char units=units.txt options
  [ -f "$here/simulated-$hours/stats.json" ] || wenet-hs prepare synthetic --langs "${langs[all]}" \
    --sentences "$sentences" --hours "$hours" --statistics "$statistics" --out "$here/simulated-$hours"
  [ "$table" != table5 ] || groups=all
  [ "$table" != table4_bpe ] || unit=bpe:500 units=units-bpe_500.txt
  for group in $groups; do
    options=(); eval "options=($(options_of "$group"))"
    prepare "data-$group/$units" 3 --unit "$unit" "${options[@]}"
  done
}

# The hours of the languages are already downsampled as in the paper, so the recipe takes all of them.
shared=(--corpus "$here/simulated-$hours/corpus" --alpha 1 --ratio 1 --config "$here/../../../conf/mini.yaml" --average_num 3
  --modes "ctc_greedy_search joint attention_rescoring")
run_tables
