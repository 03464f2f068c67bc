# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# What the grids of studies share: trainings over seeds, one per line, and the tables made from them. A grid.sh sets its
# own options, `tables` and `seeds`, sources this file, sets `shared`, the options of every run.sh, defines `cells` and
# `prepare_table` for the table `$table`, and calls `run_tables`.

systems=.                     # only systems whose name has this regular expression
minutes=100000                # no training starts after so many minutes
jobs=2                        # trainings at a time, one core each
list=false                    # true: only list the trainings that have no results

_option_files=("$0" "${BASH_SOURCE[0]}")
# shellcheck source=tools/parse_options.sh
. "${BASH_SOURCE[0]%/*}/parse_options.sh"

[[ $list =~ ^(true|false)$ ]] || { echo "$0: --list $list: must be true or false" >&2; exit 2; }
for table in $tables; do
  [ -f "$here/results/$table/table.yaml" ] || { echo "$0: --tables $table: there is no $here/results/$table/table.yaml" >&2; exit 2; }
done
started=$(date +%s)
PATH="$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)/.venv/bin:$PATH"

# Prints TABLE/SYSTEM-seedN and the options of run.sh for the training of a system with $seed, if the system has so many
# seeds, matches $systems, and this one has no results file.
cell() {  # SYSTEM SEEDS OPTIONS…
  local _name=$table/$1-seed$seed
  [ "$seed" -le "$2" ] && [[ $1 =~ $systems ]] && [ ! -f "$here/results/$_name.json" ] || return 0
  echo "$_name --seeds $seed ${*:3}"
}

_all_cells() { for seed in $seeds; do cells; done; }  # seed by seed, so that every system has the first seeds early

_has_time() { [ $(($(date +%s) - started)) -lt $((60 * minutes)) ]; }

_group=                       # of the command that runs
_end_group() { [ -z "$_group" ] || kill -- "-$_group" 2> /dev/null || true; }

# Runs a command as a process group, which the trap of `run_tables` ends. A command in the foreground would delay the trap.
_as_group() {
  local _status=0
  set -m; "$@" & set +m
  _group=$!
  wait "$_group" || { _status=$?; _end_group; }  # the rest of a group whose first process was killed
  _group=
  return $_status
}

# Whether a training with these options is still to do.
is_to_do() { [[ $(_all_cells) == *"$1"* ]]; }

# Lists, units and statistics, unless FILE and statistics beside it exist already; then the first part of the trainings,
# of MOST seeds.
prepare() {  # FILE MOST OPTION…
  local _seed _first=()
  _has_time || return 0
  for _seed in $seeds; do [ "$_seed" -gt "$2" ] || _first+=("$_seed"); done
  { [ -f "$here/$1" ] && compgen -G "$here/${1%/*}/global_cmvn*" > /dev/null; } || _as_group "$here/run.sh" "${shared[@]}" "${@:3}" --stop_stage 3
  _as_group "$here/run.sh" "${shared[@]}" "${@:3}" --seeds "${_first[*]}" --head "" --stage 4 --stop_stage 4 --jobs "$jobs"
}

# Runs the cells table by table, $jobs at a time, and writes RESULTS.md: results/intro.md and all
# tables that have results.
run_tables() {
  local _folders _intro=() _status=0
  cd "$here" || return
  mkdir -p logs
  export here started minutes
  export -f _run_cell _has_time
  trap 'trap "" TERM; _end_group' EXIT  # no training outlives this script
  trap 'trap "" TERM; _end_group; exit 143' TERM  # `timeout` sends two signals: the second one must not end a trap
  for table in $tables; do
    if [ "$list" = true ]; then _all_cells; continue; fi
    [ -n "$(_all_cells)" ] || continue
    prepare_table
    _as_group _run_cells || _status=1
  done
  [ "$list" = false ] || return 0
  mapfile -t _folders < <(find results -name '*.json' -printf '%h\n' | sort -u)
  [ ! -f results/intro.md ] || _intro=(--intro results/intro.md)
  [ ${#_folders[@]} = 0 ] || wenet-hs report --tables "${_folders[@]}" --markdown RESULTS.md "${_intro[@]}"
  return $_status
}

_run_cells() { _all_cells | xargs -P "$jobs" -d '\n' -n 1 bash -c '_run_cell "$@"' _ "${shared[@]}"; }
_run_cell() {  # OPTION… CELL
  local _name _options _log
  eval "_options=(${*: -1})"  # a cell may have quoted options
  _name=${_options[0]} _log=logs/${_options[0]//\//-}.log
  _has_time || return 0
  echo "$(date +%T) $_name"
  "$here/run.sh" --stage 2 --results "results/${_name%/*}" "${@:1:$#-1}" "${_options[@]:1}" > "$_log" 2>&1 < /dev/null \
    || { echo "$_name failed: see $_log" >&2; return 1; }
}
