[ -d "$S" ] || end finished
p=; read -r p <"$S/pid"
i=0
while [ -n "$p" ] && kill -0 "$p" 2>/dev/null; do
  [ "$i" -lt 15 ] || end "broken the sync still runs"
  sleep 1
  i=$((i + 1))
done
if [ -e "$S/begun" ] && [ ! -e "$S/done" ]; then
  roll_back || end "broken the old tree could not be put back"
fi
cd /
rm -rf -- "$S" || end "failed cannot remove the staging directory"
end finished
