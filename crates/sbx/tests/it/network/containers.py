import subprocess
def sh(script): subprocess.run(["sh", "-ec", script], check=True)
sh("""for n in 7 8; do ip link add br$n type bridge; ip link set br$n up; ip addr add 172.1$n.0.1/16 dev br$n; done
ip addr add fd11::1/64 dev br7 nodad
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables || true""")
def container(number):
    pid = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 100"], stdout=subprocess.PIPE)
    pid.stdout.readline()
    sh(f"""ip link add v{number} type veth peer name eth0 netns {pid.pid}
ip link set v{number} master br7 up
nsenter -t {pid.pid} -n sh -ec 'ip link set lo up; ip link set eth0 up; ip addr add 172.17.0.{number}/16 dev eth0
  ip addr add fd11::{number}/64 dev eth0 nodad; ip route add default via 172.17.0.1; ip route add default via fd11::1'""")
    return pid
def inside(container, script):
    script = "from lib import *\n" + script
    return subprocess.Popen(["nsenter", "-t", str(container.pid), "-n", sys.executable, "-c", script])
first, second = container(2), container(3)
server = inside(second, "serve('0.0.0.0', 80, 'second'); open('second', 'w').close(); time.sleep(100)")
await_file("second")
for host in ("0.0.0.0", "::"): serve(host, 80, "own")
open("waited", "w").close()
await_file("served")
inside(first, '''
# A bridge takes a moment to forward.
for _ in range(100):
    try: socket.create_connection(("172.17.0.1", 80), 1).close(); socket.create_connection(("fd11::1", 80), 1).close(); break
    except OSError: time.sleep(0.05)
say("world4", lambda: tcp("1.2.3.4", 80))
say("world6", lambda: tcp("2001:db8::1", 443))
say("world_private", lambda: tcp("10.1.2.3", 80))
say("dns", lambda: udp("9.9.9.9", 53))
say("dns6", lambda: udp("2001:db8::53", 53))
say("udp", lambda: udp("1.2.3.4", 9999))
say("bridge4", lambda: tcp("172.17.0.1", 80))
say("bridge6", lambda: tcp("fd11::1", 80))
say("other_bridge", lambda: tcp("172.18.0.1", 80))
say("sandbox4", lambda: tcp("10.0.2.15", 80))
say("sandbox6", lambda: tcp("fd00:5b0c::15", 80))
say("neighbour", lambda: tcp("172.17.0.3", 80))
''').wait()
say("to_container", lambda: tcp("172.17.0.3", 80))
say("to_bridge", lambda: tcp("172.17.0.1", 80))
say("still_world", lambda: tcp("1.2.3.4", 80))
for process in (server, first, second): process.kill()
