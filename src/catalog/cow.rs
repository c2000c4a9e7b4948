//! A sorted map whose copies are cheap and whose changes copy little.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A leaf is cut in two when it holds more entries than this.
const LEAF: usize = 64;

type Leaf<K, V> = Arc<Vec<(K, V)>>;

/// Sorted leaves behind shared pointers: a copy is one reference count, an insert or remove copies
/// one leaf and the list of leaves.
pub(super) struct CowMap<K, V> {
    leaves: Arc<Vec<Leaf<K, V>>>,
    len: usize,
}

impl<K, V> Clone for CowMap<K, V> {
    fn clone(&self) -> Self {
        Self {
            leaves: Arc::clone(&self.leaves),
            len: self.len,
        }
    }
}

impl<K, V> Default for CowMap<K, V> {
    fn default() -> Self {
        Self {
            leaves: Arc::default(),
            len: 0,
        }
    }
}

impl<K: fmt::Debug + Ord + Clone, V: fmt::Debug + Clone> fmt::Debug for CowMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> PartialEq for CowMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Ord + Clone, V: Clone> CowMap<K, V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The only leaf that may hold the key, and where in it the key is or would be.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(usize, Result<usize, usize>)>
    where
        K: Borrow<Q>,
    {
        let after = self
            .leaves
            .partition_point(|leaf| leaf.first().is_some_and(|(k, _)| k.borrow() <= key));
        let index = after.saturating_sub(1);
        let leaf = self.leaves.get(index)?;
        Some((index, leaf.binary_search_by(|(k, _)| k.borrow().cmp(key))))
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (leaf, Ok(place)) = self.find(key)? else {
            return None;
        };
        Some(&self.leaves.get(leaf)?.get(place)?.1)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        let found = self.find(&key);
        let leaves = Arc::make_mut(&mut self.leaves);
        let Some((index, place)) = found else {
            leaves.push(Arc::new(vec![(key, value)]));
            self.len += 1;
            return;
        };
        let leaf = Arc::make_mut(&mut leaves[index]);
        match place {
            Ok(at) => leaf[at].1 = value,
            Err(at) => {
                leaf.insert(at, (key, value));
                self.len += 1;
                if leaf.len() > LEAF {
                    let upper = leaf.split_off(LEAF / 2);
                    leaves.insert(index + 1, Arc::new(upper));
                }
            }
        }
    }

    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (index, Ok(place)) = self.find(key)? else {
            return None;
        };
        let leaves = Arc::make_mut(&mut self.leaves);
        let leaf = Arc::make_mut(&mut leaves[index]);
        let (_, value) = leaf.remove(place);
        if leaf.is_empty() {
            leaves.remove(index);
        }
        self.len -= 1;
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.leaves
            .iter()
            .flat_map(|leaf| leaf.iter())
            .map(|(k, v)| (k, v))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_btree_map(ops in prop::collection::vec((any::<bool>(), 0u16..400), 0..900)) {
            let mut map = CowMap::default();
            let mut model = BTreeMap::new();
            let mut copies = Vec::new();
            for (i, (insert, key)) in ops.into_iter().enumerate() {
                if insert {
                    map.insert(key, i);
                    model.insert(key, i);
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                }
                if i % 100 == 0 {
                    copies.push((map.clone(), model.clone()));
                }
            }
            copies.push((map, model));
            for (map, model) in copies {
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.iter().eq(model.iter()));
                for key in 0..400 {
                    prop_assert_eq!(map.get(&key), model.get(&key));
                }
            }
        }
    }
}
