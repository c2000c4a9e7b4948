//! Numbers as bytes: fixed little-endian fields and variable-length integers.

/// Reads a little-endian `u32`; 0 when the slice is too short, which callers rule out first.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array_at(bytes, at).map_or(0, u32::from_le_bytes)
}

/// Reads a little-endian `u64`; 0 when the slice is too short, which callers rule out first.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    array_at(bytes, at).map_or(0, u64::from_le_bytes)
}

/// Reads a little-endian `i64`; 0 when the slice is too short, which callers rule out first.
pub(super) fn i64_at(bytes: &[u8], at: usize) -> i64 {
    array_at(bytes, at).map_or(0, i64::from_le_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Appends an unsigned integer, seven bits a byte, lowest first.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed integer so that small magnitudes stay short.
pub(super) fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Takes what [`put_varint`] wrote off the front; `None` when it is cut short or too long.
pub(super) fn take_varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (n, &byte) in input.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if n == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * n);
        if byte & 0x80 == 0 {
            *input = input.get(n + 1..)?;
            return Some(value);
        }
    }
    None
}

/// Takes what [`put_zigzag`] wrote off the front.
pub(super) fn take_zigzag(input: &mut &[u8]) -> Option<i64> {
    let value = take_varint(input)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}
