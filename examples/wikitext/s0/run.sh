#!/usr/bin/env bash
# WikiText-2, or any text: language models over words that differ only in the output layer (Jiang et al. 2017).
#   ./run.sh --corpus /data/wikitext-2                 all systems; run it again to go on
#   ./run.sh --corpus /data/wikitext-2 --systems "softmax hsoftmax-brown" --seeds "1 2"
#   ./run.sh --corpus /data/my-text --data data-my-text --exp exp-my-text     another text
# Stages: 0 units, 1 trees, 2 training, 3 scores, 4 tables. Systems: softmax, nce, blackout, class, adaptive, hsoftmax-TREE.
# shellcheck disable=SC2034,SC2086  # some options are read by name; lists of names are words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"
corpus=                       # folder with one file each for train, valid and test: .txt, .gz or .xz
systems="hsoftmax-huffman hsoftmax-brown hsoftmax-random hsoftmax-alphabetical hsoftmax-embedding class adaptive nce blackout softmax"  # one model per system and seed
config=$root/conf/wikitext.yaml  # YAML of the language model
min_count=1                   # rarer words are <unk>
vector_count=7                # of the embedding tree: rarer words have no vector (at most 20,000 words have one)
stop_stage=4                  # the last one
results=                      # folder for the results files of texts and systems (default: EXP/results)
head=""
OF_DATA="corpus min_count vector_count" NOT_HERE="head tree unit data_seed modes average_num eval_set chunk nproc"
read_options "$@"
results=${results:-$exp/results}

find_text() {  # train|valid|test
  local found
  mapfile -t found < <(find -L "$corpus" -maxdepth 1 -type f -name "*$1*" | sort)
  [ ${#found[@]} = 1 ] || fail "--corpus '$corpus': ${#found[@]} files with '$1' in their name; expected one"
  echo "${found[0]}"
}
[ -d "$corpus" ] || fail "--corpus '$corpus': no such folder; give the folder with train, valid and test"
train=$(find_text train)
valid=$(find_text valid)
test=$(find_text test)

flags_of() {  # sets the flags and the tree of a system; class and adaptive use Huffman's tree, softmax none
  tree=huffman loss=()
  case $1 in
    softmax | class | adaptive) one=$1 ;;
    nce | blackout) one=softmax loss=("loss=$1") ;;
    hsoftmax-*) one=hsoftmax tree=${1#hsoftmax-} ;;
    *) fail "--systems: '$1': must be softmax, nce, blackout, class, adaptive or hsoftmax-TREE" ;;
  esac
}
heads="" kinds="" losses=()
for system in $systems; do
  flags_of "$system"
  heads+=" $one" kinds+=" $tree" losses+=("${loss[@]}")
  for seed in $seeds; do experiments+=("$exp/$system-seed$seed"); done
done
wenet-hs check-options --config "$config" --seeds $seeds --head $heads --tree $kinds --override_config "${more[@]}"
for loss in "${losses[@]}"; do wenet-hs check-options --config "$config" --override_config "$loss" "${more[@]}"; done

if at 0 "units"; then
  mkdir -p "$data"
  wenet-hs units --text "$train" --kind word --min_count "$min_count" --out "$data/units.txt"
  wenet-hs lm count --text "$train" "$valid" "$test" --units "$data/units.txt" --out "$results/texts.json"
  keep_options data
fi

if at 1 "trees"; then
  for kind in $kinds; do  # one tree for all seeds, also of kind random
    if [ "$kind" = embedding ] && [ ! -f "$data/vectors.txt" ]; then  # words without a vector are placed by their frequency
      wenet-hs units --text "$train" --kind word --min_count "$vector_count" --out "$data/units-vectors.txt"
      wenet-hs embed --text "$train" --units "$data/units-vectors.txt" --out "$data/vectors.txt"
    fi
    vectors=(); [ "$kind" != embedding ] || vectors=(--embeddings "$data/vectors.txt")
    [ -f "$data/tree-$kind.json" ] || wenet-hs tree build --kind "$kind" --tokenizer word --keep_empty_lines --text "$train" \
      --units "$data/units.txt" "${vectors[@]}" --out "$data/tree-$kind.json"
  done
fi

if at 2 "training (logs: $exp/*.log)"; then
  keep_options exp
  for seed in $seeds; do
    for system in $systems; do
      flags_of "$system"
      beside "$exp/$system-seed$seed.log" wenet-hs lm train --config "$config" --train_text "$train" --valid_text "$valid" \
        --model_dir "$exp/$system-seed$seed" --units "$data/units.txt" --seed "$seed" --head "$one" --tree "$data/tree-$tree.json" --override_config "${loss[@]}" "${more[@]}"
    done
  done
  wait_for_trainings
fi

if at 3 "scores"; then
  for dir in "${experiments[@]}"; do
    [ "$dir/valid.json" -nt "$dir/final.pt" ] || wenet-hs lm score --model_dir "$dir" --text "$valid" --json "$dir/valid.json"
    [ "$dir/test.json" -nt "$dir/final.pt" ] || wenet-hs lm score --model_dir "$dir" --text "$test" --json "$dir/test.json"
  done
  wenet-hs report "${experiments[@]/#/--exp=}" --results "$results"
fi

if at 4 "tables"; then
  wenet-hs report --tables "$results" --published "$here/lm_results" --markdown "$exp/RESULTS.md"
fi
