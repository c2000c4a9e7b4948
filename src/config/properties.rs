//! The `.properties` file format of Java: comments, continued lines, escapes.

/// One key with its value and the line it started on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// The key, unescaped.
    pub key: String,
    /// The value, unescaped; may be empty.
    pub value: String,
    /// Counted from 1.
    pub line: usize,
}

/// A file that Java would not read either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct PropertiesError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: &'static str,
}

/// All properties in file order; a key may come twice, the last one counts.
pub fn parse(text: &str) -> Result<Vec<Property>, PropertiesError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut out = Vec::new();
    for (line, logical) in logical_lines(text) {
        let (key, value) = split(&logical);
        let unescape = |part| unescape(part).map_err(|reason| PropertiesError { line, reason });
        out.push(Property {
            key: unescape(key)?,
            value: unescape(value)?,
            line,
        });
    }
    Ok(out)
}

/// Natural lines with continuations joined; comments and blank lines left out.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, natural) in natural_lines(text).enumerate() {
        let natural = natural.trim_start_matches(BLANKS);
        if open.is_none() && (natural.is_empty() || natural.starts_with(['#', '!'])) {
            continue;
        }
        let (start, mut logical) = open.take().unwrap_or_else(|| (index + 1, String::new()));
        // A line goes on if it ends in an odd number of backslashes.
        let slashes = natural.bytes().rev().take_while(|b| *b == b'\\').count();
        if slashes % 2 == 1 {
            logical.push_str(&natural[..natural.len() - 1]);
            open = Some((start, logical));
        } else {
            logical.push_str(natural);
            out.push((start, logical));
        }
    }
    out.extend(open);
    out
}

const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// Lines that end in `\n`, `\r` or `\r\n`.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\n', '\r']) else {
            rest = None;
            return Some(text);
        };
        let (line, tail) = text.split_at(end);
        let ending = if tail.starts_with("\r\n") { 2 } else { 1 };
        rest = Some(&tail[ending..]);
        Some(line)
    })
}

/// The key ends at the first unescaped `=`, `:` or blank.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let mut end = line.len();
    for (at, c) in line.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == '=' || c == ':' || BLANKS.contains(&c) {
            end = at;
            break;
        }
    }
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start_matches(BLANKS);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start_matches(BLANKS))
}

fn unescape(text: &str) -> Result<String, &'static str> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    // UTF-16 units, because \uD83D\uDE00 is one character.
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let unit = match c {
            '\\' => match chars.next() {
                None => break,
                Some('t') => u16::from(b'\t'),
                Some('n') => u16::from(b'\n'),
                Some('r') => u16::from(b'\r'),
                Some('f') => 0x0c,
                Some('u') => four_digits(&mut chars)?,
                Some(other) => {
                    units.extend_from_slice(other.encode_utf16(&mut [0; 2]));
                    continue;
                }
            },
            other => {
                units.extend_from_slice(other.encode_utf16(&mut [0; 2]));
                continue;
            }
        };
        units.push(unit);
    }
    String::from_utf16(&units).map_err(|_| "a \\u escape names half a character")
}

fn four_digits(chars: &mut std::str::Chars<'_>) -> Result<u16, &'static str> {
    const WRONG: &str = "\\u must be followed by four hexadecimal digits";
    let mut unit = 0u16;
    for _ in 0..4 {
        let digit = chars.next().and_then(|c| c.to_digit(16)).ok_or(WRONG)?;
        unit = unit << 4 | u16::try_from(digit).map_err(|_| WRONG)?;
    }
    Ok(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text)
            .unwrap()
            .into_iter()
            .map(|p| (p.key, p.value))
            .collect()
    }

    fn one(text: &str) -> (String, String) {
        let mut all = pairs(text);
        assert_eq!(all.len(), 1, "{text:?}: {all:?}");
        all.remove(0)
    }

    fn is(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn separators_are_equals_colon_or_blank() {
        for text in [
            "a=b",
            "a = b",
            "a:b",
            "a b",
            "a\tb",
            "  a  :  b",
            "a\u{c}=\u{c}b",
        ] {
            assert_eq!(one(text), is("a", "b"), "{text:?}");
        }
        assert_eq!(one("a"), is("a", ""));
        assert_eq!(one("a="), is("a", ""));
        assert_eq!(one("a==b"), is("a", "=b"));
        assert_eq!(one("a = b "), is("a", "b "));
        assert_eq!(
            one("listeners=PLAINTEXT://:9092"),
            is("listeners", "PLAINTEXT://:9092")
        );
    }

    #[test]
    fn comments_and_blank_lines_are_left_out() {
        assert_eq!(
            pairs("# x=1\n ! y=2\n\n  \na=1\r\nb=2\rc=3"),
            vec![is("a", "1"), is("b", "2"), is("c", "3")]
        );
        assert_eq!(one("a=#not a comment"), is("a", "#not a comment"));
    }

    #[test]
    fn lines_go_on_after_an_odd_number_of_backslashes() {
        assert_eq!(one("a=1,\\\n   2,\\\r\n\t3"), is("a", "1,2,3"));
        assert_eq!(pairs("a=1\\\\\nb=2"), vec![is("a", "1\\"), is("b", "2")]);
        assert_eq!(one("a=1\\"), is("a", "1"));
        // A line inside a continued one is no comment.
        assert_eq!(one("a=1,\\\n#2"), is("a", "1,#2"));
        assert_eq!(parse("\n\na=1\\\n2\nb=3").unwrap()[1].line, 5);
    }

    #[test]
    fn escapes_are_java_s() {
        assert_eq!(one(r"a\ b\=c\:d=e"), is("a b=c:d", "e"));
        assert_eq!(one(r"a=\t\n\r\f\\\q"), is("a", "\t\n\r\u{c}\\q"));
        assert_eq!(one(r"a=\u00e9\uD83D\uDE00"), is("a", "é😀"));
        assert_eq!(one(r"dir=C:\\data\\kafka"), is("dir", r"C:\data\kafka"));
        assert_eq!(one("a=é😀"), is("a", "é😀"));
    }

    #[test]
    fn broken_escapes_name_their_line() {
        for text in [r"a=\u12", r"a=\u12g4", r"a=\uD83D"] {
            assert_eq!(
                parse(&format!("x=1\n{text}")).unwrap_err().line,
                2,
                "{text}"
            );
        }
    }

    #[test]
    fn later_lines_and_marks_are_kept() {
        assert_eq!(pairs("\u{feff}a=1\na=2"), vec![is("a", "1"), is("a", "2")]);
    }
}
