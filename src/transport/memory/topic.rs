//! Topic patterns ("Topics" tutorial: `*` is exactly one word, `#` is zero or more words).

/// Returns whether a topic binding's `pattern` takes a routing `key`.
///
/// Words are what stands between dots. A word may be empty (`a..b` has three words), but the empty
/// text has no words at all, so `*` does not match it and `#` does.
pub(super) fn matches(pattern: &str, key: &str) -> bool {
    let pattern = words(pattern);
    let key = words(key);
    let (mut at, mut read) = (0, 0);
    // Where the last `#` stands, and how far the key was read when it last took a word.
    let mut open: Option<(usize, usize)> = None;
    while read < key.len() {
        match pattern.get(at) {
            Some(&"#") => {
                open = Some((at, read));
                at += 1;
            }
            Some(&word) if word == "*" || word == key[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((hash, taken)) = open else { return false };
                open = Some((hash, taken + 1));
                at = hash + 1;
                read = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|&word| word == "#")
}

fn words(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split('.').collect() }
}
