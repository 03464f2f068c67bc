#!/usr/bin/env bash
# The study of the UCLA corpus: one training per line and seed, and the tables made from them in RESULTS.md.
#   ./grid.sh --corpus /data/ucla                      all tables; run it again to go on, trainings with results are skipped
#   ./grid.sh --corpus /data/ucla --tables table3      one table
#   ./grid.sh --corpus /data/ucla --minutes 150        starts no training after 150 minutes
#   ./grid.sh --corpus /data/ucla --systems ctc        only systems whose name has "ctc"
#   ./grid.sh --list true                              only lists the trainings that are to do
# A training has results if results/TABLE/SYSTEM-seedN.json exists. The tables of known inventories decode the models of
# table3_ctc and table3_pretrained again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=                       # one folder for each language: text.txt, audio/
tables="table3 table3_curves table3_ctc table3_pretrained table3_inventory table3_inventory_placed"  # folders of results/
seeds="1 2 3 4 5"             # of the trainings; some systems have only the first three
# shellcheck source=tools/grid.sh
. "$here/../../../tools/grid.sh"

declare -A options=([softmax]="--head softmax" [class]="--head class" [hsoftmax]="--head hsoftmax"
  [hsoftmax-per_language]="--head hsoftmax --weighting per_language"
  [hsoftmax-ctc_hsoftmax]="--head hsoftmax --ctc_head hsoftmax"
  [hsoftmax-random-ctc_hsoftmax]="--head hsoftmax --tree random --ctc_head hsoftmax")
for tree in random permuted brown embedding articulatory; do options[hsoftmax-$tree]="--head hsoftmax --tree $tree"; done
main="softmax hsoftmax hsoftmax-random"
others="hsoftmax-per_language hsoftmax-permuted hsoftmax-brown hsoftmax-embedding hsoftmax-articulatory class"
ctc="hsoftmax-ctc_hsoftmax"      # has first models of its own, like the next one
random_ctc="hsoftmax-random-ctc_hsoftmax"
simulated="--pretrain 14"
relatives="--pretrain 14 --exclude_langs 'ml ar fi'"  # only the voices of the test languages themselves are left out
shared=(--corpus "$corpus" --modes "ctc_greedy_search attention joint attention_rescoring")

systems() {  # "SYSTEM…" SEEDS SUFFIX OPTION…
  local _system
  for _system in $1; do cell "$_system$3" "$2" "${options[$_system]}" "${@:4}"; done
}

cells() {
  local share known="--stage 6 --inventory '$here/data/inventory.tsv'"
  case $table in
    table3) systems "$main" 5 ""; systems "$others" 3 "" ;;
    table3_pretrained)
      systems "$main" 5 -simulated-14 "$simulated"
      systems "$others $ctc" 3 -simulated-14 "$simulated"
      systems softmax 3 -simulated-14-ml_ar_fi "$relatives"
      ;;
    table3_curves) for share in 0.25 0.5; do systems "$main hsoftmax-articulatory" 3 "-$share" --train_share "$share"; done ;;
    table3_ctc) systems "softmax hsoftmax $ctc $random_ctc" 3 "" ;;
    table3_inventory | table3_inventory_placed)
      [ "$table" = table3_inventory ] || known+=" --place_unseen articulatory"
      systems "softmax hsoftmax $ctc" 3 "" "$known"
      systems "$main hsoftmax-articulatory $ctc" 3 -simulated-14 "$simulated" "$known"
      ;;
  esac
}

prepare_table() {
  local share
  case $table in
    table3) prepare data/global_cmvn 5 ;;
    table3_ctc) prepare data/global_cmvn 3 ;;
    table3_pretrained)
      prepare data/units-simulated-14.txt 5 --pretrain 14
      ! is_to_do "$relatives" || prepare data/units-simulated-14-ml_ar_fi.txt 3 --pretrain 14 --exclude_langs "ml ar fi"
      ;;
    table3_curves) for share in 0.25 0.5; do prepare "data-$share/global_cmvn" 3 --train_share "$share"; done ;;
    *) wenet-hs units --data_list "$here/data/test/data.list" --kind phone --inventory "$here/data/inventory.tsv" ;;
  esac
}

run_tables
