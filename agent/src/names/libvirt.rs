//! libvirt's run-time files of its domains (`/run/libvirt/qemu/NAME.xml`). In: the text of one. Out: what a domain is
//! called. Called by [`super`].
//!
//! A parser of the little XML that libvirt writes: elements, attributes, texts with entities, comments. It reads some
//! elements and skips the rest.

/// What such a file says of its domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Domain {
    /// QEMU's process.
    pub(super) pid: Option<i32>,
    /// Its number since libvirt started it, as scopes of systemd have it.
    pub(super) id: Option<u32>,
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) title: Option<String>,
    /// The display name that OpenStack's Nova left in its metadata.
    pub(super) nova_name: Option<String>,
}

/// Most elements within one another; libvirt's files have some ten.
const MAX_DEPTH: usize = 64;

/// What is behind `end` in a text that has it.
fn behind<'t>(text: &'t str, end: &str) -> Option<&'t str> {
    text.split_once(end).map(|(_, rest)| rest)
}

/// Where a tag ends, which has begun: the first `>` that is in no attribute's value.
fn tag_end(tag: &str) -> Option<usize> {
    let mut quote = None;
    tag.bytes().position(|byte| match (quote, byte) {
        (None, b'>') => true,
        (None, b'"' | b'\'') => {
            quote = Some(byte);
            false
        }
        (Some(own), _) if own == byte => {
            quote = None;
            false
        }
        _ => false,
    })
}

/// The value of an attribute of a tag's inside, which has no entities in the attributes that are read.
fn attribute<'t>(tag: &'t str, name: &str) -> Option<&'t str> {
    let mut rest = tag;
    while let Some((before, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, behind) = after.get(1..)?.split_once(quote)?;
        if before.split_whitespace().next_back() == Some(name) {
            return Some(value);
        }
        rest = behind;
    }
    None
}

/// A text with its entities replaced; one that is not known stays as it is.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let entity = after.split_once(';').filter(|(entity, _)| entity.len() <= 8);
        let number = |digits: &str| match digits.strip_prefix('x') {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        };
        let of = |entity: &str| match entity {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            other => char::from_u32(number(other.strip_prefix('#')?)?),
        };
        match entity.and_then(|(entity, behind)| Some((of(entity)?, behind))) {
            Some((c, behind)) => {
                plain.push(c);
                rest = behind;
            }
            None => {
                plain.push('&');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

impl Domain {
    /// Takes in the text of the element that `path` leads to; the first one counts.
    fn text(&mut self, path: &[&str], text: String) {
        let slot = match path {
            ["domstatus", "domain", "name"] => &mut self.name,
            ["domstatus", "domain", "uuid"] => &mut self.uuid,
            ["domstatus", "domain", "title"] => &mut self.title,
            ["domstatus", "domain", "metadata", "nova:instance", "nova:name"] => &mut self.nova_name,
            _ => return,
        };
        slot.get_or_insert(text);
    }

    fn opened(&mut self, path: &[&str], tag: &str) {
        match path {
            ["domstatus"] => self.pid = attribute(tag, "pid").and_then(|pid| pid.parse().ok()),
            ["domstatus", "domain"] => self.id = attribute(tag, "id").and_then(|id| id.parse().ok()),
            _ => {}
        }
    }
}

/// Reads such a file; `None` of what is not well-formed.
pub(super) fn parse(xml: &str) -> Option<Domain> {
    let mut domain = Domain::default();
    let mut path: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some((text, markup)) = rest.split_once('<') {
        if !text.trim().is_empty() {
            domain.text(&path, unescape(text));
        }
        rest = if let Some(comment) = markup.strip_prefix("!--") {
            behind(comment, "-->")?
        } else if let Some(verbatim) = markup.strip_prefix("![CDATA[") {
            let (text, rest) = verbatim.split_once("]]>")?;
            domain.text(&path, text.to_owned());
            rest
        } else if let Some(instruction) = markup.strip_prefix('?') {
            behind(instruction, "?>")?
        } else if let Some(end) = markup.strip_prefix('/') {
            let (name, rest) = end.split_once('>')?;
            if path.pop() != Some(name.trim_end()) {
                return None;
            }
            rest
        } else {
            let end = tag_end(markup)?;
            let tag = &markup[..end];
            let (inside, is_empty) = tag.strip_suffix('/').map_or((tag, false), |inside| (inside, true));
            path.push(inside.split_whitespace().next()?);
            if path.len() > MAX_DEPTH {
                return None;
            }
            domain.opened(&path, inside);
            if is_empty {
                path.pop();
            }
            &markup[end + 1..]
        };
    }
    path.is_empty().then_some(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libvirt 9 writes it for an instance of OpenStack, shortened.
    const NOVA: &str = r#"<!--
WARNING: THIS IS AN AUTO-GENERATED FILE. CHANGES TO IT ARE LIKELY TO BE
OVERWRITTEN AND LOST. <name>no</name>
-->
<domstatus state='running' reason='booted' pid='4711'>
  <taint flag='custom-argv'/>
  <monitor path='/var/lib/libvirt/qemu/domain-7-instance-0000002a/monitor.sock' type='unix'/>
  <vcpus>
    <vcpu id='0' pid='4715'/>
  </vcpus>
  <domain type='kvm' id='7'>
    <name>instance-0000002a</name>
    <uuid>c9a3ac7e-0f3b-4c3c-9d9d-5f1d3f9b8a10</uuid>
    <metadata>
      <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
        <nova:package version="27.1.0"/>
        <nova:name>shop &amp; web &lt;1&gt; &#233;&#x20ac;</nova:name>
        <nova:flavor name="m1.small"><nova:memory>2048</nova:memory></nova:flavor>
      </nova:instance>
    </metadata>
    <title><![CDATA[The <shop>]]></title>
    <devices><disk type='file'><source file='/a>b'/><name>vda</name></disk></devices>
  </domain>
</domstatus>
"#;

    #[test]
    fn an_instance_of_openstack() {
        let domain = parse(NOVA).unwrap();
        assert_eq!((domain.pid, domain.id), (Some(4711), Some(7)));
        assert_eq!(domain.name.as_deref(), Some("instance-0000002a"));
        assert_eq!(domain.uuid.as_deref(), Some("c9a3ac7e-0f3b-4c3c-9d9d-5f1d3f9b8a10"));
        assert_eq!(domain.nova_name.as_deref(), Some("shop & web <1> é€"));
        assert_eq!(domain.title.as_deref(), Some("The <shop>"));
    }

    #[test]
    fn names_elsewhere_are_not_the_domains() {
        let hostile = "<domstatus pid='1'><devices><name>other</name></devices><domain id='x'><metadata><m><name>x</name>\
                       </m></metadata><name>own</name><name>second</name></domain></domstatus>";
        let domain = parse(hostile).unwrap();
        assert_eq!((domain.name.as_deref(), domain.id), (Some("own"), None));
    }

    #[test]
    fn what_is_no_such_file_is_nothing() {
        for bad in [
            "<a>",
            "</a>",
            "<a></b>",
            "<a b='>",
            "<",
            "<!-- x",
            "<![CDATA[x",
            "<?xml",
            "<>",
            &NOVA[..NOVA.len() / 2],
            &"<a>".repeat(100_000),
        ] {
            assert_eq!(parse(bad), None, "{}", &bad[..bad.len().min(40)]);
        }
        assert_eq!(parse("").unwrap(), Domain::default());
        assert_eq!(unescape("a&b &#xfffffff; &nope; &#0;c&"), "a&b &#xfffffff; &nope; \0c&");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}", cut in 0..1_800_usize, more in "[<>/!\\[\\]'\"=&;a-c \u{e9}-]{0,60}") {
            _ = parse(&text);
            _ = parse(&more);
            let cut = (0..=cut.min(NOVA.len())).rev().find(|end| NOVA.is_char_boundary(*end)).unwrap_or(0);
            _ = parse(&format!("{}{more}{}", &NOVA[..cut], &NOVA[cut..]));
        }
    }
}
