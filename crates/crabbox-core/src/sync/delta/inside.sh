# One sync with the staging directory inside the workdir, for any POSIX shell. N is a nonce, W the workdir, M replace or
# merge, L yes where a list is wanted. Its stdin continues with what it asks for; lines that begin with the nonce are for
# crabbox.
S=$W/.crabbox-sync-$N
umask 022
trap '' HUP PIPE
say() { printf '%s %s\n' "$N" "$*"; }
# Takes what is left of stdin: a sender that is not heard would wait for ever.
end() { say "$@"; exec >/dev/null; cat >/dev/null 2>&1; exit 0; }
die() { rm -rf -- "$S"; end "failed $*"; }
# Does "$@" NAME with each entry of the current directory but the staging directory.
each() {
  for e in ..?* .[!.]* *; do
    [ -e "$e" ] || [ -L "$e" ] || continue
    [ "$e" = ".crabbox-sync-$N" ] || "$@" "$e" || return 1
  done
}
move_out() { mv -- "$1" "$S/old/"; }
move_in() { mv -- "$1" "$W/"; }
delete() { rm -rf -- "$1"; }
# The lines of a change script, see Delta::changes.
displace() {
  d=$1; shift
  case $pass in
    back_up) mkdir -p -- "$S/old/$d" && mv -- "$@" "$S/old/$d/" ;;
    restore)
      for e in "$@"; do
        [ -e "$S/old/$e" ] || [ -L "$S/old/$e" ] || continue
        mv -- "$S/old/$e" "$W/$d/" || return 1
      done
      ;;
  esac
}
install() {
  d=$1; shift
  case $pass in
    install) mkdir -p -- "$W/$d" && cd -- "$S/new" && mv -- "$@" "$W/$d/" && cd -- "$W" ;;
    undo) rm -rf -- "$@" ;;
  esac
}
replace() {
  mkdir -- "$S/old" && : >"$S/begun" && cd -- "$W" || return 1
  if [ -e "$S/changes" ]; then
    pass=back_up; . "$S/changes" || return 1
    : >"$S/moved" || return 1
    pass=install; . "$S/changes" || return 1
  else
    each move_out && : >"$S/moved" && cd -- "$S/new" && each move_in || return 1
  fi
  : >"$S/done"
}
# Puts back what replace moved away.
roll_back() {
  cd -- "$W" || return 1
  if [ -e "$S/changes" ]; then
    if [ -e "$S/moved" ]; then pass=undo; . "$S/changes" || return 1; fi
    pass=restore; . "$S/changes"
  else
    if [ -e "$S/moved" ]; then each delete || return 1; fi
    cd -- "$S/old" && each move_in
  fi
}
unpack() {
  case $1 in
    gzip) gzip -dc | tar -xpof - -C "$2" ;;
    *) tar -xpof - -C "$2" ;;
  esac
}
