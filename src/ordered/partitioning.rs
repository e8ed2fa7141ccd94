//! From key to partition (wire contract, section 12).

use crate::error::{Error, Result};

/// The rule from a key's hash to its partition.
///
/// The hash is FNV-1a of 32 bits over the key's UTF-8 bytes, in every AceMQ library. For a power
/// of two the rules agree; for other counts they do not, so one has to be named then: the one of
/// whoever else sends to the queue.
///
/// # Examples
///
/// ```
/// use acemq::Partitioning;
///
/// assert_eq!(Partitioning::default().partition_for("customer-42", 16)?, 14);
/// assert!(Partitioning::default().partition_for("customer-42", 10).is_err());
/// assert_eq!(Partitioning::Java.partition_for("customer-42", 10)?, 0);
/// # Ok::<_, acemq::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Partitioning {
    /// Powers of two only, where every library agrees.
    #[default]
    PowerOfTwo,
    /// Java's: the hash as a signed number, modulo the count, never negative.
    Java,
    /// Go's, Python's and Ruby's: the hash as an unsigned number, modulo the count.
    Unsigned,
    /// .NET's: the hash without its top bit, modulo the count.
    DotNet,
}

impl Partitioning {
    /// Returns the partition of a key, from 0.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for no partitions, and for a count that is no power of two where
    /// the rule is [`PowerOfTwo`](Self::PowerOfTwo).
    pub fn partition_for(self, key: &str, partitions: u32) -> Result<u32> {
        self.check(partitions)?;
        Ok(self.index(hash(key), partitions))
    }

    pub(super) fn check(self, partitions: u32) -> Result<()> {
        if partitions == 0 {
            return Err(Error::invalid("partitions", 0, "leaves no place for a message"));
        }
        if self == Self::PowerOfTwo && !partitions.is_power_of_two() {
            let reason = "is no power of two, and only for those do all libraries agree; name a rule by `partitioning`";
            return Err(Error::invalid("partitions", partitions, reason));
        }
        Ok(())
    }

    fn index(self, hash: u32, partitions: u32) -> u32 {
        match self {
            Self::PowerOfTwo | Self::Unsigned => hash % partitions,
            Self::Java => {
                let index = i64::from(hash.cast_signed()).rem_euclid(i64::from(partitions));
                u32::try_from(index).unwrap_or(0)
            }
            Self::DotNet => (hash & 0x7fff_ffff) % partitions,
        }
    }
}

/// FNV-1a, 32 bits.
fn hash(key: &str) -> u32 {
    key.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        message::vectors::{each, parts, text, vectors},
        ordered::layout,
    };

    #[test]
    fn keys_hash_as_in_every_library() {
        each("/partition/hash", |case| {
            let found = hash(text(case, "key"));
            assert_eq!(format!("{found:#010x}"), text(case, "fnv1a32"));
            assert_eq!(u64::from(found), case["unsigned"].as_u64().unwrap());
            assert_eq!(i64::from(found.cast_signed()), case["signed"].as_i64().unwrap());
        });
    }

    fn rule(name: &str) -> Partitioning {
        match name {
            "java_floor_mod" => Partitioning::Java,
            "unsigned_mod" => Partitioning::Unsigned,
            "dotnet_masked_mod" => Partitioning::DotNet,
            other => panic!("{other} is no rule"),
        }
    }

    #[test]
    fn partitions_are_those_of_each_library() {
        each("/partition/index", |case| {
            let (key, count) = (text(case, "key"), count(case));
            let found = ["java_floor_mod", "unsigned_mod", "dotnet_masked_mod"].map(|name| {
                let found = rule(name).partition_for(key, count).unwrap();
                assert_eq!(u64::from(found), case[name].as_u64().unwrap(), "{name}, {case}");
                found
            });
            let all_agree = found.iter().all(|index| *index == found[0]);
            assert_eq!(Value::from(all_agree), case["all_agree"], "{case}");
            match Partitioning::PowerOfTwo.partition_for(key, count) {
                Ok(index) => assert_eq!([index; 3], found, "{case}"),
                Err(_) => assert!(!count.is_power_of_two()),
            }
        });
    }

    fn count(case: &Value) -> u32 {
        u32::try_from(case["partitions"].as_u64().unwrap()).unwrap()
    }

    #[test]
    fn half_of_all_keys_differ_between_the_rules_for_ten_partitions() {
        let case = vectors("/partition/disagreement");
        let count = count(&case);
        let differ = (0..100_000).filter(|number| {
            let of =
                |rule: Partitioning| rule.partition_for(&format!("key-{number}"), count).unwrap();
            of(Partitioning::Java) != of(Partitioning::Unsigned)
        });
        assert_eq!(
            format!("0.{:04}", differ.count() / 10),
            case["java_vs_unsigned_share"].to_string()
        );
    }

    #[test]
    fn messages_go_to_the_queues_of_java() {
        parts(
            "/partition",
            &[
                "algorithm",
                "index_rules",
                "rust_rule",
                "sources",
                "hash",
                "index",
                "disagreement",
                "routing",
            ],
        );
        each("/partition/routing", |case| {
            let index =
                Partitioning::PowerOfTwo.partition_for(text(case, "key"), count(case)).unwrap();
            // The others' layouts name the same partition; only Java's is written here.
            if case["layout"] == "java" {
                let name = text(case, "name");
                assert_eq!(layout::queue_name(name, index), text(case, "queue"));
                assert_eq!(layout::routing_key(index), text(case, "routing_key"));
                assert_eq!(name, text(case, "exchange"));
            } else {
                assert!(text(case, "routing_key").ends_with(&format!(".{index}")), "{case}");
            }
        });
    }

    #[test]
    fn counts_that_no_rule_covers_are_refused() {
        for count in [0, 3, 10, 12] {
            assert!(Partitioning::PowerOfTwo.partition_for("k", count).is_err());
        }
        assert!(Partitioning::Java.partition_for("k", 0).is_err());
    }
}
