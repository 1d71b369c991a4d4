# Makes this network and mount namespace an internet of its own: sh internet.sh DIR. Everything in DIR is the caller's
# to remove, the rest ends with the last process in these namespaces.
set -eu
dir=$1
cd "$dir"
umask 022
ip link set lo up
# Every address is here.
ip route add local default dev lo
ip -6 route add local default dev lo
# One is the machine's own, and one is routed to it and on no interface.
ip address add 203.0.113.99/32 dev lo
ip route add local 203.0.113.97/32 dev lo
# For a lookup of an address's place, and not for what is sent there, the others are elsewhere.
for family in -4 -6; do
    ip $family rule add pref 1 ipproto tcp dport 1-65534 lookup local
    ip $family rule add pref 2 ipproto udp dport 1-65534 lookup local
    ip $family rule add pref 3 ipproto icmp lookup local
done
for own in 127.0.0.0/8 203.0.113.99 203.0.113.97; do
    ip rule add pref 9 to $own lookup local
done
ip -6 rule add pref 9 to ::1 lookup local
ip route add unicast default dev lo src 203.0.113.99
ip rule del pref 0
ip -6 rule del pref 0
# Of a network whose names are short: none of them may be looked up for a sandbox.
printf 'nameserver 203.0.113.53\nsearch corp.test origin.test\noptions ndots:5\n' >resolv.conf
printf '127.0.0.1 localhost\n::1 localhost\n' >hosts
mount --bind resolv.conf /etc/resolv.conf
mount --bind hosts /etc/hosts

curve='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2'
openssl req -x509 $curve -keyout ca.key -out ca.pem -subj '/CN=Origin Test CA' 2>/dev/null
openssl req -x509 $curve -CA ca.pem -CAkey ca.key -keyout origin.key -out origin.crt -subj '/CN=origin.test' \
  -addext basicConstraints=critical,CA:FALSE \
  -addext 'subjectAltName=DNS:origin.test,DNS:*.origin.test,DNS:deep.www.origin.test,DNS:*.test,DNS:*.wild.test,IP:198.51.100.7' 2>/dev/null
cat origin.crt origin.key >origin.pem

export HOME="$dir" GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@origin.test GIT_COMMITTER_NAME=t \
  GIT_COMMITTER_EMAIL=t@origin.test
mkdir www
git init -q -b main src
echo content >src/file
git -C src add file
git -C src commit -qm first
git clone -q --bare src www/repo.git
git -C www/repo.git update-server-info

: >children
# They would be packets of their own.
[ ! -e sniff ] || exec /usr/bin/python3 origin.py "$dir"
if command -v node >/dev/null; then
  printf '{"args": ["node", "%s/h2.js", "%s"], "port": 8443}\n' "$dir" "$dir" >>children
fi
if /usr/bin/python3 -c 'import grpc' 2>/dev/null; then
  printf '{"args": ["/usr/bin/python3", "%s/grpc_origin.py", "%s", "50051", "50052"], "port": 50052}\n' "$dir" "$dir" >>children
fi
if command -v gtlsserver >/dev/null; then
  echo 'by QUIC' >www/h3.txt
  # Its port is UDP's; that TCP's answers says nothing of it.
  printf '{"args": ["gtlsserver", "-q", "-d", "%s/www", "*", "443", "%s/origin.key", "%s/origin.crt"], "port": 443}\n' \
    "$dir" "$dir" "$dir" >>children
fi
if command -v dropbear >/dev/null && command -v dropbearkey >/dev/null && command -v ssh-keygen >/dev/null; then
  dropbearkey -t ed25519 -f ssh_host >/dev/null 2>&1
  ssh-keygen -q -t ed25519 -N '' -f ssh_key
  cat >ssh.sh <<END
set -eu
mount -t tmpfs -o mode=700 tmpfs /root
mkdir -m 700 /root/.ssh
cp "$dir/ssh_key.pub" /root/.ssh/authorized_keys
exec dropbear -F -E -s -r "$dir/ssh_host" -p 22
END
  printf '{"args": ["unshare", "--mount", "--propagation", "private", "sh", "%s/ssh.sh"], "port": 22}\n' "$dir" >>children
fi
exec /usr/bin/python3 origin.py "$dir"
