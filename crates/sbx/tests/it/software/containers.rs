//! What runs in a container elsewhere.

use std::process::Command;

use super::{bash, has_real_root, host_has, python, users};
use crate::ModeTest;
use crate::harness::{Sandbox, World, blocked};

pub(crate) const TESTS: &[ModeTest] = &[
    ("sandboxes_inside_the_sandbox", nested),
    ("ports_below_1024_and_ping", ports),
    ("the_host_name_is_the_sandboxs", host_name),
    ("message_queues_and_shared_memory", queues),
    ("terminals_made_inside", terminals),
    ("tracing_an_own_child", tracing),
    ("system_files_look_owned", ownership),
];
pub(crate) const REAL_ROOT: &[ModeTest] = &[
    ("raw_sockets_on_the_own_loopback", raw_sockets),
    ("setuid_programs_of_the_own_layer", set_id),
    ("file_capabilities_of_the_own_layer", capabilities),
    ("accounts_are_managed_as_ever", accounts),
    ("modes_in_a_directory_that_is_the_root", chroot),
    ("proc_is_mounted_again", proc),
    ("crun_runs_a_container", crun),
];
/// What needs a mounted control group, of which users have none to show.
pub(crate) const ROOT: &[ModeTest] = &[
    ("runc_runs_a_container", runc),
    ("podman_runs_a_container", podman),
];

fn nested(world: &'static World) {
    let sandbox = world.sandbox("nested");
    for user in ["agent", "root"] {
        if host_has("unshare") {
            let script = "unshare -Urpfm --mount-proc sh -c 'ls /proc | grep -c \"^[0-9]\"; id -u; mount -t tmpfs x /mnt'";
            let shown = bash(&sandbox, user, script).ok();
            let (processes, id) = shown.split_once('\n').unwrap();
            // The shell and its pipeline, nothing of the sandbox, nor who mounted its proc.
            assert!(
                processes.parse::<u32>().unwrap() <= 3 && id == "0",
                "{user}: {shown}"
            );
            // A browser's sandbox: a user namespace with no map, and in it all the others.
            bash(
                &sandbox,
                user,
                "unshare -U true; unshare -U -p -n -i -f true",
            )
            .ok();
        }
        if host_has("bwrap") {
            let script = "bwrap --unshare-all --die-with-parent --ro-bind / / --proc /proc --dev /dev \
                 sh -c 'test -e /dev/pts/ptmx; cat /proc/1/comm'";
            assert_eq!(bash(&sandbox, user, script).ok(), "bwrap");
            // Its terminals are the sandbox's, and can be used.
            let script = "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev python3 -c \
                 'import os, pty; os._exit(pty.spawn([\"sh\", \"-c\", \"tty >&2; test -w $(tty)\"]))'";
            assert_eq!(bash(&sandbox, user, script).ok().trim(), "/dev/pts/0");
            let script = "bwrap --unshare-all --proc /proc --dev /dev --tmpfs /tmp --ro-bind /usr /usr \
                 --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
                 --uid 33 --gid 33 --hostname inner sh -c 'id -u; cat /proc/sys/kernel/hostname; ls /'";
            assert_eq!(
                bash(&sandbox, user, script).ok(),
                "33\ninner\nbin\ndev\nlib\nlib64\nproc\ntmp\nusr"
            );
        }
    }
}

fn ports(world: &'static World) {
    let sandbox = world.sandbox("ports");
    let listen = "
import socket
for family, address in (socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'):
    server = socket.socket(family); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); server.bind((address, 80)); server.listen()
    client = socket.create_connection((address, 80)); server.accept()[0].sendall(b'low')
    assert client.recv(9) == b'low'
";
    let ping = "
import socket
ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); ping.settimeout(10)
ping.sendto(bytes([8, 0, 0, 0, 0, 1, 0, 1]), ('127.0.0.1', 0))
assert ping.recv(99)[0] == 0
";
    for user in ["agent", "root"] {
        python(&sandbox, user, listen).ok();
    }
    python(&sandbox, "agent", ping).ok();
}

fn raw_sockets(world: &'static World) {
    let sandbox = world.sandbox("raw");
    let script = "
import socket, struct
ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP); ping.settimeout(10)
ping.sendto(struct.pack('!BBHHH', 8, 0, 0xffff - 0x0800 - 2, 1, 1), ('127.0.0.1', 0))
while ping.recv(99)[20] != 0: pass
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); packets.bind(('lo', 0)); packets.settimeout(10)
ping.sendto(struct.pack('!BBHHH', 8, 0, 0xffff - 0x0800 - 2, 1, 1), ('127.0.0.1', 0))
assert packets.recv(99)
";
    python(&sandbox, "root", script).ok();
    python(&sandbox, "agent", script).refused();
}

fn host_name(world: &'static World) {
    let sandbox = world.sandbox("named");
    let outside = rustix::system::uname().nodename().to_owned();
    for command in [
        "uname -n",
        "cat /etc/hostname",
        "cat /proc/sys/kernel/hostname",
    ] {
        assert_eq!(sandbox.sh(command).ok(), sandbox.name);
    }
    assert!(
        sandbox
            .exec(["getent", "hosts", &sandbox.name])
            .ok()
            .contains("127.0.1.1")
    );
    if has_real_root(world) {
        assert_eq!(
            python(
                &sandbox,
                "root",
                "import socket; socket.sethostname('other'); print(socket.gethostname())"
            )
            .ok(),
            "other"
        );
        assert_eq!(sandbox.exec(["uname", "-n"]).ok(), "other");
        // Only until the next start.
        world.run(["stop", &sandbox.name]).ok();
        assert_eq!(sandbox.exec(["uname", "-n"]).ok(), sandbox.name);
    }
    assert_eq!(rustix::system::uname().nodename(), outside.as_c_str());
}

fn queues(world: &'static World) {
    let sandbox = world.sandbox("queues");
    let script = "
import ctypes, os, multiprocessing.shared_memory as shared
libc = ctypes.CDLL(None, use_errno=True)
queue = libc.mq_open(b'/sbx-%d' % os.getuid(), os.O_CREAT | os.O_RDWR, 0o600, None)
assert queue >= 0, os.strerror(ctypes.get_errno())
assert libc.mq_send(queue, b'word', 4, 0) == 0
assert 'sbx-%d' % os.getuid() in os.listdir('/dev/mqueue')
memory = shared.SharedMemory(create=True, size=1 << 20); memory.buf[0] = 7
again = shared.SharedMemory(memory.name)
assert again.buf[0] == 7
again.close(); memory.close(); memory.unlink()
";
    for user in users(world) {
        python(&sandbox, user, script).ok();
    }
    // They are the sandbox's own.
    let other = world.sandbox("queues");
    assert_eq!(
        other.sh("ls /dev/mqueue /dev/shm").ok(),
        "/dev/mqueue:\n\n/dev/shm:"
    );
}

fn terminals(world: &'static World) {
    let sandbox = world.sandbox("ptys");
    let script = "
import os, pty
for end in os.openpty(): os.close(end)
pid, master = pty.fork()
if pid == 0:
    os.execvp('sh', ['sh', '-c', 'tty; stty size; exec 3<>/dev/tty && echo controlling >&3'])
text = b''
try:
    while data := os.read(master, 999): text += data
except OSError: pass
os.waitpid(pid, 0)
assert text.split() == [b'/dev/pts/0', b'0', b'0', b'controlling'], text
";
    for user in ["agent", "root"] {
        python(&sandbox, user, script).ok();
        if host_has("script") {
            let shown = bash(&sandbox, user, "script -qec 'tty' /dev/null </dev/null").ok();
            assert_eq!(shown.trim(), "/dev/pts/0");
        }
    }
}

fn tracing(world: &'static World) {
    let sandbox = world.sandbox("trace");
    let script = "
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
pid = os.fork()
if pid == 0:
    assert libc.ptrace(0, 0, None, None) == 0  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
assert os.WIFSTOPPED(os.waitpid(pid, 0)[1])
libc.ptrace(7, pid, None, None)  # PTRACE_CONT
assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 7
";
    for user in ["agent", "root"] {
        python(&sandbox, user, script).ok();
        if host_has("strace") {
            let shown = bash(&sandbox, user, "strace -f -e trace=execve true 2>&1").ok();
            assert!(shown.contains("exited with 0"), "{shown}");
        }
    }
}

const PRINT_IDS: &str = r#"
cat >ids.c <<'C'
#include <stdio.h>
#include <unistd.h>
int main(void) { printf("%d %d\n", getuid(), geteuid()); return 0; }
C
gcc ids.c -o ids
"#;

fn set_id(world: &'static World) {
    if !host_has("gcc") {
        return;
    }
    let sandbox = world.sandbox("setid");
    bash(&sandbox, "agent", &format!("cd /tmp; {PRINT_IDS}")).ok();
    let script = "
install -o root -m 4755 /tmp/ids /usr/local/bin/ids
cp /tmp/ids /opt/by-chmod; chown root:root /opt/by-chmod; chmod u+s /opt/by-chmod
cp -a /usr/local/bin/ids /opt/by-cp
tar -C /usr/local/bin -cpf /opt/ids.tar ids; mkdir /opt/by-tar; tar -C /opt/by-tar -xpf /opt/ids.tar
cp -a /usr/local/bin/ids /home/agent/ids
stat -c '%a %U' /usr/local/bin/ids /opt/by-chmod /opt/by-cp /opt/by-tar/ids /home/agent/ids
";
    assert_eq!(
        bash(&sandbox, "root", script).ok(),
        ["4755 root"; 5].join("\n")
    );
    let script = "ids; /opt/by-chmod; /opt/by-cp; /opt/by-tar/ids; ~/ids";
    for _ in 0..2 {
        assert_eq!(
            bash(&sandbox, "agent", script).ok(),
            ["1000 0"; 5].join("\n")
        );
        // The bits outlive a stop.
        world.run(["stop", &sandbox.name]).ok();
    }
}

fn capabilities(world: &'static World) {
    if !host_has("setcap") || !host_has("gcc") {
        return;
    }
    let sandbox = world.sandbox("caps");
    let script = r#"
cd /tmp
cat >caps.c <<'C'
#include <stdio.h>
#include <sys/socket.h>
int main(void) { return socket(AF_INET, SOCK_RAW, 1) < 0; }
C
gcc caps.c -o caps
! ./caps
sudo install -m 755 caps /usr/local/bin/caps
! caps
sudo setcap cap_net_raw+ep /usr/local/bin/caps
getcap /usr/local/bin/caps
caps
"#;
    assert_eq!(
        bash(&sandbox, "agent", script).ok(),
        "/usr/local/bin/caps cap_net_raw=ep"
    );
    world.run(["stop", &sandbox.name]).ok();
    sandbox.exec(["caps"]).ok();
}

fn accounts(world: &'static World) {
    if !host_has("useradd") {
        return;
    }
    let sandbox = world.sandbox("accounts");
    let host = std::fs::read("/etc/passwd").unwrap();
    let script = "
useradd -m -s /bin/sh bob
echo bob:secret | chpasswd
passwd -q -l bob 2>/dev/null || passwd -l bob >/dev/null
groupadd crew; usermod -aG crew bob; id -nG bob
su - bob -c 'id -un; pwd; touch ~/mine; stat -c %U ~/mine'
su agent -c 'id -u'
chown bob:crew /home/bob/mine
userdel -r bob; ! id bob 2>/dev/null
";
    assert_eq!(
        bash(&sandbox, "root", script).ok(),
        "bob crew\nbob\n/home/bob\nbob\n1000"
    );
    // The agent has no password and needs none.
    bash(&sandbox, "agent", "su -c true </dev/null").refused();
    assert_eq!(
        bash(&sandbox, "agent", "sudo -u nobody id -un; sudo id -un").ok(),
        "nobody\nroot"
    );
    assert_eq!(std::fs::read("/etc/passwd").unwrap(), host);
}

/// Programs look at who owns their files and refuse strangers': what they look at is root's or the agent's.
fn ownership(world: &'static World) {
    let sandbox = world.sandbox("owners");
    let root = if has_real_root(world) {
        "root root"
    } else {
        "agent agent"
    };
    let shown = sandbox
        .sh("stat -c '%U %G' / /etc /etc/passwd /root /var /var/lib /usr /usr/local /tmp /run /dev")
        .ok();
    assert!(shown.lines().all(|line| line == root), "{shown}");
    let shown = sandbox
        .sh("stat -c '%U %G' ~ ~/.cache ~/.config ~/.local ~/.profile")
        .ok();
    assert!(shown.lines().all(|line| line == "agent agent"), "{shown}");
    assert_eq!(
        sandbox.sh("stat -c %a / /etc /tmp /home/agent /root").ok(),
        "755\n755\n1777\n755\n755"
    );
    if has_real_root(world) {
        // Files of the engine's own, which no user inside may change, belong to `nobody`.
        let strangers = "find /etc /var /root -xdev -user nobody \
             ! -path '/etc/host*' ! -name zz-sbx-path.sh ! -name gitconfig.sbx";
        assert_eq!(
            sandbox
                .root_sh(&format!("stat -c %a /etc/shadow; {strangers}"))
                .ok(),
            "600"
        );
        // Every directory of the system can be written by root, and no setuid program is powerless.
        assert_eq!(
            sandbox
                .root_sh(r#"find /usr /opt -xdev \( -path "/usr/share/doc/sbx-test-*" -o -type d ! -readable \) -prune -o -type d -user nobody -readable -print"#)
                .ok(),
            ""
        );
        assert_eq!(
            sandbox
                .root_sh(r#"find /usr /opt -xdev \( -path "/usr/share/doc/sbx-test-*" -o -type d ! -readable \) -prune -o -type f -perm /6000 -user nobody -readable -print"#)
                .ok(),
            ""
        );
        bash(&sandbox, "root", "install -D /bin/true /usr/share/sbx/new; sed -i s/a/b/ /usr/share/common-licenses/GPL-2 || true").ok();
    }
}

/// What builds a system below a directory, such as debootstrap, does.
fn chroot(world: &'static World) {
    if !host_has("gcc") {
        return blocked("no gcc");
    }
    let sandbox = world.sandbox("chroot");
    let program = r#"
mkdir -p /srv/r/bin; cd /srv/r
cat >chmod.c <<'C'
#include <stdio.h>
#include <sys/stat.h>
int main(int count, char **names) { if (chmod(names[1], 04755)) { perror(names[1]); return 1; } return 0; }
C
gcc -static chmod.c -o bin/chmod
touch file
chroot /srv/r /bin/chmod /file
stat -c %a file
"#;
    assert_eq!(bash(&sandbox, "root", program).ok(), "4755");
    // The root of the process decides nothing about a workspace.
    let place = sandbox.workspace.to_str().unwrap();
    let program = format!(
        "mkdir {place}/bin; cp /srv/r/bin/chmod {place}/bin; touch {place}/file; chroot {place} /bin/chmod /file"
    );
    let refused = bash(&sandbox, "root", &program).refused();
    assert!(refused.err.contains("not permitted"), "{refused:?}");
    let shown = sandbox.root_sh(&format!("stat -c %a {place}/file")).ok();
    assert_eq!(shown, "644");
}

/// In the sandbox's own pid namespace, with the masks that the first one has.
fn proc(world: &'static World) {
    let sandbox = world.sandbox("proc");
    let script = "
mount -t proc proc /mnt
cat /mnt/self/comm /mnt/sys/kernel/hostname
! umount /mnt/keys 2>/dev/null
test ! -s /mnt/keys
! mount -o remount,bind,rw /mnt/keys 2>/dev/null
mkdir -p /srv/r/proc; mount -t proc -o ro proc /srv/r/proc
! echo x 2>/dev/null >/srv/r/proc/self/comm
umount -l /mnt
ls /mnt
";
    let shown = bash(&sandbox, "root", script).ok();
    assert_eq!(shown, format!("cat\n{}", sandbox.name));
    // Options are those of a file system of its own, which the kernel refuses; so is a nested user namespace.
    for refused in [
        "mount -t proc -o hidepid=2 proc /mnt",
        "unshare -Urm mount -t proc proc /mnt",
    ] {
        bash(&sandbox, "root", refused).refused();
    }
    bash(&sandbox, "agent", "mount -t proc proc /mnt").refused();
}

const BUNDLE: &str = include_str!("bundle.sh");

/// Why no container can be made here.
fn lacking(runtime: &str) -> Option<String> {
    let all = [runtime, "python3"];
    let lacking = all.into_iter().find(|program| !host_has(program));
    // `ldd` fails for a program without libraries, which a bundle has none of.
    let is_static = std::path::Path::new("/bin/busybox").exists()
        && !Command::new("ldd")
            .arg("/bin/busybox")
            .output()
            .is_ok_and(|ran| ran.status.success());
    match lacking {
        Some(program) => Some(format!("no {program}")),
        None if !is_static => Some("no static busybox".into()),
        None => None,
    }
}

/// A bundle as `runc spec` describes one, with what it mounts and masks.
fn run_bundle(sandbox: &Sandbox<'_>, runtime: &str) {
    let shown = bash(sandbox, "root", &format!("{BUNDLE}\n{runtime} run one")).ok();
    assert_eq!(shown, "0\ninner\n1\n0");
    // Nothing of it stays.
    assert_eq!(sandbox.root_sh(&format!("{runtime} list -q")).ok(), "");
}

fn crun(world: &'static World) {
    if let Some(reason) = lacking("crun") {
        return blocked(&reason);
    }
    run_bundle(&world.sandbox("crun"), "crun");
}

fn runc(world: &'static World) {
    if let Some(reason) = lacking("runc") {
        return blocked(&reason);
    }
    let sandbox = world.sandbox("runc");
    if sandbox.root_sh("stat -fc %T /sys/fs/cgroup").ok() != "cgroup2fs" {
        return blocked("control groups of version 2 are not mounted");
    }
    run_bundle(&sandbox, "runc");
}

fn podman(world: &'static World) {
    for program in ["podman", "crun"] {
        if let Some(reason) = lacking(program) {
            return blocked(&reason);
        }
    }
    let sandbox = world.sandbox("podman");
    let script = "
mkdir -p /opt/rootfs/bin; cp /bin/busybox /opt/rootfs/bin; ln -s busybox /opt/rootfs/bin/sh
podman() { command podman --root /opt/store --runroot /run/store --storage-driver vfs --runtime crun \"$@\"; }
run='podman run --rm --network=none --cgroups=disabled'
$run --rootfs /opt/rootfs sh -c 'busybox id -u; busybox wc -c </proc/keys'
mkdir -p /etc/containers; echo '{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}' >/etc/containers/policy.json
busybox tar -C /opt/rootfs -c . | podman import -q - localhost/tiny >/dev/null
$run localhost/tiny sh -c 'busybox echo image'
";
    assert_eq!(bash(&sandbox, "root", script).ok(), "0\n0\nimage");
}
