#!/usr/bin/env bash
# Proves what crosses the boundary to sbx, with a stand-in for it that writes down what it is given: the workspace, the
# command and the name of a file with variables are on its command line; the variables' values are in that file only.
# No sandbox is made, and nothing is sent anywhere.
# CRABBOX_BIN names a crabbox that is built already; without it bin/crabbox is built.
# The last line is the result: classification=trust_boundary_proof_passed, environment_blocked or diagnostic_only.
set -euo pipefail
cd "$(dirname "$0")/.."
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

classified() {
  echo "classification=$1 reason=$2" >&2
  exit "$3"
}

if [ -z "${CRABBOX_BIN:-}" ]; then
  command -v cargo >/dev/null || classified environment_blocked "cargo is not installed" 127
  scripts/build-bin || classified diagnostic_only "crabbox does not build" $?
  CRABBOX_BIN=bin/crabbox
fi
[ -f "$CRABBOX_BIN" ] && [ -x "$CRABBOX_BIN" ] ||
  classified environment_blocked "CRABBOX_BIN $CRABBOX_BIN is no program" 127
CRABBOX_BIN=$(realpath "$CRABBOX_BIN")

# The stand-in. Values are compared by the shell itself: a program that looks for one would have it in its arguments.
mkdir "$temp/seen" "$temp/work"
cat >"$temp/sbx" <<'SBX'
#!/usr/bin/env bash
set -euo pipefail
seen=$(dirname "$0")/seen
{ printf '%s\n' "$#" "$@"; } >>"$seen/argv"
case ${1:-} in
  version) printf 'client: v0.31.3\nserver: v0.31.3\n' ;;
  ls)
    if [ -f "$seen/sandbox" ]; then
      printf '[{"name":"%s","status":"running","agent":"shell"}]\n' "$(<"$seen/sandbox")"
    else
      echo '[]'
    fi
    ;;
  diagnose) echo '{"checks":[]}' ;;
  create)
    printf '%s\n' "$@" >"$seen/create"
    printf '%s' "$3" >"$seen/sandbox"
    ;;
  rm) rm -f "$seen/sandbox" ;;
  exec)
    printf '%s\n' "$@" >"$seen/exec"
    # Everybody above, as every user of the machine can read it.
    pid=$$
    while [ "$pid" -gt 1 ]; do
      tr '\0' '\n' <"/proc/$pid/cmdline" >>"$seen/processes" || break
      pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status") || break
    done
    shift
    while [ $# -gt 0 ]; do
      case $1 in
        --workdir) cd "$2" && shift 2 ;;
        --env-file) env_file=$2 && shift 2 ;;
        -*) shift ;;
        *) break ;;
      esac
    done
    shift
    printf '%s\n' "${env_file:-}" >"$seen/env-file"
    # A sandbox knows no variables of the host.
    while read -r name; do unset "$name"; done < <(compgen -e | grep -vx PATH)
    if [ -n "${env_file:-}" ]; then
      stat -c %a "$env_file" >"$seen/env-file-mode"
      cp "$env_file" "$seen/env-file-content"
      while IFS= read -r line; do export "${line?}"; done <"$env_file"
    fi
    exec "$@"
    ;;
  *) exit 64 ;;
esac
SBX
chmod +x "$temp/sbx"

git -c init.defaultBranch=main init -q "$temp/work"
workspace=$(cd "$temp/work" && pwd -P)
value=probe-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
name=CRABBOX_TRUST_PROBE_TOKEN
export XDG_STATE_HOME=$temp/state XDG_CONFIG_HOME=$temp/config
while read -r other; do unset "$other"; done < <(compgen -e | grep '^CRABBOX_' | grep -vx CRABBOX_BIN)
export CRABBOX_DOCKER_SANDBOX_CLI=$temp/sbx
code=0
received=$(cd "$workspace" && export "$name=$value" &&
  "$CRABBOX_BIN" run --provider docker-sandbox --allow-env "$name" -- printenv "$name" 2>"$temp/err" </dev/null) || code=$?

holds() { [[ $(cat "$@" 2>/dev/null) == *"$value"* ]]; }

failed=()
check() { # WHAT COMMAND...
  local what=$1
  shift
  "$@" || failed+=("$what")
}
is() { [ "$1" = "$2" ]; }
not() { ! "$@"; }
# Whether the words of a call stand in it one after the other.
words() {
  local call=$1 want
  shift
  want=$(printf '%s\n' "$@")
  [[ $'\n'$(cat "$temp/seen/$call" 2>/dev/null)$'\n' == *$'\n'"$want"$'\n'* ]]
}
ends_with() {
  local call=$1 want
  shift
  want=$(printf '%s\n' "$@")
  [[ $(cat "$temp/seen/$call" 2>/dev/null) == *$'\n'"$want" ]]
}
gone() { [ -n "$1" ] && [ ! -e "$1" ]; }

env_file=$(cat "$temp/seen/env-file" 2>/dev/null || true)
sandbox=$(sed -n 3p "$temp/seen/create" 2>/dev/null || true)
check "crabbox exited with $code" is "$code" 0
check "the workspace is not what create was given" ends_with create shell "$workspace"
check "the command does not run in the workspace" words exec --workdir "$workspace"
check "the variables are in no file" words exec --env-file "$env_file"
check "the command is not what exec was given" ends_with exec "$sandbox" printenv "$name"
check "the value is in the arguments of sbx" not holds "$temp/seen/argv"
check "the value is in the arguments of a process" not holds "$temp/seen/processes"
check "the value is not in the file" holds "$temp/seen/env-file-content"
check "others may read the file" is "$(cat "$temp/seen/env-file-mode" 2>/dev/null)" 600
check "the file is still there" gone "$env_file"
check "the command did not receive the value" is "$received" "$value"
check "crabbox said the value" not holds "$temp/err"
while IFS= read -r file; do
  check "the value stays in ${file#"$temp/"}" not holds "$file"
done < <(find "$temp/state" -type f)
check "the sandbox is still there" not test -e "$temp/seen/sandbox"

if [ "${#failed[@]}" -gt 0 ]; then
  while IFS= read -r line; do echo "${line//"$value"/[value]}" >&2; done <"$temp/err"
  printf '%s\n' "${failed[@]}" >&2
  classified diagnostic_only "${failed[0]}" 1
fi
echo "classification=trust_boundary_proof_passed workspace_in_argv=true command_in_argv=true env_file_in_argv=true" \
  "env_value_in_argv=false env_value_received=true env_file_removed=true"
