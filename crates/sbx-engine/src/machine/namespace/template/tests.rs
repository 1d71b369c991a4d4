//! The template on hosts made of temporary directories.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use sbx_api::Caller;
use sbx_proto::plan::Mode;
use tempfile::TempDir;

use super::ensure::{COMPLETE, Maker, is_complete, private};
use super::fingerprint::fingerprint;
use super::spec::Spec;
use super::{build, etc_files, retire_unused};

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

/// A small host with a merged /usr, and a secret in every corner.
#[expect(clippy::too_many_lines, reason = "a whole host, as one table")]
fn host() -> TempDir {
    let dir = TempDir::new().unwrap();
    let root = dir.path();
    let files = [
        ("usr/bin/bash", "x", 0o755),
        ("usr/bin/dpkg", "x", 0o755),
        ("usr/bin/apt-get", "x", 0o755),
        ("usr/bin/su", "setuid", 0o4755),
        ("usr/bin/closed", "secret", 0o4750),
        ("usr/lib/node_modules/npm/cli.js", "x", 0o755),
        ("usr/lib/node_modules/npm/token", "secret", 0o600),
        ("usr/share/doc/readme", "x", 0o644),
        ("usr/share/app/key", "secret", 0o600),
        ("usr/share/closed/inner", "secret", 0o644),
        ("usr/share/locked/inner", "secret", 0o644),
        ("opt/tool/run", "x", 0o755),
        (
            "etc/passwd",
            "root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n",
            0o644,
        ),
        ("etc/group", "root:x:0:\n", 0o644),
        ("etc/shadow", "root:secret:::::::\n", 0o644),
        ("etc/sudoers", "secret", 0o644),
        ("etc/ssh/ssh_host_rsa_key", "secret", 0o644),
        ("etc/ssl/private/key.pem", "secret", 0o644),
        ("etc/ssl/certs/ca.pem", CERTIFICATE, 0o644),
        ("etc/ssl/certs/0a1b2c3d.0", CERTIFICATE, 0o644),
        ("etc/ssl/certs/java/cacerts", "\u{0}store", 0o644),
        ("etc/ca-certificates/update.d/x", "#!/bin/sh\n", 0o755),
        (
            "etc/ssl/certs/both.pem",
            "cert PRIVATE KEY----- secret",
            0o644,
        ),
        ("etc/apt/auth.conf", "secret", 0o644),
        ("etc/apt/auth.conf.d/x.conf", "secret", 0o644),
        (
            "etc/apt/apt.conf.d/50x",
            "Acquire::http::Proxy \"http://u:secret@p:1\";\n",
            0o644,
        ),
        (
            "etc/apt/sources.list",
            "deb https://u:secret@m/ s main\n",
            0o644,
        ),
        (
            "etc/pip.conf",
            "[global]\nindex-url = https://u:secret@i/simple\n",
            0o644,
        ),
        ("etc/gitconfig", "[credential]\n\thelper = secret\n", 0o644),
        ("etc/default/locale", "LANG=C.UTF-8\nSECRET=secret\n", 0o644),
        ("etc/default/hidden", "secret", 0o600),
        ("etc/nsswitch.conf", "passwd: files ldap\n", 0o644),
        ("etc/skel/.bashrc", "export TOKEN=secret\n", 0o644),
        ("etc/skel/.netrc", "machine x password secret\n", 0o644),
        ("etc/cloud/token", "secret", 0o644),
        ("etc/ld.so.conf", "x\n", 0o644),
        ("var/lib/dpkg/status", "Package: x\n", 0o644),
        ("var/lib/dpkg/info/x.list", "/usr\n", 0o644),
        ("var/lib/dpkg/lock", "", 0o640),
        ("var/cache/debconf/passwords.dat", "secret", 0o644),
        ("var/lib/service/data", "secret", 0o644),
        ("root/.ssh/id_rsa", "secret", 0o644),
    ];
    for (path, text, mode) in files {
        put(&root.join(path), text, mode);
    }
    for dir in [
        "usr/share",
        "usr/lib/node_modules",
        "usr/lib/node_modules/npm",
        "usr/share/doc",
        "usr",
        "opt",
        "etc",
        "etc/default",
        "etc/ssl",
        "etc/ssl/certs",
        "etc/ssl/certs/java",
        "etc/ca-certificates",
        "etc/ca-certificates/update.d",
    ] {
        chmod(&root.join(dir), 0o755);
    }
    chmod(&root.join("usr/share/closed"), 0o711);
    chmod(&root.join("usr/share/locked"), 0o700);
    symlink("usr/bin", root.join("bin")).unwrap();
    symlink("../lib/node_modules/npm/cli.js", root.join("usr/bin/npm")).unwrap();
    symlink("bash", root.join("usr/bin/other")).unwrap();
    symlink(
        "../../root/.ssh/id_rsa",
        root.join("etc/ssl/certs/link.pem"),
    )
    .unwrap();
    dir
}

#[test]
fn no_secret_reaches_a_template() {
    let host = host();
    for mode in [Mode::Root, Mode::Subordinate, Mode::Single] {
        let out = made(host.path(), mode);
        for (path, text) in texts(out.path()) {
            assert!(!text.contains("secret"), "{mode:?}: {}", path.display());
        }
        let etc = out.path().join("root/etc");
        for gone in [
            "sudoers",
            "ssh",
            "ssl/private",
            "apt/auth.conf",
            "apt/auth.conf.d",
            "cloud",
        ] {
            assert!(!etc.join(gone).exists(), "{gone}");
        }
        assert_eq!(
            fs::read_link(etc.join("ssl/certs/link.pem")).unwrap(),
            Path::new("../../root/.ssh/id_rsa"),
            "links are made again, not followed"
        );
        assert_eq!(
            fs::metadata(etc.join("shadow")).unwrap().mode() & 0o777,
            0o600
        );
    }
}

/// What people keep in `/etc`, readable for all.
const PLANTED: &[(&str, &str)] = &[
    ("R/Renviron", "R_LIBS_SITE=/x\nGITHUB_PAT=%\n"),
    ("R/Renviron.site", "GITHUB_PAT=%\n"),
    ("R/Rprofile.site", "Sys.setenv(PAT='%')\n"),
    ("apk/repositories", "https://u:%@h/alpine\n# %\n"),
    ("apt/apt.conf", "Acquire::http::Proxy \"http://u:%@h:1\";\n"),
    (
        "apt/apt.conf.d/00p",
        "Acquire { http { Proxy \"http://u:%@h\"; } }\n",
    ),
    (
        "apt/sources.list.d/a.list",
        "deb https://h/?key=% s main\n# %\n",
    ),
    (
        "apt/sources.list.d/b.sources",
        "URIs: https://%@h/\nX-Key: %\n",
    ),
    ("apt/sources.list.d/c.list.save", "%\n"),
    ("bash.bashrc", "export AWS_SECRET_ACCESS_KEY=%\n"),
    ("bash_completion.d/x", "KEY=%\n"),
    ("csh.cshrc", "setenv API_KEY %\n"),
    ("csh.login", "setenv API_KEY %\n"),
    ("curlrc", "user = u:%\n"),
    ("debconf.conf", "Password: %\n"),
    ("default/app", "DB_URL=postgres://u:%@h/d\n"),
    ("default/locale", "LANG=C\nDATABASE=%\n"),
    ("dnf/dnf.conf", "[main]\ngpgcheck=1\nproxy_password=%\n"),
    ("dnf/vars/token", "%\n"),
    ("emacs/site-start.el", "(setq pass \"%\")\n"),
    ("environment", "KEY=%\n"),
    ("fish/config.fish", "set -gx TOKEN %\n"),
    ("gdb/gdbinit", "echo %\n"),
    (
        "gitconfig",
        "[sendemail]\n\tsmtpPass = %\n[http]\n\textraHeader = Authorization: Basic %\n\tproxy = http://u:%@h\n[url \"https://%@h/\"]\n\tinsteadOf = h:\n[core]\n\tsshCommand = x %\n",
    ),
    ("init.d/app", "KEY=%\n"),
    ("inputrc", "\"\\C-p\": \"%\"\n"),
    ("java-17/management/jmxremote.password", "control %\n"),
    ("java-17/net.properties", "http.proxyPassword=%\n"),
    ("lynx/lynx.cfg", "http_proxy:http://u:%@h\n"),
    (
        "maven/settings.xml",
        "<settings><proxies><username>%</username></proxies></settings>\n",
    ),
    (
        "npmrc",
        "//r/:_authToken=%\nproxy=http://u:%@h\nkey=\"%\"\n",
    ),
    (
        "pacman.conf",
        "[options]\nXferCommand = /usr/bin/curl -u %\n",
    ),
    ("pam.conf", "login auth required pam_ldap.so bindpw=%\n"),
    (
        "pam.d/app",
        "auth required pam_mysql.so user=u passwd=%\n# passwd=%\n",
    ),
    ("perl/CPAN/Config.pm", "'proxy_pass' => q[%],\n"),
    (
        "php/8.2/cli/php.ini",
        "mysqli.default_pw = %\nmemory_limit = 1G\n",
    ),
    ("php/8.2/mods-available/x.ini", "extension=x.so\nx.key=%\n"),
    (
        "pip.conf",
        "[global]\nproxy = http://u:%@h\nindex-url = https://h/simple?k=%\n",
    ),
    ("profile", "export TOKEN=%\n"),
    (
        "profile.d/corp.sh",
        "export http_proxy=http://u:%@h\nexport NAME='%'\n",
    ),
    ("security/pam_env.conf", "KEY DEFAULT=%\n"),
    ("skel/.npmrc", "//r/:_authToken=%\n"),
    ("pki/ca-trust/source/note", "%\n"),
    ("pki/tls/certs/x.token", "%\n"),
    (
        "ssl/certs/server",
        "-----BEGIN PRIVATE KEY-----\n%\n-----END PRIVATE KEY-----\n",
    ),
    (
        "ssl/certs/abcd.0",
        "-----BEGIN EC PRIVATE KEY-----\n%\n-----END EC PRIVATE KEY-----\n",
    ),
    ("ssl/certs/commented.pem", "# %\n"),
    ("ssl/ct_log_list.cnf", "x = %\n"),
    ("ssl/openssl.cnf", "[req]\ninput_password = %\n"),
    ("vim/vimrc", "let g:key = '%'\n"),
    ("wgetrc", "http_password = %\nheader = Authorization: %\n"),
    ("xdg/app/config", "token=%\n"),
    (
        "yum.repos.d/a.repo",
        "[a]\nbaseurl=https://u:%@h/\npassword=%\n",
    ),
    ("zsh/zshenv", "export TOKEN=%\n"),
    ("zshenv", "export TOKEN=%\n"),
];

#[test]
fn no_planted_value_of_etc_reaches_a_template() {
    let host = host();
    let etc = host.path().join("etc");
    for (n, (path, text)) in PLANTED.iter().enumerate() {
        let path = etc.join(path);
        put(&path, &text.replace('%', &format!("hunter{n}")), 0o644);
        for dir in path.ancestors().skip(1).take_while(|dir| *dir != etc) {
            chmod(dir, 0o755);
        }
    }
    let out = made(host.path(), Mode::Subordinate);
    let mut seen = 0;
    for (path, text) in texts(out.path()) {
        assert!(!text.contains("hunter"), "{}: {text}", path.display());
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
    // What is not secret of the same files is there.
    let etc = out.path().join("root/etc");
    for (path, text) in [
        ("R/Renviron", "R_LIBS_SITE=/x\n"),
        ("apt/sources.list.d/a.list", "deb https://h/ s main\n"),
        ("php/8.2/cli/php.ini", "memory_limit = 1G\n"),
        ("php/8.2/mods-available/x.ini", "extension=x.so\n"),
        ("yum.repos.d/a.repo", "[a]\nbaseurl=https://h/\n"),
        ("pam.d/app", "auth required pam_mysql.so\n"),
    ] {
        assert_eq!(fs::read_to_string(etc.join(path)).unwrap(), text, "{path}");
    }
}

#[test]
fn what_programs_need_is_there() {
    let host = host();
    let out = made(host.path(), Mode::Subordinate);
    let root = out.path().join("root");
    let want = [
        ("etc/default/locale", "LANG=C.UTF-8\n"),
        ("etc/ssl/certs/ca.pem", CERTIFICATE),
        ("etc/ssl/certs/0a1b2c3d.0", CERTIFICATE),
        ("etc/ssl/certs/java/cacerts", "\u{0}store"),
        ("etc/ca-certificates/update.d/x", "#!/bin/sh\n"),
        ("etc/apt/sources.list", "deb https://m/ s main\n"),
        (
            "etc/pip.conf",
            "[global]\nbreak-system-packages = true\nindex-url = https://i/simple\n",
        ),
        (
            "etc/hosts",
            "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        ),
        ("etc/sandbox-persistent.sh", ""),
        ("home/agent/.bashrc", super::scripts::BASHRC),
        ("home/agent/.npmrc", "prefix=/home/agent/.local\n"),
        ("var/lib/dpkg/status", "Package: x\n"),
        ("var/lib/dpkg/info/x.list", "/usr\n"),
        ("var/lib/dpkg/lock", ""),
    ];
    for (path, text) in want {
        assert_eq!(fs::read_to_string(root.join(path)).unwrap(), text, "{path}");
    }
    assert!(
        !fs::read_to_string(root.join("etc/nsswitch.conf"))
            .unwrap()
            .contains("ldap")
    );
    assert!(
        fs::read_to_string(root.join("etc/apt/apt.conf.d/99sbx"))
            .unwrap()
            .contains("/usr/local/sbin")
    );
    assert_eq!(
        fs::read_link(root.join("bin")).unwrap(),
        Path::new("usr/bin")
    );
    assert_eq!(
        fs::metadata(root.join("tmp")).unwrap().mode() & 0o7777,
        0o1777
    );
    assert_eq!(
        fs::read_link(root.join("var/run")).unwrap(),
        Path::new("/run")
    );
}

#[test]
fn private_files_keep_the_hosts_permissions() {
    let host = host();
    let out = made(host.path(), Mode::Root);
    let layer = out.path().join("layers/usr");
    for closed in ["share/app/key", "share/closed"] {
        assert!(
            fs::symlink_metadata(layer.join(closed)).is_err(),
            "{closed}"
        );
    }
    let hidden = fs::symlink_metadata(layer.join("share/locked")).unwrap();
    assert!(hidden.file_type().is_char_device() && hidden.rdev() == 0);
    assert_eq!(
        fs::metadata(layer.join("share")).unwrap().mode() & 0o7777,
        0o755
    );
}

#[test]
fn skeleton_has_every_directory_and_setuid_program() {
    let host = host();
    let out = made(host.path(), Mode::Subordinate);
    let layers = out.path().join("layers");
    for dir in ["usr/share/doc", "usr/share/app", "opt/tool", "usr/bin"] {
        assert!(layers.join(dir).is_dir(), "{dir}");
    }
    assert_eq!(
        fs::metadata(layers.join("usr/bin/su")).unwrap().mode() & 0o7777,
        0o4755
    );
    let hidden = fs::symlink_metadata(layers.join("usr/bin/closed")).unwrap();
    assert!(hidden.file_type().is_char_device() && hidden.rdev() == 0);
    assert!(layers.join("usr/lib/node_modules/npm/cli.js").is_file());
    assert!(layers.join("usr/bin/npm").is_symlink() && !layers.join("usr/bin/other").is_symlink());
    assert!(layers.join("usr/local/sbin/dpkg-deb").is_file());
    assert!(!layers.join("usr/bin/bash").exists());
}

#[test]
fn single_mode_has_only_our_programs() {
    let host = host();
    let out = made(host.path(), Mode::Single);
    let files: Vec<PathBuf> = texts(&out.path().join("layers"))
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    let sbin = out.path().join("layers/usr/local/sbin");
    assert_eq!(files, [sbin.join("apt-get"), sbin.join("dpkg")]);
    // And a directory for the sandbox's own certificate: one that `nobody` owns could not be written.
    let share = "usr/local/share";
    let certificates = format!("layers/{share}/ca-certificates");
    assert!(out.path().join(&certificates).is_dir());
    fs::create_dir_all(host.path().join("elsewhere")).unwrap();
    fs::create_dir_all(host.path().join("usr/local")).unwrap();
    symlink("../../elsewhere", host.path().join(share)).unwrap();
    let out = made(host.path(), Mode::Single);
    assert!(!out.path().join(&certificates).exists());
}

#[test]
fn the_fingerprint_follows_the_host() {
    let host = host();
    let print = || fingerprint(&Spec::of(host.path(), Mode::Root, b"", &[]));
    let first = print();
    assert_eq!(first, print());
    assert_ne!(
        first,
        fingerprint(&Spec::of(host.path(), Mode::Single, b"", &[]))
    );
    put(
        &host.path().join("var/lib/dpkg/status"),
        "Package: x\nPackage: y\n",
        0o644,
    );
    let second = print();
    assert_ne!(first, second);
    fs::create_dir(host.path().join("opt/new")).unwrap();
    assert_ne!(second, print());
}

#[test]
fn the_fingerprint_does_not_follow_what_others_can_change() {
    let host = host();
    let at = |path: &str| host.path().join(path);
    fs::create_dir_all(at("opt/ws")).unwrap();
    fs::create_dir_all(at("opt/shared")).unwrap();
    chmod(&at("opt/shared"), 0o1777);
    let left_out = [at("opt/ws")];
    let print = || fingerprint(&Spec::of(host.path(), Mode::Root, b"", &left_out));
    let first = print();
    for dir in ["opt/ws", "opt/shared"] {
        fs::create_dir(at(dir).join("new")).unwrap();
        assert_eq!(first, print(), "{dir}");
    }
    if rustix::process::geteuid().is_root() {
        fs::create_dir(at("opt/foreign")).unwrap();
        chown(at("opt/foreign"), Some(12_345), None).unwrap();
        let first = print();
        fs::create_dir(at("opt/foreign/new")).unwrap();
        assert_eq!(first, print());
    }
}

#[test]
fn a_torn_file_of_a_template_is_named() {
    let template = TempDir::new().unwrap();
    let file = template.path().join("private.json");
    for torn in ["", "[\"/usr/lo"] {
        let mut written = File::create(&file).unwrap();
        written.write_all(torn.as_bytes()).unwrap();
        let error = private(template.path()).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        let marker = template.path().join(COMPLETE);
        let hint = error.hint().unwrap();
        assert!(hint.contains(marker.to_str().unwrap()), "{hint}");
    }
    let mut written = File::create(&file).unwrap();
    written.write_all(b"[]").unwrap();
    assert!(private(template.path()).unwrap().is_empty());
}

#[test]
fn a_template_is_built_once_and_only_used_when_complete() {
    let host = host();
    let store = TempDir::new().unwrap();
    let builds = Cell::new(0);
    let fail = Cell::new(true);
    let removed = RefCell::new(Vec::new());
    let make = |dir: &Path, spec: &str| {
        builds.set(builds.get() + 1);
        if fail.get() {
            return Err("no".to_owned());
        }
        build(dir, spec).map_err(|error| error.to_string())
    };
    let remove = |path: &Path| {
        removed.borrow_mut().push(path.to_owned());
        fs::remove_dir_all(path).map_err(|error| error.to_string())
    };
    let maker = Maker {
        store: store.path(),
        left_out: &[],
        build: &make,
        remove: &remove,
        progress: &|_| {},
    };
    assert!(maker.template(host.path(), Mode::Single, b"").is_err());
    // As a crash would leave it.
    let left = store.path().join(".building-0");
    fs::create_dir(&left).unwrap();
    fail.set(false);
    let (_, print) = maker.template(host.path(), Mode::Single, b"").unwrap();
    maker.template(host.path(), Mode::Single, b"").unwrap();
    assert_eq!(builds.get(), 2);
    assert!(removed.borrow().contains(&left));
    let dir = store.path().join(format!("host-single-{print}"));
    let used = BTreeSet::from([print]);
    assert!(retire_unused(store.path(), &used).unwrap().is_empty());
    assert!(dir.is_dir());
    let aside = retire_unused(store.path(), &BTreeSet::new()).unwrap();
    assert!(!dir.exists());
    // What was not removed yet is found again, and does not prevent a new template.
    assert_eq!(retire_unused(store.path(), &used).unwrap(), aside);
    maker.template(host.path(), Mode::Single, b"").unwrap();
    assert!(dir.is_dir() && aside.len() == 1 && aside[0].is_dir());
    // It was used before it was on the disk, and vouches for itself when it is.
    let marker = dir.join(COMPLETE);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !fs::read(&marker).unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "it is written out");
        std::thread::yield_now();
    }
    let before = builds.get();
    maker.template(host.path(), Mode::Single, b"").unwrap();
    assert_eq!(builds.get(), before);
    // One that was not on the disk when the machine went down is built again.
    let mut other = File::create(&marker).unwrap();
    other.write_all(b"another boot").unwrap();
    assert!(!is_complete(&dir));
    maker.template(host.path(), Mode::Single, b"").unwrap();
    assert_eq!(builds.get(), before + 1);
    assert!(removed.borrow().contains(&dir) && is_complete(&dir));
}

#[test]
fn names_of_a_sandbox() {
    let hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox\n\
                 10.0.2.2\tgateway.docker.internal\n10.0.2.3\thost.docker.internal\n";
    assert_eq!(
        etc_files("box", &BTreeMap::new(), &Caller::default())[..2],
        [
            ("etc/hostname", "box\n".to_owned()),
            ("etc/hosts", hosts.to_owned())
        ]
    );
}

fn made(host: &Path, mode: Mode) -> TempDir {
    let out = TempDir::new().unwrap();
    build(
        out.path(),
        &serde_json::to_string(&Spec::of(host, mode, b"", &[])).unwrap(),
    )
    .unwrap();
    out
}

fn put(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::create(path)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    chmod(path, mode);
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Every regular file below a directory, in order.
fn texts(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let mut found = Vec::new();
    for path in names {
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            found.extend(texts(&path));
        } else if kind.is_file() {
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            found.push((path, text));
        }
    }
    found
}
