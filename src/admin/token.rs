//! The token that changes over the admin port need. It lies in the data directory, readable for
//! the gateway's user alone: who can read it could change the data anyway.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

const NAME: &str = "admin.token";
/// What is shorter is no token that this program made.
const SHORTEST: usize = 64;

/// Where the token of a data directory lies.
pub fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(NAME)
}

/// The token of a data directory, made at the first start.
pub fn open(data_dir: &Path) -> io::Result<String> {
    let path = path(data_dir);
    match fs::read_to_string(&path) {
        Ok(token) if token.trim().len() >= SHORTEST => {
            // A copy may have let others read it.
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            return Ok(token.trim().to_owned());
        }
        // Written only in part, perhaps because the power failed.
        Ok(_) => fs::remove_file(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    Ok(token)
}

/// The token of a data directory in which a gateway runs, or what to do about it.
pub fn read(data_dir: &Path) -> Result<String, String> {
    let path = path(data_dir);
    match fs::read_to_string(&path) {
        Ok(token) => Ok(token.trim().to_owned()),
        Err(error) => Err(format!(
            "changes need the token in {}, which cannot be read: {error}; run this as the \
             gateway's user and name its data directory with --set log.dirs=DIR or --config FILE",
            path.display()
        )),
    }
}

/// Whether an `Authorization` header carries the token. Takes as long for a near miss as for a far
/// one.
pub fn grants(token: &str, header: Option<&str>) -> bool {
    let given = header
        .and_then(|header| header.strip_prefix("Bearer "))
        .unwrap_or_default();
    let differing = token
        .bytes()
        .zip(given.bytes())
        .fold(token.len() ^ given.len(), |seen, (a, b)| {
            seen | usize::from(a ^ b)
        });
    differing == 0 && !token.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_kept_from_others() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap_err().contains("admin.token"));
        let token = open(dir.path()).unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(open(dir.path()).unwrap(), token);
        assert_eq!(read(dir.path()).unwrap(), token);
        let mode = fs::metadata(path(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::set_permissions(path(dir.path()), Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open(dir.path()).unwrap(), token);
        let mode = fs::metadata(path(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "a copy is closed again");
        for part in ["", "abc"] {
            fs::write(path(dir.path()), part).unwrap();
            let fresh = open(dir.path()).unwrap();
            assert!(fresh != token && fresh.len() == 64, "a part opens nothing");
        }
    }

    #[test]
    fn only_the_whole_token_grants() {
        assert!(grants("abc", Some("Bearer abc")));
        for wrong in [
            "Bearer ab",
            "Bearer abcd",
            "Bearer abd",
            "abc",
            "Bearer ",
            "",
        ] {
            assert!(!grants("abc", Some(wrong)), "{wrong}");
        }
        assert!(!grants("abc", None));
        assert!(!grants("", Some("Bearer ")), "no token opens nothing");
    }
}
