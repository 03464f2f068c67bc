#!/usr/bin/env bash
# WikiText-2, or any text: language models over words that differ only in the output layer (Jiang et al. 2017).
#   ./run.sh --corpus /data/wikitext-2                 all systems; run it again to go on, trainings with results are skipped
#   ./run.sh --corpus /data/wikitext-2 --systems "softmax hsoftmax-brown" --seeds "1 2"
#   ./run.sh --corpus /data/my-text --name my-text     another text: folders of its own, and tables in lm_results/my-text/RESULTS.md
#   ./run.sh --corpus /data/ptb --name ptb             the same, with the numbers of the paper beside ours
#   ./run.sh --corpus /data/wikitext-2 --stage 4 --stop_stage 4    Table 2 and Figure 4: time and memory by number of words
# Stages: 0 units, 1 trees, 2 training and scores, 3 tables, 4 speed. Systems: softmax, nce, blackout, class, adaptive, hsoftmax-TREE.
# To repeat a training whose results are in lm_results/table4, remove its file there, or give --name.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=                       # folder with one file each for train, valid and test: .txt, .gz or .xz
name=                         # of the text, for folders of its own; without it: WikiText-2
systems="hsoftmax-huffman hsoftmax-brown hsoftmax-random hsoftmax-alphabetical hsoftmax-embedding class adaptive nce blackout softmax"
seeds="1"                     # one training per system and seed
config=$here/../../../conf/wikitext.yaml  # YAML of the language model
override=                     # more settings for training, as "key=value key=value"
min_count=1                   # rarer words are <unk>
vector_count=7                # of the embedding tree: rarer words have no vector (at most 20,000 words have one)
data=                         # folder for units and trees (default: data, or data-NAME)
exp=                          # folder for models (default: exp, or exp-NAME)
results=                      # folder for results files (default: lm_results/table4, or lm_results/NAME)
jobs=2                        # trainings at a time
threads=1                     # of each training
stage=0
stop_stage=3
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"
PATH="$here/../../../.venv/bin:$PATH"
: "${data:=$here/data${name:+-$name}}" "${exp:=$here/exp${name:+-$name}}"
: "${results:=$here/lm_results/${name:-table4}}"

find_text() {  # train|valid|test
  local _found
  mapfile -t _found < <(find -L "$corpus" -maxdepth 1 -type f -name "*$1*" | sort)
  [ ${#_found[@]} = 1 ] || { echo "$0: --corpus '$corpus': ${#_found[@]} files with '$1' in their name; expected one" >&2; exit 2; }
  echo "${_found[0]}"
}

options_of() {  # SYSTEM
  case $1 in
    softmax) echo "head=softmax" ;;
    nce | blackout) echo "head=softmax loss=$1" ;;
    class) echo "head=class head_conf.tree=$data/tree-huffman.json" ;;
    adaptive) echo "head=adaptive head_conf.tree=$data/tree-huffman.json" ;;
    hsoftmax-*) echo "head=hsoftmax head_conf.tree=$data/tree-${1#hsoftmax-}.json" ;;
    *) echo "$0: --systems: '$1': must be softmax, nce, blackout, class, adaptive or hsoftmax-TREE" >&2; exit 2 ;;
  esac
}

build_tree() {  # KIND
  local _options=()
  if [ "$1" = embedding ]; then  # words without a vector are placed by their frequency
    wenet-hs units --text "$train" --kind word --min_count "$vector_count" --out "$data/units-vectors.txt"
    wenet-hs embed --text "$train" --units "$data/units-vectors.txt" --out "$data/vectors.txt"
    _options=(--embeddings "$data/vectors.txt")
  fi
  wenet-hs tree build --kind "$1" --keep_empty_lines --tokenizer word --units "$data/units.txt" --text "$train" --out "$data/tree-$1.json" "${_options[@]}"
}

train_and_score() {  # SYSTEM-seedN
  echo "$(date +%T) $1"
  # shellcheck disable=SC2046,SC2086  # options are words
  { wenet-hs lm train --config "$config" --train_text "$train" --valid_text "$valid" --model_dir "$exp/$1" --override_config \
      "tokenizer_conf.symbol_table_path=$data/units.txt" "seed=${1##*-seed}" $(options_of "${1%-seed*}") $override \
    && wenet-hs lm score --model_dir "$exp/$1" --text "$valid" --json "$exp/$1/valid.json" \
    && wenet-hs lm score --model_dir "$exp/$1" --text "$test" --json "$exp/$1/test.json" \
    && wenet-hs lm report --exp "$exp/$1" --results "$results"; } >> "$exp/$1.log" 2>&1 || { echo "$1 failed: see $exp/$1.log" >&2; return 1; }
}

at() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ] && echo "$(date +%T) stage $1: $2"; }

[ -d "$corpus" ] || { echo "$0: --corpus '$corpus': no such folder; give the folder with train, valid and test" >&2; exit 2; }
train=$(find_text train)
valid=$(find_text valid)
test=$(find_text test)
for system in $systems; do options_of "$system" > /dev/null; done
mkdir -p "$data" "$exp"
export OMP_NUM_THREADS=$threads config train valid test data exp results override
export -f train_and_score options_of
if at 0 "units" && [ ! -f "$data/units.txt" ]; then wenet-hs units --text "$train" --kind word --min_count "$min_count" --out "$data/units.txt"; fi
if at 0 "statistics"; then wenet-hs lm report --texts "$train" "$valid" "$test" --units "$data/units.txt" --results "$results"; fi
if at 1 "trees"; then
  for kind in huffman $(grep -oE 'hsoftmax-[a-z]+' <<< "$systems" | sed 's/hsoftmax-//'); do [ -f "$data/tree-$kind.json" ] || build_tree "$kind"; done
fi
if at 2 "training and scores"; then
  for seed in $seeds; do for system in $systems; do [ -f "$results/$system-seed$seed.json" ] || printf '%s\0' "$system-seed$seed"; done; done \
    | xargs -0r -P "$jobs" -n 1 bash -c 'train_and_score "$@"' _
fi
if at 3 "tables"; then
  if [ "$results" = "$here/lm_results/table4" ]; then
    (cd "$here" && wenet-hs lm report --tables lm_results/{choice,table3,table4,softmax} --intro lm_results/intro.md --markdown RESULTS.md)
  else
    wenet-hs lm report --tables "$results" --markdown "$results/RESULTS.md"
  fi
fi
if at 4 "speed, with drawn words"; then
  for script in p_thsm_table2 lm_step; do python "$here/../../../benchmarks/$script.py" --out "$exp/$script"; done
fi
