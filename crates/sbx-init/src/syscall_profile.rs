//! The system call profile of a command, as data: what is refused, what is reported to the guard, and why.
//!
//! Every other call up to [`LAST_KNOWN_SYSCALL`] is allowed; newer ones return ENOSYS. The host is protected first by the
//! id maps (no id inside is host root) and by the namespaces; the profile removes the calls that bypass those two, and
//! reports those whose danger depends on the file they act on.

use libc as nr;

/// The newest call that this list was checked against (`file_setattr`, Linux 6.17).
pub(crate) const LAST_KNOWN_SYSCALL: u32 = 469;

/// What happens to a call whose conditions hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The call fails with this error number.
    Fail(i32),
    /// `SECCOMP_RET_USER_NOTIF`: the guard does the call on behalf of the caller, or refuses it.
    Notify,
}

/// A condition on the low 32 bits of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    AnyBit { arg: u8, mask: u32 },
    NoBit { arg: u8, mask: u32 },
    Masked { arg: u8, mask: u32, value: u32 },
    Equals { arg: u8, value: u32 },
    NotIn { arg: u8, values: &'static [u32] },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) call: libc::c_long,
    pub(crate) action: Action,
    /// All must hold; an empty list always does.
    pub(crate) when: &'static [When],
    pub(crate) reason: &'static str,
}

const EPERM: Action = Action::Fail(libc::EPERM);
const ENOSYS: Action = Action::Fail(libc::ENOSYS);
/// As if another process had the file open: programs that ask for a lease expect that.
const EAGAIN: Action = Action::Fail(libc::EAGAIN);
/// As from a file system without such a request.
const ENOTTY: Action = Action::Fail(libc::ENOTTY);
/// As from a kernel that does not know a flag.
const EINVAL: Action = Action::Fail(libc::EINVAL);

const fn refuse(call: libc::c_long, action: Action, reason: &'static str) -> Rule {
    Rule {
        call,
        action,
        when: &[],
        reason,
    }
}

const fn refuse_when(call: libc::c_long, when: &'static [When], reason: &'static str) -> Rule {
    Rule {
        call,
        action: EPERM,
        when,
        reason,
    }
}

const fn notify(call: libc::c_long, when: &'static [When], reason: &'static str) -> Rule {
    Rule {
        call,
        action: Action::Notify,
        when,
        reason,
    }
}

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// `O_CREAT`, and the bit of `O_TMPFILE` besides `O_DIRECTORY`: only then is the mode argument used.
const CREATES: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
/// With one of these mount(2) mounts no new file system. The propagation flags are not listed although the same is true
/// for them: they are in the upper 16 bits, which the kernel clears if they equal `MS_MGC_VAL`. A call that looks like a
/// change of propagation to the filter can be a new mount to the kernel.
const NOT_A_NEW_MOUNT: u32 = (libc::MS_BIND | libc::MS_REMOUNT | libc::MS_MOVE) as u32;
/// The address families that a network namespace isolates.
const NAMESPACED_FAMILIES: &[u32] = &[
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    libc::AF_NETLINK as u32,
    libc::AF_PACKET as u32,
];

/// The first argument is a process.
const ABOUT_INIT: &[When] = &[When::Equals { arg: 0, value: 1 }];
const TREE_IN_A_NAMESPACE: &[When] = &[When::AnyBit {
    arg: 2,
    mask: OPEN_TREE_NAMESPACE,
}];

const PRIORITY_REASON: &str = "starves init, and with it every command and every reported call";
const OF_A_USER_REASON: &str = "acts on all processes of a user, which can include init";
const NAMESPACE_REASON: &str =
    "a mount namespace without the sandbox's mounts, in which they hold nothing in place";
const SET_ID_REASON: &str = "no file of a workspace may gain setuid or setgid: on the host it would run as its owner; a directory may be setgid";
const LEASE_REASON: &str =
    "a lease on a file of a workspace holds up every host program that opens it";
const FAMILY_REASON: &str = "vsock and other families reach past the network namespace, or are kernel surface that nothing here needs";

pub(crate) const RULES: &[Rule] = &[
    // Modes with setuid or setgid.
    notify(
        nr::SYS_fchmod,
        &[When::AnyBit {
            arg: 1,
            mask: SET_ID,
        }],
        SET_ID_REASON,
    ),
    notify(
        nr::SYS_fchmodat,
        &[When::AnyBit {
            arg: 2,
            mask: SET_ID,
        }],
        SET_ID_REASON,
    ),
    notify(
        nr::SYS_fchmodat2,
        &[When::AnyBit {
            arg: 2,
            mask: SET_ID,
        }],
        SET_ID_REASON,
    ),
    notify(
        nr::SYS_openat,
        &[
            When::AnyBit {
                arg: 2,
                mask: CREATES,
            },
            When::AnyBit {
                arg: 3,
                mask: SET_ID,
            },
        ],
        SET_ID_REASON,
    ),
    notify(
        nr::SYS_mknodat,
        &[When::AnyBit {
            arg: 2,
            mask: SET_ID,
        }],
        SET_ID_REASON,
    ),
    #[cfg(target_arch = "x86_64")]
    notify(
        nr::SYS_chmod,
        &[When::AnyBit {
            arg: 1,
            mask: SET_ID,
        }],
        SET_ID_REASON,
    ),
    #[cfg(target_arch = "x86_64")]
    notify(
        nr::SYS_open,
        &[
            When::AnyBit {
                arg: 1,
                mask: CREATES,
            },
            When::AnyBit {
                arg: 2,
                mask: SET_ID,
            },
        ],
        SET_ID_REASON,
    ),
    #[cfg(target_arch = "x86_64")]
    notify(
        nr::SYS_creat,
        &[When::AnyBit {
            arg: 1,
            mask: SET_ID,
        }],
        SET_ID_REASON,
    ),
    #[cfg(target_arch = "x86_64")]
    notify(
        nr::SYS_mknod,
        &[When::AnyBit {
            arg: 1,
            mask: SET_ID,
        }],
        SET_ID_REASON,
    ),
    refuse(
        nr::SYS_openat2,
        ENOSYS,
        "its mode is behind a pointer, out of a filter's sight; programs fall back to openat",
    ),
    refuse(
        nr::SYS_io_uring_setup,
        ENOSYS,
        "a ring does every call below out of the filter's sight",
    ),
    refuse(nr::SYS_io_uring_enter, ENOSYS, "as io_uring_setup"),
    refuse(nr::SYS_io_uring_register, ENOSYS, "as io_uring_setup"),
    // File capabilities are setuid by another name.
    notify(
        nr::SYS_setxattr,
        &[],
        "file capabilities in a workspace whose owner is root would hold on the host",
    ),
    notify(nr::SYS_lsetxattr, &[], "as setxattr"),
    notify(nr::SYS_fsetxattr, &[], "as setxattr"),
    refuse(
        SYS_SETXATTRAT,
        ENOSYS,
        "as setxattr, with its arguments behind a pointer; programs fall back to setxattr",
    ),
    // New file systems: an overlay whose upper layer is a workspace copies setuid files into it.
    notify(
        nr::SYS_mount,
        &[When::NoBit {
            arg: 3,
            mask: NOT_A_NEW_MOUNT,
        }],
        "overlayfs and cgroupfs inside reach host files; a short list of file systems is mountable",
    ),
    notify(nr::SYS_fsopen, &[], "as mount"),
    notify(
        nr::SYS_landlock_restrict_self,
        &[],
        "the guard is not bound by the caller's rules: a confined program must be recognisable by no_new_privs",
    ),
    refuse(
        nr::SYS_open_by_handle_at,
        EPERM,
        "opens files by number, past every directory",
    ),
    // The terminal.
    Rule {
        call: nr::SYS_ioctl,
        action: EPERM,
        when: &[When::Equals {
            arg: 1,
            value: libc::TIOCSTI as u32,
        }],
        reason: "types into a terminal that another process reads",
    },
    Rule {
        call: nr::SYS_ioctl,
        action: EPERM,
        when: &[When::Equals {
            arg: 1,
            value: TIOCLINUX,
        }],
        reason: "pastes into the console",
    },
    // Files by other ways than their names.
    Rule {
        call: nr::SYS_ioctl,
        action: ENOTTY,
        when: &[
            When::Masked {
                arg: 1,
                mask: IOCTL_TYPE,
                value: BTRFS_IOCTLS,
            },
            When::NotIn {
                arg: 1,
                values: SHARE_BLOCKS,
            },
        ],
        reason: "a snapshot of the subvolume that a workspace lies on has the files beside it in it; before Linux 6.8 any \
                 mount of it is enough",
    },
    // Sockets outside the network namespace.
    Rule {
        call: nr::SYS_socket,
        action: Action::Fail(libc::EAFNOSUPPORT),
        when: &[When::NotIn {
            arg: 0,
            values: NAMESPACED_FAMILIES,
        }],
        reason: FAMILY_REASON,
    },
    Rule {
        call: nr::SYS_socketpair,
        action: Action::Fail(libc::EAFNOSUPPORT),
        when: &[When::NotIn {
            arg: 0,
            values: NAMESPACED_FAMILIES,
        }],
        reason: FAMILY_REASON,
    },
    // Init has the uid of root inside, and these calls check nothing else.
    refuse_when(
        nr::SYS_prlimit64,
        ABOUT_INIT,
        "takes init's descriptors away",
    ),
    refuse_when(nr::SYS_sched_setattr, ABOUT_INIT, PRIORITY_REASON),
    refuse_when(nr::SYS_sched_setscheduler, ABOUT_INIT, PRIORITY_REASON),
    refuse_when(nr::SYS_sched_setparam, ABOUT_INIT, PRIORITY_REASON),
    refuse_when(nr::SYS_sched_setaffinity, ABOUT_INIT, PRIORITY_REASON),
    refuse_when(
        nr::SYS_setpriority,
        &[
            When::Equals {
                arg: 0,
                value: PRIO_PROCESS,
            },
            When::Equals { arg: 1, value: 1 },
        ],
        PRIORITY_REASON,
    ),
    refuse_when(
        nr::SYS_setpriority,
        &[When::Equals {
            arg: 0,
            value: PRIO_USER,
        }],
        OF_A_USER_REASON,
    ),
    refuse_when(
        nr::SYS_ioprio_set,
        &[
            When::Equals {
                arg: 0,
                value: IOPRIO_WHO_PROCESS,
            },
            When::Equals { arg: 1, value: 1 },
        ],
        PRIORITY_REASON,
    ),
    refuse_when(
        nr::SYS_ioprio_set,
        &[When::Equals {
            arg: 0,
            value: IOPRIO_WHO_USER,
        }],
        OF_A_USER_REASON,
    ),
    // Watches. The device nodes inside are the host's inodes: each use of them on the host would be an event.
    notify(
        nr::SYS_inotify_add_watch,
        &[When::NoBit {
            arg: 2,
            mask: libc::IN_ONLYDIR,
        }],
        "a watch on /dev/tty reveals key presses on the host",
    ),
    refuse(
        nr::SYS_fanotify_init,
        EPERM,
        "as inotify_add_watch; nothing here needs it, and older kernels keep it to root",
    ),
    // Mount namespaces by other calls than unshare and clone: see [`MOUNT_POINT_RULES`].
    refuse_when(nr::SYS_open_tree, TREE_IN_A_NAMESPACE, NAMESPACE_REASON),
    refuse_when(SYS_OPEN_TREE_ATTR, TREE_IN_A_NAMESPACE, NAMESPACE_REASON),
    refuse_when(
        nr::SYS_fsmount,
        &[When::AnyBit {
            arg: 1,
            mask: FSMOUNT_NAMESPACE,
        }],
        NAMESPACE_REASON,
    ),
    Rule {
        call: nr::SYS_unshare,
        action: EINVAL,
        when: &[When::AnyBit {
            arg: 0,
            mask: UNSHARE_EMPTY_MNTNS,
        }],
        reason: NAMESPACE_REASON,
    },
    // While a lease is held, every other process that opens the file blocks, on the host too.
    Rule {
        call: nr::SYS_fcntl,
        action: EAGAIN,
        when: &[When::Equals {
            arg: 1,
            value: nr::F_SETLEASE as u32,
        }],
        reason: LEASE_REASON,
    },
    Rule {
        call: nr::SYS_fcntl,
        action: EAGAIN,
        when: &[When::Equals {
            arg: 1,
            value: F_SETDELEG,
        }],
        reason: LEASE_REASON,
    },
    // Keyrings belong to a user, not to a namespace. ENOSYS, as from a kernel without them: programs go on without a
    // keyring there, and stop where one is refused (crun).
    refuse(nr::SYS_keyctl, ENOSYS, "the caller's keyrings"),
    refuse(nr::SYS_add_key, ENOSYS, "the caller's keyrings"),
    refuse(
        nr::SYS_request_key,
        ENOSYS,
        "the caller's keyrings; also runs a host program",
    ),
    // The machine.
    refuse(nr::SYS_init_module, EPERM, "loads kernel code"),
    refuse(nr::SYS_finit_module, EPERM, "loads kernel code"),
    refuse(nr::SYS_delete_module, EPERM, "unloads kernel code"),
    refuse(nr::SYS_kexec_load, EPERM, "replaces the kernel"),
    refuse(nr::SYS_kexec_file_load, EPERM, "replaces the kernel"),
    refuse(nr::SYS_reboot, EPERM, "the machine's power"),
    refuse(nr::SYS_swapon, EPERM, "the machine's memory"),
    refuse(nr::SYS_swapoff, EPERM, "the machine's memory"),
    refuse(
        nr::SYS_acct,
        EPERM,
        "writes process accounting of the whole machine",
    ),
    refuse(nr::SYS_quotactl, EPERM, "the machine's disks"),
    refuse(nr::SYS_quotactl_fd, EPERM, "the machine's disks"),
    refuse(nr::SYS_settimeofday, EPERM, "the machine's clock"),
    refuse(nr::SYS_clock_settime, EPERM, "the machine's clock"),
    refuse(
        nr::SYS_clock_adjtime,
        EPERM,
        "the machine's clock; reading goes by adjtimex",
    ),
    refuse(
        nr::SYS_syslog,
        EPERM,
        "the kernel's log tells addresses and host events",
    ),
    refuse(nr::SYS_nfsservctl, ENOSYS, "gone from the kernel"),
    refuse(nr::SYS_vhangup, EPERM, "hangs up a terminal"),
    #[cfg(target_arch = "x86_64")]
    refuse(nr::SYS_iopl, EPERM, "I/O ports"),
    #[cfg(target_arch = "x86_64")]
    refuse(nr::SYS_ioperm, EPERM, "I/O ports"),
    #[cfg(target_arch = "x86_64")]
    refuse(nr::SYS_uselib, ENOSYS, "obsolete loader surface"),
    #[cfg(target_arch = "x86_64")]
    refuse(nr::SYS_sysfs, ENOSYS, "obsolete"),
    #[cfg(target_arch = "x86_64")]
    refuse(nr::SYS__sysctl, ENOSYS, "obsolete"),
    #[cfg(target_arch = "x86_64")]
    refuse(nr::SYS_ustat, ENOSYS, "obsolete"),
    // Kernel surface that exploits start from and that containers elsewhere do without.
    refuse(nr::SYS_bpf, EPERM, "programs in the kernel"),
    refuse(
        nr::SYS_perf_event_open,
        EPERM,
        "observes the whole processor",
    ),
    refuse(
        nr::SYS_userfaultfd,
        EPERM,
        "holds the kernel in a page fault: the usual tool to win a race",
    ),
    refuse(
        nr::SYS_lookup_dcookie,
        EPERM,
        "profiling of the whole machine",
    ),
];

/// Added where something is mounted in a writable workspace: a read-only workspace, or a file system of the host. The
/// kernel refuses to rename or remove a mount point (EBUSY) only in mount namespaces that contain the mount. From one
/// without it, a descriptor of the workspace is enough to move a read-only directory away, or to make the host lose a
/// mount.
pub(crate) const MOUNT_POINT_RULES: &[Rule] = &[
    refuse(
        nr::SYS_pivot_root,
        EPERM,
        "the old root can be unmounted afterwards, and every mount with it",
    ),
    refuse_when(
        nr::SYS_move_mount,
        &[When::AnyBit {
            arg: 4,
            mask: MOVE_MOUNT_BENEATH,
        }],
        "below the root it is pivot_root by another name",
    ),
    refuse(
        nr::SYS_clone3,
        ENOSYS,
        "can make an empty mount namespace, with its flags behind a pointer; programs fall back to clone",
    ),
];

/// Leases of directories; newer than libc's constants.
const F_SETDELEG: u32 = 1024 + 16;
const TIOCLINUX: u32 = 0x541c;
/// The type bits of an ioctl request (`_IOC_TYPE`).
const IOCTL_TYPE: u32 = 0xff00;
const BTRFS_IOCTLS: u32 = 0x9400;
/// Of Btrfs's number range, but generic today: `FICLONE`, `FICLONERANGE`, `FIDEDUPERANGE`. They act on open files only.
const SHARE_BLOCKS: &[u32] = &[0x4004_9409, 0x4020_940d, 0xc018_9436];
const SYS_SETXATTRAT: libc::c_long = 463;
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;
/// Newer than libc's constants (Linux 6.5, and 7.0 for the others).
const MOVE_MOUNT_BENEATH: u32 = 0x200;
const OPEN_TREE_NAMESPACE: u32 = 2;
const FSMOUNT_NAMESPACE: u32 = 2;
const UNSHARE_EMPTY_MNTNS: u32 = 0x0010_0000;
// Their type depends on the C library.
const PRIO_PROCESS: u32 = 0;
const PRIO_USER: u32 = 2;
const IOPRIO_WHO_PROCESS: u32 = 1;
const IOPRIO_WHO_USER: u32 = 3;
