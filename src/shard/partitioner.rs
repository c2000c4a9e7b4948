//! Where clients send the records of a key. All of them take a hash of the key modulo the number
//! of partitions and differ in the hash; a server cannot see which one a client uses.

/// A client's way from a key to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// murmur2, without its sign bit.
    Murmur2,
    /// CRC-32, unsigned.
    Crc32,
    /// FNV-1a, the absolute value of the signed remainder.
    Fnv1aSigned,
    /// FNV-1a, without its sign bit.
    Fnv1aMasked,
    /// FNV-1a, unsigned.
    Fnv1a,
}

impl Partitioner {
    /// All of them, the most common first.
    pub const ALL: [Self; 5] = [
        Self::Murmur2,
        Self::Crc32,
        Self::Fnv1aSigned,
        Self::Fnv1aMasked,
        Self::Fnv1a,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Murmur2 => "murmur2",
            Self::Crc32 => "crc32",
            Self::Fnv1aSigned => "fnv1a-signed",
            Self::Fnv1aMasked => "fnv1a-masked",
            Self::Fnv1a => "fnv1a",
        }
    }

    /// The clients that use it for records with a key.
    pub fn clients(self) -> &'static str {
        match self {
            Self::Murmur2 => "Java, kafka-python, franz-go, kafkajs; librdkafka murmur2_random",
            Self::Crc32 => {
                "librdkafka, kcat, confluent-kafka, rust-rdkafka; kafka-go CRC32Balancer"
            }
            Self::Fnv1aSigned => "sarama; kafka-go Hash",
            Self::Fnv1aMasked => "sarama NewReferenceHashPartitioner",
            Self::Fnv1a => "librdkafka fnv1a_random",
        }
    }

    /// The partitioner of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|partitioner| partitioner.name() == name)
    }

    /// The partition of a key among `count` ones (0 counts as 1).
    pub fn partition(self, key: &[u8], count: u32) -> u32 {
        let count = count.max(1);
        match self {
            Self::Murmur2 => (murmur2(key) & 0x7fff_ffff) % count,
            Self::Crc32 => crc32(key) % count,
            Self::Fnv1aSigned => {
                let signed = i64::from(fnv1a(key).cast_signed());
                (signed % i64::from(count)).unsigned_abs() as u32
            }
            Self::Fnv1aMasked => (fnv1a(key) & 0x7fff_ffff) % count,
            Self::Fnv1a => fnv1a(key) % count,
        }
    }
}

/// MurmurHash2 of 32 bits with the seed that Kafka's clients share.
fn murmur2(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ key.len() as u32;
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mut k = word
            .iter()
            .rev()
            .fold(0u32, |k, &byte| k << 8 | u32::from(byte));
        k = k.wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        hash ^= rest
            .iter()
            .rev()
            .fold(0u32, |k, &byte| k << 8 | u32::from(byte));
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

fn crc32(key: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(key);
    crc.sum()
}

fn fnv1a(key: &[u8]) -> u32 {
    key.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_clients() {
        let signed = |key: &str| murmur2(key.as_bytes()).cast_signed();
        assert_eq!(signed("21"), -973_932_308);
        assert_eq!(signed("abc"), 479_470_107);
        assert_eq!(signed("foobar"), -790_332_482);
        assert_eq!(signed("a-little-bit-long-string"), -985_981_536);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(fnv1a(b""), 0x811c_9dc5);
        assert_eq!(fnv1a(b"a"), 0xe40c_292c);
        assert_eq!(fnv1a(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn partitions_lie_in_range_and_names_lead_back() {
        for partitioner in Partitioner::ALL {
            assert_eq!(Partitioner::named(partitioner.name()), Some(partitioner));
            for count in [0, 1, 3, 16, 1000] {
                for key in ["", "a", "foobar", "key-17"] {
                    assert!(partitioner.partition(key.as_bytes(), count) < count.max(1));
                }
            }
        }
        assert_eq!(Partitioner::named("auto"), None);
        // -790332482 & 0x7fffffff = 1357151166
        assert_eq!(Partitioner::Murmur2.partition(b"foobar", 10), 6);
        // 0xbf9cf968 is 3214735720, -1080231576 with a sign, 1067252072 without its first bit.
        assert_eq!(Partitioner::Fnv1aSigned.partition(b"foobar", 10), 6);
        assert_eq!(Partitioner::Fnv1aMasked.partition(b"foobar", 10), 2);
        assert_eq!(Partitioner::Fnv1a.partition(b"foobar", 10), 0);
    }
}
