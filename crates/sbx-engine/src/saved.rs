//! Saved templates: what a sandbox changed of the template that it was made from, kept for other sandboxes.
//!
//! `templates/saved/ID` has the upper layers of that sandbox, which become lower layers of every sandbox that is made
//! from it, and a record. It never changes. `tags.json` says which of them a name stands for: to replace a template is to
//! write that file. One without a name is removed as soon as no sandbox, and no other template, is made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sbx_api::SavedTemplate;
use sbx_proto::plan::Ids;
use serde::{Deserialize, Serialize};

use crate::machine::Template;
use crate::sandbox::record::Record;
use crate::sandbox::tag::Tag;
use crate::state::{Durability, StateDir, make_private_dirs, write_atomic};

pub(crate) const VERSION: u32 = 1;
const META: &str = "template.json";
const LAYERS: &str = "layers";
const TAGS: &str = "tags.json";
/// Being made.
const UNFINISHED: &str = ".new-";
/// Put aside, to be removed.
const RETIRED: &str = ".removed-";

/// What is known about one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Meta {
    pub(crate) version: u32,
    pub(crate) id: String,
    /// The name that it was saved under.
    pub(crate) tag: Tag,
    pub(crate) created_at: Timestamp,
    /// Of the sandbox that it was made from.
    pub(crate) sandbox: String,
    pub(crate) agent: String,
    pub(crate) ids: Ids,
    /// The version of the host's files that the layers lie on.
    pub(crate) host: Option<String>,
    pub(crate) bytes: u64,
    /// The layers: a directory per overlay.
    pub(crate) dirs: BTreeSet<String>,
    /// The saved templates that the sandbox itself was made from, uppermost first.
    pub(crate) below: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tags {
    version: u32,
    tags: BTreeMap<Tag, String>,
}

/// Where they lie.
#[derive(Debug, Clone)]
pub(crate) struct SavedStore {
    root: PathBuf,
}

impl SavedStore {
    pub(crate) fn new(state: &StateDir) -> Self {
        Self {
            root: state.saved_templates(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn layers(&self, id: &str) -> PathBuf {
        self.root.join(id).join(LAYERS)
    }

    fn tags(&self) -> io::Result<BTreeMap<Tag, String>> {
        let path = self.root.join(TAGS);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            other => other?,
        };
        match serde_json::from_slice::<Tags>(&text) {
            Ok(tags) => Ok(tags.tags),
            // Torn, as after a failure of the disk. What a newer version has written is JSON.
            Err(error) if error.is_eof() || error.is_syntax() => {
                tracing::warn!(%error, file = %path.display(), "the names of saved templates are taken from the templates");
                self.tags_of_templates()
            }
            Err(error) => Err(invalid(&path, &error)),
        }
    }

    /// The names that the templates were saved under; the last one has a name that several have.
    fn tags_of_templates(&self) -> io::Result<BTreeMap<Tag, String>> {
        let names = self.names()?.into_iter();
        let mut found: Vec<Meta> = names
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| self.get(&name).ok())
            .collect();
        found.sort_by_key(|meta| meta.created_at);
        Ok(found.into_iter().map(|meta| (meta.tag, meta.id)).collect())
    }

    fn write_tags(&self, tags: BTreeMap<Tag, String>) -> io::Result<()> {
        let version = VERSION;
        let text = serde_json::to_vec_pretty(&Tags { version, tags })?;
        write_atomic(&self.root, TAGS, &text, Durability::Now)
    }

    /// One by its id.
    pub(crate) fn get(&self, id: &str) -> io::Result<Meta> {
        read_json(&self.root.join(id).join(META))
    }

    /// What a name stands for.
    pub(crate) fn find(&self, tag: &Tag) -> io::Result<Option<Meta>> {
        match self.tags()?.get(tag) {
            Some(id) => self.get(id).map(Some),
            None => Ok(None),
        }
    }

    /// All that have a name, by name. One that cannot be read is of no use.
    pub(crate) fn list(&self) -> io::Result<Vec<(Tag, Meta)>> {
        let named = self.tags()?.into_iter();
        Ok(named
            .filter_map(|(tag, id)| Some((tag, self.get(&id).ok()?)))
            .collect())
    }

    /// A template and those below it, uppermost first.
    pub(crate) fn stack(&self, id: &str) -> io::Result<Vec<Meta>> {
        let top = self.get(id)?;
        let below: Vec<Meta> = (top.below.iter())
            .map(|id| self.get(id))
            .collect::<io::Result<_>>()?;
        Ok([vec![top], below].concat())
    }

    /// An empty directory for the layers of a new one.
    pub(crate) fn begin(&self, id: &str) -> io::Result<PathBuf> {
        let layers = self.unfinished(id).join(LAYERS);
        make_private_dirs(&layers)?;
        Ok(layers)
    }

    pub(crate) fn unfinished(&self, id: &str) -> PathBuf {
        self.root.join(format!("{UNFINISHED}{id}"))
    }

    /// What was begun is whole: from here on the name stands for it, also after a power cut.
    pub(crate) fn finish(&self, meta: &Meta) -> io::Result<()> {
        let begun = self.unfinished(&meta.id);
        let text = serde_json::to_vec_pretty(meta)?;
        write_atomic(&begun, META, &text, Durability::Soon)?;
        rustix::fs::syncfs(File::open(&begun)?)?;
        fs::rename(&begun, self.root.join(&meta.id))?;
        let mut tags = self.tags()?;
        tags.insert(meta.tag.clone(), meta.id.clone());
        self.write_tags(tags)
    }

    /// The names that `wanted` means: a name, or the beginning of an id.
    pub(crate) fn named(&self, wanted: &str) -> io::Result<Vec<(Tag, Meta)>> {
        let all = self.list()?;
        let tag = Tag::parse(wanted).ok();
        let by_name = all.iter().find(|(known, _)| Some(known) == tag.as_ref());
        if let Some(found) = by_name {
            return Ok(vec![found.clone()]);
        }
        let by_id = |(_, meta): &(Tag, Meta)| !wanted.is_empty() && meta.id.starts_with(wanted);
        Ok(all.into_iter().filter(by_id).collect())
    }

    pub(crate) fn untag(&self, tag: &Tag) -> io::Result<()> {
        let mut tags = self.tags()?;
        tags.remove(tag);
        self.write_tags(tags)
    }

    /// Puts those aside that have no name, and that neither a sandbox of `used` nor another template is made from.
    pub(crate) fn retire_unused(&self, used: &BTreeSet<String>) -> io::Result<()> {
        let mut kept = used.clone();
        kept.extend(self.tags()?.into_values());
        for id in kept.clone() {
            match self.get(&id) {
                Ok(meta) => kept.extend(meta.below),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Which others are below it is not known, so none is removed.
                Err(error) => {
                    tracing::warn!(%error, "unused templates are kept");
                    return Ok(());
                }
            }
        }
        for name in self.names()? {
            if !name.starts_with('.') && name != TAGS && !kept.contains(&name) {
                self.put_aside(&name)?;
            }
        }
        Ok(())
    }

    /// Those that a daemon was making when it was killed.
    pub(crate) fn retire_unfinished(&self) -> io::Result<()> {
        for name in self.names()? {
            if name.starts_with(UNFINISHED) {
                self.put_aside(&name)?;
            }
        }
        Ok(())
    }

    fn put_aside(&self, name: &str) -> io::Result<()> {
        let aside = self.root.join(format!("{RETIRED}{name}"));
        fs::rename(self.root.join(name), aside)
    }

    /// What is to be removed.
    pub(crate) fn retired(&self) -> io::Result<Vec<PathBuf>> {
        let names = self.names()?.into_iter();
        let retired = names.filter(|name| name.starts_with(RETIRED));
        Ok(retired.map(|name| self.root.join(name)).collect())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> io::Result<T> {
    let text = fs::read(path)?;
    serde_json::from_slice(&text).map_err(|error| invalid(path, &error))
}

fn invalid(path: &Path, error: &serde_json::Error) -> io::Error {
    let message = format!("`{}`: {error}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// As the API shows it, under one of its names.
pub(crate) fn shown(tag: &Tag, meta: &Meta) -> SavedTemplate {
    SavedTemplate {
        id: meta.id.clone(),
        repository: tag.repository().to_owned(),
        tag: tag.tag().to_owned(),
        flavor: meta.agent.clone(),
        created_at: meta.created_at,
        size: meta.bytes,
        sandbox: meta.sandbox.clone(),
    }
}

/// All saved templates, sorted by name. Reads files only.
pub fn list(state: &StateDir) -> io::Result<Vec<SavedTemplate>> {
    let all = SavedStore::new(state).list()?;
    Ok(all.iter().map(|(tag, meta)| shown(tag, meta)).collect())
}

/// The saved template that a sandbox is made from.
pub(crate) fn id_of(record: &Record) -> Option<&str> {
    match &record.template.name {
        Template::Host => None,
        Template::Saved { id, .. } => Some(id),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::sandbox::record::tests::any_example;

    fn store(dir: &Path) -> SavedStore {
        SavedStore::new(&StateDir::locate(dir, Some(dir)).unwrap())
    }

    fn meta(id: &str, tag: &str, below: &[&str]) -> Meta {
        Meta {
            version: VERSION,
            id: id.into(),
            tag: Tag::parse(tag).unwrap(),
            created_at: Timestamp::UNIX_EPOCH,
            sandbox: "box".into(),
            agent: "shell".into(),
            ids: any_example("ab").ids,
            host: None,
            bytes: 1,
            dirs: BTreeSet::from(["root".into()]),
            below: below.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    fn save(store: &SavedStore, id: &str, tag: &str, below: &[&str]) {
        store.begin(id).unwrap();
        store.finish(&meta(id, tag, below)).unwrap();
    }

    fn tear(file: &Path, text: &str) {
        let mut file = File::create(file).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn left(store: &SavedStore) -> Vec<String> {
        let mut names = store.names().unwrap();
        names.retain(|name| name != TAGS);
        names.sort();
        names
    }

    #[test]
    fn a_name_stands_for_the_last_one_saved() {
        let temp = tempfile::tempdir().unwrap();
        let store = store(temp.path());
        assert!(store.list().unwrap().is_empty() && store.retired().unwrap().is_empty());
        save(&store, "1", "a:v1", &[]);
        save(&store, "2", "a:v1", &[]);
        let tag = Tag::parse("a:v1").unwrap();
        assert_eq!(store.find(&tag).unwrap().unwrap().id, "2");
        assert_eq!(store.named("a:v1").unwrap().len(), 1);
        assert_eq!(store.named("2").unwrap().len(), 1);
        assert!(store.named("1").unwrap().is_empty() && store.named("").unwrap().is_empty());
        store.untag(&tag).unwrap();
        assert_eq!(store.find(&tag).unwrap(), None);
    }

    #[test]
    fn what_is_below_a_template_that_cannot_be_read_stays() {
        let temp = tempfile::tempdir().unwrap();
        let store = store(temp.path());
        save(&store, "1", "a", &[]);
        save(&store, "2", "a", &["1"]);
        tear(&store.root.join("2").join(META), "{");
        store.retire_unused(&BTreeSet::new()).unwrap();
        assert_eq!(left(&store), ["1", "2"]);
    }

    #[test]
    fn what_is_used_stays() {
        let temp = tempfile::tempdir().unwrap();
        let store = store(temp.path());
        save(&store, "1", "a", &[]);
        save(&store, "2", "a", &["1"]);
        save(&store, "3", "a", &["2", "1"]);
        save(&store, "4", "b", &[]);
        let used = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        store.retire_unused(&used(&[])).unwrap();
        assert_eq!(left(&store), ["1", "2", "3", "4"]);
        assert_eq!(store.stack("3").unwrap().len(), 3);
        store.untag(&Tag::parse("a").unwrap()).unwrap();
        store.retire_unused(&used(&["2"])).unwrap();
        assert_eq!(left(&store), [".removed-3", "1", "2", "4"]);
        store.retire_unused(&used(&[])).unwrap();
        assert_eq!(store.retired().unwrap().len(), 3);
        assert!(store.stack("2").is_err());
    }

    #[test]
    fn a_torn_file_costs_one_template_at_most() {
        let temp = tempfile::tempdir().unwrap();
        let store = store(temp.path());
        save(&store, "1", "a", &[]);
        save(&store, "2", "b", &[]);
        let tag = |name| Tag::parse(name).unwrap();
        let second = Timestamp::from_second(1).unwrap();
        let newer = Meta {
            created_at: second,
            ..meta("0", "a", &[])
        };
        store.begin("0").unwrap();
        store.finish(&newer).unwrap();
        for torn in ["", "\0\0\0", "{\"version\": 1, \"tags\": {\"a"] {
            tear(&store.root.join(TAGS), torn);
            assert_eq!(store.find(&tag("a")).unwrap().unwrap().id, "0", "{torn:?}");
            assert_eq!(store.list().unwrap().len(), 2, "{torn:?}");
            store.retire_unused(&BTreeSet::new()).unwrap();
            assert!(store.get("0").is_ok() && store.get("2").is_ok());
        }
        save(&store, "3", "c", &[]);
        assert_eq!(store.tags().unwrap().len(), 3);
        // Of a newer version: nothing is changed.
        tear(&store.root.join(TAGS), "{\"version\": 2, \"names\": []}");
        let error = store.list().unwrap_err().to_string();
        assert!(error.contains(TAGS), "{error}");
        assert!(store.retire_unused(&BTreeSet::new()).is_err());

        fs::remove_file(store.root.join(TAGS)).unwrap();
        save(&store, "4", "d", &[]);
        save(&store, "5", "e", &[]);
        tear(&store.root.join("4").join(META), "");
        let error = store.find(&tag("d")).unwrap_err().to_string();
        assert!(error.contains(&format!("4/{META}")), "{error}");
        assert_eq!(store.find(&tag("e")).unwrap().unwrap().id, "5");
        assert_eq!(store.list().unwrap().len(), 1);
    }

    #[test]
    fn what_was_begun_is_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let store = store(temp.path());
        store.begin("1").unwrap();
        store.retire_unused(&BTreeSet::new()).unwrap();
        assert_eq!(left(&store), [".new-1"]);
        assert!(store.list().unwrap().is_empty());
        store.retire_unfinished().unwrap();
        assert_eq!(left(&store), [".removed-.new-1"]);
    }
}
