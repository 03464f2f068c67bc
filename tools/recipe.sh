# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# The options and stages that every recipe shares. A run.sh sets its corpus's own options and defaults, sources this
# file, defines `prepare_data` (stage 0) and calls `run_stages`. It may define `corpus_settings`, which prints settings
# for training that depend on other options, one per line, and set `base_data`, the lists of the first training. It may
# define `list_options`, which prints options that change the lists, but not the names of their folders.
#   DATA_OPTIONS="langs hours"   the options that change the data: other values than the defaults get folders of their own
#   MORE_OPTIONS="pretrain"      other options whose defaults are kept as _default_NAME
#   base_model=DIR               a trained model from which all heads start, instead of a first training per seed
#   variant=-NAME                part of the names of experiments and trees, for what differs but not in the lists

# Options of every recipe; a default that the run.sh has set already stays.
stage=0
stop_stage=8
head=${head:-softmax hsoftmax}   # softmax, hsoftmax, class, adaptive: one experiment per head and seed
tree=huffman                  # of the heads other than softmax: brown, embedding, … (wenet-hs tree build --help)
ctc_head=softmax              # of CTC: softmax, or another head over a tree of the same kind
weighting=pooled              # counts of the tree's units: pooled, or per_language (each language the same weight)
unit=${unit:-char}            # char, phone, or bpe:N with N pieces
seeds=777                     # of training; several, as in "777 778 779", train every head once per seed
data_seed=${data_seed:-0}     # of the random choices that stage 0 makes
config=${config:?}
override=                     # more settings for training, as "key=value key=value"
base_override=${base_override:-}  # the same for a first training per seed, from which all its heads start; "": none
modes=${modes:-ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring}
average_num=${average_num:?}
eval_set="test"               # the list that stages 6 to 8 decode, score and report: test, or dev for choices
inventory=                    # known units of each language (wenet-hs units --inventory): no other unit is recognised
place_unseen=                 # where units of --inventory are placed that the model does not have: articulatory
nproc=1                       # processes of training, statistics and decoding; above 1 by torchrun
jobs=2                        # trainings at a time (one at a time if nproc is above 1)
threads=${threads:-1}         # cores of each training
data=                         # folder for lists, units, trees (default: data, or data-OPTION where options differ)
exp=                          # folder for experiments (default: exp, or exp-OPTION likewise)
results=                      # folder for a small results file of each experiment, for the tables of a study

_defaults() { for _name in config unit seeds ctc_head eval_set ${DATA_OPTIONS:-} data_seed ${MORE_OPTIONS:-}; do printf -v "_default_$_name" '%s' "${!_name}"; done; }
_fail() { echo "$0: $1" >&2; exit 2; }
_defaults
_option_files=("$0" "${BASH_SOURCE[0]}")
# shellcheck source=tools/parse_options.sh
. "${BASH_SOURCE[0]%/*}/parse_options.sh"

if ! command -v wenet-hs > /dev/null; then  # the checkout's environment, if `wenet-hs` is not on the PATH already
  PATH="$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)/.venv/bin:$PATH"
  command -v wenet-hs > /dev/null || _fail "no wenet-hs on the PATH; run 'make setup' first"
fi
export PYTHONIOENCODING=UTF-8

# Prints "-VALUE" for each named option that has another value than its default: it distinguishes folders and files.
_suffix() {
  local _name _default
  for _name in "$@"; do
    _default=_default_$_name
    [ "${!_name}" = "${!_default}" ] || printf -- '-%s' "$(basename "${!_name}" .yaml | LC_ALL=C tr -c 'A-Za-z0-9._\n\200-\377' _)"
  done
}

_package=${BASH_SOURCE[0]%/*}/../wenet_hs
_names_in() { sed -n "/^$2\>/,/^}/s/^    \"\([a-z_]*\)\": .*/\1/p" "$_package/$1"; }  # keys of a table in a source file
_check_names() {  # OPTION FILE TABLE NAME…
  local _one _known
  _known=$(_names_in "$2" "$3")
  for _one in "${@:4}"; do
    grep -qx -- "$_one" <<< "$_known" || _fail "$1 $_one: must be one of ${_known//$'\n'/, }"
  done
}

# The tree of a training seed, of the decoder or of CTC. Kinds that draw random numbers have a tree per seed.
tree_of() {  # SEED [-ctc]
  local _name=$data/tree${2:-}-$tree
  [ "$weighting" = pooled ] || _name+=-$weighting
  _name+=$(_suffix unit)${variant:-}
  case $tree in random | permuted | embedding) [ "$1" = "$_default_seeds" ] || _name+=-seed$1 ;; esac
  echo "$_name.json"
}

# Whether a head is built from a tree: then its settings are a TreeHeadConf.
_has_tree() {
  local _settings
  _settings=$(sed -n "/^HEADS/,/^}/s/^ *\"$1\": \(.*\),$/\1/p" "$_package/config/heads.py")
  grep -q "^class $_settings(TreeHeadConf):" "$_package/config/heads.py"
}

_check_options() {
  local _one
  # shellcheck disable=SC2086
  {
    _check_names --head config/heads.py HEADS $head
    _check_names --ctc_head config/heads.py HEADS "$ctc_head"
    _check_names --tree tree/build.py KINDS "$tree"
    _check_names --modes decode/modes.py MODES $modes
  }
  for _one in $seeds; do [[ $_one =~ ^[0-9]+$ ]] || _fail "--seeds: $_one is not a whole number"; done
  [[ $unit =~ ^(char|phone|bpe:[1-9][0-9]*)$ ]] || _fail "--unit $unit: must be char, phone or bpe:N"
  [[ $weighting =~ ^(pooled|per_language)$ ]] || _fail "--weighting $weighting: must be pooled or per_language"
  [[ $eval_set =~ ^(test|dev)$ ]] || _fail "--eval_set $eval_set: must be test or dev"
  for _one in nproc jobs; do
    [[ ${!_one} =~ ^[1-9][0-9]*$ ]] || _fail "--$_one ${!_one}: must be a whole number from 1 on"
  done
  [[ $threads =~ ^[1-9][0-9]*$ ]] || _fail "--threads $threads: must be a whole number from 1 on"
}

# The folder of one experiment: exp/hsoftmax, or with what differs from the defaults, exp/hsoftmax-brown-bpe_500-seed778.
experiment() {
  local _name=$1 _seed=$2
  if _has_tree "$1" || _has_tree "$ctc_head"; then
    [ "$tree" = huffman ] || _name+=-$tree
    [ "$weighting" = pooled ] || _name+=-$weighting
  fi
  _name+=$(_suffix unit config)
  [ "$ctc_head" = softmax ] || _name+=-ctc_$ctc_head
  _name+=${variant:-}
  [ "$_seed" = "$_default_seeds" ] || _name+=-seed$_seed
  echo "$exp/$_name"
}

at() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ] && echo "$(date +%T) stage $1: $2"; }

_data_options() {
  local _name
  for _name in ${DATA_OPTIONS:-} data_seed; do echo "--$_name ${!_name}"; done
  [ -z "${corpus:-}" ] || echo "--corpus $corpus"
  ! declare -F list_options > /dev/null || list_options
}

# Refuses a data folder that was prepared with other options; stage 0 writes them into it.
_check_data() {
  local _file=$data/recipe_options.txt _other
  if [ -f "$_file" ] && _other=$(_data_options | grep -vxFf "$_file"); then
    _fail "$data was prepared with other options ($(tr '\n' ' ' < "$_file")), not ${_other//$'\n'/ }; give another --data or remove it"
  fi
}

base_of() { experiment base "$1"; }
_train_base() {  # SEED; another run.sh that needs the same base waits
  local _settings ranks=(flock --no-fork "$(base_of "$1").lock" "${ranks[@]}")
  read -ra _settings <<< "$base_override"
  _train "$(base_of "$1")" softmax "$1" "${base_data:-$data}" "${_settings[@]}"
}

_show_progress() {  # FOLDER…: prints one line per running training, in a terminal live, else once per minute
  local _bases=() _settings
  [ "$stage" -le 4 ] && [ "$stop_stage" -ge 4 ] || return 0
  for _seed in $seeds; do [ -z "$base_override" ] || _bases+=("$(base_of "$_seed")"); done
  _settings="$(! declare -F corpus_settings > /dev/null || corpus_settings) $override"
  python "${BASH_SOURCE[0]%/*}/progress.py" --jobs "$jobs" --config "$config" --first "${_bases[@]}" \
    --first_settings "$_settings $base_override" --second "$@" --second_settings "$_settings" &
  progress=$!
}

_wait_for() {  # waits until at most $1 trainings run; shows the logs if one fails (`wait -n` can miss one that ended early)
  local _process _since=$SECONDS
  while true; do
    for _process in "${!running[@]}"; do
      kill -0 "$_process" 2> /dev/null && continue
      wait "$_process" || { tail -n $((nproc > 1 ? 60 : 3)) "${logs[@]}" >&2; exit 2; }
      unset "running[$_process]"
    done
    [ ${#running[@]} -gt "$1" ] || return 0
    if [ $((SECONDS - _since)) -lt 3 ]; then sleep 0.03; else sleep 0.5; fi  # most wait for minutes, tests do not
  done
}

_train() {  # FOLDER HEAD SEED DATA OPTION…: the folder with train/ and dev/, more options of `wenet-hs train`
  local _settings
  _settings=("head=$2" "tokenizer=${unit%%:*}" "tokenizer_conf.symbol_table_path=$units" "seed=$3"
    "cmvn_conf.cmvn_file=$cmvn")
  ! _has_tree "$2" || _settings+=("head_conf.tree=$(tree_of "$3")")
  ! _has_tree "$ctc_head" || _settings+=("ctc_conf.head=$ctc_head" "ctc_conf.head_conf.tree=$(tree_of "$3" -ctc)")
  [ "${unit%%:*}" != bpe ] || _settings+=("tokenizer_conf.bpe_path=$bpe_model")
  ! declare -F corpus_settings > /dev/null || mapfile -t -O "${#_settings[@]}" _settings < <(corpus_settings)
  OMP_NUM_THREADS=$threads "${ranks[@]}" train --config "$config" --train_data "$4/train/data.list" --model_dir "$1" \
    --cv_data "$4/dev/data.list" --override_config "${_settings[@]}" "${more[@]}" "${@:5}" > "$1.log" 2>&1 &
  logs+=("$1.log"); running[$!]=yes
}

_evaluate() {  # FOLDER
  local _mode _results _score
  if at 5 "average of $1"; then wenet-hs average --model_dir "$1" --num "$average_num"; fi
  if at 6 "decoding with $1"; then
    "${ranks[@]}" recognize --model_dir "$1" --test_data "$data/$eval_set/data.list" --result_dir "$1/$decoded" \
      --modes "${mode_list[@]}" ${inventory:+--inventory "$inventory"} ${place_unseen:+--place_unseen "$place_unseen"}
  fi
  if at 7 "scores of $1 (in $decoded/*/score.txt)"; then
    for _mode in $modes; do
      _results=$1/$decoded/$_mode
      _score=(wenet-hs score --metric "$metric" --by lang --ref "$data/$eval_set/text" --hyp "$_results/text"
        --data_list "$data/$eval_set/data.list" --name "${1##*/}, $_mode")
      "${_score[@]}" --json "$_results/score.json" --align "$_results/alignment.txt" > "$_results/score.txt"
      ! grep -qsv ^key "$data/implausible.tsv" ||  # the same without clips of implausible duration
        "${_score[@]}" --exclude "$data/implausible.tsv" > "$_results/score_plausible.txt"
    done
  fi
}

run_stages() {
  local _head _seed _tree _trees=() _of _options _bpe=() _dirs=() _experiments=() _base=()
  _check_data
  if at 0 "data lists"; then
    mkdir -p "$data"
    prepare_data
    _data_options > "$data/recipe_options.txt"
  fi
  if at 1 "units"; then
    [ "${unit%%:*}" != bpe ] || _bpe=(--vocab_size "${unit#bpe:}" --bpe_model "$bpe_model")
    wenet-hs units --data_list "${unit_lists[@]}" --kind "${unit%%:*}" --out "$units" "${_bpe[@]}"
  fi
  if at 2 "tree"; then
    [ "${unit%%:*}" != bpe ] || _bpe=(--bpe_model "$bpe_model")
    for _seed in $seeds; do
      for _of in "" $(! _has_tree "$ctc_head" || echo -ctc); do
        _tree=$(tree_of "$_seed" "$_of") _options=()
        [[ " ${_trees[*]} " != *" $_tree "* ]] || continue
        [[ $_tree != *-seed$_seed.json ]] || _options=(--seed "$_seed")
        [ -z "$_of" ] || _options+=(--blank_share 0.7)  # blank is most frequent in CTC, but not in the transcripts
        wenet-hs tree build --kind "$tree" --tokenizer "${unit%%:*}" --weighting "$weighting" --units "$units" \
          --data_list "$data/train/data.list" --out "$_tree" "${_options[@]}" "${_bpe[@]}"
        _trees+=("$_tree")
      done
    done
  fi
  if at 3 "feature statistics"; then
    "${ranks[@]}" cmvn --data_list "$data/train/data.list" --config "$config" --out "$cmvn"
  fi
  mkdir -p "$exp"; logs=() running=() progress=
  for _seed in $seeds; do
    for _head in $head; do _dirs+=("$(experiment "$_head" "$_seed")"); _experiments+=(--exp "${_dirs[-1]}"); done
  done
  trap 'jobs -p | xargs -r kill 2> /dev/null || true' EXIT  # no training outlives this script
  _show_progress "${_dirs[@]}"
  if [ -n "$base_override" ]; then
    for _seed in $seeds; do
      _wait_for $((jobs - 1))
      if at 4 "training of $(base_of "$_seed")"; then _train_base "$_seed"; fi
    done
    _wait_for 0
  fi
  for _seed in $seeds; do
    [ -z "$base_override" ] || _base=(--checkpoint "$(base_of "$_seed")")
    [ -z "${base_model:-}" ] || _base=(--checkpoint "$base_model")
    for _head in $head; do
      _wait_for $((jobs - 1))
      _dir=$(experiment "$_head" "$_seed")
      if at 4 "training of $_dir (its log: $_dir.log)"; then _train "$_dir" "$_head" "$_seed" "$data" "${_base[@]}"; fi
    done
  done
  _wait_for 0
  [ -z "$progress" ] || { kill "$progress"; wait "$progress"; } 2> /dev/null || true
  [ ${#logs[@]} = 0 ] || grep -E 'WARNING (training ended|step [0-9]+: the model over-fits)' "${logs[@]}" || true
  for _dir in "${_dirs[@]}"; do _evaluate "$_dir"; done
  if at 8 "report"; then
    wenet-hs report "${_experiments[@]}" --stats "$data/stats.json" --data_list "$data/$eval_set/data.list" \
      --test "$decoded" --out "$exp/report${variant:-}$([ "$decoded" = test ] || echo "-$decoded").html" ${results:+--results "$results"}
  fi
}

_check_options
# shellcheck disable=SC2086
_corpus=$(_suffix ${DATA_OPTIONS:-} data_seed)
: "${data:=$here/data$_corpus}" "${exp:=$here/exp$_corpus}"
units=$data/units$(_suffix unit).txt
unit_lists=("$data/train/data.list")
bpe_model=$data/bpe$(_suffix unit).model
cmvn=$data/global_cmvn$(_suffix config)
decoded=$eval_set${inventory:+-inventory}${place_unseen:+-$place_unseen}  # folder of the results in each experiment
metric=$([ "$unit" = phone ] && echo per || echo cer)
[ "$nproc" = 1 ] || jobs=1
ranks=(wenet-hs)              # starts a command that shares its work: one process, or one per rank
[ "$nproc" = 1 ] || ranks=(python -m torch.distributed.run --standalone --nproc_per_node "$nproc" -m wenet_hs.bin.main)
read -ra more <<< "$override"; read -ra mode_list <<< "$modes"
