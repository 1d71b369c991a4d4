//! What has to be seen of the tool chains that version managers keep, so that their programs run. A list of what is
//! shown, not of what is hidden: the directory of a manager also has downloads, settings and credentials in it.

/// A part of a tool chain. `place` is below its root; `*` stands for every directory there, and `@` for the one that
/// the entry of the PATH leads through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) place: &'static str,
    pub(super) contents: Contents,
    /// Names at its top that are not needed to run anything.
    pub(super) hides: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// Nothing but programs, or a settings file that programs need. Scan at, and only its top.
    Programs,
    /// Unpacked releases, in which by convention users keep nothing of their own.
    Packages,
    /// The prefix of an installation, or a clone: `bin`, `lib`, and by convention the settings of its tools.
    Installation,
    /// Anything: a user's own directory.
    Unknown,
}

const fn programs(place: &'static str) -> Part {
    part(place, Contents::Programs)
}

const fn packages(place: &'static str) -> Part {
    part(place, Contents::Packages)
}

const fn installation(place: &'static str) -> Part {
    part(place, Contents::Installation)
}

const fn part(place: &'static str, contents: Contents) -> Part {
    Part {
        place,
        contents,
        hides: &[],
    }
}

pub(super) const ALL_PROGRAMS: &[Part] = &[programs("")];
pub(super) const ONE_INSTALLATION: &[Part] = &[installation("")];
pub(super) const ANYTHING: &[Part] = &[part("", Contents::Unknown)];

/// A version manager: where it is below the home, the variable that says otherwise, and what is shown of it.
pub(super) struct Manager {
    pub(super) home: &'static str,
    pub(super) variable: Option<&'static str>,
    pub(super) parts: &'static [Part],
}

pub(super) const RUSTUP: &[Part] = &[
    programs("settings.toml"),
    packages("toolchains"),
    // It fails where it would have to make it.
    packages("update-hashes"),
];
pub(super) const LINUXBREW: &[Part] = &[
    programs("bin"),
    programs("sbin"),
    packages("Cellar"),
    packages("include"),
    packages("lib"),
    packages("opt"),
    packages("share"),
    installation("etc"),
];
const CONDA: &[Part] = &[
    programs("bin"),
    programs("condabin"),
    packages("conda-meta"),
    packages("include"),
    packages("lib"),
    packages("libexec"),
    packages("share"),
    packages("shell"),
    packages("ssl"),
    installation("etc"),
    installation("envs/*"),
];
const MISE: &[Part] = &[
    programs("shims"),
    installation("installs/*/*"),
    installation("plugins/*"),
];

pub(super) const MANAGERS: &[Manager] = &[
    of(
        ".asdf",
        &[
            programs("asdf.sh"),
            programs("bin"),
            programs("lib"),
            programs("shims"),
            installation("installs/*/*"),
            installation("plugins/*"),
        ],
    ),
    of(
        ".bun",
        &[programs("bin"), packages("install/global/node_modules")],
    ),
    of(".deno", &[programs("bin")]),
    of(
        ".dotnet",
        &[
            programs("dotnet"),
            packages("host"),
            packages("library-packs"),
            packages("packs"),
            packages("sdk"),
            packages("sdk-manifests"),
            packages("shared"),
            packages("templates"),
            packages("tools"),
        ],
    ),
    of(
        ".elan",
        &[
            programs("bin"),
            programs("settings.toml"),
            packages("toolchains"),
        ],
    ),
    of(
        ".ghcup",
        &[programs("bin"), packages("ghc"), packages("hls")],
    ),
    of(
        ".goenv",
        &[
            programs("bin"),
            programs("libexec"),
            programs("shims"),
            programs("version"),
            installation("plugins/*"),
            installation("versions/*"),
        ],
    ),
    of(
        ".jenv",
        &[
            programs("bin"),
            programs("libexec"),
            programs("shims"),
            programs("version"),
            packages("available-plugins"),
            installation("plugins/*"),
            installation("versions/*"),
        ],
    ),
    of(".juliaup", &[programs("bin")]),
    of(".local/share/mise", MISE),
    of(
        ".local/share/pnpm",
        &[Part {
            place: "",
            contents: Contents::Installation,
            hides: &["store"],
        }],
    ),
    of(
        ".nodenv",
        &[
            programs("bin"),
            programs("libexec"),
            packages("nodenv.d"),
            programs("shims"),
            programs("version"),
            installation("plugins/*"),
            installation("versions/*"),
        ],
    ),
    Manager {
        home: ".nvm",
        variable: Some("NVM_DIR"),
        parts: &[installation("versions/node/@")],
    },
    of(
        ".opam",
        &[
            packages("opam-init"),
            Part {
                place: "@",
                contents: Contents::Installation,
                hides: &[".opam-switch"],
            },
        ],
    ),
    Manager {
        home: ".pyenv",
        variable: Some("PYENV_ROOT"),
        parts: &[
            programs("bin"),
            programs("libexec"),
            packages("pyenv.d"),
            programs("shims"),
            programs("version"),
            installation("plugins/*"),
            installation("versions/*"),
        ],
    },
    of(
        ".rbenv",
        &[
            programs("bin"),
            programs("libexec"),
            packages("rbenv.d"),
            programs("shims"),
            programs("version"),
            installation("plugins/*"),
            installation("versions/*"),
        ],
    ),
    of(
        ".rvm",
        &[
            programs("VERSION"),
            programs("bin"),
            packages("environments"),
            packages("lib"),
            packages("scripts"),
            packages("wrappers"),
            installation("gems/*"),
            installation("rubies/*"),
        ],
    ),
    of(
        ".sdkman",
        &[
            programs("bin"),
            programs("src"),
            installation("candidates/*/*"),
        ],
    ),
    of(
        ".volta",
        &[
            programs("bin"),
            programs("layout.v4"),
            packages("tools/inventory/node"),
            packages("tools/user"),
            installation("tools/image/*/*"),
        ],
    ),
    of("anaconda3", CONDA),
    of("mambaforge", CONDA),
    of("miniconda3", CONDA),
    of("miniforge3", CONDA),
];

/// Beside `~/.local/bin`: where the programs linked there live.
pub(super) const LOCAL_SHARE: &[Manager] = &[
    of(
        ".local/share/uv",
        &[installation("python/*"), installation("tools/*")],
    ),
    of(
        ".local/share/pipx",
        &[installation("shared"), installation("venvs/*")],
    ),
    of(".local/share/mise", MISE),
];

const fn of(home: &'static str, parts: &'static [Part]) -> Manager {
    Manager {
        home,
        variable: None,
        parts,
    }
}
