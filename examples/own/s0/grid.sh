#!/usr/bin/env bash
# Error rates of examples/own: one hour of real Mboshi; a simulated field corpus in ELAN files; adapting a model of five
# simulated languages to a sixth (Uzbek) with 10 minutes, 1 hour and 5 hours, beside training on these from scratch.
#   ./grid.sh --mboshi /data/mboshi/mboshi.tsv --sentences DIR     all tables; run it again to go on
#   ./grid.sh --sentences DIR --tables adaptation --minutes 150    one table; starts no training after 150 minutes
#   ./grid.sh --list true                                          only lists the trainings without results
# DIR has one LANG.txt per language, one sentence per line. A training has results if results/TABLE/SYSTEM-seedN.json exists.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mboshi=                       # table of the Mboshi recordings: path, sentence, speaker
sentences=                    # folder with the sentences that espeak-ng speaks
tables="mboshi field adaptation"  # folders of results/
seeds="1 2 3"                 # of the trainings
# shellcheck source=tools/grid.sh
. "$here/../../../tools/grid.sh"

base=$here/exp-base/softmax-small  # of cs, es, ky, tr and uk, one hour each
declare -A hours=([10min]=0.1667 [1h]=1 [5h]=5)

options_of() { echo "--data '$here/data-$1' --exp '$here/exp-$1'"; }
of_mboshi="$(options_of mboshi) --lang mdw --corpus '$mboshi'"
of_field="$(options_of field) --lang es --elan '$here/corpus/field' --prepare \"--tier 'utterance@*'\""

cells() {
  local of
  case $table in
    mboshi) for of in softmax hsoftmax; do cell "$of-mboshi" 3 "$of_mboshi" --head "$of"; done ;;
    field) cell softmax-field 3 "$of_field" --head softmax ;;
    adaptation)
      cell softmax-10min 3 "$(options_of 10min)"
      cell softmax-1h 3 "$(options_of 1h)"
      cell softmax-small-5h 3 "$(options_of 5h)" --size small
      for of in 10min 1h; do cell "softmax-from_softmax-small-$of" 3 "$(options_of "$of")" --base "'$base'"; done
      cell softmax-from_softmax-small-small-5h 3 "$(options_of 5h)" --size small --base "'$base'"
      ;;
  esac
}

prepare_lists() {  # FOLDER COMMAND…: runs the command that writes the lists, unless they exist
  [ -f "$here/$1/stats.json" ] || "${@:2}" --out "$here/$1"
}

prepare_table() {
  local of options
  case $table in
    mboshi) eval "options=($of_mboshi)" ;;
    field)
      eval "options=($of_field)"
      [ -d "$here/corpus/field" ] || python "$here/../../../tools/field_corpus.py" --lang es \
        --sentences "$here/../../mini/s0/sentences/es.txt" --out "$here/corpus/field"
      ;;
    adaptation)
      prepare_lists data-base wenet-hs prepare synthetic --langs "cs es ky tr uk" --sentences "$sentences" --hours 5
      prepare_lists simulated-uz wenet-hs prepare synthetic --langs uz --sentences "$sentences" --hours 5.2 \
        --dev_sentences 100 --test_sentences 200
      eval "options=($(options_of base))"
      [ -f "$base/final.pt" ] || _as_group "$here/run.sh" "${shared[@]}" "${options[@]}" --size small --stage 1 --stop_stage 5
      for of in 10min 1h 5h; do
        is_to_do "data-$of'" || continue
        prepare_lists "data-$of" wenet-hs prepare commonvoice --corpus "$here/simulated-uz/corpus" --langs uz \
          --split released --alpha 1 --hours "${hours[$of]}"
        eval "options=($(options_of "$of"))"
        [ "$of" != 5h ] || options+=(--size small)
        prepare "data-$of/units.txt" 3 --stage 1 "${options[@]}"
      done
      return
      ;;
  esac
  prepare "data-$table/units.txt" 3 "${options[@]}"
}

shared=(--modes "ctc_greedy_search ctc_prefix_beam_search attention_rescoring joint")
run_tables
