//! The limit of open files, shared out between connections and the store: clients must never be
//! able to take the files that a flush needs, which would end the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Segment files that the store keeps open at most.
const SEGMENTS: u64 = 256;
/// What each data directory has besides: journal, checkpoint and merge.
const OTHER_FILES: u64 = 128;
/// Segment files that reading needs at the least.
const LEAST_SEGMENTS: u64 = 16;

/// How the files are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    connections: usize,
    segments: usize,
}

/// Raises the limit as far as the system allows, and lowers what would not fit into it.
pub(super) fn share_out(config: &mut Config) {
    let Some(limit) = raise() else {
        return;
    };
    let directories = config.data_dirs.len() as u64;
    let shares = shares(limit, config.net.max_connections, directories);
    config.segment_open_files = config.segment_open_files.min(shares.segments);
    if shares.connections < config.net.max_connections {
        tracing::warn!(
            limit,
            "at most {} connections are taken instead of max.connections={}, because of the limit \
             of open files; raise it (ulimit -n) for more",
            shares.connections,
            config.net.max_connections
        );
        config.net.max_connections = shares.connections;
    }
}

fn shares(limit: u64, wanted: usize, directories: u64) -> Shares {
    let others = OTHER_FILES * directories;
    let store = (SEGMENTS + others).min(limit / 2);
    let connections = usize::try_from(limit - store).unwrap_or(usize::MAX);
    let segments = store.saturating_sub(others).max(LEAST_SEGMENTS);
    Shares {
        connections: connections.min(wanted).max(1),
        segments: usize::try_from(segments).unwrap_or(usize::MAX),
    }
}

/// The limit after it was raised to what this process may set; `None` if there is none.
fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_keeps_its_files_whatever_clients_do() {
        let share = |limit, wanted| {
            let shares = shares(limit, wanted, 1);
            (shares.connections, shares.segments)
        };
        assert_eq!(share(1024, 10_000), (640, 256));
        assert_eq!(share(20_000, 10_000), (10_000, 256));
        assert_eq!(share(120, 10_000), (60, 16));
        assert_eq!(share(1024, 100), (100, 256));
        let shares = shares(20_000, 20_000, 3);
        assert_eq!((shares.connections, shares.segments), (19_360, 256));
    }
}
