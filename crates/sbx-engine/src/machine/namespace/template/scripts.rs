//! Programs and settings of ours that lie in a template, as text.

use std::collections::BTreeMap;

use sbx_proto::shell::quoted;

/// Of login shells, after `/etc/profile`, which sets PATH anew on many systems. The values are in the file too:
/// `su -` and `env -i` leave nothing of a command's environment.
pub(super) fn profile(env: &BTreeMap<String, String>) -> String {
    let mut text = String::from(
        "# Login shells have the sandbox's PATH and tool chains.\n\
         if [ -z \"${SBX_PATH-}\" ]; then\n",
    );
    // A shell would take an invalid variable name for something else, such as a command.
    let variables = env
        .iter()
        .filter(|(name, _)| *name != "PATH" && is_name(name));
    for (name, value) in variables {
        let value = quoted(value);
        text.push_str(&format!(
            "  [ -n \"${{{name}+set}}\" ] || export {name}={value}\n"
        ));
    }
    text.push_str(
        "fi\n\
         if [ -n \"${SBX_PATH-}\" ]; then\n  PATH=$SBX_PATH\n  export PATH\nfi\n\
         if [ -r /etc/sandbox-persistent.sh ]; then\n  . /etc/sandbox-persistent.sh\nfi\n",
    );
    text
}

/// A profile that puts directories of the home before PATH, changed to do so only where they are not in it.
pub(super) fn path_once(text: &str) -> Option<String> {
    let line = |line: &str| {
        let dir = line
            .trim()
            .strip_prefix("PATH=\"")
            .and_then(|rest| rest.strip_suffix(":$PATH\""))
            .filter(|dir| dir.starts_with("$HOME/") && !dir.contains(['"', ':', '`', '(']));
        match dir {
            Some(dir) => format!(
                "    case \":$PATH:\" in *\":{dir}:\"*) ;; *) PATH=\"{dir}:$PATH\" ;; esac\n"
            ),
            None => line.to_owned(),
        }
    };
    Some(text.split_inclusive('\n').map(line).collect())
}

fn is_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(word) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// For a host that has no `/etc/profile`.
pub(super) const PROFILE_D: &str = "\
for file in /etc/profile.d/*.sh; do
  if [ -r \"$file\" ]; then . \"$file\"; fi
done
unset file
";

/// Few ids exist inside, so apt cannot become `_apt`; and dpkg has to find our `dpkg-deb` first.
pub(super) const APT_CONF: &str = "\
APT::Sandbox::User \"root\";
DPkg::Path \"/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin\";
";

/// Not all of the host's `/etc` is here, and some of it is edited: dpkg must not ask about that. What it asks
/// has no answer in a command without a terminal.
pub(super) const DPKG_CONF: &str = "force-confmiss\nforce-confold\n";

/// Installing the distribution's `sudo` replaces ours by it, until the next start: it asks for no password either.
pub(super) const SUDOERS: &str = "agent ALL=(ALL:ALL) NOPASSWD: ALL\n";

/// No package may start a service: nothing inside supervises it.
pub(super) const POLICY_RC: &str = "#!/bin/sh\nexit 101\n";

/// Installed as `/usr/local/sbin/dpkg-deb` where host files belong to the overflow uid (`nobody`).
pub(super) const DPKG_DEB: &str = include_str!("dpkg-deb.pl");

/// Installed as `apt`, `apt-get` and `dpkg` where no package can be installed.
pub(super) const NO_PACKAGES: &str = include_str!("no-packages.sh");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_adds_to_path_once() {
        let debian = "# x\nif [ -d \"$HOME/bin\" ] ; then\n    PATH=\"$HOME/bin:$PATH\"\nfi\n";
        let edited = path_once(debian).unwrap();
        for (before, after) in [
            ("/usr/bin:/bin", "/tmp/bin:/usr/bin:/bin"),
            ("/x:/tmp/bin:/usr/bin:/bin", "/x:/tmp/bin:/usr/bin:/bin"),
        ] {
            let edited = edited.replace("-d \"$HOME/bin\"", "1");
            let output = std::process::Command::new("/bin/sh")
                .args(["-euc", &format!("{edited}echo \"$PATH\"")])
                .env_clear()
                .envs([("HOME", "/tmp"), ("PATH", before)])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), after);
        }
        let other = "PATH=$PATH:/x\nexport PATH=\"$HOME/y:$PATH\"\nPATH=\"/z:$PATH\"\n";
        assert_eq!(path_once(other).as_deref(), Some(other));
    }

    #[test]
    fn a_fresh_login_shell_has_the_variables_and_runs_none_of_them() {
        let pairs = [
            ("LC_TEST", "O'Brien $(touch /tmp/x) \"`id`\"\n\\"),
            ("LC_;id;", "x"),
            ("PATH", "/not/this"),
            ("RUSTUP_HOME", "/r"),
            ("SBX_PATH", "/r/bin:/usr/bin:/bin"),
        ];
        let env = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let script = profile(&env.into_iter().collect());
        let shell = |given: &[(&str, &str)]| {
            let show = "printf '%s|%s|%s' \"$LC_TEST\" \"$RUSTUP_HOME\" \"$PATH\"";
            let output = std::process::Command::new("sh")
                .args(["-euc", &format!("{script}{show}")])
                .env_clear()
                .envs(given.iter().copied())
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(
            shell(&[]),
            "O'Brien $(touch /tmp/x) \"`id`\"\n\\|/r|/r/bin:/usr/bin:/bin"
        );
        // What a command has been given is its own.
        assert_eq!(
            shell(&[("RUSTUP_HOME", "/mine"), ("LC_TEST", "")]),
            "|/mine|/r/bin:/usr/bin:/bin"
        );
        let whole = [
            ("SBX_PATH", "/p:/usr/bin"),
            ("RUSTUP_HOME", ""),
            ("LC_TEST", "A"),
        ];
        assert_eq!(shell(&whole), "A||/p:/usr/bin");
    }
}
