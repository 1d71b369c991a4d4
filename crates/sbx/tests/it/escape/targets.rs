//! Where the next start mounts: root inside exchanges the directories on the way for links, so that a mount would land
//! elsewhere and leave its own place open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{create, mounting, run, sbx};
use crate::ModeTest;
use crate::harness::{World, blocked, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "a_read_only_workspace_is_not_mounted_elsewhere_by_a_link",
        nested_read_only,
    ),
    (
        "a_credential_is_masked_wherever_links_lead",
        masked_credential,
    ),
    (
        "a_workspace_in_memory_is_not_taken_for_the_sandboxs_own",
        workspace_in_memory,
    ),
];
/// With one id there is nothing to hand over.
pub(crate) const REAL_ROOT: &[ModeTest] = &[(
    "files_are_handed_over_whatever_the_way_to_them_is_called",
    handed_over,
)];

/// Moves a directory of the own layer away, though it holds mount points, and puts a new one in its place.
fn exchange(path: &Path) -> String {
    let path = path.display();
    format!("mv '{path}' '{path}.old'; mkdir -p '{path}'")
}

fn nested_read_only(world: &'static World) {
    let outer = world.workspace();
    let inner = outer.join("ro");
    world.make_dir(&inner);
    world.write(&inner.join("file"), "untouched\n");
    let parent = outer.parent().unwrap();
    let above = parent.parent().unwrap();
    let place = outer.strip_prefix(above).unwrap();
    let option = format!("{}:ro", inner.display());
    for (user, with_parents) in [("root", true), ("root", false), ("agent", false)] {
        let name = create(world, "nested-ro", &[outer.to_str().unwrap(), &option]);
        // `outer` becomes a link to a directory above it, in which the same names lead to a copy that is writable. For longer
        // than init goes without a look at its mounts, which are where they were.
        let plant = format!(
            "{made}; {exchange}; ln -s '{above}' '{outer}'; sleep 0.5; [ -L '{outer}' ] && echo planted; :",
            made = if with_parents {
                format!("mkdir -p '{}/{}/ro'", outer.display(), place.display())
            } else {
                "true".to_owned()
            },
            exchange = exchange(parent),
            outer = outer.display(),
            above = above.display(),
        );
        let ran = sbx(world, &["exec", "-u", user, &name, "sh", "-c", &plant]);
        // The agent may have no power over the way to its workspace.
        assert!(ran.out == "planted\n" || user == "agent", "{ran:?}");
        sbx(world, &["stop", &name]).ok();
        let write = format!(
            "for d in '{inner}' '{above}/ro' '{above}/{place}/ro' '{outer}/{place}/ro'; do \
               echo breach >> $d/file; echo breach > $d/new; done; find / -xdev -name file 2>/dev/null | \
             while read f; do case $f in */ro/file) echo breach >> $f;; esac; done; :",
            inner = inner.display(),
            above = above.display(),
            outer = outer.display(),
            place = place.display(),
        );
        let ran = sbx(
            world,
            &["exec", "-w", "/", "-u", user, &name, "sh", "-c", &write],
        );
        assert!([0, 125].contains(&ran.code), "{ran:?}");
        assert_eq!(
            fs::read_to_string(inner.join("file")).unwrap(),
            "untouched\n",
            "as {user}: {ran:?}"
        );
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1, "{ran:?}");
        // It is where it belongs, again.
        let file = inner.join("file");
        let read = ["exec", "-w", "/", &name, "cat", file.to_str().unwrap()];
        assert_eq!(sbx(world, &read).ok(), "untouched");
        sbx(world, &["rm", "--force", &name]).ok();
    }
}

fn masked_credential(world: &'static World) {
    let home = world.home().join(world.name("masked"));
    for dir in ["", ".bun", ".bun/bin", ".bun/deep"] {
        world.make_dir(&home.join(dir));
    }
    world.write(&home.join(".bun/bin/tool"), "a tool\n");
    world.write(&home.join(".bun/credentials.json"), "host secret\n");
    world.write(&home.join(".bun/deep/.netrc"), "host secret\n");
    // What a credential is a link to is one as well.
    world.write(&home.join(".bun/deep/real"), "host secret\n");
    std::os::unix::fs::symlink("deep/real", home.join(".bun/.npmrc")).unwrap();
    let bun = home.join(".bun");
    let workspace = world.workspace();
    let hunt = format!(
        "cat '{0}/bin/tool'; cat '{0}'/credentials.json '{0}'/deep/.netrc '{0}'/.npmrc '{0}'/deep/real /mnt/q/* /mnt/q/*/.netrc; \
         grep -rs 'host secret' /mnt /home '{1}' '{1}.old'; :",
        bun.display(),
        home.display()
    );
    for plant in [
        "mkdir -p /mnt/q; ln -s /mnt/q /mnt/q/l; ln -s /mnt/q/l '{bun}'",
        "mkdir -p /mnt/q/bin; ln -s /mnt/q '{bun}'",
        "ln -s '{home}.old/.bun' '{bun}'",
        "mkdir -p '{bun}'; ln -s /etc/passwd '{bun}/credentials.json'; ln -s /mnt '{bun}/deep'",
        "touch '{bun}'",
    ] {
        let name = world.name("masked");
        let mut create = world.sbx(["create", "--name", &name, "shell"]);
        create
            .arg(&workspace)
            .env("HOME", &home)
            .env("PATH", format!("{}/bin:/usr/bin:/bin", bun.display()));
        run(&mut create, b"").ok();
        let plant = plant
            .replace("{bun}", bun.to_str().unwrap())
            .replace("{home}", home.to_str().unwrap());
        let plant = format!("set -e; {}; {plant}", exchange(&home));
        sbx(world, &["exec", "-u", "root", &name, "sh", "-c", &plant]).ok();
        sbx(world, &["stop", &name]).ok();
        for user in ["root", "agent"] {
            let ran = sbx(world, &["exec", "-u", user, &name, "sh", "-c", &hunt]);
            assert!(!ran.out.contains("host secret"), "{plant}: {ran:?}");
            assert!(
                ran.out.contains("a tool") || ran.code == 125,
                "{plant}: {ran:?}"
            );
        }
        sbx(world, &["rm", "--force", &name]).ok();
    }
}

fn handed_over(world: &'static World) {
    let sandbox = world.sandbox("hand-over");
    let parent = sandbox.workspace.parent().unwrap();
    let owner = |name: &str| {
        let meta = fs::metadata(sandbox.path(name)).unwrap();
        (meta.uid(), meta.gid())
    };
    let ours = (world.uid, world.gid);
    sandbox
        .root_sh(&format!(
            "echo x > before; chown 4242:4242 before; {}; stat -c %u '{}.old'/*/before",
            exchange(parent),
            parent.display()
        ))
        .ok();
    assert_eq!(owner("before"), ours, "when its command has ended");
    sandbox
        .exec_with(
            &["-u", "root", "-w", "/"],
            [
                "sh",
                "-c",
                &format!(
                    "(sleep 1; cd '{0}.old'/{1} && echo x > late && chown 4242:4242 late) >/dev/null 2>&1 & :",
                    parent.display(),
                    sandbox.workspace.file_name().unwrap().to_str().unwrap()
                ),
            ],
        )
        .ok();
    crate::harness::eventually("the late file", || {
        sandbox.path("late").exists().then_some(())
    });
    sbx(world, &["stop", &sandbox.name]).ok();
    assert_eq!(owner("late"), ours, "when the sandbox has stopped");
}

/// A workspace in memory looks like a memory file system of the sandbox's own, but for where it came from.
fn workspace_in_memory(shared: &'static World) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    let world = World::fresh(shared.mode);
    let place = world.workspace();
    // One more mount appears after the start.
    let steps = "set -e; sbx=$1 user=$2 group=$3 place=$4 parent=$5; name=${place##*/}
        mount --make-rshared /; mount -t tmpfs -o mode=755 none \"$place\"; chown $user:$group \"$place\"
        mkdir \"$place/late\"; chown $user:$group \"$place/late\"
        as() { setpriv --reuid=$user --regid=$group --clear-groups \"$sbx\" \"$@\"; }
        end() { as rm --all --force; as daemon stop; }
        trap end EXIT
        as create -q --name box shell \"$place\"
        as exec -u root -w / box sh -c \"mv '$parent' '$parent.old'; mkdir -p /mnt/real '$parent'; ln -s /mnt/real '$parent/$name'; :\"
        as stop box
        try='for d in . late; do cp /bin/true $d/tool && chmod 4755 $d/tool; chmod 2755 $d/tool; done; :'
        as exec -w / -u root box sh -c \"for p in '$place' /mnt/real; do cd \\$p && $try; done\"
        mount -t tmpfs -o mode=777 none \"$place/late\"
        as exec -w / box sh -c \"cd '$place' && $try\"
        find \"$place\" -perm /6000 -printf 'set_id ok\\n'; find \"$place\" -name tool -printf 'made yes\\n'";
    let said = mounting(&world, steps, &[&place, place.parent().unwrap()]);
    assert!(!said.results.contains_key("set_id"), "{}", said.all);
    assert_eq!(said.result("made"), "yes", "{}", said.all);
}
