# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Source this after the defaults: `--some-name value` sets $some_name, which the script must have given a default
# (`some_name=…` at the start of a line, before the first file that it sources). `--help` prints the comment at the top
# of the script, then the options with their defaults. An unknown option, a missing value, a stray word or a stage that
# does not exist (the default of `stop_stage` is the last one) ends the script with exit code 2.
#   . tools/parse_options.sh
# A file of shared options that sources this one sets _option_files: the files whose defaults are options.

_parse_options() {
  local _option _defaults _names
  _defaults=$(_print_defaults)
  _names=$(awk '{ print substr($1, 3) }' <<< "$_defaults")  # a variable of the environment is not an option
  while [ $# -gt 0 ]; do
    case "$1" in
      --help | -h)
        sed -n -e '/^#!/d' -e '/^# SPDX/d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"
        printf 'Options and their defaults:\n%s\n' "$_defaults"
        exit 0
        ;;
      --*=*) _refuse_option "write '${1%%=*} ${1#*=}' instead of '$1'" ;;
      --[a-z]*) ;;
      *) _refuse_option "expected --name value, got '$1' (try --help)" ;;
    esac
    _option=${1#--}
    _option=${_option//-/_}
    grep -qxF -- "$_option" <<< "$_names" || _refuse_option "unknown option '$1' (try --help)"
    ! grep -qxF -- "${2-}" <<< "--${_names//$'\n'/$'\n'--}" || set -- "$1"  # the next option, not a value
    [ $# -ge 2 ] || _refuse_option "option '$1' needs a value"
    printf -v "$_option" '%s' "$2"
    shift 2
  done
}

# One line per option of each file: its name, its value, its comment.
_print_defaults() {
  local _file _line _name _value
  for _file in "${_option_files[@]}"; do
    while IFS= read -r _line; do
      _name=${_line%%=*}
      _value=${!_name}
      case "$_value" in *" "*) _value="\"$_value\"" ;; esac
      case "$_line" in *" # "*) printf '  %-30s  %s\n' "--$_name $_value" "${_line#* # }" ;; *) echo "  --$_name $_value" ;; esac
    done < <(sed -n -e '/^\. "/q' -e '/^here=/d' -e '/^[a-z][a-z0-9_]*=/p' "$_file")
  done | awk '!seen[$1]++'
}

_refuse_option() {
  echo "$0: $1" >&2
  exit 2
}

_check_stages() {
  local _number
  for _number in "${stage:=0}" "${stop_stage:=0}"; do
    [[ $_number =~ ^-?[0-9]+$ ]] || _refuse_option "--stage and --stop_stage are numbers, got '$_number'"
  done
  [ "$stage" -le "$_last_stage" ] || _refuse_option "there is no stage $stage; the last one is $_last_stage"
  [ "$stage" -le "$stop_stage" ] || _refuse_option "nothing to do from --stage $stage to --stop_stage $stop_stage"
}

_last_stage=${stop_stage-}
[ -n "${_option_files-}" ] || _option_files=("$0")
_parse_options "$@"
[ -z "$_last_stage" ] || _check_stages
unset _last_stage _option_files
unset -f _check_stages _parse_options _print_defaults _refuse_option
