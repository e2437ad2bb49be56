//! The little of XML that S3's answers need beside the parsers of `rusty-s3`: one element's text, and the namespace that
//! those parsers insist on and some stores leave out or spell differently. Pure; whatever the text, nothing panics.

/// The text of the first element `tag`, entities decoded.
pub(super) fn text_of(xml: &str, tag: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{tag}>"))?;
    let (text, _) = rest.split_once(&format!("</{tag}>"))?;
    let mut decoded = text.trim().to_owned();
    // `&amp;` last: what it stands for must not be decoded again.
    for (entity, character) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")] {
        decoded = decoded.replace(entity, character);
    }
    Some(decoded)
}

/// `xml` with the root element in S3's namespace.
pub(super) fn with_namespace(xml: &str) -> String {
    in_namespace(xml).unwrap_or_else(|| xml.to_owned())
}

fn in_namespace(xml: &str) -> Option<String> {
    const NAMESPACE: &str = " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    let is_root =
        |at: &usize| xml.get(at + 1..).is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
    let (before, root) = xml.split_at_checked(xml.match_indices('<').map(|(at, _)| at).find(is_root)?)?;
    let (name, rest) = root.split_at_checked(root.find(['>', '/', ' ', '\n', '\t', '\r'])?)?;
    // The attributes of the root that are known are its namespaces: they are replaced by ours.
    let (attributes, content) = rest.split_once('>')?;
    let self_closing = if attributes.ends_with('/') { "/" } else { "" };
    Some(format!("{before}{name}{NAMESPACE}{self_closing}>{content}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_gets_the_namespace_whatever_it_had() {
        let right = "<?xml version=\"1.0\"?>\n<A xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><B>1</B></A>";
        for root in [
            "<A>",
            "<A xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
            "<A xmlns='http://doc.s3.amazonaws.com/2006-03-01'>",
            "<A\n xmlns=\"\" xmlns:x=\"http://x/y\">",
        ] {
            assert_eq!(with_namespace(&format!("<?xml version=\"1.0\"?>\n{root}<B>1</B></A>")), right, "{root}");
        }
        for odd in ["", "<", "<A", "text", "<é", "<?x?>"] {
            assert_eq!(with_namespace(odd), odd);
        }
    }

    #[test]
    fn text_is_decoded_once() {
        assert_eq!(text_of("<E><Code>a&amp;lt;b &lt; c</Code></E>", "Code").unwrap(), "a&lt;b < c");
        assert_eq!(text_of("<E><Code>a", "Code"), None);
    }
}
