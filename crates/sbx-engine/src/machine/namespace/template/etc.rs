//! `/etc` of the template: an allow-list of files that programs need and of keys in them, and our own files. What a shell
//! reads is ours: variables in the host's files are often credentials.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sbx_api::Caller;
use sbx_proto::net::{GATEWAY, GATEWAY_V4, HOST_V4};
use sbx_proto::plan::Mode;

use super::copy::{Edit, Take, copy_tree, make_dir, may_enter, present, write_file};
use super::error::At as _;
use super::secrets::is_secret;
use super::{TemplateError, accounts, git, sanitize, scripts};

/// Taken as it is: data of programs, with no place for a credential. Relative to `/etc`; a name may end in `*` or hold
/// `?`. A directory is copied whole, but for [`NEVER`] and names of credentials.
const DATA: &str = "\
    ImageMagick-* OpenCL R/Makeconf R/javaconf R/ldpaths R/repositories X11/app-defaults X11/fonts X11/rgb.txt X11/xkb \
    almalinux-release alpine-release alsa alternatives apk/arch apk/keys apk/world apt/keyrings apt/preferences \
    apt/preferences.d apt/trusted.gpg apt/trusted.gpg.d arch-release bash_completion bindresvport.blacklist \
    ca-certificates* centos-release crypto-policies dbus-1 debian_version dictionaries-common dnf/modules.d \
    dnf/modules.defaults.d dnf/protected.d dotnet dpkg drirc ethertypes fedora-release fonts gai.conf ghostscript \
    gitattributes glvnd gprofng.rc groff gss gtk-* host.conf issue issue.net java* ld-musl-* ld.so.cache ld.so.conf \
    ld.so.conf.d libaudit.conf locale.alias locale.gen localtime lsb-release magic* mailcap mailcap.order \
    manpath.config maven/logging maven/m2.conf mime.types mke2fs.conf mtab netconfig networks openal os-release \
    pacman.d/gnupg/pubring.gpg pacman.d/gnupg/trustdb.gpg papersize perl/Net perl/XML pki/ca-trust pki/rpm-gpg \
    pki/tls/cert.pem pki/tls/certs protocols python*/debian_config python*/sitecustomize.py redhat-release \
    rocky-release rpc rpm/macros.* rpm/platform services sgml shells ssl/cert.pem ssl/certs \
    system-release* terminfo texmf timezone vdpau_wrapper.cfg vulkan xattr.conf xdg/user-dirs.conf \
    xdg/user-dirs.defaults xml";

/// Files of settings, of which only known keys are taken.
const SETTINGS: &[(&str, Edit)] = &[
    ("R/Renviron", sanitize::r_environment),
    ("adduser.conf", sanitize::uncommented),
    ("apk/repositories", sanitize::url_list),
    ("apt/apt.conf", sanitize::apt),
    ("apt/apt.conf.d/*", sanitize::apt),
    ("apt/mirrors/*", sanitize::url_list),
    ("apt/sources.list", sanitize::apt_sources),
    ("apt/sources.list.d/*.list", sanitize::apt_sources),
    ("apt/sources.list.d/*.sources", sanitize::apt_paragraphs),
    ("debuginfod/*.urls", sanitize::url_list),
    ("default/locale", sanitize::locale),
    ("default/useradd", sanitize::useradd),
    ("deluser.conf", sanitize::uncommented),
    ("dnf/dnf.conf", sanitize::rpm_repositories),
    ("gitconfig", sanitize::git),
    ("inputrc", sanitize::readline),
    ("java*/net.properties", sanitize::java_net),
    ("locale.conf", sanitize::locale),
    ("login.defs", sanitize::uncommented),
    ("npmrc", sanitize::npm),
    ("pacman.conf", sanitize::pacman),
    ("pacman.d/mirrorlist", sanitize::pacman),
    ("pam.conf", sanitize::pam),
    ("pam.d/*", sanitize::pam),
    ("php/*/*/php.ini", sanitize::php),
    ("php/*/*/conf.d/*.ini", sanitize::php),
    ("php/*/mods-available/*.ini", sanitize::php),
    ("php.d/*.ini", sanitize::php),
    ("php.ini", sanitize::php),
    ("pip.conf", sanitize::pip),
    ("pki/tls/openssl.cnf", sanitize::openssl),
    ("security/access.conf", sanitize::uncommented),
    ("security/faillock.conf", sanitize::uncommented),
    ("security/group.conf", sanitize::uncommented),
    ("security/limits.conf", sanitize::uncommented),
    ("security/limits.d/*", sanitize::uncommented),
    ("security/namespace.conf", sanitize::uncommented),
    ("security/pwquality.conf", sanitize::uncommented),
    ("security/time.conf", sanitize::uncommented),
    ("ssl/ct_log_list.cnf", sanitize::ct_logs),
    ("ssl/openssl.cnf", sanitize::openssl),
    ("ucf.conf", sanitize::uncommented),
    ("yum.conf", sanitize::rpm_repositories),
    ("yum.repos.d/*.repo", sanitize::rpm_repositories),
    ("zypp/repos.d/*.repo", sanitize::rpm_repositories),
    ("zypp/zypp.conf", sanitize::rpm_repositories),
];

/// Names that are left out wherever they appear, readable or not.
const NEVER: &[&str] = &[
    "auth.conf",
    "auth.conf.d",
    "credentials",
    "credentials.d",
    "gshadow",
    "gshadow-",
    "krb5.keytab",
    "opasswd",
    "private",
    "shadow",
    "shadow-",
    "ssh",
    "sudoers",
    "sudoers.d",
    ".netrc",
    "netrc",
];
const NEVER_ENDS: &[&str] = &[".key", ".p12", ".pfx", ".keytab", ".kdbx"];

const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
/// Directory services of the host are out of reach inside.
const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\ngshadow: files\nhosts: files dns\n\
    networks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\nnetgroup: files\n";

/// Read by login shells.
const PROFILE: &str = "etc/profile.d/zz-sbx-path.sh";

/// Files of `/etc` that differ per sandbox: path relative to the root, and content. Mode 644, root's. `env` is
/// that of [`super::HostLayout`].
#[must_use]
pub fn etc_files(
    name: &str,
    env: &BTreeMap<String, String>,
    caller: &Caller,
) -> Vec<(&'static str, String)> {
    vec![
        ("etc/hostname", format!("{name}\n")),
        (
            "etc/hosts",
            format!(
                "{HOSTS}127.0.1.1\t{name}\n{GATEWAY_V4}\t{GATEWAY}\n\
                 {HOST_V4}\thost.docker.internal\n"
            ),
        ),
        (PROFILE, scripts::profile(env)),
        (git::FILE, git::config(caller)),
    ]
}

/// Fills `to` from the host's `/etc`.
pub(super) fn fill(host: &Path, to: &Path, mode: Mode) -> Result<(), TemplateError> {
    make_dir(to, 0o755)?;
    let from = host.join("etc");
    for pattern in DATA.split_whitespace() {
        take(&from, to, pattern, &data)?;
    }
    for (pattern, edit) in SETTINGS {
        take(&from, to, pattern, &|rel| match is_never(rel) {
            true => Take::Leave,
            false => Take::Edited(*edit),
        })?;
    }
    own_files(to, mode)?;
    accounts::write(&from, to)
}

/// Copies what a pattern stands for.
fn take(
    from: &Path,
    to: &Path,
    pattern: &str,
    rule: &dyn Fn(&Path) -> Take,
) -> Result<(), TemplateError> {
    for rel in expand(from, pattern)? {
        if let Some(parent) = rel.parent().filter(|parent| *parent != Path::new("")) {
            if !open_above(from, parent) {
                continue;
            }
            make_dir(&to.join(parent), 0o755)?;
        }
        copy_tree(&from.join(&rel), &to.join(&rel), &rel, rule)?;
    }
    Ok(())
}

fn own_files(to: &Path, mode: Mode) -> Result<(), TemplateError> {
    for dir in [
        "cron.d",
        "cron.daily",
        "cron.hourly",
        "cron.weekly",
        "default",
        "init.d",
        "logrotate.d",
        "opt",
        "profile.d",
        "rc0.d",
        "rc1.d",
        "rc2.d",
        "rc3.d",
        "rc4.d",
        "rc5.d",
        "rc6.d",
        "rcS.d",
        "security",
        "skel",
        "systemd/system",
    ] {
        make_dir(&to.join(dir), 0o755)?;
    }
    // The resolver answers at any address; this is the one that it says to have.
    let resolv = format!("# names are resolved by the sandbox engine\nnameserver {GATEWAY_V4}\n");
    let files = [
        ("hostname", "sandbox\n"),
        ("hosts", HOSTS),
        ("resolv.conf", resolv.as_str()),
        ("nsswitch.conf", NSSWITCH),
        ("fstab", ""),
        ("machine-id", ""),
        ("environment", ""),
        ("sandbox-persistent.sh", ""),
        ("profile", scripts::PROFILE),
        ("bash.bashrc", scripts::BASHRC),
        ("bashrc", scripts::BASHRC),
        ("security/pam_env.conf", ""),
        ("skel/.profile", scripts::SKEL_PROFILE),
        ("skel/.bashrc", scripts::BASHRC),
        ("profile.d/zz-sbx-path.sh", ""),
        ("gitconfig.sbx", ""),
    ];
    for (name, content) in files {
        write_file(&to.join(name), content, 0o644)?;
    }
    let gitconfig = to.join("gitconfig");
    let hosts = present(fs::read_to_string(&gitconfig)).at("read", &gitconfig)?;
    let hosts = hosts.unwrap_or_default();
    write_file(&gitconfig, &format!("{hosts}\n{}", git::INCLUDE), 0o644)?;
    let pip = to.join("pip.conf");
    let settings = present(fs::read_to_string(&pip)).at("read", &pip)?;
    write_file(
        &pip,
        &pip_conf(settings.as_deref().unwrap_or_default()),
        0o644,
    )?;
    if !matches!(mode, Mode::Single) {
        make_dir(&to.join("sudoers.d"), 0o750)?;
        write_file(&to.join("sudoers.d/sbx-agent"), scripts::SUDOERS, 0o440)?;
    }
    if !matches!(mode, Mode::Single) && to.join("apt").is_dir() {
        make_dir(&to.join("apt/apt.conf.d"), 0o755)?;
        write_file(&to.join("apt/apt.conf.d/99sbx"), scripts::APT_CONF, 0o644)?;
    }
    if !matches!(mode, Mode::Single) && to.join("dpkg").is_dir() {
        make_dir(&to.join("dpkg/dpkg.cfg.d"), 0o755)?;
        write_file(&to.join("dpkg/dpkg.cfg.d/99sbx"), scripts::DPKG_CONF, 0o644)?;
    }
    Ok(())
}

/// Debian's python refuses `pip install` to protect the system; the sandbox's system is its own.
fn pip_conf(host: &str) -> String {
    const ALLOW: &str = "break-system-packages = true\n";
    const SECTION: &str = "[global]\n";
    match host.split_once(SECTION) {
        _ if host.contains("break-system-packages") => host.to_owned(),
        Some((before, after)) => format!("{before}{SECTION}{ALLOW}{after}"),
        None if host.is_empty() || host.ends_with('\n') => format!("{host}{SECTION}{ALLOW}"),
        None => format!("{host}\n{SECTION}{ALLOW}"),
    }
}

/// What is never taken, whatever takes it.
fn is_never(rel: &Path) -> bool {
    let name = rel.file_name().and_then(|name| name.to_str());
    name.is_none_or(|name| {
        NEVER.contains(&name) || NEVER_ENDS.iter().any(|end| name.ends_with(end))
    })
}

fn data(rel: &Path) -> Take {
    let name = rel.file_name().unwrap_or_default();
    let top = rel.iter().next().and_then(|top| top.to_str());
    let certificate = [".pem", ".crt", ".cer"];
    let ends = |end: &&str| name.as_encoded_bytes().ends_with(end.as_bytes());
    let top = top.unwrap_or_default();
    // Programs of packages, which make a trust store of certificates.
    let hook = rel.starts_with("ca-certificates/update.d");
    match top {
        _ if is_never(rel) => Take::Leave,
        "ssl" | "pki" | "ca-certificates" if certificate.iter().any(ends) => {
            Take::Edited(sanitize::certificates)
        }
        _ if is_secret(name) => Take::Leave,
        // Certificates under any name, links to them, and trust stores. A key has any name as well.
        "ssl" | "pki" | "ca-certificates" if !hook => Take::EditedText(sanitize::certificates),
        // Remote management has passwords, and the network settings are edited.
        top if top.starts_with("java") && (name == "management" || name == "net.properties") => {
            Take::Leave
        }
        _ => Take::AsIs,
    }
}

/// The paths that a pattern stands for.
fn expand(etc: &Path, pattern: &str) -> Result<Vec<PathBuf>, TemplateError> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.split('/') {
        let mut next = Vec::new();
        for above in found {
            if !part.contains(['*', '?']) {
                next.push(above.join(part));
                continue;
            }
            let dir = etc.join(&above);
            let Some(entries) = present(fs::read_dir(&dir)).at("list", &dir)? else {
                continue;
            };
            for entry in entries {
                let name = entry.at("list", &dir)?.file_name();
                if name.to_str().is_some_and(|name| matches(part, name)) {
                    next.push(above.join(name));
                }
            }
        }
        found = next;
    }
    Ok(found)
}

/// `*` stands for anything, once; `?` for one character.
fn matches(pattern: &str, name: &str) -> bool {
    if let Some((start, end)) = pattern.split_once('*') {
        return name.len() >= start.len() + end.len()
            && name.starts_with(start)
            && name.ends_with(end);
    }
    pattern.len() == name.len()
        && pattern
            .bytes()
            .zip(name.bytes())
            .all(|(want, has)| want == b'?' || want == has)
}

fn open_above(etc: &Path, parent: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    parent
        .ancestors()
        .filter(|above| *above != Path::new(""))
        .all(|above| {
            fs::symlink_metadata(etc.join(above))
                .is_ok_and(|meta| meta.is_dir() && may_enter(meta.mode()))
        })
}
