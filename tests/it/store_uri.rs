//! What uris of a manifest mean.

use compact_local::store::{Location, ObjectUri, Trouble};

fn resolved(uri: &str, base: Option<&str>) -> String {
    let base = base.map(|base| Location::parse(base).unwrap());
    let uri = ObjectUri::resolve(uri, base.as_ref()).unwrap();
    let again = ObjectUri::resolve(&uri.absolute(), None).unwrap();
    assert_eq!(again.absolute(), uri.absolute(), "resolving again changes nothing");
    uri.absolute()
}

fn refused(uri: &str, base: Option<&str>) -> compact_local::store::StoreError {
    let base = base.map(|base| Location::parse(base).unwrap());
    ObjectUri::resolve(uri, base.as_ref()).expect_err(uri)
}

#[test]
fn a_relative_uri_is_taken_from_its_base() {
    for (base, uri, absolute) in [
        ("/data/in", "en/a.jsonl", "/data/in/en/a.jsonl"),
        ("file:///data/in%20put/", "en/a b%20.jsonl", "/data/in put/en/a b%20.jsonl"),
        ("s3://bucket/pre/fix/", "en/a+b %.jsonl", "s3://bucket/pre/fix/en/a+b %.jsonl"),
        ("s3://bucket", "a", "s3://bucket/a"),
        ("https://Host.example:8443/pre/", "en/a.jsonl", "https://host.example:8443/pre/en/a.jsonl"),
        ("https://host.example", "a.jsonl", "https://host.example/a.jsonl"),
        ("/data/in", "././en//a.jsonl", "/data/in/en//a.jsonl"),
        ("/data/in", "..a/b..c/...", "/data/in/..a/b..c/..."),
        ("//data/in", "a.jsonl", "/data/in/a.jsonl"),
        ("file:////data//in/", "a.jsonl", "/data/in/a.jsonl"),
    ] {
        assert_eq!(resolved(uri, Some(base)), absolute);
    }
}

#[test]
fn a_base_may_lead_upwards() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("real/deep")).unwrap();
    std::os::unix::fs::symlink("real/deep", root.join("link")).unwrap();
    // As the system resolves it: above what the link leads to.
    let base = format!("{}/link/../in/put", root.display());
    assert_eq!(resolved("en/a.jsonl", Some(&base)), format!("{}/real/in/put/en/a.jsonl", root.display()));
    assert!(Location::parse(&format!("{}/absent/../in", root.display())).is_err());
}

#[test]
fn an_absolute_uri_needs_no_base_and_ignores_it() {
    for uri in ["/data/a.jsonl", "s3://b/k e+y%.jsonl", "https://h/a?X-Amz-Signature=1&b=c%2Fd", "http://u:p@h:81/a"] {
        assert_eq!(resolved(uri, None), uri);
        assert_eq!(resolved(uri, Some("s3://other/place")), uri);
    }
    assert_eq!(resolved("file://localhost/data/a%20b", None), "/data/a b");
}

/// FIELD: names with a space, `+`, `$` or `@` answered 404, and presigned urls broke when encoded twice.
#[test]
fn an_http_uri_is_encoded_once() {
    for (uri, sent) in [
        ("https://h/a b/漢.jsonl", "https://h/a%20b/%E6%BC%A2.jsonl"),
        ("https://h/a%20b%2Fc.jsonl", "https://h/a%20b%2Fc.jsonl"),
        ("https://h/100%.jsonl", "https://h/100%25.jsonl"),
        ("https://h/%zz%4.jsonl", "https://h/%25zz%254.jsonl"),
        ("https://h/a+b$c@d=e.jsonl", "https://h/a+b$c@d=e.jsonl"),
        ("https://h/a#b.jsonl", "https://h/a%23b.jsonl"),
        ("https://h//a//b", "https://h//a//b"),
        ("https://h/a\"<>\\^`{|}", "https://h/a%22%3C%3E%5C%5E%60%7B%7C%7D"),
        ("https://h/a?q=b c&d=%2F", "https://h/a?q=b%20c&d=%2F"),
    ] {
        assert_eq!(resolved(uri, None), sent);
    }
    assert_eq!(resolved("a+b$c@d e%20f.jsonl", Some("https://h/p")), "https://h/p/a%2Bb%24c%40d%20e%20f.jsonl");
}

#[test]
fn no_relative_uri_leaves_its_base() {
    for base in ["/data/in", "s3://bucket/prefix", "https://h/p"] {
        for uri in ["../a", "a/../../b", "a/..", "..", "./../a"] {
            assert_eq!(refused(uri, Some(base)).trouble, Trouble::Gone, "{base} {uri}");
        }
    }
    for uri in ["%2e%2e/a", "a/%2E./b"] {
        assert_eq!(refused(uri, Some("https://h/p")).trouble, Trouble::Gone, "{uri}");
    }
    for uri in ["s3://b/a/../c", "s3://b/./c", "/data/../etc/passwd", "https://h/../a"] {
        assert_eq!(refused(uri, None).trouble, Trouble::Gone, "{uri}");
    }
}

#[test]
fn a_bad_uri_is_one_clear_error() {
    for (uri, says) in [
        ("", "empty"),
        ("a\nb", "\\n"),
        ("a\u{7f}", "\\u{7f}"),
        ("ftp://h/a", "`ftp`"),
        ("gs://b/a", "`gs`"),
        ("https:///a", "host"),
        ("https://:80/a", "host"),
        ("https://h h/a", "host"),
        ("http://127.0.0.1:99999/a", "port"),
        ("http://127.0.0.1:abc/a", "port"),
        ("http://h:/a", "port"),
        ("https://h", "names no object"),
        ("s3://bucket", "names no object"),
        ("s3:///key", "bucket"),
        ("s3://a b/key", "bucket"),
        ("file://host/a", "this machine"),
        ("file:///a%0Ab", "\\n"),
        ("file:///a%1b[2J", "\\u{1b}"),
        ("/", "names no object"),
    ] {
        let error = refused(uri, Some("/data")).to_string();
        assert!(error.contains(says) && !error.contains(char::is_control), "{uri:?}: {error}");
    }
    let error = refused("en/a", None);
    assert_eq!(error.trouble, Trouble::Misconfigured);
    assert!(error.to_string().contains("--source"), "{error}");
}

#[test]
fn a_base_is_a_directory_a_bucket_or_an_http_path() {
    let shown = |text: &str| Location::parse(text).unwrap().to_string();
    assert_eq!(shown("/data/out/"), "/data/out/");
    assert!(shown("out").starts_with('/'));
    assert_eq!(shown("s3://bucket//a/b/"), "s3://bucket/a/b");
    assert_eq!(shown("https://me:pass@host/a b/"), "https://host/a%20b");
    for bad in [
        "",
        "ftp://h/a",
        "s3://",
        "s3://b/../c",
        "https://h/a?b=c",
        "a\tb",
        "file:///a%00b",
        "https://h/a/..",
        "https://h/%2e%2E/a",
    ] {
        Location::parse(bad).expect_err(bad);
    }
}

#[test]
fn neither_userinfo_nor_query_is_ever_printed() {
    let uri = "https://me:s3cr3t@host.example/a?X-Amz-Signature=s3cr3t#s3cr3t";
    let object = ObjectUri::resolve(uri, None).unwrap();
    let shown = format!("{object} {object:?} {} {:?}", object.origin, object.origin);
    assert!(shown.contains("host.example") && !shown.contains("s3cr3t"), "{shown}");
    for bad in ["https://me:s3cr3t@/a?s3cr3t", "odd://me:s3cr3t@host/a?s3cr3t", "a/../b?sig=s3cr3t"] {
        let error = refused(bad, Some("https://h/p"));
        assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error:?}");
    }
    let location = Location::parse("https://me:s3cr3t@h/p").unwrap();
    assert!(!format!("{location} {location:?}").contains("s3cr3t"));
}
