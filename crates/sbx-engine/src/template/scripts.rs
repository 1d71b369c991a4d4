//! Programs and settings of ours that lie in a template, as text.

/// `/etc/profile` of many systems sets PATH anew; this runs after it.
pub(super) const PROFILE: &str = "\
# Login shells keep the sandbox's PATH.
if [ -n \"${SBX_PATH-}\" ]; then
  PATH=$SBX_PATH
  export PATH
fi
if [ -r /etc/sandbox-persistent.sh ]; then
  . /etc/sandbox-persistent.sh
fi
";

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
/// has no answer where nobody types.
pub(super) const DPKG_CONF: &str = "force-confmiss\nforce-confold\n";

/// No package may start a service: nothing inside supervises it.
pub(super) const POLICY_RC: &str = "#!/bin/sh\nexit 101\n";

/// Installed as `/usr/local/sbin/dpkg-deb` where host files look like nobody's.
pub(super) const DPKG_DEB: &str = include_str!("dpkg-deb.pl");

/// Installed as `apt`, `apt-get` and `dpkg` where no package can be installed.
pub(super) const NO_PACKAGES: &str = include_str!("no-packages.sh");
