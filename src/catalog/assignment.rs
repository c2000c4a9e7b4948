//! Replicas that a client assigned by hand.

use std::collections::BTreeSet;

use super::error::CatalogError;

/// Puts a manual assignment in order of partitions, which must run from `first` without holes and
/// have one number of replicas. `known` are the brokers there are, if others are to be refused.
pub fn check(
    given: &[(i32, Vec<i32>)],
    first: i32,
    known: Option<&[i32]>,
) -> Result<Vec<Vec<i32>>, CatalogError> {
    let invalid = |text: String| Err(CatalogError::InvalidReplicaAssignment(text));
    let mut sorted: Vec<&(i32, Vec<i32>)> = given.iter().collect();
    sorted.sort_by_key(|(partition, _)| *partition);
    for (expected, (partition, replicas)) in (i64::from(first)..).zip(&sorted) {
        if i64::from(*partition) != expected {
            return invalid(
                "partitions should be a consecutive 0-based integer sequence".to_owned(),
            );
        }
        check_replicas(replicas, known)?;
        let factor = sorted.first().map_or(0, |s| s.1.len());
        if replicas.len() != factor {
            return invalid(format!(
                "The manual partition assignment includes a partition with {} replica(s), but \
                 this is not consistent with previous partitions, which have {factor} replica(s).",
                replicas.len(),
            ));
        }
    }
    Ok(sorted
        .into_iter()
        .map(|(_, replicas)| replicas.clone())
        .collect())
}

/// Checks the replicas of one partition.
pub fn check_replicas(replicas: &[i32], known: Option<&[i32]>) -> Result<(), CatalogError> {
    let invalid = |text: String| Err(CatalogError::InvalidReplicaAssignment(text));
    if replicas.is_empty() {
        return invalid("The manual partition assignment includes an empty replica list.".into());
    }
    let mut seen = BTreeSet::new();
    for &id in replicas {
        if !seen.insert(id) {
            return invalid(format!(
                "The manual partition assignment includes the broker {id} more than once."
            ));
        }
        if id < 0 || known.is_some_and(|known| !known.contains(&id)) {
            return invalid(format!(
                "The manual partition assignment includes broker {id}, but no such broker is \
                 registered."
            ));
        }
    }
    Ok(())
}
