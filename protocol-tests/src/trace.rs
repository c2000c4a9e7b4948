//! `strace` on a server: attaches it, reads what it wrote, and asks of every acknowledgement whether
//! it left after an fdatasync that covers its bytes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Server;

/// Attaches to a running server; `None` where tracing is not to be had.
pub fn attach(server: &Server, options: &[&str], output: &Path) -> Option<Child> {
    let mut command = Command::new("strace");
    command.args(options).arg("-f").arg("-o");
    command.arg(output).arg("-p").arg(server.pid().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut strace = command.stderr(Stdio::piped()).spawn().ok()?;
    let mut said = String::new();
    BufReader::new(strace.stderr.take()?)
        .read_line(&mut said)
        .ok()?;
    if said.contains("attached") {
        Some(strace)
    } else {
        println!("strace cannot attach: {said}");
        let _ = strace.wait();
        None
    }
}

/// Ends a `strace`, and with it the tracing.
pub fn detach(mut strace: Child) {
    let _ = Command::new("kill").arg(strace.id().to_string()).status();
    let _ = strace.wait();
}

/// Has `strace` delay each sync of a directory's journal as it is now; for [`attach`].
pub fn slow_journal(directory: &Path, micros: u32) -> Vec<String> {
    let files = std::fs::read_dir(directory.join("journal")).expect("a journal");
    let files = files
        .flatten()
        .map(|file| file.path().display().to_string());
    let delay = format!("inject=fdatasync:delay_enter={micros}");
    let options = ["-e", "trace=fdatasync", "-e", &delay].map(str::to_owned);
    let paths = files.flat_map(|file| ["-P".to_owned(), file]);
    options.into_iter().chain(paths).collect()
}

/// One system call: the lines of the trace on which it began and ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// What the file descriptor in its first argument stands for.
    pub target: String,
    /// All strings among its arguments, one behind the other.
    pub bytes: Vec<u8>,
    /// What it returned; negative for an error.
    pub result: i64,
    /// The line on which it was entered.
    pub entered: usize,
    /// The line on which it returned.
    pub returned: usize,
}

/// The calls of a trace (`strace -f -y -xx -s LARGE`) that returned.
pub fn calls(trace: &str) -> Vec<Call> {
    let mut pending: HashMap<&str, (usize, &str)> = HashMap::new();
    let mut found = Vec::new();
    for (line, text) in trace.lines().enumerate() {
        let Some((thread, text)) = text.split_once(char::is_whitespace) else {
            continue;
        };
        let text = text.trim_start();
        if let Some(begun) = text.strip_suffix("<unfinished ...>") {
            pending.insert(thread, (line, begun));
            continue;
        }
        let (entered, begun, rest) = match text.strip_prefix("<... ") {
            Some(resumed) => match (pending.remove(thread), resumed.split_once("resumed>")) {
                (Some((entered, begun)), Some((_, rest))) => (entered, begun, rest),
                _ => continue,
            },
            None => (line, text, text),
        };
        let result = rest.rsplit_once(" = ").map(|(_, result)| result);
        let Some(result) = result.and_then(|r| r.split(' ').next()?.parse().ok()) else {
            continue;
        };
        let Some((name, arguments)) = begun.split_once('(') else {
            continue;
        };
        found.push(Call {
            name: name.to_owned(),
            target: target(arguments),
            bytes: strings(arguments),
            result,
            entered,
            returned: line,
        });
    }
    found
}

fn target(arguments: &str) -> String {
    let first = arguments.split([',', ')']).next().unwrap_or_default();
    let name = first
        .split_once('<')
        .and_then(|(_, rest)| rest.rsplit_once('>'));
    let bytes = unescape(name.map_or("", |(name, _)| name));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The contents of everything in quotes.
fn strings(arguments: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = arguments;
    while let Some(start) = rest.find('"') {
        rest = &rest[start + 1..];
        let Some(end) = rest.find('"') else { break };
        out.extend(unescape(&rest[..end]));
        rest = &rest[end + 1..];
    }
    out
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() / 4);
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = match (first, behind) {
            (b'\\', [b'x', high, low, ..]) => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        match digits {
            Some(byte) => {
                out.push(byte);
                rest = &rest[4..];
            }
            None => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    out
}

/// What the trace says about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The line on which the write of its bytes to the journal returned.
    pub written: usize,
    /// The line on which the first fdatasync that began after it returned.
    pub synced: usize,
    /// The line on which the call that sent its answer was entered.
    pub answered: usize,
}

/// A trace made ready for look-ups.
pub struct Trace<'a> {
    calls: &'a [Call],
    /// Which call wrote a mark to the journal first.
    writes: HashMap<&'a [u8], &'a Call>,
    answers: HashMap<i32, usize>,
}

impl<'a> Trace<'a> {
    /// Marks are `length` bytes that begin with `prefix` and stand in one record only.
    pub fn new(calls: &'a [Call], prefix: &[u8], length: usize) -> Self {
        let mut writes = HashMap::new();
        for call in calls {
            if call.name.starts_with("pwrite") && call.target.contains("/journal/") {
                let mut rest = &call.bytes[..];
                while let Some(at) = rest.iter().position(|byte| *byte == prefix[0]) {
                    rest = &rest[at..];
                    if rest.starts_with(prefix) && rest.len() >= length {
                        writes.entry(&rest[..length]).or_insert(call);
                    }
                    rest = &rest[1..];
                }
            }
        }
        Self {
            calls,
            writes,
            answers: answers(calls),
        }
    }

    /// Looks a request up: by its mark, and by its correlation id.
    pub fn prove(&self, mark: &[u8], correlation_id: i32) -> Result<Proof, String> {
        let write = self.writes.get(mark);
        let write = write.ok_or("its bytes were never written to the journal")?;
        let written = write.returned;
        let sync = self
            .calls
            .iter()
            .filter(|call| call.name == "fdatasync" && call.target == write.target)
            .filter(|call| call.entered > written && call.result == 0)
            .min_by_key(|call| call.returned);
        let answered = self.answers.get(&correlation_id).copied();
        let answered = answered.ok_or("it was never answered")?;
        match sync {
            None => Err("no fdatasync followed the write".to_owned()),
            Some(sync) if sync.returned >= answered => Err(format!(
                "the answer left on line {answered}, the sync ended on line {}",
                sync.returned
            )),
            Some(sync) => Ok(Proof {
                written,
                synced: sync.returned,
                answered,
            }),
        }
    }
}

/// For each correlation id the line on which the first byte of its answer was sent.
fn answers(calls: &[Call]) -> HashMap<i32, usize> {
    let mut streams: HashMap<&str, Vec<(u8, usize)>> = HashMap::new();
    for call in calls {
        let sends = matches!(&call.name[..], "write" | "writev" | "sendto" | "sendmsg");
        if sends && call.result > 0 && call.target.contains("socket:") {
            let sent = call.bytes.iter().take(call.result as usize);
            let stream = streams.entry(&call.target).or_default();
            stream.extend(sent.map(|byte| (*byte, call.entered)));
        }
    }
    let mut found = HashMap::new();
    for stream in streams.values() {
        let number = |at: usize| {
            let bytes = stream.get(at..at + 4)?;
            Some(i32::from_be_bytes([
                bytes[0].0, bytes[1].0, bytes[2].0, bytes[3].0,
            ]))
        };
        let mut at = 0;
        while let (Some(length), Some(id)) = (number(at), number(at + 4)) {
            found.entry(id).or_insert(stream[at].1);
            at += 4 + length.max(0) as usize;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: &str = r#"7 pwrite64(3</d/journal/1.log>, "\x6d\x61\x72\x6b", 4, 0) = 4"#;
    const SYNC: &str = "7 fdatasync(3</d/journal/1.log>) = 0";
    const ANSWER: &str = r#"8 writev(9<socket:[5]>, [{iov_base="\x00\x00\x00\x05", iov_len=4}, {iov_base="\x00\x00\x00\x2a\x00", iov_len=5}], 2) = 9"#;

    fn judge(lines: &[&str]) -> Result<Proof, String> {
        Trace::new(&calls(&lines.join("\n")), b"ma", 4).prove(b"mark", 42)
    }

    #[test]
    fn an_answer_behind_its_sync_is_proved() {
        let proof = judge(&[WRITE, SYNC, ANSWER]);
        let expected = Proof {
            written: 0,
            synced: 1,
            answered: 2,
        };
        assert_eq!(proof, Ok(expected));
        let halves = [
            "7 fdatasync(3</d/journal/1.log> <unfinished ...>",
            "7 <... fdatasync resumed>) = 0",
        ];
        assert!(judge(&[WRITE, halves[0], halves[1], ANSWER]).is_ok());
        assert!(judge(&[WRITE, halves[0], ANSWER, halves[1]]).is_err());
    }

    #[test]
    fn everything_else_is_not() {
        assert!(judge(&[SYNC, WRITE, ANSWER]).is_err());
        assert!(judge(&[WRITE, ANSWER, SYNC]).is_err());
        assert!(judge(&[WRITE, ANSWER]).is_err());
        assert!(judge(&[WRITE, SYNC]).is_err());
        let other = SYNC.replace("1.log", "2.log");
        assert!(judge(&[WRITE, &other, ANSWER]).is_err());
        let failed = SYNC.replace("= 0", "= -1 EIO (Input/output error)");
        assert!(judge(&[WRITE, &failed, ANSWER]).is_err());
        // A sync that began before the write ended does not cover it.
        let (begin, end) = WRITE.split_at(WRITE.len() - ") = 4".len());
        let early = [
            &format!("{begin} <unfinished ...>"),
            "9 fdatasync(3</d/journal/1.log> <unfinished ...>",
            &format!("7 <... pwrite64 resumed>{end}"),
            "9 <... fdatasync resumed>) = 0",
            ANSWER,
        ];
        assert!(judge(&early).is_err());
    }
}
