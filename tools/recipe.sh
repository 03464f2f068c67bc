# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2015,SC2030,SC2031,SC2034,SC2086,SC2154
# What every run.sh shares: options with `--help`, `at`, and trainings side by side. A run.sh sources this file, sets its
# own options and defaults, and calls `read_options "$@"`. An option is a line `name=value  # comment` of either file.
# OF_DATA, OF_EXP: options that change what the folders $data and $exp contain. NOT_HERE: options that the recipe lacks.

stage=0                       # the first stage that runs
stop_stage=8                  # the last one
head="softmax hsoftmax"       # softmax, hsoftmax, class, adaptive: one experiment per head and seed
tree=huffman                  # of heads other than softmax: a kind (wenet-hs tree build --help), or the path of a tree.json
unit=char                     # char, phone, or bpe:N with N pieces
seeds=777                     # of training; several, as in "777 778 779", train every head once per seed
data_seed=0                   # of the random choices that stage 0 makes
override=                     # more settings for training, as "key=value key=value"
average_num=5                 # checkpoints whose mean is the final model, the best of those that are kept (wenet-hs average)
modes="ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring"  # of decoding (wenet-hs recognize --help)
eval_set="test"               # the list that stages 6 to 8 decode, score and report: test, or dev for choices
chunk=                        # of a model that streams: encoder frames per chunk, and chunks before it, as "16 4" (docs/streaming.md)
nproc=1                       # processes of training, statistics and decoding; above 1 by torchrun
jobs=2                        # trainings at a time (one at a time if nproc is above 1)
threads=1                     # cores of each training
data=$here/data               # folder for lists, units, trees and statistics
exp=$here/exp                 # folder for experiments
results=                      # folder for a small results file of each experiment, for the tables of a study
fail() { echo "$0: $1" >&2; exit 2; }
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) && { realpath -sm / && sed --version; } > /dev/null 2>&1 ||  # macOS has others
  fail "recipes need bash 4.4 and the GNU versions of coreutils, sed and findutils; on macOS run 'brew install bash coreutils gnu-sed findutils' and add their gnubin folders to PATH"
_defaults() {  # one line per option: its name, its value, its comment
  while IFS='=' read -r _name _rest; do
    _value=${!_name}; [[ $_value != *" "* ]] || _value="\"$_value\""
    printf '  %-30s  %s\n' "--$_name $_value" "${_rest#* # }"
  done < <(sed -sn -e '/^read_options\|^fail/,$d' -e '/^here=/d' -e '/^[a-z][a-z0-9_]*=.* # /p' "$0" "${BASH_SOURCE[0]}" | awk -F= '!seen[$1]++') |
    grep -vE "^  --(${NOT_HERE:+${NOT_HERE// /|}|}-) " | sed 's/ *$//'
}
read_options() {  # sets the options of the command line, and what follows from them: names, and options of several commands
  _help=$(_defaults) _last=$stop_stage
  while [ $# -gt 0 ]; do
    if [[ $1 = --help || $1 = -h ]]; then
      sed -n -e '/^#!/d' -e '/^# shellcheck/d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"
      printf 'Options and their defaults:\n%s\n' "$_help"
      exit 0
    fi
    [[ $1 != --*=* ]] || fail "write '${1%%=*} ${1#*=}' instead of '$1'"
    [[ $1 =~ ^--[a-z][a-z0-9_-]*$ ]] || fail "expected --name value, got '$1' (try --help)"
    _name=${1#--} _name=${_name//-/_}
    grep -q -- "^  --$_name " <<< "$_help " || fail "unknown option '$1' (try --help)"
    [ $# -ge 2 ] || fail "option '$1' needs a value"
    printf -v "$_name" '%s' "$2"
    shift 2
  done
  [[ $stage =~ ^[0-$_last]$ ]] || fail "--stage $stage: must be from 0 to $_last"
  [[ $stop_stage =~ ^[0-9]+$ && $stage -le $stop_stage ]] || fail "--stop_stage $stop_stage: must be a stage from $stage on"
  for _name in average_num nproc jobs threads; do [[ ${!_name} =~ ^[1-9][0-9]*$ ]] || fail "--$_name ${!_name}: must be a whole number from 1 on"; done
  [[ $eval_set =~ ^(test|dev)$ ]] || fail "--eval_set $eval_set: must be test or dev"; [[ ${base_steps:-0} =~ ^[0-9]+$ ]] || fail "--base_steps $base_steps: must be a whole number"
  [[ -z $chunk || $chunk =~ ^[1-9][0-9]*\ [0-9]+$ ]] || fail "--chunk '$chunk': must be two numbers, as '16 4'"
  decoded=$eval_set${chunk:+-chunk${chunk/ /-}} chunks=(${chunk:+--decoding_chunk_size ${chunk% *} --num_decoding_left_chunks ${chunk#* }})
  command -v wenet-hs > /dev/null || PATH="$root/.venv/bin:$PATH"  # the checkout's environment
  command -v wenet-hs > /dev/null || fail "no wenet-hs on the PATH; run 'make setup' first"
  kind=${unit%%:*} pieces=() bpe=()  # options of commands that only units of bpe have
  [ "$kind" != bpe ] || { pieces=(--vocab_size "${unit#bpe:}"); bpe=(--bpe_model "$data/bpe.model"); }
  metric=$([ "$kind" = phone ] && echo per || echo cer)
  _check_folder data && _check_folder exp
  experiments=() && read -rd '' -a more <<< "$override" || true  # of all lines
  for _seed in $seeds; do for _head in $head; do experiments+=("$exp/$(name_of "$_head" "$_seed")"); done; done
  [ -n "$seeds" ] || fail "--seeds: give at least one seed"
  wenet_hs=(wenet-hs)  # starts a command that shares its work: one process, or one per rank
  [ "$nproc" = 1 ] || { jobs=1; wenet_hs=(python -m torch.distributed.run --standalone --nproc_per_node "$nproc" -m wenet_hs.bin.main); }
}

# ---- the options of which a folder was made are in its options.txt; a checkout may be moved, recordings may not
keep_options() { mkdir -p "${!1}" && _options_of "$1" > "${!1}/.options$$" && mv "${!1}/.options$$" "${!1}/options.txt"; }  # data|exp
_options_of() {
  local _name _value _names="${OF_DATA:-} data_seed unit"
  [ "$1" = data ] || _names="${OF_EXP:-} data config"
  for _name in $_names; do
    _value=${!_name}; [[ ! $_name =~ ^(corpus|elan|praat|kaldi|folder)$ ]] || _value=${_value:+$(realpath -sm "$_value")}
    [[ ! $_name =~ ^(base|config|data|ctc_tree|encoder)$ ]] || _value=${_value:+$(realpath -sm --relative-to "$here" "$_value")}
    echo "--$_name $_value"
  done
}
_check_folder() {  # data|exp
  local _other _made _is_other="FILENAME != \"-\" { lines[\$0]; names[\$1]; next } !(\$0 in lines) && (\$1 in names || NF > 1) { print; exit }"  # not: new and empty
  [ -f "${!1}/options.txt" ] && _other=$(_options_of "$1" | awk "$_is_other" "${!1}/options.txt" -) && [ -n "$_other" ] || return 0
  _made=$(grep -- "^${_other%% *} " "${!1}/options.txt" || echo "another recipe, without ${_other%% *}")
  fail "${_other% }: ${!1} was made with $_made; repeat this, give another --$1, or remove the folder"
}

# ---- names: the suffix of a seed, the tree of a seed, and the experiment of a head and a seed, as hsoftmax-brown-seed778
of_seed() { [ "$1" = 777 ] || echo "-seed$1"; }
tree_of() { if [[ $tree = *.json ]]; then echo "$tree"; else echo "$data/tree-$tree$(of_seed "$1").json"; fi; }
name_of() {
  local _tree=${tree##*/} && _tree=${_tree#tree-}
  [[ $1 != softmax && $1 != base && $tree != huffman ]] && echo "$1-${_tree%.json}$(of_seed "$2")" || echo "$1$(of_seed "$2")"
}

# ---- trainings side by side
declare -A running=(); progress=""; trap 'jobs -p | xargs -r kill 2> /dev/null || true' EXIT  # no training outlives the recipe
beside() {  # LOG COMMAND…: starts a training as soon as fewer than $jobs run
  wait_below "$jobs"
  [ ! -f "$1" ] || mv "$1" "$1.old"
  OMP_NUM_THREADS=$threads "${@:2}" > "$1" 2>&1 &
  running[$!]=$1 _count=$((${#experiments[@]} + (${base_steps:-0} ? $(wc -w <<< "$seeds") : 0)))  # and first parts
  [ -n "$progress" ] || { wenet-hs progress --jobs "$jobs" --total "$_count" "$exp" & progress=$!; }
}
wait_for_trainings() {  # and for their last warnings
  wait_below 1
  [ -z "$progress" ] || { kill "$progress"; wait "$progress"; } 2> /dev/null || true
}
wait_below() {  # waits until fewer than $1 trainings run; one that failed ends the recipe with the end of its log
  while [ ${#running[@]} -ge "$1" ]; do
    for _process in "${!running[@]}"; do
      kill -0 "$_process" 2> /dev/null && continue
      wait "$_process" || { tail -v -n $((nproc > 1 ? 60 : 3)) "${running[$_process]}" >&2; exit 2; }
      unset "running[$_process]"
    done
    sleep 0.1
  done
}
at() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ] && echo "$(date +%T) stage $1: $2"; }
