#!/bin/sh
# One user id exists in this sandbox: packages cannot be installed. What only reads still works.
real=/usr/bin/${0##*/}
argument=
for word; do
  if [ -n "$argument" ]; then
    argument=
    continue
  fi
  case $word in
  -o | -c | -t | --option | --config-file | --target-release | --default-release) argument=yes ;;
  install | remove | purge | autoremove | autopurge | upgrade | dist-upgrade | full-upgrade | update | \
    build-dep | reinstall | satisfy | dselect-upgrade | edit-sources | \
    -i | -r | -P | --install | --remove | --purge | --unpack | --configure | --triggers-only | \
    --add-architecture | --remove-architecture | --set-selections | --clear-selections | --update-avail)
    echo "${0##*/}: packages cannot be installed in this sandbox: it runs with one user id" >&2
    echo "hint: give your user subordinate ids (on the host, 'sbx diagnose' says how) and recreate the sandbox" >&2
    exit 100
    ;;
  -*) ;;
  *) break ;;
  esac
done
if [ ! -x "$real" ]; then
  echo "${0##*/}: not found" >&2
  exit 127
fi
exec "$real" "$@"
