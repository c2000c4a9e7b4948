//! The data directories of a node, locked, and checked to belong together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backend::Disk;
use super::backend::disk::DiskDir;
use super::format::{Format, FormatError, read_unless_empty};

/// A data directory whose lock this process holds.
pub struct DataDirectory {
    /// Its path as configured.
    pub name: String,
    /// What is in it.
    pub disk: Arc<dyn Disk>,
    /// Its format file.
    pub format: Format,
    /// Nothing is in it: the format file is still to be written, by [`join`].
    pub is_new: bool,
}

/// Why data directories are not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory can't be used.
    #[error("data directory {name}: {why}")]
    Unusable {
        /// Its path as configured.
        name: String,
        /// Why.
        why: String,
    },
    /// A format file makes no sense.
    #[error("data directory {name}: {why}")]
    Damaged {
        /// The directory's path as configured.
        name: String,
        /// What is wrong with the file.
        why: String,
    },
}

impl OpenError {
    fn new(path: &Path, error: impl ToString) -> Self {
        Self::Unusable {
            name: path.display().to_string(),
            why: error.to_string(),
        }
    }

    fn of_format(path: &Path, error: FormatError) -> Self {
        let (name, why) = (path.display().to_string(), error.to_string());
        match error {
            FormatError::Damaged(_) => Self::Damaged { name, why },
            _ => Self::Unusable { name, why },
        }
    }
}

/// Opens the directories of a node, the first one first, for writing. Nothing is written: empty
/// ones become the node's own by [`join`].
pub fn open(paths: &[PathBuf]) -> Result<Vec<DataDirectory>, OpenError> {
    let mut disks = Vec::new();
    for path in paths {
        refuse_two_names(paths, path)?;
        disks.push(DiskDir::open_locked(path).map_err(|e| OpenError::new(path, e))?);
    }
    refuse_a_lost_first(paths, &disks)?;
    let mut opened: Vec<DataDirectory> = Vec::new();
    for (path, disk) in paths.iter().zip(disks) {
        let format = match opened.first() {
            None => Format::open_or_plan(&disk),
            Some(first) => Format::open_or_plan_other(&disk, &first.format),
        };
        let (format, is_new) = format.map_err(|e| OpenError::of_format(path, e))?;
        opened.push(DataDirectory {
            name: path.display().to_string(),
            disk: Arc::new(disk),
            format,
            is_new,
        });
    }
    Ok(opened)
}

/// Makes the directories that are new the node's own, and names all of them in the first one.
pub fn join(opened: &mut [DataDirectory]) -> Result<(), OpenError> {
    for directory in opened.iter_mut().filter(|directory| directory.is_new) {
        let written = directory.format.write(&*directory.disk);
        written.map_err(|error| OpenError::Unusable {
            name: directory.name.clone(),
            why: error.to_string(),
        })?;
        directory.is_new = false;
    }
    // Known before anything is put there, and the ones that are not here are not forgotten.
    let mut others = opened
        .first()
        .map_or(Vec::new(), |f| f.format.others.clone());
    for other in opened.iter().skip(1) {
        if !others.contains(&other.format.store_id) {
            others.push(other.format.store_id);
        }
    }
    name_others(opened, others)
}

/// One directory under two names would look as if another process used it.
fn refuse_two_names(paths: &[PathBuf], path: &Path) -> Result<(), OpenError> {
    let whole = |path: &Path| path.canonicalize().ok();
    let before = paths.iter().take_while(|before| *before != path);
    let mut same = before.filter(|before| whole(before).is_some() && whole(before) == whole(path));
    match same.next() {
        None => Ok(()),
        Some(before) => {
            let why = format!(
                "it is the same directory as {}: name it once in log.dirs",
                before.display()
            );
            Err(OpenError::new(path, why))
        }
    }
}

/// An empty first directory beside one that is in use is a disk that is not there, or a wrong path:
/// a new node must not begin in it.
fn refuse_a_lost_first(paths: &[PathBuf], disks: &[DiskDir]) -> Result<(), OpenError> {
    let mut found = Vec::new();
    for (path, disk) in paths.iter().zip(disks) {
        let format = read_unless_empty(disk).map_err(|e| OpenError::of_format(path, e))?;
        found.push((path, format));
    }
    let Some(((first, None), others)) = found.split_first() else {
        return Ok(());
    };
    let mut used = others.iter().filter_map(|(path, format)| {
        let format = format.as_ref()?;
        Some((path, format.first.unwrap_or(format.store_id)))
    });
    let Some((other, node)) = used.next() else {
        return Ok(());
    };
    let why = format!(
        "it is empty, but {} is in use by the node whose first directory has store.id={node} in its \
         format file, and that one holds the topics and groups; nothing was written. Mount the disk \
         that is missing, or put that directory first in log.dirs",
        other.display()
    );
    Err(OpenError::new(first, why))
}

/// Forgets the directories that are not among these, once it is known that nothing lives in them.
pub fn forget_others(opened: &mut [DataDirectory]) -> Result<(), OpenError> {
    let others = opened.iter().skip(1).map(|other| other.format.store_id);
    let others = others.collect();
    name_others(opened, others)
}

fn name_others(opened: &mut [DataDirectory], others: Vec<uuid::Uuid>) -> Result<(), OpenError> {
    let Some(first) = opened.first_mut() else {
        return Ok(());
    };
    let named = first.format.name_others(&*first.disk, others);
    named.map_err(|error| OpenError::Unusable {
        name: first.name.clone(),
        why: error.to_string(),
    })
}

/// Opens the directories of a node, the first one first, in order to read them; all of them must
/// be in use.
pub fn open_to_read(paths: &[PathBuf]) -> Result<Vec<DataDirectory>, OpenError> {
    let mut opened: Vec<DataDirectory> = Vec::new();
    for path in paths {
        refuse_two_names(paths, path)?;
        let disk = DiskDir::open_locked_to_read(path).map_err(|e| OpenError::new(path, e))?;
        let names = disk.list("").map_err(|e| OpenError::new(path, e))?;
        if !names.iter().any(|name| name == "format") {
            let why = "there is no format file, so this is no shardgate data directory";
            return Err(OpenError::new(path, why));
        }
        let format = Format::open(&disk).and_then(|format| match opened.first() {
            None => format.expect_first(),
            Some(first) => format.expect_other(&first.format),
        });
        opened.push(DataDirectory {
            name: path.display().to_string(),
            disk: Arc::new(disk),
            format: format.map_err(|e| OpenError::of_format(path, e))?,
            is_new: false,
        });
    }
    let Some(first) = opened.first() else {
        return Ok(opened);
    };
    let given = |id: &&uuid::Uuid| opened.iter().any(|one| one.format.store_id == **id);
    if let Some(missing) = first.format.others.iter().find(|id| !given(id)) {
        let why = format!(
            "it is one of several directories, and log.dirs lacks the one with store.id={missing}; \
             name all of them"
        );
        return Err(OpenError::Unusable {
            name: first.name.clone(),
            why,
        });
    }
    Ok(opened)
}
