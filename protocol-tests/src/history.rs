//! A checker of histories: what clients sent, what they were told and what they read, against what
//! a log may do. The rules are those of Jepsen's Kafka workload, as far as they apply without
//! transactions.
//!
//! An *index* is an offset's rank among the offsets of its key that hold a value, so gaps count as
//! nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A partition.
pub type Key = i32;
/// A record's value; each is sent once in a history.
pub type Value = u64;

/// What a client knows of an operation's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Ok,
    /// It was surely not done.
    Fail,
    /// Nobody knows.
    Info,
}

/// What a client did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Chose its partitions itself; positions start anew.
    Assign,
    /// Joined a group, which moves partitions as it likes.
    Subscribe,
    /// Was dropped; a new client goes on under the name of the old one.
    Crash,
    /// Sent a value; the offset is what it was told.
    Send {
        key: Key,
        value: Value,
        offset: Option<i64>,
    },
    /// Read records, in this order.
    Poll {
        reads: Vec<(Key, i64, Value)>,
        /// Partitions that came or went meanwhile.
        rebalanced: BTreeSet<Key>,
    },
}

/// One operation of one client. A history holds the operations of each client in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The client.
    pub process: u32,
    /// What it did.
    pub action: Action,
    /// How it ended.
    pub outcome: Outcome,
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// One offset holds several values.
    InconsistentOffsets {
        key: Key,
        offset: i64,
        values: Vec<Value>,
    },
    /// One value stands at several offsets.
    Duplicate {
        key: Key,
        value: Value,
        offsets: Vec<i64>,
    },
    /// A value of an operation that failed was read (G1a).
    AbortedRead { key: Key, value: Value },
    /// A value was read that nobody sent, or sent to another partition.
    UnknownValue { key: Key, value: Value },
    /// A written value was passed over by all readers, though later ones were read.
    LostWrite { key: Key, offset: i64, value: Value },
    /// An acknowledged value was not read by the end.
    Unseen { key: Key, offset: i64, value: Value },
    /// A reader that chose its partitions jumped over values from one poll to the next.
    PollSkip {
        process: u32,
        key: Key,
        from: i64,
        to: i64,
    },
    /// Such a reader went back.
    NonmonotonicPoll {
        process: u32,
        key: Key,
        from: i64,
        to: i64,
    },
    /// A jump within one poll.
    IntPollSkip {
        process: u32,
        key: Key,
        from: i64,
        to: i64,
    },
    /// A step back within one poll.
    IntNonmonotonicPoll {
        process: u32,
        key: Key,
        from: i64,
        to: i64,
    },
    /// A later send of a client got a lower offset.
    NonmonotonicSend {
        process: u32,
        key: Key,
        from: i64,
        to: i64,
    },
}

/// All anomalies of a history, sorted. `complete`: readers have read to the end.
pub fn check(history: &[Op], complete: bool) -> Vec<Anomaly> {
    let known = Known::of(history);
    let mut found = known.contradictions();
    found.extend(known.unread(complete));
    found.extend(polls(history, &known));
    found.extend(sends(history));
    found.sort();
    found.dedup();
    found
}

/// What a history says about the log.
#[derive(Default)]
struct Known {
    /// Values seen at each offset, by readers or in acknowledgements.
    log: BTreeMap<Key, BTreeMap<i64, BTreeSet<Value>>>,
    /// Offsets of each value.
    offsets: BTreeMap<(Key, Value), BTreeSet<i64>>,
    writers: HashMap<Value, (Key, Outcome)>,
    /// Values that a poll returned.
    read: BTreeSet<(Key, Value)>,
    /// Values that a poll returned that ended well.
    read_ok: BTreeSet<(Key, Value)>,
}

impl Known {
    fn of(history: &[Op]) -> Self {
        let mut known = Self::default();
        for op in history {
            match &op.action {
                Action::Send { key, value, offset } => {
                    known.writers.insert(*value, (*key, op.outcome));
                    if let (Outcome::Ok, Some(offset)) = (op.outcome, offset) {
                        known.place(*key, *offset, *value);
                    }
                }
                Action::Poll { reads, .. } => {
                    for (key, offset, value) in reads {
                        known.place(*key, *offset, *value);
                        known.read.insert((*key, *value));
                        if op.outcome == Outcome::Ok {
                            known.read_ok.insert((*key, *value));
                        }
                    }
                }
                Action::Assign | Action::Subscribe | Action::Crash => {}
            }
        }
        known
    }

    fn place(&mut self, key: Key, offset: i64, value: Value) {
        let log = self.log.entry(key).or_default();
        log.entry(offset).or_default().insert(value);
        self.offsets.entry((key, value)).or_default().insert(offset);
    }

    fn contradictions(&self) -> Vec<Anomaly> {
        let mut found = Vec::new();
        for (key, log) in &self.log {
            let several = log.iter().filter(|(_, values)| values.len() > 1);
            found.extend(
                several.map(|(offset, values)| Anomaly::InconsistentOffsets {
                    key: *key,
                    offset: *offset,
                    values: values.iter().copied().collect(),
                }),
            );
        }
        let several = self.offsets.iter().filter(|(_, offsets)| offsets.len() > 1);
        found.extend(several.map(|((key, value), offsets)| Anomaly::Duplicate {
            key: *key,
            value: *value,
            offsets: offsets.iter().copied().collect(),
        }));
        for &(key, value) in &self.read {
            match self.writers.get(&value) {
                Some((written, _)) if *written != key => {
                    found.push(Anomaly::UnknownValue { key, value });
                }
                None => found.push(Anomaly::UnknownValue { key, value }),
                Some((_, Outcome::Fail)) if self.read_ok.contains(&(key, value)) => {
                    found.push(Anomaly::AbortedRead { key, value });
                }
                Some(_) => {}
            }
        }
        found
    }

    /// Values that stand in the log and that no poll returned.
    fn unread(&self, complete: bool) -> Vec<Anomaly> {
        let mut found = Vec::new();
        for (&key, log) in &self.log {
            let is_read = |values: &BTreeSet<Value>| {
                values
                    .iter()
                    .any(|value| self.read_ok.contains(&(key, *value)))
            };
            let bound = log.iter().rev().find(|(_, values)| is_read(values));
            let bound = bound.map_or(-1, |(offset, _)| *offset);
            for (&offset, values) in log {
                for &value in values.iter().filter(|v| !self.read.contains(&(key, **v))) {
                    if offset <= bound {
                        found.push(Anomaly::LostWrite { key, offset, value });
                    } else if complete {
                        found.push(Anomaly::Unseen { key, offset, value });
                    }
                }
            }
        }
        found
    }

    fn index(&self, key: Key) -> HashMap<i64, usize> {
        let offsets = self.log.get(&key).into_iter().flat_map(BTreeMap::keys);
        offsets
            .enumerate()
            .map(|(index, at)| (*at, index))
            .collect()
    }
}

fn polls(history: &[Op], known: &Known) -> Vec<Anomaly> {
    let indexes: BTreeMap<Key, HashMap<i64, usize>> = known
        .log
        .keys()
        .map(|key| (*key, known.index(*key)))
        .collect();
    let index = |key: Key, offset: i64| indexes[&key][&offset];
    let mut found = Vec::new();
    let mut assigned: HashMap<u32, bool> = HashMap::new();
    let mut last: HashMap<(u32, Key), i64> = HashMap::new();
    for op in history {
        let process = op.process;
        let (reads, rebalanced) = match &op.action {
            Action::Poll { reads, rebalanced } => (reads, rebalanced),
            Action::Send { .. } => continue,
            action => {
                assigned.insert(process, *action == Action::Assign);
                last.retain(|(other, _), _| *other != process);
                continue;
            }
        };
        let mut within: HashMap<Key, i64> = HashMap::new();
        for &(key, to, _) in reads {
            let before = within.insert(key, to);
            let outside = last.insert((process, key), to);
            if rebalanced.contains(&key) {
                continue;
            }
            if let Some(from) = before {
                if index(key, to) > index(key, from) + 1 {
                    found.push(Anomaly::IntPollSkip {
                        process,
                        key,
                        from,
                        to,
                    });
                } else if to <= from {
                    found.push(Anomaly::IntNonmonotonicPoll {
                        process,
                        key,
                        from,
                        to,
                    });
                }
            } else if let (Some(from), Some(true)) = (outside, assigned.get(&process)) {
                if index(key, to) > index(key, from) + 1 {
                    found.push(Anomaly::PollSkip {
                        process,
                        key,
                        from,
                        to,
                    });
                } else if to <= from {
                    found.push(Anomaly::NonmonotonicPoll {
                        process,
                        key,
                        from,
                        to,
                    });
                }
            }
        }
    }
    found
}

fn sends(history: &[Op]) -> Vec<Anomaly> {
    let mut last: HashMap<(u32, Key), i64> = HashMap::new();
    let mut found = Vec::new();
    for op in history {
        let Action::Send { key, offset, .. } = op.action else {
            continue;
        };
        if let (Outcome::Ok, Some(to)) = (op.outcome, offset)
            && let Some(from) = last.insert((op.process, key), to)
            && to <= from
        {
            let process = op.process;
            found.push(Anomaly::NonmonotonicSend {
                process,
                key,
                from,
                to,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::Outcome::{Fail, Info, Ok};
    use super::*;

    fn op(process: u32, action: Action, outcome: Outcome) -> Op {
        Op {
            process,
            action,
            outcome,
        }
    }

    fn send(process: u32, value: Value, offset: i64) -> Op {
        let action = Action::Send {
            key: 0,
            value,
            offset: Some(offset),
        };
        op(process, action, Ok)
    }

    fn unsure(process: u32, value: Value, outcome: Outcome) -> Op {
        let action = Action::Send {
            key: 0,
            value,
            offset: None,
        };
        op(process, action, outcome)
    }

    fn poll(process: u32, reads: &[(i64, Value)]) -> Op {
        let action = Action::Poll {
            reads: reads.iter().map(|(at, value)| (0, *at, *value)).collect(),
            rebalanced: BTreeSet::new(),
        };
        op(process, action, Ok)
    }

    fn assign(process: u32) -> Op {
        op(process, Action::Assign, Ok)
    }

    fn judge(history: &[Op]) -> Vec<Anomaly> {
        check(history, true)
    }

    #[test]
    fn a_good_history_has_no_anomaly() {
        let history = [
            assign(9),
            send(1, 10, 0),
            unsure(2, 20, Info),
            unsure(2, 21, Fail),
            send(1, 11, 5),
            poll(9, &[(0, 10)]),
            // Offsets 1 to 3 hold nothing; 4 holds what nobody knew the fate of.
            poll(9, &[(4, 20), (5, 11)]),
            op(9, Action::Crash, Ok),
            assign(9),
            poll(9, &[(0, 10), (4, 20), (5, 11)]),
        ];
        assert_eq!(judge(&history), []);
    }

    #[test]
    fn one_offset_with_two_values_is_inconsistent() {
        let history = [send(1, 10, 0), send(2, 20, 0), poll(9, &[(0, 10)])];
        let expected = Anomaly::InconsistentOffsets {
            key: 0,
            offset: 0,
            values: vec![10, 20],
        };
        assert!(judge(&history).contains(&expected));
        // What a reader saw counts as well, also in a poll that failed.
        let mut other = poll(9, &[(0, 20)]);
        other.outcome = Fail;
        let history = [send(1, 10, 0), unsure(2, 20, Info), other];
        assert!(judge(&history).contains(&expected));
    }

    #[test]
    fn one_value_at_two_offsets_is_a_duplicate() {
        let history = [send(1, 10, 0), poll(9, &[(0, 10), (1, 10)])];
        let expected = Anomaly::Duplicate {
            key: 0,
            value: 10,
            offsets: vec![0, 1],
        };
        assert_eq!(judge(&history), [expected]);
    }

    #[test]
    fn a_failed_value_must_not_be_read() {
        let history = [unsure(1, 10, Fail), poll(9, &[(0, 10)])];
        assert_eq!(
            judge(&history),
            [Anomaly::AbortedRead { key: 0, value: 10 }]
        );
    }

    #[test]
    fn a_value_that_nobody_sent_is_unknown() {
        let expected = [Anomaly::UnknownValue { key: 0, value: 7 }];
        assert_eq!(judge(&[poll(9, &[(0, 7)])]), expected);
    }

    #[test]
    fn a_value_passed_over_is_lost_and_one_at_the_end_is_unseen() {
        let history = [send(1, 10, 0), send(1, 11, 1), send(1, 12, 2)];
        let reader = [poll(9, &[(0, 10)]), poll(8, &[(2, 12)])];
        let lost = Anomaly::LostWrite {
            key: 0,
            offset: 1,
            value: 11,
        };
        let history = [&history[..], &reader].concat();
        assert_eq!(judge(&history), [lost]);
        let unseen = Anomaly::Unseen {
            key: 0,
            offset: 1,
            value: 11,
        };
        let history = [send(1, 10, 0), send(1, 11, 1), poll(9, &[(0, 10)])];
        assert_eq!(judge(&history), [unseen]);
        assert_eq!(check(&history, false), []);
    }

    #[test]
    fn a_reader_that_assigned_itself_neither_skips_nor_goes_back() {
        let sent = [send(1, 10, 0), send(1, 11, 1), send(1, 12, 2)];
        let all = poll(8, &[(0, 10), (1, 11), (2, 12)]);
        let with = |start: Op, reads: [Op; 2]| {
            let [first, second] = reads;
            let history = [&sent[..], &[all.clone(), start, first, second]].concat();
            judge(&history)
        };
        let (process, key) = (9, 0);
        let skip = [poll(9, &[(0, 10)]), poll(9, &[(2, 12)])];
        let expected = Anomaly::PollSkip {
            process,
            key,
            from: 0,
            to: 2,
        };
        assert_eq!(with(assign(9), skip.clone()), [expected]);
        let back = [poll(9, &[(1, 11)]), poll(9, &[(1, 11)])];
        let expected = Anomaly::NonmonotonicPoll {
            process,
            key,
            from: 1,
            to: 1,
        };
        assert_eq!(with(assign(9), back.clone()), [expected]);
        // A group may move a reader as it likes.
        let subscribe = op(9, Action::Subscribe, Ok);
        assert_eq!(with(subscribe.clone(), skip), []);
        assert_eq!(with(subscribe, back), []);
    }

    #[test]
    fn no_reader_skips_or_goes_back_within_one_poll() {
        let sent = [send(1, 10, 0), send(1, 11, 1), send(1, 12, 2)];
        let all = poll(8, &[(0, 10), (1, 11), (2, 12)]);
        let with = |read: Op| {
            let subscribe = op(9, Action::Subscribe, Ok);
            judge(&[&sent[..], &[all.clone(), subscribe, read]].concat())
        };
        let (process, key) = (9, 0);
        let expected = Anomaly::IntPollSkip {
            process,
            key,
            from: 0,
            to: 2,
        };
        assert_eq!(with(poll(9, &[(0, 10), (2, 12)])), [expected]);
        let expected = Anomaly::IntNonmonotonicPoll {
            process,
            key,
            from: 1,
            to: 0,
        };
        assert_eq!(with(poll(9, &[(1, 11), (0, 10)])), [expected]);
        let mut moved = poll(9, &[(1, 11), (0, 10)]);
        if let Action::Poll { rebalanced, .. } = &mut moved.action {
            rebalanced.insert(0);
        }
        assert_eq!(with(moved), []);
    }

    #[test]
    fn offsets_of_one_sender_rise() {
        let history = [send(1, 10, 1), send(1, 11, 0), poll(9, &[(0, 11), (1, 10)])];
        let expected = Anomaly::NonmonotonicSend {
            process: 1,
            key: 0,
            from: 1,
            to: 0,
        };
        assert_eq!(judge(&history), [expected]);
    }
}
