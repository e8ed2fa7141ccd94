//! What the pages say of tests is true: a test that a page names exists.

use std::{collections::BTreeSet, fs, path::Path};

/// The pages that name tests as their evidence.
const PAGES: &[&str] = &["field-cases.md", "compatibility.md", "guarantees.md", "security.md"];

#[test]
fn every_test_that_a_page_names_exists() {
    let mut words = BTreeSet::new();
    for folder in ["tests", "src", "benches"] {
        collect_words(Path::new(folder), &mut words);
    }
    let mut missing = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(Path::new("docs").join(page)).unwrap();
        let named = test_names(&text);
        assert!(!named.is_empty(), "{page} names no test");
        missing.extend(named.difference(&words).map(|name| format!("{page}: {name}")));
    }
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

#[test]
fn a_name_that_is_no_test_is_not_taken_for_one() {
    let text =
        "`settle_failed`, `a_b_c_d`, `src/a_b_c_d.rs`, `transient_nonexcl_queues`, `A_B_C_D`";
    let names: Vec<String> = test_names(text).into_iter().collect();
    assert_eq!(names, ["a_b_c_d"]);
}

/// Code words of at least four parts: the sentences that tests have for names.
fn test_names(page: &str) -> BTreeSet<String> {
    let code = page.split('`').skip(1).step_by(2);
    code.filter(|word| word.matches('_').count() >= 3 && is_identifier(word))
        .map(str::to_owned)
        .collect()
}

fn is_identifier(word: &str) -> bool {
    word.chars()
        .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

fn collect_words(folder: &Path, words: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_words(&path, words);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let parts = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            words.extend(parts.filter(|part| is_identifier(part)).map(str::to_owned));
        }
    }
}
