#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2086  # lists of names are words
# shellcheck disable=SC2154  # read_options sets the variables of the options
set -euo pipefail

usage() {
  cat << 'END'
WikiText-2, or any text:
language models over words that differ only in the output layer (Jiang et al. 2017).
  ./run.sh --corpus /data/wikitext-2                 all systems; run it again to go on
  ./run.sh --corpus /data/wikitext-2 --systems "softmax hsoftmax-brown" --seeds "1 2"
  ./run.sh --corpus /data/my-text --data data-my-text --exp exp-my-text     another text
Stages: 0 units, 1 trees, 2 training, 3 scores, 4 tables.
Systems: softmax, nce, blackout, class, adaptive, hsoftmax-TREE.
END
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"

all_systems="hsoftmax-huffman hsoftmax-brown hsoftmax-random hsoftmax-alphabetical"
all_systems+=" hsoftmax-embedding class adaptive nce blackout softmax"
option corpus "" "folder with one file each for train, valid and test: .txt, .gz or .xz"
option systems "$all_systems" "one model per system and seed"
option config "$root/conf/wikitext.yaml" "YAML of the language model"
option min_count 1 "rarer words are <unk>"
option vector_count 7 \
  "of the embedding tree: rarer words have no vector (at most 20,000 words have one)"
option stop_stage 4 "the last one"
option results "" "folder for the results files of texts and systems (default: EXP/results)"
shared_options  # those of every recipe; of two declarations of an option the first counts
remove_options head tree unit data_seed modes average_num eval_set chunk nproc
# Sets the options, and override_settings: the words of --override. The options that were removed
# keep their defaults as variables, which recipe.sh uses.
read_options "$@"

# The options on which the content of a folder depends: a folder that was made with others is
# refused, because it would mix what belongs to different options.
data_options="corpus min_count vector_count"
exp_options="data config"

if [ -z "$results" ]; then
  results=$exp/results
fi

find_text() {  # train|valid|test: the file with this word in its name
  local files
  mapfile -t files < <(find -L "$corpus" -maxdepth 1 -type f -name "*$1*" | sort)
  if [ "${#files[@]}" != 1 ]; then
    fail "--corpus '$corpus': ${#files[@]} files with '$1' in their name; expected one"
  fi
  echo "${files[0]}"
}
if [ ! -d "$corpus" ]; then
  fail "--corpus '$corpus': no such folder; give the folder with train, valid and test"
fi
train_text=$(find_text train)
valid_text=$(find_text valid)
test_text=$(find_text test)

describe_system() {  # SYSTEM: sets its output layer, its kind of tree and the setting of its loss
  layer=$1
  tree_kind=huffman  # of class and adaptive; softmax does not use it
  loss_settings=()
  case $1 in
    softmax | class | adaptive) ;;
    nce | blackout)
      layer=softmax
      loss_settings=("loss=$1")
      ;;
    hsoftmax-*)
      layer=hsoftmax
      tree_kind=${1#hsoftmax-}
      ;;
    *)
      fail "--systems: '$1': must be softmax, nce, blackout, class, adaptive or hsoftmax-TREE"
      ;;
  esac
}

layers=()
tree_kinds=()
experiments=()  # here one per system and seed, instead of one per head and seed
experiment_flags=()
for system in $systems; do
  describe_system "$system"
  layers+=("$layer")
  tree_kinds+=("$tree_kind")
  for seed in $seeds; do
    experiments+=("$exp/$system-seed$seed")
    experiment_flags+=("--exp=$exp/$system-seed$seed")
  done
done

check_options --data_options $data_options --exp_options $exp_options \
  --config "$config" --override_config "${override_settings[@]}" \
  --head "${layers[@]}" --tree "${tree_kinds[@]}" --seeds $seeds
for system in $systems; do  # the setting of a loss belongs to one system only
  describe_system "$system"
  if [ "${#loss_settings[@]}" != 0 ]; then
    wenet-hs check-options --config "$config" \
      --override_config "${loss_settings[@]}" "${override_settings[@]}"
  fi
done

if begin_stage 0 "units"; then
  wenet-hs units --text "$train_text" --kind word --min_count "$min_count" --out "$data/units.txt"
  wenet-hs lm count --text "$train_text" "$valid_text" "$test_text" --units "$data/units.txt" \
    --out "$results/texts.json"
  keep_options "$data" $data_options
fi

if begin_stage 1 "trees"; then
  for tree_kind in "${tree_kinds[@]}"; do
    tree_path=$data/tree-$tree_kind.json  # one for all seeds, also of the kind random
    vectors=()
    if [ "$tree_kind" = embedding ]; then
      vectors=(--embeddings "$data/vectors.txt")
    fi
    # Words without a vector are placed by their frequency.
    if [ "$tree_kind" = embedding ] && [ ! -f "$data/vectors.txt" ]; then
      wenet-hs units --text "$train_text" --kind word --min_count "$vector_count" \
        --out "$data/units-vectors.txt"
      wenet-hs embed --text "$train_text" --units "$data/units-vectors.txt" \
        --out "$data/vectors.txt"
    fi
    if [ ! -f "$tree_path" ]; then
      wenet-hs tree build --kind "$tree_kind" --text "$train_text" --keep_empty_lines \
        --tokenizer word --units "$data/units.txt" "${vectors[@]}" --out "$tree_path"
    fi
  done
fi

if begin_stage 2 "training (logs: $exp/*.log)"; then
  keep_options "$exp" $exp_options
  for seed in $seeds; do
    for system in $systems; do
      describe_system "$system"
      name=$system-seed$seed
      start_training "$exp/$name.log" \
        wenet-hs lm train --model_dir "$exp/$name" \
        --config "$config" --seed "$seed" \
        --train_text "$train_text" --valid_text "$valid_text" --units "$data/units.txt" \
        --head "$layer" --tree "$data/tree-$tree_kind.json" \
        --override_config "${loss_settings[@]}" "${override_settings[@]}"
    done
  done
  wait_for_trainings
  end_progress
fi

if begin_stage 3 "scores"; then
  for dir in "${experiments[@]}"; do
    # A model that is newer than its scores is scored again.
    if [ ! "$dir/valid.json" -nt "$dir/final.pt" ]; then
      wenet-hs lm score --model_dir "$dir" --text "$valid_text" --json "$dir/valid.json"
    fi
    if [ ! "$dir/test.json" -nt "$dir/final.pt" ]; then
      wenet-hs lm score --model_dir "$dir" --text "$test_text" --json "$dir/test.json"
    fi
  done
  wenet-hs report "${experiment_flags[@]}" --results "$results"
fi

if begin_stage 4 "tables"; then
  wenet-hs report --tables "$results" --published "$here/lm_results" --markdown "$exp/RESULTS.md"
fi
