#!/usr/bin/env bash
# UCLA Phonetic Corpus: phones of languages never heard in training, softmax against H-Softmax (PER a language).
#   ./run.sh --corpus /data/ucla                        all stages
#   ./run.sh --corpus /data/ucla --stage 6              decode and score again
#   ./run.sh --corpus /data/ucla --test_langs "abk ace" other test languages (the default: the ten of Liu et al. 2023)
# Stages: 0 lists, 1 units, 2 tree, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
stage=0
stop_stage=8
corpus=                       # one folder for each language: text.txt, audio/
test_langs="bin sbc mal kea klu aeb mak fin abk ace"
heads="softmax hsoftmax"
config=$here/../../../conf/ucla.yaml
override=                     # more settings for training, as "key=value key=value"
modes="ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring"
average_num=5
data=$here/data
exp=$here/exp
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"
# shellcheck source=examples/ucla/s0/path.sh
. "$here/path.sh"

at() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ] && echo "$(date +%T) stage $1: $2"; }
read -ra more <<< "$override"
read -ra mode_list <<< "$modes"

if at 0 "data lists"; then
  [ -n "$corpus" ] || { echo "$0: --corpus DIR is required (try --help)" >&2; exit 2; }
  wenet-hs prepare ucla --corpus "$corpus" --test_langs "$test_langs" --out "$data"
fi
if at 1 "phones"; then
  wenet-hs units --data_list "$data/train/data.list" --kind phone --out "$data/units.txt"
fi
if at 2 "tree"; then
  wenet-hs tree build --kind huffman --tokenizer phone --units "$data/units.txt" --data_list "$data/train/data.list" \
    --out "$data/tree.json"
fi
if at 3 "feature statistics"; then
  wenet-hs cmvn --data_list "$data/train/data.list" --config "$config" --out "$data/global_cmvn"
fi
mkdir -p "$exp"
declare -A jobs
for head in $heads; do
  if at 4 "training with the $head head, on one core (its log: $exp/$head.log)"; then
    settings=("head=$head" "tokenizer_conf.symbol_table_path=$data/units.txt" "cmvn_conf.cmvn_file=$data/global_cmvn")
    [ "$head" = softmax ] || settings+=("head_conf.tree=$data/tree.json")
    OMP_NUM_THREADS=1 wenet-hs train --config "$config" --train_data "$data/train/data.list" \
      --cv_data "$data/dev/data.list" --model_dir "$exp/$head" --override_config "${settings[@]}" "${more[@]}" \
      > "$exp/$head.log" 2>&1 &
    jobs[$head]=$!
  fi
done
for head in "${!jobs[@]}"; do wait "${jobs[$head]}" || { tail -n 3 "$exp/$head.log" >&2; exit 2; }; done
for head in $heads; do
  if at 5 "averaging of the $head head"; then wenet-hs average --model_dir "$exp/$head" --num "$average_num"; fi
  if at 6 "decoding with the $head head"; then
    wenet-hs recognize --model_dir "$exp/$head" --test_data "$data/test/data.list" --result_dir "$exp/$head/test" \
      --modes "${mode_list[@]}"
  fi
  if at 7 "scores of the $head head (in $exp/$head/test/*/score.txt)"; then
    for mode in $modes; do
      wenet-hs score --metric per --by lang --ref "$data/test/text" --hyp "$exp/$head/test/$mode/text" \
        --data_list "$data/test/data.list" --json "$exp/$head/test/$mode/score.json" --name "$head, $mode" \
        --align "$exp/$head/test/$mode/alignment.txt" > "$exp/$head/test/$mode/score.txt"
    done
  fi
done
if at 8 "report"; then
  experiments=()
  for head in $heads; do experiments+=(--exp "$exp/$head"); done
  wenet-hs report "${experiments[@]}" --stats "$data/stats.json" --out "$exp/report.html"
fi
