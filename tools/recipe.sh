# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034  # variables that a run.sh uses
# shellcheck disable=SC2154  # variables that a run.sh or `option` sets: here, root, stage, exp …
# What every run.sh shares: its options, names of folders, and trainings that run side by side.
#
# A run.sh sets $here, $root and the function `usage`, sources this file, and then calls
#   option NAME DEFAULT MEANING   for each option of its own, or for another default than that below
#   shared_options                the options of every recipe
#   read_options "$@"             sets the options, and the variables that follow from them
#   check_options FLAG…           refuses wrong options before the first stage
#   keep_options FOLDER NAME…     writes with which options a folder is made
#   begin_stage NUMBER TITLE      whether a stage runs
#   start_training LOG COMMAND…   starts a training beside others, with a live line for all
#   wait_for_trainings            until all have ended; then end_progress ends the live line

fail() {  # MESSAGE: ends the recipe with one line
  echo "$0: $1" >&2
  exit 2
}

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  fail "recipes need bash 4.4 or newer; on macOS run 'brew install bash', and begin with: bash $0"
fi

# ---- options: a variable per option; `--data_seed 3` sets $data_seed

option_names=()
declare -A option_meanings=()

option() {  # NAME DEFAULT MEANING…: declares an option and sets the variable $NAME
  # Of two declarations the first counts: so a run.sh can have other defaults than shared_options.
  if is_option "$1"; then
    return
  fi
  option_names+=("$1")
  option_meanings[$1]=${*:3}
  printf -v "$1" '%s' "$2"
}

is_option() {  # NAME
  local name
  for name in "${option_names[@]}"; do
    if [ "$name" = "$1" ]; then
      return 0
    fi
  done
  return 1
}

shared_options() {  # declares the options of every recipe
  option stage 0 "the first stage that runs"
  option stop_stage 8 "the last one"
  option head "softmax hsoftmax" \
    "output layers (wenet-hs train --help): one experiment per head and seed"
  option tree huffman \
    "of heads that have one: a kind (wenet-hs tree build --help), or the path of a tree.json"
  option unit char "char, phone, or bpe:N with N pieces"
  option seeds 777 \
    'of training; several, as in "777 778 779", train every head once per seed'
  option data_seed 0 "of the random choices that stage 0 makes"
  option override "" 'more settings for training, as "key=value key=value"'
  option average_num 5 \
    "checkpoints whose mean is the final model, the best of those that are kept (wenet-hs average)"
  option modes "ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring" \
    "of decoding (wenet-hs recognize --help)"
  option eval_set test \
    "the list that stages 6 to 8 decode, score and report: test, or dev for choices"
  option chunk "" \
    "of a model that streams: encoder frames per chunk, and chunks before it, as \"16 4\"" \
    "(docs/streaming.md)"
  option nproc 1 "processes of training, statistics and decoding; above 1 by torchrun"
  option jobs 2 "trainings at a time (one at a time if nproc is above 1)"
  option threads 1 "cores of each training"
  option data "$here/data" "folder for lists, units, trees and statistics"
  option exp "$here/exp" "folder for experiments"
  option results "" "folder for a small results file of each experiment, for the tables of a study"
}

remove_options() {  # NAME…: the recipe lacks these shared options
  local name
  local kept=()
  for name in "${option_names[@]}"; do
    if [[ " $* " != *" $name "* ]]; then
      kept+=("$name")
    fi
  done
  option_names=("${kept[@]}")
}

print_options() {  # one line per option: its name, its value, its meaning
  local name
  local value
  for name in "${option_names[@]}"; do
    value=${!name}
    if [[ $value = *" "* ]]; then
      value="\"$value\""
    fi
    printf '  %-30s  %s\n' "--$name $value" "${option_meanings[$name]}"
  done
}

read_options() {  # ARGUMENT…: sets the options of the command line
  local name
  local defaults
  defaults=$(print_options)
  last_stage=$stop_stage  # still the default, which is the last stage of the recipe
  while [ $# -gt 0 ]; do
    case $1 in
      --help | -h)
        usage
        printf 'Options and their defaults:\n%s\n' "$defaults"
        exit 0
        ;;
      --*=*) fail "write '${1%%=*} ${1#*=}' instead of '$1'" ;;
      --*[!a-z0-9_-]*) fail "expected --name value, got '$1' (try --help)" ;;
      --[a-z]*) name=${1#--} ;;
      *) fail "expected --name value, got '$1' (try --help)" ;;
    esac
    name=${name//-/_}
    if ! is_option "$name"; then
      fail "unknown option '$1' (try --help)"
    fi
    if [ $# -lt 2 ]; then
      fail "option '$1' needs a value"
    fi
    printf -v "$name" '%s' "$2"
    shift 2
  done
  find_programs
  list_option_values
  set_command_flags
  find_heads_without_tree
  name_experiments
}

find_programs() {  # wenet-hs of the PATH, or else of the environment of this checkout
  if ! command -v wenet-hs > /dev/null; then
    PATH="$root/.venv/bin:$PATH"
  fi
  if ! command -v wenet-hs > /dev/null; then
    fail "no wenet-hs on the PATH; run 'make setup' first"
  fi
}

list_option_values() {  # sets option_values: NAME=VALUE of each option
  local name
  option_values=()
  for name in "${option_names[@]}"; do
    option_values+=("$name=${!name}")
  done
}

set_command_flags() {  # sets variables that have parts of commands
  # The words of --override. -d '': also those of further lines; then read never finds its end mark.
  override_settings=()
  read -r -d '' -a override_settings <<< "$override" || true

  # --nproc: commands that share their work among processes. Then one training runs at a time.
  parallel_wenet_hs=(wenet-hs)
  trainings_at_a_time=$jobs
  if [ "$nproc" != 1 ]; then
    parallel_wenet_hs=(
      python -m torch.distributed.run --standalone --nproc_per_node "$nproc" -m wenet_hs.bin.main
    )
    trainings_at_a_time=1
  fi

  # --unit: word pieces also have a number and a model, as in bpe:500.
  unit_kind=${unit%%:*}
  unit_flags=(--kind "$unit_kind")
  tokenizer_flags=(--tokenizer "$unit_kind")
  if [ "$unit_kind" = bpe ]; then
    unit_flags+=(--vocab_size "${unit#bpe:}" --bpe_model "$data/bpe.model")
    tokenizer_flags+=(--bpe_model "$data/bpe.model")
  fi

  # Phone error rate or character error rate.
  metric=cer
  if [ "$unit_kind" = phone ]; then
    metric=per
  fi

  # --chunk: decoding in chunks has a folder of its own for its texts, such as test-chunk16-4.
  decoding_folder=$eval_set
  chunk_flags=()
  if [ -n "$chunk" ]; then
    local chunk_size=${chunk% *}
    local left_chunks=${chunk#* }
    decoding_folder=$eval_set-chunk$chunk_size-$left_chunks
    chunk_flags=(--decoding_chunk_size "$chunk_size" --num_decoding_left_chunks "$left_chunks")
  fi

  results_flags=()
  if [ -n "$results" ]; then
    results_flags=(--results "$results")
  fi
}

find_heads_without_tree() {  # sets heads_without_tree: those of --head that have no tree
  local names
  heads_without_tree=()
  # Only the names of other trees than the default stand in names of experiments.
  if [ "$tree" != huffman ]; then
    # shellcheck disable=SC2086  # a list of names
    names=$(wenet-hs heads-without-tree $head)
    mapfile -t heads_without_tree <<< "$names"
  fi
}

name_experiments() {  # sets experiments: a folder per head and seed; and flags of the report
  local seed
  local head_name
  experiments=()
  experiment_flags=()
  for seed in $seeds; do
    for head_name in $head; do
      experiments+=("$exp/$(experiment_name "$head_name" "$seed")")
      experiment_flags+=("--exp=$exp/$(experiment_name "$head_name" "$seed")")
    done
  done
}

check_options() {  # FLAG…: refuses wrong options; the flags are those of `wenet-hs check-options`
  # Also refused are the folders $data and $exp if they were made with other options.
  wenet-hs check-options "$@" \
    --program "$0" --recipe_dir "$here" --last_stage "$last_stage" --values "${option_values[@]}"
}

keep_options() {  # FOLDER NAME…: writes options.json into a folder, with which options it is made
  wenet-hs keep-options --folder "$1" --recipe_dir "$here" \
    --options "${@:2}" --values "${option_values[@]}"
}

# ---- names

seed_suffix() {  # SEED: -seed778; nothing for 777, the default
  if [ "$1" != 777 ]; then
    echo "-seed$1"
  fi
}

tree_file() {  # SEED: the tree of a seed, or the file that --tree names
  if [[ $tree = *.json ]]; then
    echo "$tree"
  else
    echo "$data/tree-$tree$(seed_suffix "$1").json"
  fi
}

experiment_name() {  # HEAD SEED: softmax, or hsoftmax-brown-seed778 with another tree
  # HEAD is also `base`: the first part of the trainings of a seed.
  local name=$1
  local tree_name=${tree##*/}
  tree_name=${tree_name#tree-}
  tree_name=${tree_name%.json}
  if [ "$tree" != huffman ] && has_tree "$1"; then
    name=$1-$tree_name
  fi
  echo "$name$(seed_suffix "$2")"
}

has_tree() {  # HEAD: whether it is built from a tree; HEAD is also `base`, which is not
  local name
  for name in base "${heads_without_tree[@]}"; do
    if [ "$name" = "$1" ]; then
      return 1
    fi
  done
  return 0
}

# ---- stages

begin_stage() {  # NUMBER TITLE: whether a stage runs; then prints its title
  if [ "$1" -lt "$stage" ] || [ "$1" -gt "$stop_stage" ]; then
    return 1
  fi
  echo "$(date +%T) stage $1: $2"
}

# ---- trainings side by side

declare -A running=()  # process of each training that runs → its log
progress_process=""
has_first_part=""  # run.sh sets it to yes if it also trains a first part per seed

stop_processes() {  # no training outlives the recipe
  local process
  for process in $(jobs -p); do  # the processes that this shell has started
    kill "$process" 2> /dev/null || true
  done
}
trap stop_processes EXIT

start_training() {  # LOG COMMAND…: starts a training as soon as fewer than --jobs run
  local log=$1
  shift
  wait_until_fewer_run_than "$trainings_at_a_time"
  mkdir -p "$exp"
  if [ -f "$log" ]; then
    mv "$log" "$log.old"
  fi
  OMP_NUM_THREADS=$threads "$@" > "$log" 2>&1 &
  running[$!]=$log
  show_progress
}

wait_for_trainings() {  # until all that were started have ended
  wait_until_fewer_run_than 1
}

wait_until_fewer_run_than() {  # NUMBER
  local process
  while [ "${#running[@]}" -ge "$1" ]; do
    for process in "${!running[@]}"; do
      if ! kill -0 "$process" 2> /dev/null; then
        end_training "$process"
      fi
    done
    sleep 0.1
  done
}

end_training() {  # PROCESS: has ended; if it failed, the recipe ends with the end of its log
  local log=${running[$1]}
  unset "running[$1]"
  if wait "$1"; then
    return
  fi
  local num_lines=3
  if [ "$nproc" != 1 ]; then
    num_lines=60  # torchrun prints a table after the error of a process
  fi
  echo "==> $log <==" >&2
  tail -n "$num_lines" "$log" >&2
  exit 2
}

show_progress() {  # a live line of the trainings, if it does not run yet
  local seed
  local model_dirs=("${experiments[@]}")
  if [ -n "$progress_process" ]; then
    return
  fi
  if [ -n "$has_first_part" ]; then
    for seed in $seeds; do
      model_dirs+=("$exp/$(experiment_name base "$seed")")
    done
  fi
  wenet-hs progress "${model_dirs[@]}" --jobs "$trainings_at_a_time" &
  progress_process=$!
}

end_progress() {  # after the last training; the live line prints the last warnings at its end
  if [ -n "$progress_process" ]; then
    kill "$progress_process" 2> /dev/null || true
    wait "$progress_process" 2> /dev/null || true
    progress_process=""
  fi
}
