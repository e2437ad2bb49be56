//! Any uri, and any base: it means one object, the same in full; never one outside of the base; and what is printed of it
//! holds no secret and nothing that steers a terminal.

use compact_local::store::{Location, ObjectUri, Origin};

/// A base and a uri, with a zero byte between them.
pub(crate) fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some((base, uri)) = text.split_once('\0') else { return alone(text) };
    alone(uri);
    match Location::parse(base) {
        Ok(base) => below(&base, uri),
        Err(refused) => super::assert_shown(&refused.to_string()),
    }
}

fn alone(uri: &str) {
    match ObjectUri::resolve(uri, None) {
        Ok(object) => is_one(&object, uri),
        Err(refused) => super::assert_shown(&refused.to_string()),
    }
}

fn below(base: &Location, uri: &str) {
    super::assert_shown(&base.to_string());
    let object = match ObjectUri::resolve(uri, Some(base)) {
        Ok(object) => object,
        Err(refused) => return super::assert_shown(&refused.to_string()),
    };
    is_one(&object, uri);
    if uri.contains("://") || uri.starts_with('/') {
        return;
    }
    let is_inside = match (base, &object.origin) {
        (Location::Directory(root), Origin::Directory(directory)) => root == directory,
        (Location::S3 { bucket, prefix }, Origin::S3(asked)) => bucket == asked && object.key.starts_with(prefix),
        (Location::Http(base), Origin::Http(_)) => object.absolute().starts_with(&format!("{base}/")),
        _ => false,
    };
    assert!(is_inside, "{uri:?} below {base:?} is {object:?}");
}

fn is_one(object: &ObjectUri, uri: &str) {
    let absolute = object.absolute();
    let again = ObjectUri::resolve(&absolute, None).expect("is a uri");
    assert_eq!((again.absolute(), &again.key), (absolute, &key_in_full(object)), "{uri:?}");
    let (path, is_http) = match &object.origin {
        Origin::Http(_) => (object.key.split('?').next().unwrap_or_default(), true),
        _ => (object.key.as_str(), false),
    };
    // Of an HTTP origin an encoded dot is a dot.
    let plain = if is_http { path.to_ascii_lowercase().replace("%2e", ".") } else { path.to_owned() };
    assert!(plain.split('/').all(|segment| segment != "." && segment != ".."), "{uri:?} is {path}");
    if is_http {
        assert!(object.key.bytes().all(|byte| byte.is_ascii_graphic()), "{uri:?} is {}", object.key);
    }
    let shown = object.to_string();
    super::assert_shown(&shown);
    assert!(!is_http || !shown.contains('?'), "{shown}");
}

/// The key that the absolute uri has: a directory's is its root's then.
fn key_in_full(object: &ObjectUri) -> String {
    match &object.origin {
        Origin::Directory(root) => root.join(&object.key).to_string_lossy().trim_start_matches('/').to_owned(),
        _ => object.key.clone(),
    }
}
