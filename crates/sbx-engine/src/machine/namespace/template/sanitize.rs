//! What is taken of files with settings: an allow-list of keys for each. Anything else in them, comments too, may be a
//! credential. URLs lose what may be one: proxies and package indexes are often written as `https://user:password@host`.

/// Text without user names, passwords and queries in its URLs. `ssh://git@host` stays: it holds no secret.
pub(super) fn urls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = |c: char| matches!(c, '"' | '\'' | '>' | ',') || c.is_whitespace();
        let (url, behind) = after.split_at(after.find(end).unwrap_or(after.len()));
        let authority = url.split(['/', '?', '#']).next().unwrap_or(url);
        // The last `@`: a password may hold another.
        let user = authority.rfind('@').and_then(|end| authority.get(..end));
        let url = match user {
            Some(user)
                if user.contains(':')
                    || before.ends_with("http://")
                    || before.ends_with("https://") =>
            {
                url.get(user.len() + 1..).unwrap_or_default()
            }
            Some(_) | None => url,
        };
        out.push_str(url.split(['?', '#']).next().unwrap_or(url));
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Whether a key is on a list; an entry that ends in `*` is the beginning of keys.
fn is_listed(key: &str, keys: &str) -> bool {
    keys.split_whitespace().any(|known| {
        known
            .strip_suffix('*')
            .map_or(key.eq_ignore_ascii_case(known), |start| {
                key.get(..start.len())
                    .is_some_and(|begin| begin.eq_ignore_ascii_case(start))
            })
    })
}

/// Lines `key SEPARATOR value` of these keys, the lines that continue their values, and the headings of sections.
fn keyed(text: &str, separator: char, keys: &str) -> String {
    let mut kept = String::new();
    let mut keeps = false;
    for line in text.lines() {
        let word = line.trim();
        let continues = line.starts_with([' ', '\t']) && !word.contains(separator);
        if continues && keeps && !word.starts_with(['#', ';']) {
            kept.push_str(&format!("{}\n", urls(line)));
            continue;
        }
        keeps = false;
        if is_heading(word) {
            kept.push_str(&format!("{word}\n"));
        } else if let Some((key, value)) = word.split_once(separator) {
            let name = key.trim();
            let name = name.strip_prefix("export ").unwrap_or(name);
            keeps = is_listed(name, keys);
            if keeps {
                kept.push_str(&format!("{key}{separator}{}\n", urls(value)));
            }
        }
    }
    kept
}

fn is_heading(line: &str) -> bool {
    let name = line
        .strip_prefix('[')
        .and_then(|line| line.strip_suffix(']'));
    let plain = |c: char| c.is_ascii_alphanumeric() || " _-.".contains(c);
    name.is_some_and(|name| name.chars().all(plain))
}

pub(super) fn pip(text: &str) -> Option<String> {
    let keys = "index-url extra-index-url find-links trusted-host cert timeout retries no-cache-dir prefer-binary \
        only-binary no-binary disable-pip-version-check break-system-packages require-virtualenv";
    Some(keyed(text, '=', keys))
}

pub(super) fn npm(text: &str) -> Option<String> {
    let keys = "registry cafile strict-ssl audit fund update-notifier engine-strict save-exact package-lock loglevel \
        progress maxsockets fetch-retries fetch-timeout legacy-peer-deps";
    // A registry of a scope: `@scope:registry`.
    let scoped = |line: &&str| line.trim_start().starts_with('@');
    let (scopes, others): (Vec<&str>, Vec<&str>) = text.lines().partition(scoped);
    let scopes = scopes.into_iter().filter(|line| {
        let key = line.split('=').next().unwrap_or_default().trim();
        key.ends_with(":registry") && key.matches(':').count() == 1
    });
    let scopes: String = scopes.map(|line| urls(line) + "\n").collect();
    Some(keyed(&others.join("\n"), '=', keys) + &scopes)
}

/// Settings of how git works; none of who uses it, of hosts, or of programs.
pub(super) fn git(text: &str) -> Option<String> {
    let keys = "core.autocrlf core.eol core.safecrlf core.filemode core.symlinks core.longpaths core.quotepath \
        core.precomposeunicode core.ignorecase core.whitespace core.abbrev core.fsmonitor core.untrackedcache \
        core.preloadindex init.defaultbranch pull.rebase pull.ff push.default push.autosetupremote push.followtags \
        merge.conflictstyle merge.ff diff.algorithm diff.renames diff.colormoved fetch.prune fetch.prunetags \
        fetch.parallel rebase.autosquash rebase.autostash rebase.updaterefs rerere.enabled color.ui safe.directory \
        feature.manyfiles index.version gc.auto pack.threads submodule.recurse protocol.version advice.* \
        filter.lfs.clean filter.lfs.smudge filter.lfs.process filter.lfs.required";
    let mut kept = String::new();
    let (mut section, mut last, mut continues) = (String::new(), String::new(), false);
    for line in text.lines() {
        let (word, inside) = (line.trim(), continues);
        continues = word.ends_with('\\');
        if inside || continues {
            continue;
        }
        if word.starts_with('[') {
            section = git_section(word).unwrap_or_default();
        } else if let Some((key, value)) = word.split_once('=') {
            let (key, value) = (key.trim(), value.trim());
            let name = format!("{section}.{key}");
            let program = section == "filter.lfs" && !value.starts_with("git-lfs ");
            if section.is_empty() || !is_listed(&name, keys) || (program && value != "true") {
                continue;
            }
            if section != last {
                kept.push_str(&match section.split_once('.') {
                    Some((name, sub)) => format!("[{name} \"{sub}\"]\n"),
                    None => format!("[{section}]\n"),
                });
                last.clone_from(&section);
            }
            kept.push_str(&format!("\t{key} = {}\n", urls(value)));
        }
    }
    Some(kept)
}

/// `core` of `[core]`, `filter.lfs` of `[filter "lfs"]`.
fn git_section(line: &str) -> Option<String> {
    let name = line.strip_prefix('[')?.strip_suffix(']')?;
    let name = match name.split_once(char::is_whitespace) {
        Some((name, sub)) => {
            let sub = sub.trim().strip_prefix('"')?.strip_suffix('"')?;
            format!("{}.{sub}", name.to_ascii_lowercase())
        }
        None => name.to_ascii_lowercase(),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    name.chars().all(plain).then_some(name)
}

/// One-line settings of apt with plain values.
pub(super) fn apt(text: &str) -> Option<String> {
    let keys = "APT::Install-Recommends APT::Install-Suggests APT::Get::Assume-Yes APT::AutoRemove::* \
        APT::NeverAutoRemove::* APT::Default-Release APT::Architecture APT::Architectures Acquire::Languages \
        Acquire::GzipIndexes Acquire::CompressionTypes::* Acquire::Check-Valid-Until Acquire::Retries \
        Acquire::PDiffs Acquire::ForceIPv4";
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    let kept = text.lines().filter(|line| {
        let Some(line) = line.trim().strip_suffix(';') else {
            return false;
        };
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        is_listed(key, keys) && value.trim().trim_matches('"').chars().all(plain)
    });
    Some(kept.map(|line| format!("{line}\n")).collect())
}

/// Lines of a `sources.list`.
pub(super) fn apt_sources(text: &str) -> Option<String> {
    let first = |line: &&str| matches!(line.split_whitespace().next(), Some("deb" | "deb-src"));
    let lines = text.lines().filter(first);
    Some(lines.map(|line| urls(line) + "\n").collect())
}

/// The newer form, in paragraphs.
pub(super) fn apt_paragraphs(text: &str) -> Option<String> {
    let keys = "Types URIs Suites Components Architectures Signed-By Enabled Trusted Languages Targets \
        Check-Valid-Until PDiffs By-Hash Allow-Insecure";
    let paragraphs = text.split("\n\n").map(|part| keyed(part, ':', keys));
    Some(paragraphs.collect::<Vec<_>>().join("\n"))
}

/// Repositories and settings of dnf, yum and zypp.
pub(super) fn rpm_repositories(text: &str) -> Option<String> {
    let keys = "name baseurl mirrorlist metalink enabled gpgcheck gpgkey repo_gpgcheck type path autorefresh \
        keeppackages priority cost countme skip_if_unavailable metadata_expire module_hotfixes sslverify \
        installonly_limit clean_requirements_on_remove best fastestmirror max_parallel_downloads install_weak_deps \
        keepcache assumeyes tsflags debuglevel exactarch obsoletes plugins exclude excludepkgs";
    Some(keyed(text, '=', keys))
}

pub(super) fn pacman(text: &str) -> Option<String> {
    let keys = "HoldPkg Architecture IgnorePkg SigLevel LocalFileSigLevel RemoteFileSigLevel ParallelDownloads Include \
        Server";
    let flags = "Color CheckSpace VerbosePkgLists NoProgressBar DisableSandbox";
    let flag = |line: &&str| is_listed(line.trim(), flags);
    let (flags, others): (Vec<&str>, Vec<&str>) = text.lines().partition(flag);
    let kept = keyed(&others.join("\n"), '=', keys);
    let flags = flags.join("\n");
    Some(match kept.split_once("[options]\n") {
        Some((before, after)) => format!("{before}[options]\n{flags}\n{after}"),
        None => kept,
    })
}

/// One URL in each line.
pub(super) fn url_list(text: &str) -> Option<String> {
    let is_url = |line: &&str| line.starts_with("http") || line.starts_with('/');
    let lines = text.lines().map(str::trim).filter(is_url);
    Some(lines.map(|line| urls(line) + "\n").collect())
}

pub(super) fn locale(text: &str) -> Option<String> {
    Some(keyed(text, '=', "LANG LANGUAGE LC_*"))
}

/// A file that has no other keys, in its comments either, stays as it is, so that dpkg knows it.
pub(super) fn useradd(text: &str) -> Option<String> {
    let keys = "SHELL GROUP GROUPS HOME INACTIVE EXPIRE SKEL CREATE_MAIL_SPOOL USRSKEL LOG_INIT";
    let known = text.lines().all(|line| {
        let key = line.trim_start_matches(['#', ' ']).split_once('=');
        // A number is that of a group.
        key.is_none_or(|(key, _)| key.parse::<u32>().is_ok() || is_listed(key, keys))
    });
    Some(match known {
        true => text.to_owned(),
        false => keyed(text, '=', keys),
    })
}

/// The logs of certificate transparency, with their public keys.
pub(super) fn ct_logs(text: &str) -> Option<String> {
    Some(keyed(text, '=', "enabled_logs description key"))
}

/// The variables that R itself has, and none that a site added.
pub(super) fn r_environment(text: &str) -> Option<String> {
    let keys = "R_PLATFORM R_PAPERSIZE R_PAPERSIZE_USER R_PRINTCMD R_LATEXCMD R_PDFLATEXCMD R_MAKEINDEXCMD \
        R_TEXI2DVICMD R_RD4PDF R_UNZIPCMD R_ZIPCMD R_BZIPCMD R_GZIPCMD R_BROWSER R_PDFVIEWER R_LIBS_SITE \
        R_LIBS_USER R_STRIP_SHARED_LIB R_STRIP_STATIC_LIB EDITOR PAGER TAR SED LN_S MAKE BIBINPUTS";
    Some(keyed(text, '=', keys))
}

pub(super) fn php(text: &str) -> Option<String> {
    let keys = "extension zend_extension engine short_open_tag precision output_buffering memory_limit \
        max_execution_time max_input_time error_reporting display_errors display_startup_errors log_errors \
        variables_order default_charset include_path file_uploads upload_max_filesize post_max_size \
        date.timezone opcache.* phar.readonly";
    Some(keyed(text, '=', keys))
}

/// Networking of Java, without proxies.
pub(super) fn java_net(text: &str) -> Option<String> {
    let keys = "java.net.useSystemProxies http.nonProxyHosts ftp.nonProxyHosts jdk.httpclient.allowRestrictedHeaders \
        jdk.http.auth.tunneling.disabledSchemes jdk.http.ntlm.transparentAuth jdk.tls.alpnCharset";
    Some(keyed(text, '=', keys))
}

/// Modules and their plain arguments. A file that has no others stays as it is, so that dpkg knows it.
pub(super) fn pam(text: &str) -> Option<String> {
    let arguments = "success new_authtok_reqd default ignore user_unknown authinfo_unavail acct_expired cred_err \
        cred_expired maxtries open_err perm_denied service_err session_err symbol_err system_err try_again \
        user_readenv readenv envfile conffile conf minlen retry remember delay deny unlock_time rounds umask \
        standard noenv dir quiet";
    let clean = |word: &str| {
        let key = word.trim_start_matches('[').split('=').next();
        !word.contains('=') || key.is_some_and(|key| is_listed(key, arguments))
    };
    if text.split_whitespace().all(clean) {
        return Some(text.to_owned());
    }
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let kept = lines.map(|line| {
        let words = line.split_whitespace().filter(|word| clean(word));
        words.collect::<Vec<_>>().join(" ") + "\n"
    });
    Some(kept.collect())
}

pub(super) fn openssl(text: &str) -> Option<String> {
    let keys = "HOME oid_section openssl_conf providers provider ssl_conf alg_section evp_properties system_default \
        default legacy fips activate engines MinProtocol MaxProtocol CipherString Ciphersuites Options Groups \
        SignatureAlgorithms rh-allow-sha1-signatures default_bits default_keyfile default_md default_days \
        default_crl_days default_ca distinguished_name attributes x509_extensions req_extensions crl_extensions \
        string_mask countryName* stateOrProvinceName* localityName* 0.organizationName* organizationName* \
        organizationalUnitName* commonName* emailAddress* challengePassword_min challengePassword_max unstructuredName \
        basicConstraints keyUsage extendedKeyUsage subjectKeyIdentifier authorityKeyIdentifier subjectAltName \
        proxyCertInfo dir certs crl_dir database new_certs_dir certificate serial crlnumber crl private_key RANDFILE \
        name_opt cert_opt preserve policy default_tsa tsa_* signer_cert signer_key signer_digest crypto_device \
        default_policy other_policies digests accuracy clock_precision_digits ordering tsa_name ess_cert_id_* \
        tsa_policy* .include server cmd";
    Some(keyed(text, '=', keys))
}

/// Key bindings; no macros, which are text to be typed.
pub(super) fn readline(text: &str) -> Option<String> {
    let kept = text.lines().filter(|line| {
        let line = line.trim();
        let binding = line
            .split_once("\":")
            .is_some_and(|(key, function)| key.starts_with('"') && !function.contains(['"', '\'']));
        line.starts_with("set ") || line.starts_with('$') || binding
    });
    Some(kept.map(|line| format!("{line}\n")).collect())
}

/// Without comments, where no key is for a credential.
pub(super) fn uncommented(text: &str) -> Option<String> {
    let lines = text.lines().map(str::trim_end);
    let kept = lines.filter(|line| !line.is_empty() && !line.trim_start().starts_with('#'));
    Some(kept.map(|line| format!("{line}\n")).collect())
}

/// Certificates and public keys, without anything between them. A file with a private key is left out.
pub(super) fn certificates(text: &str) -> Option<String> {
    const PUBLIC: &[&str] = &[
        "CERTIFICATE",
        "TRUSTED CERTIFICATE",
        "X509 CERTIFICATE",
        "X509 CRL",
        "PKCS7",
        "PUBLIC KEY",
        "PGP PUBLIC KEY BLOCK",
    ];
    if text.contains("PRIVATE KEY-----") {
        return None;
    }
    let mut kept = String::new();
    let mut block: Option<(&str, String)> = None;
    for line in text.lines() {
        let marked = |word: &str| line.trim_end().strip_prefix(word)?.strip_suffix("-----");
        if let Some(kind) = marked("-----BEGIN ") {
            block = PUBLIC.contains(&kind).then(|| (kind, String::new()));
        }
        let Some((kind, lines)) = &mut block else {
            continue;
        };
        lines.push_str(line);
        lines.push('\n');
        if marked("-----END ") == Some(*kind) {
            kept.push_str(lines);
            block = None;
        }
    }
    (!kept.is_empty()).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::super::copy::Edit;
    use super::*;

    #[test]
    fn urls_lose_their_user_password_and_query() {
        let cases = [
            ("https://bob:pw@x.org/simple", "https://x.org/simple"),
            (
                "deb [a=b] https://tok@x/ s main\nok",
                "deb [a=b] https://x/ s main\nok",
            ),
            ("http://a:p@ss@h:80", "http://h:80"),
            ("ssh://git@github.com/x", "ssh://git@github.com/x"),
            ("ftp://a:b@h \"https://c@d\"", "ftp://h \"https://d\""),
            ("see https://x.org/a@b", "see https://x.org/a@b"),
            (
                "https://x.org/a?token=t#u https://y/",
                "https://x.org/a https://y/",
            ),
        ];
        for (from, to) in cases {
            assert_eq!(urls(from), to);
        }
    }

    #[test]
    fn keys_that_are_not_listed_are_dropped() {
        let cases: [(Edit, &str, &str); 9] = [
            (
                pip,
                "# c\n[global]\nproxy = http://u:p@x\nindex-url = https://u:p@i/simple\nextra-index-url =\n  https://a@b/\n  https://c/\nclient-cert = /k\n",
                "[global]\nindex-url = https://i/simple\nextra-index-url =\n  https://b/\n  https://c/\n",
            ),
            (
                npm,
                "//r/:_authToken=abc\nregistry=https://u@r/\n@a:registry=https://t@s/\n@a:_auth=x\nproxy=http://p\n",
                "registry=https://r/\n@a:registry=https://s/\n",
            ),
            (
                git,
                "[user]\n\tname = A\n[core]\n\tautocrlf = input\n\tpager = x \\\n\teol = lf\n[sendemail]\n\tsmtpPass = p\n[http \"https://h/\"]\n\textraHeader = B\n[url \"https://t@h/\"]\n\tinsteadOf = g\n[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\tsmudge = curl t\n\trequired = true\n[alias] x = !secret\n",
                "[core]\n\tautocrlf = input\n[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\trequired = true\n",
            ),
            (
                apt,
                "Acquire::http::Proxy \"http://u:p@h\";\nAPT::Install-Recommends \"0\";\nAcquire::Retries \"3 secret\";\n",
                "APT::Install-Recommends \"0\";\n",
            ),
            (
                apt_paragraphs,
                "Types: deb\nURIs: https://u:p@h/d\nX-Token: t\nSigned-By:\n -----BEGIN\n .\n\nTypes: deb-src\n",
                "Types: deb\nURIs: https://h/d\nSigned-By:\n -----BEGIN\n .\n\nTypes: deb-src\n",
            ),
            (
                rpm_repositories,
                "[r]\nname=R\nbaseurl=https://u:p@h/?k=v\nusername=u\npassword=p\n",
                "[r]\nname=R\nbaseurl=https://h/\n",
            ),
            (
                pam,
                "# c passwd=p\nauth [success=1 default=ignore] pam_mysql.so user=u passwd=p nullok\n@include x\n",
                "auth [success=1 default=ignore] pam_mysql.so nullok\n@include x\n",
            ),
            (
                pam,
                "# As it came.\nauth\tsufficient  pam_rootok.so\n",
                "# As it came.\nauth\tsufficient  pam_rootok.so\n",
            ),
            (
                readline,
                "set bell-style none\n\"\\e[1~\": beginning-of-line\n\"\\C-p\": \"password\"\n# c\n$if mode=emacs\n",
                "set bell-style none\n\"\\e[1~\": beginning-of-line\n$if mode=emacs\n",
            ),
        ];
        for (edit, from, to) in cases {
            assert_eq!(edit(from).as_deref(), Some(to));
        }
        assert_eq!(certificates("-----BEGIN RSA PRIVATE KEY-----"), None);
        assert_eq!(certificates("token"), None);
        assert_eq!(certificates("-----BEGIN CERTIFICATE-----\ncut"), None);
        let one = "-----BEGIN TRUSTED CERTIFICATE-----\nAA==\n-----END TRUSTED CERTIFICATE-----\n";
        let two = format!("# x\n{one}-----BEGIN X-----\nx\n-----END X-----\nx\n{one}");
        assert_eq!(certificates(&two), Some(format!("{one}{one}")));
    }
}
