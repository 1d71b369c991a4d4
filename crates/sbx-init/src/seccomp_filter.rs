//! Compiles the profile into a classic BPF program (`seccomp(2)`). Pure.
//!
//! The program checks the architecture, then the range of the system call number, then one block per rule: compare the
//! number, test the arguments, return the rule's action. The first rule whose conditions hold decides; a failed test
//! jumps to the end of its block, where the number is loaded again for the next one. A filter sees the numbers in
//! `struct seccomp_data` only, never the memory behind a pointer.

use sbx_sys::seccomp::Instruction;

use crate::syscall_profile::{Action, LAST_KNOWN_SYSCALL, MOUNT_POINT_RULES, RULES, Rule, When};

// Offsets in `struct seccomp_data`.
const OFFSET_CALL: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Whether something is mounted in a writable workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountPoints {
    Absent,
    /// The mount points must not be renamed or removed: [`MOUNT_POINT_RULES`] apply.
    Protected,
}

/// The filter that every command runs under.
pub(crate) fn program(mount_points: MountPoints) -> Vec<Instruction> {
    let more = match mount_points {
        MountPoints::Absent => &[][..],
        MountPoints::Protected => MOUNT_POINT_RULES,
    };
    compile(RULES.iter().chain(more))
}

fn compile<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<Instruction> {
    let missing = fail(libc::ENOSYS);
    let mut program = vec![
        // The same number is another call in another ABI (i386, x32): none of them is available inside.
        instruction(LOAD, 0, 0, OFFSET_ARCH),
        instruction(JUMP_EQUAL, 1, 0, ARCH),
        instruction(RETURN, 0, 0, missing),
        instruction(LOAD, 0, 0, OFFSET_CALL),
        // Newer than the profile; x32 calls (`__X32_SYSCALL_BIT`, bit 30) are above it as well.
        instruction(JUMP_GREATER, 0, 1, LAST_KNOWN_SYSCALL),
        instruction(RETURN, 0, 0, missing),
    ];
    for rule in rules {
        program.extend(block(rule));
    }
    program.push(instruction(RETURN, 0, 0, ALLOW));
    program
}

/// The call's number is loaded before and after each block.
fn block(rule: &Rule) -> Vec<Instruction> {
    let mut tests: Vec<Instruction> = Vec::new();
    // The jump distance of a failed test is known only when the block is complete.
    let mut failures = Vec::new();
    for condition in rule.when {
        match *condition {
            When::AnyBit { arg, mask } => {
                tests.push(load_argument(arg));
                tests.push(instruction(AND, 0, 0, mask));
                failures.push((tests.len(), true));
                tests.push(instruction(JUMP_EQUAL, 0, 0, 0));
            }
            When::NoBit { arg, mask } => {
                tests.push(load_argument(arg));
                tests.push(instruction(AND, 0, 0, mask));
                failures.push((tests.len(), false));
                tests.push(instruction(JUMP_EQUAL, 0, 0, 0));
            }
            When::Masked { arg, mask, value } => {
                tests.push(load_argument(arg));
                tests.push(instruction(AND, 0, 0, mask));
                failures.push((tests.len(), false));
                tests.push(instruction(JUMP_EQUAL, 0, 0, value));
            }
            When::Equals { arg, value } => {
                tests.push(load_argument(arg));
                failures.push((tests.len(), false));
                tests.push(instruction(JUMP_EQUAL, 0, 0, value));
            }
            When::NotIn { arg, values } => {
                tests.push(load_argument(arg));
                for &value in values {
                    failures.push((tests.len(), true));
                    tests.push(instruction(JUMP_EQUAL, 0, 0, value));
                }
            }
        }
    }
    let returns = tests.len();
    tests.push(instruction(RETURN, 0, 0, action(rule.action)));
    let reload = tests.len();
    if !rule.when.is_empty() {
        tests.push(instruction(LOAD, 0, 0, OFFSET_CALL));
    }
    for (index, when_equal) in failures {
        let distance = u8::try_from(reload - index - 1).unwrap_or(u8::MAX);
        if let Some(jump) = tests.get_mut(index) {
            if when_equal {
                jump.jump_true = distance;
            } else {
                jump.jump_false = distance;
            }
        }
    }
    debug_assert!(returns < 255);
    let size = u8::try_from(tests.len()).unwrap_or(u8::MAX);
    let call = u32::try_from(rule.call).unwrap_or(u32::MAX);
    let mut block = vec![instruction(JUMP_EQUAL, 0, size, call)];
    block.extend(tests);
    block
}

/// Loads the low half of an argument: modes, flags and families are 32 bits wide, and the kernel ignores the rest.
fn load_argument(arg: u8) -> Instruction {
    let low = if cfg!(target_endian = "big") { 4 } else { 0 };
    instruction(LOAD, 0, 0, OFFSET_ARGS + 8 * u32::from(arg) + low)
}

fn action(action: Action) -> u32 {
    match action {
        Action::Fail(errno) => fail(errno),
        Action::Notify => libc::SECCOMP_RET_USER_NOTIF,
    }
}

fn fail(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | (errno.cast_unsigned() & libc::SECCOMP_RET_DATA)
}

fn instruction(code: u16, jump_true: u8, jump_false: u8, operand: u32) -> Instruction {
    Instruction {
        code,
        jump_true,
        jump_false,
        operand,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program returns for a call: a small interpreter of the instructions used above.
    fn run(program: &[Instruction], arch: u32, call: u32, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(call.to_ne_bytes());
        data.extend(arch.to_ne_bytes());
        data.extend(0_u64.to_ne_bytes());
        for arg in args {
            data.extend(arg.to_ne_bytes());
        }
        let mut accumulator = 0_u32;
        let mut at = 0;
        loop {
            let step = program[at];
            at += 1;
            let jump = |yes: bool| usize::from(if yes { step.jump_true } else { step.jump_false });
            match step.code {
                LOAD => {
                    let offset = step.operand as usize;
                    accumulator = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
                }
                AND => accumulator &= step.operand,
                JUMP_EQUAL => at += jump(accumulator == step.operand),
                JUMP_GREATER => at += jump(accumulator > step.operand),
                RETURN => return step.operand,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn verdict(call: libc::c_long, args: &[u64]) -> u32 {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let call = u32::try_from(call).unwrap();
        run(&program(MountPoints::Protected), ARCH, call, all)
    }

    const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

    #[test]
    fn modes_with_set_id_bits_are_reported_and_others_are_not() {
        assert_eq!(verdict(libc::SYS_fchmod, &[3, 0o4755]), NOTIFY);
        assert_eq!(verdict(libc::SYS_fchmod, &[3, 0o2755]), NOTIFY);
        assert_eq!(verdict(libc::SYS_fchmod, &[3, 0o1777]), ALLOW);
        assert_eq!(verdict(libc::SYS_fchmodat, &[3, 0, 0o6755]), NOTIFY);
        let create = libc::O_CREAT as u64;
        let unnamed = libc::O_TMPFILE as u64;
        assert_eq!(verdict(libc::SYS_openat, &[3, 0, create, 0o4755]), NOTIFY);
        assert_eq!(verdict(libc::SYS_openat, &[3, 0, unnamed, 0o4755]), NOTIFY);
        assert_eq!(verdict(libc::SYS_openat, &[3, 0, create, 0o755]), ALLOW);
        // Without O_CREAT the fourth argument is whatever the register held.
        assert_eq!(
            verdict(libc::SYS_openat, &[3, 0, libc::O_DIRECTORY as u64, 0o4755]),
            ALLOW
        );
    }

    #[test]
    fn only_new_file_systems_are_reported() {
        assert_eq!(verdict(libc::SYS_mount, &[0, 0, 0, 0]), NOTIFY);
        assert_eq!(
            verdict(libc::SYS_mount, &[0, 0, 0, libc::MS_NOSUID]),
            NOTIFY
        );
        assert_eq!(
            verdict(libc::SYS_mount, &[0, 0, 0, libc::MS_BIND | libc::MS_REC]),
            ALLOW
        );
        assert_eq!(
            verdict(libc::SYS_mount, &[0, 0, 0, libc::MS_MGC_VAL]),
            NOTIFY,
            "the magic number looks like propagation flags"
        );
    }

    #[test]
    fn families_outside_the_namespace_do_not_exist() {
        let missing = fail(libc::EAFNOSUPPORT);
        assert_eq!(verdict(libc::SYS_socket, &[libc::AF_VSOCK as u64]), missing);
        assert_eq!(verdict(libc::SYS_socket, &[libc::AF_ALG as u64]), missing);
        assert_eq!(verdict(libc::SYS_socket, &[libc::AF_UNIX as u64]), ALLOW);
        assert_eq!(verdict(libc::SYS_socket, &[libc::AF_INET6 as u64]), ALLOW);
    }

    #[test]
    fn typing_into_terminals_fails_whatever_the_upper_half_says() {
        assert_eq!(
            verdict(libc::SYS_ioctl, &[0, libc::TIOCSTI]),
            fail(libc::EPERM)
        );
        assert_eq!(
            verdict(libc::SYS_ioctl, &[0, libc::TIOCSTI | 1 << 40]),
            fail(libc::EPERM)
        );
        assert_eq!(verdict(libc::SYS_ioctl, &[0, libc::TIOCGWINSZ]), ALLOW);
    }

    #[test]
    fn of_btrfs_requests_those_of_every_file_system_are_there() {
        // Snapshots by two names, the search in a tree, and the label.
        let refused = [0x5000_9401, 0x5000_9417, 0xd000_9411, 0x8100_9431];
        for request in refused {
            for upper in [0, 1 << 40] {
                let said = verdict(libc::SYS_ioctl, &[3, request | upper]);
                assert_eq!(said, fail(libc::ENOTTY), "{request:#x}");
            }
        }
        let shared = [libc::FICLONE, libc::FICLONERANGE, 0xc018_9436];
        let others = [libc::TIOCGWINSZ, libc::FIONREAD, libc::FS_IOC_GETFLAGS];
        for request in shared.into_iter().chain(others) {
            assert_eq!(verdict(libc::SYS_ioctl, &[3, request]), ALLOW);
        }
    }

    #[test]
    fn other_architectures_and_unknown_calls_do_not_exist() {
        let filter = program(MountPoints::Absent);
        let missing = fail(libc::ENOSYS);
        assert_eq!(run(&filter, 0x4000_0003, 1, [0; 6]), missing);
        assert_eq!(run(&filter, ARCH, LAST_KNOWN_SYSCALL + 1, [0; 6]), missing);
        assert_eq!(run(&filter, ARCH, 0x4000_0000, [0; 6]), missing);
        assert_eq!(verdict(libc::SYS_read, &[]), ALLOW);
    }

    #[test]
    fn protected_mount_points_forbid_namespaces_without_them() {
        let call = u32::try_from(libc::SYS_pivot_root).unwrap();
        let free = run(&program(MountPoints::Absent), ARCH, call, [0; 6]);
        assert_eq!(free, ALLOW, "nested sandboxes need it");
        let refused = fail(libc::EPERM);
        assert_eq!(verdict(libc::SYS_pivot_root, &[]), refused);
        assert_eq!(verdict(libc::SYS_clone3, &[]), fail(libc::ENOSYS));
        assert_eq!(verdict(libc::SYS_move_mount, &[3, 0, 4, 0, 0x244]), refused);
        assert_eq!(verdict(libc::SYS_move_mount, &[3, 0, 4, 0, 0x44]), ALLOW);
        let (tree, namespace) = (0x80001, 0x80003);
        assert_eq!(verdict(libc::SYS_open_tree, &[3, 0, tree]), ALLOW);
        assert_eq!(verdict(libc::SYS_open_tree, &[3, 0, namespace]), refused);
        assert_eq!(verdict(467, &[3, 0, namespace]), refused);
        assert_eq!(verdict(libc::SYS_fsmount, &[3, 1]), ALLOW);
        assert_eq!(verdict(libc::SYS_fsmount, &[3, 3]), refused);
        let own = (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as u64;
        assert_eq!(verdict(libc::SYS_unshare, &[own]), ALLOW);
        assert_eq!(
            verdict(libc::SYS_unshare, &[own | 0x10_0000]),
            fail(libc::EINVAL)
        );
    }

    #[test]
    fn the_priority_of_init_cannot_be_changed() {
        let refused = fail(libc::EPERM);
        for call in [
            libc::SYS_prlimit64,
            libc::SYS_sched_setattr,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setparam,
            libc::SYS_sched_setaffinity,
        ] {
            assert_eq!(verdict(call, &[1]), refused, "{call}");
            assert_eq!(verdict(call, &[0]), ALLOW, "{call}");
        }
        // Process, group and user are 0, 1, 2 for the one and 1, 2, 3 for the other.
        for (call, process) in [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)] {
            for (args, expected) in [
                ([process, 1], refused),
                ([process, 0], ALLOW),
                ([process + 1, 1], ALLOW),
                ([process + 2, 0], refused),
            ] {
                assert_eq!(verdict(call, &args), expected, "{call} {args:?}");
            }
        }
    }

    #[test]
    fn watches_on_possible_devices_are_reported() {
        let access = u64::from(libc::IN_ACCESS);
        assert_eq!(
            verdict(libc::SYS_inotify_add_watch, &[3, 0, access]),
            NOTIFY
        );
        let directory = access | u64::from(libc::IN_ONLYDIR);
        assert_eq!(
            verdict(libc::SYS_inotify_add_watch, &[3, 0, directory]),
            ALLOW
        );
        assert_eq!(verdict(libc::SYS_fanotify_init, &[]), fail(libc::EPERM));
    }

    #[test]
    fn every_rule_decides_its_own_call() {
        for rule in RULES.iter().chain(MOUNT_POINT_RULES) {
            assert!(!rule.reason.is_empty());
            if rule.when.is_empty() {
                assert_eq!(
                    verdict(rule.call, &[]),
                    action(rule.action),
                    "{}",
                    rule.reason
                );
            }
        }
    }
}
