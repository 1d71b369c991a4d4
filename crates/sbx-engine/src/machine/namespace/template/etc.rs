//! `/etc` of the template: an allow-list of what programs need, and our own files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sbx_api::Caller;
use sbx_proto::net::{GATEWAY, GATEWAY_V4, HOST_V4};
use sbx_proto::plan::Mode;

use super::copy::{Take, copy_tree, make_dir, may_enter, present, write_file};
use super::error::At as _;
use super::{TemplateError, accounts, git, sanitize, scripts};

/// Relative to `/etc`; a name may end in `*` or hold `?`. A directory is copied whole, but for [`NEVER`].
const WANTED: &str = "\
    ImageMagick-* OpenCL R X11 adduser.conf almalinux-release alpine-release alsa alternatives apk \
    apt/apt.conf apt/apt.conf.d apt/keyrings apt/mirrors apt/preferences apt/preferences.d \
    apt/sources.list apt/sources.list.d apt/trusted.gpg apt/trusted.gpg.d arch-release bash.bashrc \
    bash_completion bash_completion.d bashrc bindresvport.blacklist ca-certificates* centos-release \
    crypto-policies csh.cshrc csh.login curlrc dbus-1 debconf.conf debian_version debuginfod default \
    deluser.conf dictionaries-common dnf dotnet dpkg drirc emacs ethertypes fedora-release fish fonts \
    gai.conf gdb ghostscript gitattributes gitconfig glvnd gprofng.rc groff gss gtk-* host.conf init.d \
    inputrc issue issue.net java* ld-musl-* ld.so.cache ld.so.conf ld.so.conf.d libaudit.conf \
    locale.alias locale.conf locale.gen localtime login.defs logrotate.d lsb-release lynx magic* mailcap \
    mailcap.order makepkg.conf manpath.config maven mime.types mke2fs.conf mtab nanorc netconfig \
    networks npmrc nsswitch.conf openal opensc os-release pacman.conf pacman.d pam.conf pam.d papersize \
    perl php pip.conf pki/ca-trust pki/rpm-gpg pki/tls/cert.pem pki/tls/certs pki/tls/openssl.cnf \
    profile profile.d protocols pulse/client.conf python* rc?.d redhat-release rocky-release rpc rpm \
    ruby security services sgml shells skel ssl/cert.pem ssl/certs ssl/ct_log_list.cnf ssl/openssl.cnf \
    system-release* terminfo texmf timezone ucf.conf vdpau_wrapper.cfg vim vulkan wgetrc xattr.conf xdg \
    xml yum yum.conf yum.repos.d zsh zshenv zypp/repos.d zypp/zypp.conf";

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
    for pattern in WANTED.split_whitespace() {
        for rel in expand(&from, pattern)? {
            let rel = Path::new(&rel);
            if let Some(parent) = rel.parent().filter(|parent| *parent != Path::new("")) {
                if !open_above(&from, parent) {
                    continue;
                }
                make_dir(&to.join(parent), 0o755)?;
            }
            copy_tree(&from.join(rel), &to.join(rel), rel, &rule)?;
        }
    }
    own_files(to, mode)?;
    accounts::write(&from, to)
}

fn own_files(to: &Path, mode: Mode) -> Result<(), TemplateError> {
    for dir in [
        "cron.d",
        "cron.daily",
        "cron.hourly",
        "cron.weekly",
        "opt",
        "profile.d",
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
    if !to.join("profile").exists() {
        write_file(&to.join("profile"), scripts::PROFILE_D, 0o644)?;
    }
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

fn rule(rel: &Path) -> Take {
    let Some(name) = rel.file_name().and_then(|name| name.to_str()) else {
        return Take::Leave;
    };
    if NEVER.contains(&name) || NEVER_ENDS.iter().any(|end| name.ends_with(end)) {
        return Take::Leave;
    }
    let top = rel
        .iter()
        .next()
        .and_then(|top| top.to_str())
        .unwrap_or_default();
    match top {
        "gitconfig" => Take::Edited(sanitize::git),
        "maven" if name.ends_with(".xml") => Take::Edited(sanitize::xml),
        "npmrc" | "pip.conf" | "wgetrc" | "curlrc" | "dnf" | "yum" | "yum.conf" | "yum.repos.d"
        | "zypp" | "pacman.conf" | "apk" | "profile" | "profile.d" | "bash.bashrc" | "bashrc"
        | "default" | "zsh" | "zshenv" | "fish" => edited_text(rel, sanitize::settings),
        "apt" | "pacman.d" | "xdg" => edited_text(rel, sanitize::urls),
        "ssl" | "pki" | "ca-certificates"
            if [".pem", ".crt", ".cer"]
                .iter()
                .any(|end| name.ends_with(end)) =>
        {
            Take::Edited(sanitize::certificates)
        }
        _ => Take::AsIs,
    }
}

/// Key rings are binary.
fn edited_text(rel: &Path, edit: fn(&str) -> Option<String>) -> Take {
    let binary = ["gpg", "pgp", "kbx", "pub", "asc", "rsa.pub"];
    match rel.extension().and_then(|end| end.to_str()) {
        Some(end) if binary.contains(&end) => Take::AsIs,
        Some(_) | None => Take::Edited(edit),
    }
}

/// The paths that a pattern stands for.
fn expand(etc: &Path, pattern: &str) -> Result<Vec<String>, TemplateError> {
    if !pattern.contains(['*', '?']) {
        return Ok(vec![pattern.to_owned()]);
    }
    let Some(entries) = present(fs::read_dir(etc)).at("list", etc)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        if let Ok(name) = entry.at("list", etc)?.file_name().into_string()
            && matches(pattern, &name)
        {
            found.push(name);
        }
    }
    Ok(found)
}

/// `*` at the end stands for anything, `?` for one character.
fn matches(pattern: &str, name: &str) -> bool {
    if let Some(start) = pattern.strip_suffix('*') {
        return name.starts_with(start);
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
