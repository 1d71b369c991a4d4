# What the sync of a crabbox that was killed has staged: its end is waited for, and its old tree put back if need be.
recover() (
  S=$1; N=${S##*/.crabbox-sync-}; i=0
  p=; [ ! -e "$S/pid" ] || read -r p <"$S/pid"
  while [ -n "$p" ] && kill -0 "$p" 2>/dev/null; do
    [ "$i" -lt 15 ] || exit 1
    sleep 1
    i=$((i + 1))
  done
  [ -d "$S" ] || exit 0
  if [ -e "$S/begun" ] && [ ! -e "$S/done" ]; then roll_back || exit 1; fi
  cd / && rm -rf -- "$S"
)
mkdir -p -- "$W" || die "cannot write to the workdir"
for o in "$W"/.crabbox-sync-*; do
  [ -d "$o" ] && [ ! -L "$o" ] || continue
  recover "$o" || die "another sync has left $o, which cannot be removed"
done
mkdir -- "$S" && mkdir -- "$S/new" && echo $$ >"$S/pid" || die "cannot write to the workdir"
g=no; z=no
case $(tar --version 2>/dev/null) in *'GNU tar'*) g=yes ;; esac
if printf x 2>/dev/null | gzip -c 2>/dev/null | gzip -dc >/dev/null 2>&1; then z=yes; fi
say "hello gnu=$g gzip=$z"
if [ "$L$g" = yesyes ]; then
  # tar, where there is no find, writes each line by itself, and each write would become a message of its own on the way out.
  { ( list ); echo $? >"$S/listed"; } | dd ibs=65536 obs=65536 2>/dev/null && read -r s <"$S/listed" || s=1
  say "listed $s"
fi
how=; read -r how packed size || die "no answer"
[ "$how" != none ] || { rm -rf -- "$S"; end finished; }
T=$S/new
[ "$M" != merge ] || T=$W
[ "$how" != delta ] || [ "$M" = merge ] || dd bs=1 count="$size" of="$S/changes" 2>/dev/null || die "cannot write to the workdir"
unpack "$packed" "$T" || die "tar could not unpack the archive"
[ -e "$T/.crabbox-complete-$N" ] || die "the archive did not arrive completely"
rm -f -- "$T/.crabbox-complete-$N"
say unpacked
if [ "$M" = replace ]; then
  if ! replace; then
    roll_back || end "broken the old tree could not be put back"
    die "the files could not be replaced; the old ones were put back"
  fi
  say replaced
fi
cd /
rm -rf -- "$S" || end "left"
end finished
