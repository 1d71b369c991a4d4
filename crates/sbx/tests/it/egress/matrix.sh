# A line per host and scheme: `hello` or that it was not reached.
for host; do
  for scheme in http https; do
    said=$(curl -sS -m 30 --cacert all.pem $scheme://$host/hello 2>/dev/null) || said=
    [ "$said" = hello ] && echo hello || echo denied
  done
done
