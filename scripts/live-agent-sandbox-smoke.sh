#!/usr/bin/env bash
# Proves agent-sandbox on a real cluster: doctor, claim, sync, environment, replacement sync, status, list, stop.
#
#   CRABBOX_LIVE=1, CRABBOX_LIVE_PROVIDERS with agent-sandbox   without them nothing is touched
#   CRABBOX_AGENT_SANDBOX_CONTEXT, ..._WARM_POOL                which cluster and pool; or all settings in the file CRABBOX_CONFIG
#   CRABBOX_AGENT_SANDBOX_{KUBECTL,KUBECONFIG,NAMESPACE,CONTAINER,WORKDIR}, KUBECONFIG
#   CRABBOX_LIVE_SLUG=NAME                                      the slug of the lease, instead of a new one
#   CRABBOX_BIN=PATH                                            a crabbox that is built already
#
# It removes files in the workdir that are not in its own small repository, so nothing but these variables and that file
# chooses a cluster: it works in a new repository, and the user's own configuration is not read.
# The last line is the result: classification=live_agent_sandbox_smoke_passed, environment_blocked, quota_blocked or
# diagnostic_only. With each of them the exit code is 0: callers read the line.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
slug=${CRABBOX_LIVE_SLUG:-live-smoke-$(date +%s)-$$}
made=false
verdict=
temp=$(mktemp -d)

finish() {
  local code=$?
  trap - EXIT
  # Nothing that this run made stays. A lease that was never recorded is none (4).
  if "$made"; then
    local stopped=0
    crabbox stop --provider agent-sandbox "$slug" >"$temp/stop" 2>&1 || stopped=$?
    if [ "$stopped" != 0 ] && [ "$stopped" != 4 ]; then
      cat "$temp/stop" >&2
      # Its record is what leads to the sandbox: it outlives this script.
      echo "the sandbox may still be there: XDG_STATE_HOME=$temp/state crabbox stop --provider agent-sandbox $slug" >&2
      temp=
    fi
  fi
  [ -z "$temp" ] || rm -rf "$temp"
  [ -z "$verdict" ] || echo "$verdict"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# In the new repository, with a state of its own and only the configuration that was named.
crabbox() {
  (cd "$temp/repository" && XDG_STATE_HOME=$temp/state XDG_CONFIG_HOME=$temp/config exec "$CRABBOX_BIN" "$@" </dev/null)
}

# classified NAME WORD...: the end. The words are the reason.
classified() {
  local name=$1
  shift
  verdict="classification=$name $*"
  exit 0
}
blocked() { classified environment_blocked "reason=$*"; }

show() { cat "$temp/out" "$temp/err" >&2 2>/dev/null || true; }

# What the failing command said, without the names that come from here: a pool called `quota` blocks nothing.
said() {
  local text name
  text=$(cat "$temp/out" "$temp/err")
  for name in "$slug" "${CRABBOX_AGENT_SANDBOX_WARM_POOL:-$slug}" "${CRABBOX_AGENT_SANDBOX_NAMESPACE:-$slug}" "$temp" "$root"; do
    text=${text//"$name"/}
  done
  printf '%s' "$text"
}

# step ELSE WORD...: runs crabbox with the words. ELSE is what a failure is that its own words do not explain.
step() {
  local else=$1 code=0
  shift
  crabbox "$@" >"$temp/out" 2>"$temp/err" || code=$?
  [ "$code" = 0 ] && return
  show
  local failed="command=crabbox $1 exit=$code"
  if said | grep -Eqi 'quota|rate limit|capacity|unschedulable|insufficient (cpu|memory)'; then
    classified quota_blocked "$failed"
  elif said | grep -Eqi 'refused|no such host|unreachable|TLS handshake|x509|unauthorized|must be logged in|forbidden|RBAC denied|kubectl.* not found|context .* does not exist|could not find the requested resource'; then
    classified environment_blocked "$failed"
  fi
  classified "$else" "$failed"
}

# invalid REASON: the command succeeded, and what it said is not what it should be.
invalid() {
  show
  classified diagnostic_only "reason=$*"
}

[ "${CRABBOX_LIVE:-}" = 1 ] || blocked "CRABBOX_LIVE is not 1"
[ "${CRABBOX_LIVE_COORDINATOR:-0}" = 0 ] || blocked "CRABBOX_LIVE_COORDINATOR is not 0, and this build has no coordinator"
providers=${CRABBOX_LIVE_PROVIDERS:-}
case ",${providers// /,}," in
  *,agent-sandbox,*) ;;
  *) blocked "CRABBOX_LIVE_PROVIDERS does not name agent-sandbox" ;;
esac
if [ -n "${CRABBOX_CONFIG:-}" ]; then
  CRABBOX_CONFIG=$(realpath -m "$CRABBOX_CONFIG")
  export CRABBOX_CONFIG
  [ -f "$CRABBOX_CONFIG" ] || blocked "CRABBOX_CONFIG is no file"
  case $CRABBOX_CONFIG in "$root"/*) blocked "CRABBOX_CONFIG is in this repository" ;; esac
else
  for name in CONTEXT WARM_POOL; do
    variable=CRABBOX_AGENT_SANDBOX_$name
    [ -n "${!variable:-}" ] || blocked "neither $variable nor CRABBOX_CONFIG is set"
  done
  kubeconfig=${CRABBOX_AGENT_SANDBOX_KUBECONFIG:-${KUBECONFIG:-$HOME/.kube/config}}
  [ -n "${KUBECONFIG:-}" ] || [ -f "${kubeconfig/#\~\//$HOME/}" ] || blocked "there is no kubeconfig $kubeconfig"
fi
command -v "${CRABBOX_AGENT_SANDBOX_KUBECTL:-kubectl}" >/dev/null || [ -n "${CRABBOX_CONFIG:-}" ] || blocked "there is no kubectl"

if [ -z "${CRABBOX_BIN:-}" ]; then
  command -v cargo >/dev/null || blocked "there is no cargo to build crabbox with"
  scripts/build-bin || classified diagnostic_only "command=scripts/build-bin"
  CRABBOX_BIN=bin/crabbox
fi
if [ ! -f "$CRABBOX_BIN" ] || [ ! -x "$CRABBOX_BIN" ]; then blocked "CRABBOX_BIN is no program"; fi
CRABBOX_BIN=$(realpath "$CRABBOX_BIN")

mkdir -p "$temp/repository/dir" "$temp/config"
git -C "$temp/repository" init -q
echo first >"$temp/repository/dir/file"

step environment_blocked doctor --provider agent-sandbox
made=true
step diagnostic_only warmup --provider agent-sandbox --slug "$slug"

on=(--provider agent-sandbox --id "$slug")
export CRABBOX_SMOKE_VALUE="value of $slug" CRABBOX_SYNC_DELETE=true
step diagnostic_only run "${on[@]}" --allow-env CRABBOX_SMOKE_VALUE -- sh -c 'cat dir/file; printf %s "$CRABBOX_SMOKE_VALUE"'
[ "$(cat "$temp/out")" = "first
$CRABBOX_SMOKE_VALUE" ] || invalid "the command did not see the file and the variable"

step diagnostic_only run "${on[@]}" --no-sync -- sh -c 'touch stale && ls'
grep -qx stale "$temp/out" || invalid "the stale file was not made"
echo second >"$temp/repository/dir/file"
step diagnostic_only run "${on[@]}" -- sh -c 'cat dir/file; ls'
[ "$(cat "$temp/out")" = "second
dir" ] || invalid "the second sync did not replace what was there"

step diagnostic_only status "${on[@]}" --wait --json
grep -Eq '"ready":[[:space:]]*true' "$temp/out" || invalid "status does not say ready"
listed="\"slug\":[[:space:]]*\"$slug\""
step diagnostic_only list --provider agent-sandbox --json
grep -Eq "$listed" "$temp/out" || invalid "$slug is not listed"

step diagnostic_only stop --provider agent-sandbox "$slug"
step diagnostic_only list --provider agent-sandbox --json
! grep -Eq "$listed" "$temp/out" || invalid "$slug is still listed"
made=false

classified live_agent_sandbox_smoke_passed "slug=$slug" cleanup=complete
