//! Reads `src/` and fails on an import that points up, or from one pattern to another.
//!
//! The reading is textual: comments, strings and `#[cfg(test)]` items are left out, everything
//! that starts with `crate::` or `super::` counts as an arrow to the module it names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The modules from the bottom up, each with its layer. Within a layer a module may use those that
/// stand before it; a pattern uses no other pattern. A new module needs a place here.
const HOUSE: &[(&str, u8)] = &[
    ("error", 0),
    ("backoff", 0),
    ("clock", 0),
    ("message", 1),
    ("telemetry", 1),
    ("topology", 1),
    ("transport", 2),
    ("connection", 3),
    ("publish", 4),
    ("store", 4),
    ("idempotency", 4),
    ("consume", 5),
    ("outbox", PATTERNS),
    ("inbox", PATTERNS),
    ("request_reply", PATTERNS),
    ("scheduler", PATTERNS),
    ("saga", PATTERNS),
    ("pipeline", PATTERNS),
    ("ordered", PATTERNS),
    ("routing_slip", PATTERNS),
    ("testing", 7),
];

const PATTERNS: u8 = 6;

fn place(module: &str) -> Option<(usize, u8)> {
    let index = HOUSE.iter().position(|(name, _)| *name == module)?;
    Some((index, HOUSE[index].1))
}

/// Why an arrow is wrong; none if it may stand.
fn objection(from: &str, to: &str) -> Option<&'static str> {
    if from == to {
        return None;
    }
    let Some((from_index, from_layer)) = place(from) else {
        return Some("comes from a module without a layer");
    };
    let Some((to_index, to_layer)) = place(to) else {
        return Some("leads to a module without a layer");
    };
    if from_layer == PATTERNS && to_layer == PATTERNS {
        return Some("joins two patterns");
    }
    (to_index > from_index).then_some("points up")
}

// --- reading -------------------------------------------------------------------------------------

/// Words, `::` and single characters, without comments, strings, character literals and lifetimes.
fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        match (at(i), at(i + 1)) {
            ('/', '/') => i += chars[i..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => i = end_of_comment(&chars, i),
            ('"', _) => i = end_of_quote(&chars, i + 1, '"'),
            // A quote that closes after one character or an escape; else a lifetime.
            ('\'', '\\') => i = end_of_quote(&chars, i + 1, '\''),
            ('\'', _) if at(i + 2) == '\'' => i += 3,
            (':', ':') => {
                found.push("::".to_owned());
                i += 2;
            }
            (c, _) if is_word(c) => {
                let word: String = chars[i..].iter().take_while(|c| is_word(**c)).collect();
                i += word.chars().count();
                if matches!(word.as_str(), "r" | "br" | "cr") && matches!(at(i), '"' | '#') {
                    i = end_of_raw_string(&chars, i);
                } else {
                    found.push(word);
                }
            }
            (c, _) => {
                if !c.is_whitespace() {
                    found.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    found
}

fn end_of_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn end_of_quote(chars: &[char], mut i: usize, quote: char) -> usize {
    while i < chars.len() && chars[i] != quote {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// From the first `#` or the quote; a raw identifier (`r#type`) ends at once.
fn end_of_raw_string(chars: &[char], start: usize) -> usize {
    let hashes = chars[start..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + hashes) != Some(&'"') {
        return start + hashes;
    }
    let mut close = vec!['"'];
    close.resize(1 + hashes, '#');
    let body = start + hashes + 1;
    let length = chars[body..].windows(close.len()).position(|window| window == close);
    length.map_or(chars.len(), |length| body + length + close.len())
}

/// What one file says, test items left out.
#[derive(Default)]
struct Source {
    /// Absolute paths: the module where they stand is resolved, `crate` left out.
    paths: Vec<Vec<String>>,
    /// Modules that are compiled for tests only.
    test_modules: BTreeSet<Vec<String>>,
    tokens: Vec<String>,
}

fn read(module: &[String], source: &str) -> Source {
    let mut read = Source::default();
    let all = tokens(source);
    // The modules around the current token: their names, and the brace depth that ends them.
    let mut around: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut i = 0;
    while i < all.len() {
        let here = || -> Vec<String> {
            module.iter().cloned().chain(around.iter().map(|(name, _)| name.clone())).collect()
        };
        if is_test_attribute(&all[i..]) {
            let end = end_of_item(&all, i);
            if let Some(at) = all[i..end].iter().position(|token| token == "mod")
                && all[end - 1] == ";"
            {
                let name = all[i + at + 1].clone();
                read.test_modules.insert([here(), vec![name]].concat());
            }
            i = end;
            continue;
        }
        let word = all[i].as_str();
        let starts_path = all.get(i + 1).is_some_and(|next| next == "::")
            && (i == 0 || all[i - 1] != "::")
            && matches!(word, "crate" | "super");
        if word == "use" || starts_path {
            let start = if starts_path { i } else { i + 1 };
            let (trees, end) = expand(&all, start);
            read.paths.extend(trees.into_iter().filter_map(|path| resolve(&here(), path)));
            read.tokens.extend(all[i..end].iter().cloned());
            i = end;
            continue;
        }
        match word {
            "{" => {
                depth += 1;
                if i >= 2 && all[i - 2] == "mod" {
                    around.push((all[i - 1].clone(), depth));
                }
            }
            "}" => {
                if around.last().is_some_and(|(_, opened)| *opened == depth) {
                    around.pop();
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        read.tokens.push(all[i].clone());
        i += 1;
    }
    read
}

fn is_test_attribute(tokens: &[String]) -> bool {
    let starts = ["#", "[", "cfg", "("];
    if tokens.len() < 6 || tokens.iter().zip(starts).any(|(token, expected)| token != expected) {
        return false;
    }
    let condition = &tokens[4..tokens.iter().position(|t| t == "]").unwrap_or(4)];
    condition.iter().any(|t| t == "test") && !condition.iter().any(|t| t == "not")
}

/// Behind the item whose attributes start here: its first `;` or the end of its first braces.
fn end_of_item(tokens: &[String], start: usize) -> usize {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(start) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && matches!(token.as_str(), ";" | "}") {
            return i + 1;
        }
    }
    tokens.len()
}

/// Reads a path or a tree of paths (`a::{b, c::{D, E}}`) and says where it ends.
fn expand(tokens: &[String], start: usize) -> (Vec<Vec<String>>, usize) {
    let mut path: Vec<String> = Vec::new();
    let mut i = start;
    while let Some(token) = tokens.get(i) {
        match token.as_str() {
            "::" => i += 1,
            "{" if i == start || tokens[i - 1] == "::" => {
                let mut paths = Vec::new();
                i += 1;
                while tokens.get(i).is_some_and(|token| token != "}") {
                    let (branches, end) = expand(tokens, i);
                    paths.extend(branches.into_iter().map(|b| [path.clone(), b].concat()));
                    i = if tokens.get(end).is_some_and(|t| t == ",") { end + 1 } else { end };
                }
                return (paths, i + 1);
            }
            "as" => i += 2,
            word if i == start || tokens[i - 1] == "::" => {
                path.push(word.to_owned());
                i += 1;
            }
            _ => break,
        }
    }
    (vec![path], i.max(start + 1))
}

/// The path from the crate's root; none for a path into another crate or a child module.
fn resolve(here: &[String], path: Vec<String>) -> Option<Vec<String>> {
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            let base = &here[..here.len().checked_sub(ups)?];
            Some([base, &path[ups..]].concat())
        }
        _ => None,
    }
}

// --- checking ------------------------------------------------------------------------------------

/// `src/message/codec.rs` is `message::codec`, `src/message/mod.rs` is `message`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
        module.pop();
    }
    module
}

/// Which module each name that the crate's root re-exports comes from.
fn root_names(lib: &str) -> BTreeMap<String, String> {
    let all = tokens(lib);
    let uses = all.iter().enumerate().filter(|(_, token)| *token == "use");
    let paths = uses.flat_map(|(at, _)| expand(&all, at + 1).0);
    paths
        .filter_map(|path| Some((path.last()?.clone(), path.first()?.clone())))
        .filter(|(_, module)| module != "crate")
        .collect()
}

fn check_arrows(file: &str, source: &Source, root: &BTreeMap<String, String>) -> Vec<String> {
    let module = module_of(file);
    let Some(from) = module.first() else { return Vec::new() };
    let mut wrong = BTreeSet::new();
    for path in &source.paths {
        let Some(first) = path.first() else {
            wrong.insert(format!("{file}: imports the crate's root as a whole"));
            continue;
        };
        let to = root.get(first).unwrap_or(first);
        if let Some(objection) = objection(from, to) {
            let path = path.join("::");
            wrong.insert(format!("{file}: crate::{path}: {from} -> {to} {objection}"));
        }
    }
    wrong.into_iter().collect()
}

/// Drivers and the wall clock have few places where they may be named.
fn check_words(file: &str, source: &Source) -> Vec<String> {
    let names = |word: &str| source.tokens.iter().any(|token| token == word);
    let asks = |clock: &str| source.tokens.windows(3).any(|w| w == [clock, "::", "now"]);
    let name = file.rsplit('/').next().unwrap_or(file);
    let mut wrong = Vec::new();
    if names("lapin") && !file.starts_with("src/transport/rabbitmq/") {
        wrong.push(format!("{file}: names lapin, which only src/transport/rabbitmq/ may"));
    }
    let is_store =
        file.starts_with("src/store/") || matches!(name, "postgres.rs" | "sqlite.rs" | "mysql.rs");
    if names("sqlx") && !is_store {
        wrong.push(format!("{file}: names sqlx, which only stores may"));
    }
    if (asks("Utc") || asks("SystemTime") || asks("Local")) && file != "src/clock.rs" {
        wrong.push(format!("{file}: asks for the time, which only src/clock.rs may"));
    }
    wrong
}

/// Checks files by their path from the crate's folder, `src/lib.rs` among them.
fn check(files: &BTreeMap<String, String>) -> Vec<String> {
    let root = files.get("src/lib.rs").map(|lib| root_names(lib)).unwrap_or_default();
    let sources: BTreeMap<&str, Source> =
        files.iter().map(|(file, text)| (file.as_str(), read(&module_of(file), text))).collect();
    let test_modules: BTreeSet<&Vec<String>> =
        sources.values().flat_map(|source| &source.test_modules).collect();
    let is_test = |file: &str| {
        let module = module_of(file);
        test_modules.iter().any(|test| module.starts_with(test))
    };
    sources
        .iter()
        .filter(|(file, _)| !is_test(file))
        .flat_map(|(file, source)| {
            let unknown = module_of(file)
                .first()
                .filter(|module| place(module).is_none())
                .map(|module| format!("{file}: module {module} has no layer"));
            let arrows = check_arrows(file, source, &root);
            unknown.into_iter().chain(arrows).chain(check_words(file, source))
        })
        .collect()
}

fn files_under(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_under(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn imports_point_down_and_foreign_names_stay_in_their_places() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    files_under(&here.join("src"), &mut paths);
    let files: BTreeMap<String, String> = paths
        .iter()
        .map(|path| {
            let name = path.strip_prefix(here).unwrap().to_str().unwrap().replace('\\', "/");
            (name, fs::read_to_string(path).unwrap())
        })
        // A program is a crate of its own: it has only what the library makes public.
        .filter(|(name, _): &(String, String)| !name.starts_with("src/bin/"))
        .collect();
    assert!(files.contains_key("src/lib.rs") && files.len() > 10, "{:?}", files.keys());
    let wrong = check(&files);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

// --- the checker itself --------------------------------------------------------------------------

fn check_one(file: &str, source: &str) -> Vec<String> {
    let lib = "pub use consume::RetryPolicy;\npub use message::{Envelope, Headers};";
    let files = [("src/lib.rs", lib), (file, source)];
    check(&files.map(|(file, source)| (file.to_owned(), source.to_owned())).into())
}

#[test]
fn planted_arrows_are_found() {
    for (file, source, arrow) in [
        ("src/message/codec.rs", "use crate::transport::Link;", "message -> transport points up"),
        ("src/message/mod.rs", "use crate::{error::Error, topology};", "message -> topology"),
        ("src/message/mod.rs", "pub(crate) use super::consume::X;", "message -> consume points up"),
        ("src/message/a/b.rs", "use super::super::super::publish;", "message -> publish points up"),
        ("src/clock.rs", "fn f() { let x = crate::message::Headers::new(); }", "clock -> message"),
        ("src/clock.rs", "fn f(x: &crate::RetryPolicy) {}", "clock -> consume points up"),
        ("src/clock.rs", "use crate::Unheard;", "Unheard leads to a module without a layer"),
        ("src/clock.rs", "use crate::*;", "clock -> * leads to a module without a layer"),
        ("src/saga/mod.rs", "use crate::outbox::Relay;", "saga -> outbox joins two patterns"),
        ("src/inbox/mod.rs", "use crate::saga as tale;", "inbox -> saga joins two patterns"),
        (
            "src/store/x.rs",
            "use crate::{clock::{self, X}, idempotency::Y};",
            "store -> idempotency",
        ),
        (
            "src/error.rs",
            "mod a { mod b { use super::super::super::clock::X; } }",
            "error -> clock",
        ),
        ("src/error.rs", "/* /* */ */ const A: char = '\"'; use crate::saga; // \"", "-> saga"),
        ("src/error.rs", "#[cfg(not(test))] use crate::saga;", "error -> saga points up"),
        ("src/error.rs", "#[cfg(test)] mod tests { }\nuse crate::saga;", "error -> saga points up"),
        ("src/error.rs", "#[cfg(test)]\nmod tests;\nuse crate::saga;", "error -> saga points up"),
        ("src/stray.rs", "", "module stray has no layer"),
        ("src/publish/mod.rs", "use lapin::Channel;", "names lapin"),
        ("src/outbox/relay.rs", "fn f(p: &::sqlx::PgPool) {}", "names sqlx"),
        ("src/outbox/relay.rs", "let t = chrono::Utc::now();", "asks for the time"),
        ("src/outbox/relay.rs", "let t = SystemTime :: now();", "asks for the time"),
    ] {
        let wrong = check_one(file, source);
        assert_eq!(wrong.len(), 1, "{source}: {wrong:?}");
        assert!(wrong[0].starts_with(&format!("{file}: ")), "{wrong:?}");
        assert!(wrong[0].contains(arrow), "{source}: {wrong:?}");
    }
}

#[test]
fn arrows_that_may_stand_are_not_found() {
    for (file, source) in [
        ("src/consume/mod.rs", "use crate::{error::{Error, Result}, message, publish::Publisher};"),
        ("src/topology/queue.rs", "use crate::message::Headers; use super::check_name;"),
        ("src/topology/queue.rs", "use super::super::message::Headers;"),
        (
            "src/transport/mod.rs",
            "fn f() { use crate::topology::check_length; crate::Headers::new() }",
        ),
        ("src/idempotency/mod.rs", "use crate::store::Dialect;"),
        ("src/saga/mod.rs", "// use crate::outbox::X;\n/* crate::outbox */ //! crate::outbox::X"),
        (
            "src/saga/mod.rs",
            r##"const A: &str = "use crate::outbox;"; const B: &str = r#"""crate::outbox::X"#;"##,
        ),
        (
            "src/saga/mod.rs",
            "fn f<'a>(x: &'a str) -> char { '\\'' } #[cfg(test)] mod t { use crate::outbox; }",
        ),
        ("src/saga/mod.rs", "#[cfg(all(test, unix))] fn f() { crate::outbox::f(); }"),
        (
            "src/message/mod.rs",
            "pub(crate) mod header { use super::names; use super::super::Envelope; }",
        ),
        ("src/clock.rs", "fn now() { Utc::now(); }"),
        ("src/outbox/postgres.rs", "use sqlx::PgPool;"),
        ("src/store/schema.rs", "use sqlx::Executor;"),
        ("src/transport/rabbitmq/link.rs", "use lapin::Channel;"),
        ("src/outbox/relay.rs", "let t = Instant::now();"),
    ] {
        assert_eq!(check_one(file, source), Vec::<String>::new(), "{source}");
    }
}

#[test]
fn files_of_test_modules_are_left_out() {
    let files = [
        ("src/lib.rs", "mod message;"),
        ("src/message/mod.rs", "#[cfg(test)]\npub(crate) mod vectors;\nmod codec;"),
        ("src/message/vectors.rs", "use crate::saga;"),
        ("src/message/codec.rs", "use crate::saga;"),
    ];
    let wrong = check(&files.map(|(file, text)| (file.to_owned(), text.to_owned())).into());
    assert_eq!(wrong, ["src/message/codec.rs: crate::saga: message -> saga points up"]);
}
