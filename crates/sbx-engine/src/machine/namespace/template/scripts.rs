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

fn is_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(word) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// `/etc/profile`.
pub(super) const PROFILE: &str = "\
# Login shells.
if [ -z \"${PATH-}\" ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  export PATH
fi
for file in /etc/profile.d/*.sh; do
  if [ -r \"$file\" ]; then . \"$file\"; fi
done
unset file
if [ -n \"${BASH_VERSION-}\" ] && [ -r /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi
";

/// Interactive shells: of the system, and of new accounts.
pub(super) const BASHRC: &str = "\
case $- in *i*) ;; *) return ;; esac
HISTCONTROL=ignoreboth
shopt -s checkwinsize histappend
PS1='\\u@\\h:\\w\\$ '
if [ -x /usr/bin/dircolors ]; then
  eval \"$(dircolors -b)\"
  alias ls='ls --color=auto'
  alias grep='grep --color=auto'
fi
if [ -r /usr/share/bash-completion/bash_completion ]; then
  . /usr/share/bash-completion/bash_completion
fi
";

/// `~/.profile`. Directories that PATH has already stay where they are in it.
pub(super) const SKEL_PROFILE: &str = "\
if [ -n \"${BASH_VERSION-}\" ] && [ -r \"$HOME/.bashrc\" ]; then . \"$HOME/.bashrc\"; fi
for dir in \"$HOME/bin\" \"$HOME/.local/bin\"; do
  case \":$PATH:\" in
    *\":$dir:\"*) ;;
    *) if [ -d \"$dir\" ]; then PATH=$dir:$PATH; fi ;;
  esac
done
unset dir
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
        let home = tempfile::tempdir().unwrap();
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let bin = bin.to_str().unwrap();
        for (before, after) in [
            ("/usr/bin:/bin".to_owned(), format!("{bin}:/usr/bin:/bin")),
            (format!("/x:{bin}:/usr/bin"), format!("/x:{bin}:/usr/bin")),
        ] {
            let output = std::process::Command::new("/bin/sh")
                .args(["-euc", &format!("{SKEL_PROFILE}echo \"$PATH\"")])
                .env_clear()
                .env("HOME", home.path())
                .env("PATH", &before)
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), after);
        }
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
