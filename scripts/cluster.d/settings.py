"""What one cluster is made with: ports, keys, and the files that its programs read."""
import json, os, pathlib, random, secrets, shutil, socket

from common import CONTEXT, Blocked, run
from image import TINY

PORTS = ("api", "etcd", "etcd_peer", "kubelet", "kubelet_health", "manager", "scheduler", "metrics", "health", "stream")

ENOUGH_MEMORY = 4 << 30


def choose(controller):
    """All that is decided once. The name is that of the bridge, of the cgroup and of the data in memory."""
    name = f"cbx{secrets.token_hex(4)}"
    subnet = f"10.{random.randint(200, 254)}.{random.randint(0, 255)}"
    return {"name": name, "controller": controller, "subnet": subnet, "ports": dict(zip(PORTS, free_ports(len(PORTS))))}


def free_ports(count):
    """Below the range from which the kernel chooses by itself, and all different."""
    held = []
    for _ in range(1000):
        candidate = socket.socket()
        try:
            candidate.bind(("127.0.0.1", random.randint(20000, 31999)))
            held.append(candidate)
        except OSError:
            candidate.close()
        if len(held) == count:
            break
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    if len(ports) < count:
        raise Blocked("there are no free ports on the loopback interface")
    return ports


def write_all(cache, directory, chosen):
    for name in ("pid", "log", "keys", "bin", "cni", "containerd", "kubelet", "accounts"):
        (directory / name).mkdir(exist_ok=True)
    place_data(directory, chosen["name"])
    for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"):
        link = directory / "bin" / program
        link.unlink(missing_ok=True)
        link.symlink_to(cache.hyperkube)
    token = make_keys(directory / "keys")
    write_kubeconfig(directory, chosen, directory / "admin.kubeconfig", "admin", token, "default")
    # An empty file would let the resolver of the host into the pods.
    (directory / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (directory / "cni/10-bridge.conflist").write_text(json.dumps(network(directory, chosen)))
    (directory / "containerd/config.toml").write_text(containerd(cache, directory, chosen))
    (directory / "kubelet/config.yaml").write_text(json.dumps(kubelet(directory, chosen), indent=1))


def place_data(directory, name):
    """What etcd, containerd and the kubelet write: in memory where there is enough. Waiting for a disk would be most of
    what the cluster does, and removing thousands of files most of its end."""
    link, memory = directory / "data", pathlib.Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ENOUGH_MEMORY:
        (memory / name).mkdir(mode=0o700)
        link.symlink_to(memory / name)
    else:
        link.mkdir()


def make_keys(keys):
    """One authority signs the certificates of the API server and of the kubelet, and that of the one to the other.
    Returns the token of the administrator."""
    old = os.umask(0o077)
    try:
        new_key(keys / "ca")
        run(["openssl", "req", "-x509", "-new", "-key", keys / "ca.key", "-subj", "/CN=test-ca", "-days", "30", "-out", keys / "ca.crt"])
        certify(keys, "apiserver", "/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc,IP:10.96.0.1")
        certify(keys, "kubelet", "/CN=127.0.0.1", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        certify(keys, "kubelet-client", "/O=system:masters/CN=apiserver", "extendedKeyUsage=clientAuth")
        new_key(keys / "accounts")
        run(["openssl", "ec", "-in", keys / "accounts.key", "-pubout", "-out", keys / "accounts.pub"])
        token = secrets.token_hex(20)
        (keys / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        return token
    finally:
        os.umask(old)


def new_key(path):
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{path}.key"])


def certify(keys, name, subject, extension):
    new_key(keys / name)
    (keys / f"{name}.ext").write_text(extension)
    request = run(["openssl", "req", "-new", "-key", keys / f"{name}.key", "-subj", subject])
    run(["openssl", "x509", "-req", "-CA", keys / "ca.crt", "-CAkey", keys / "ca.key", "-CAcreateserial", "-days", "30",
         "-extfile", keys / f"{name}.ext", "-out", keys / f"{name}.crt"], input=request)


def write_kubeconfig(directory, chosen, path, user, token, namespace):
    server = {"server": f"https://127.0.0.1:{chosen['ports']['api']}", "certificate-authority": str(directory / "keys/ca.crt")}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": CONTEXT,
              "clusters": [{"name": "cluster", "cluster": server}],
              "users": [{"name": user, "user": {"token": token}}],
              "contexts": [{"name": CONTEXT, "context": {"cluster": "cluster", "user": user, "namespace": namespace}}]}
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        json.dump(config, out, indent=1)


def network(directory, chosen):
    """A bridge that has the host's address but forwards nothing: pods reach each other and the host, and no setting of
    the kernel and no rule of a firewall is touched."""
    subnet = chosen["subnet"]
    addresses = {"type": "host-local", "subnet": f"{subnet}.0/24", "rangeStart": f"{subnet}.2", "gateway": f"{subnet}.1",
                 "dataDir": str(directory / "cni/addresses"), "routes": []}
    bridge = {"type": "bridge", "bridge": chosen["name"], "isGateway": False, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": chosen["name"], "plugins": [bridge]}


def containerd(cache, directory, chosen):
    data = (directory / "data").resolve()
    return f"""version = 2
root = "{data}/containerd"
state = "{directory}/containerd/state"
oom_score = 0
[grpc]
  address = "{directory}/containerd/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{TINY}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "{chosen['ports']['stream']}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cache.debian}/usr/lib/cni"
    conf_dir = "{directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{cache.debian}/usr/sbin/runc"
      SystemdCgroup = false
"""


def kubelet(directory, chosen):
    keys, ports = directory / "keys", chosen["ports"]
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": "127.0.0.1", "port": ports["kubelet"],
        "healthzBindAddress": "127.0.0.1", "healthzPort": ports["kubelet_health"],
        "tlsCertFile": str(keys / "kubelet.crt"), "tlsPrivateKeyFile": str(keys / "kubelet.key"),
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False},
                           "x509": {"clientCAFile": str(keys / "ca.crt")}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{directory}/containerd/sock",
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{chosen['name']}", "cgroupsPerQOS": True, "enforceNodeAllocatable": [],
        "failSwapOn": False, "failCgroupV1": False, "oomScoreAdj": 0, "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100, "imageMinimumGCAge": "24h",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
        "resolvConf": str(directory / "resolv.conf"), "maxPods": 200, "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "10s", "volumePluginDir": str(directory / "kubelet/plugins"),
    }
