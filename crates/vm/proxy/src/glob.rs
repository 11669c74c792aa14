//! Patterns of names: `?` is a character, `*` any number of them but no `/`, `**` any number.

/// True if the pattern fits all of the text.
pub fn fits(pattern: &str, text: &str) -> bool {
    fits_bytes(pattern.as_bytes(), text.as_bytes())
}

/// The state of a star: the pattern behind it, the text that is tried behind it, and whether it
/// takes slashes.
type Star<'a> = (&'a [u8], &'a [u8], bool);

fn fits_bytes<'a>(mut pattern: &'a [u8], mut text: &'a [u8]) -> bool {
    // The last star of each kind may take one character more. Earlier ones need not, as the text in
    // between has been found already.
    let mut stars: [Option<Star<'a>>; 2] = [None; 2];
    loop {
        match (pattern, text) {
            ([b'*', b'*', rest @ ..], _) => {
                stars = [None, Some((rest, text, true))];
                pattern = rest;
                continue;
            }
            ([b'*', rest @ ..], _) => {
                stars[0] = Some((rest, text, false));
                pattern = rest;
                continue;
            }
            ([], []) => return true,
            ([b'?', rest @ ..], [first, others @ ..]) if *first != b'/' => {
                (pattern, text) = (rest, others);
                continue;
            }
            ([wanted, rest @ ..], [first, others @ ..]) if wanted == first => {
                (pattern, text) = (rest, others);
                continue;
            }
            _ => {}
        }
        let more = stars.iter_mut().find_map(|star| {
            let (rest, tried, slashes) = (*star)?;
            match tried.split_first() {
                Some((first, others)) if slashes || *first != b'/' => {
                    *star = Some((rest, others, slashes));
                    Some((rest, others, slashes))
                }
                _ => {
                    *star = None;
                    None
                }
            }
        });
        let Some((rest, others, slashes)) = more else {
            return false;
        };
        if slashes {
            stars[0] = None;
        }
        (pattern, text) = (rest, others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stay_within_slashes() {
        for (pattern, text) in [
            ("", ""),
            ("kprobe:vfs_*", "kprobe:vfs_read"),
            ("kprobe:vfs_*", "kprobe:vfs_"),
            ("*read*", "vfs_read"),
            ("uprobe:/usr/bin/*:*", "uprobe:/usr/bin/a:12"),
            ("uprobe:/usr/**:*", "uprobe:/usr/lib/a/b.so:12"),
            ("**", "a/b"),
            ("a**b*c", "a/bb/bxc"),
            ("c?u", "cpu"),
            ("*a*a", "aaa"),
        ] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("kprobe:vfs_*", "kprobe:do_exit"),
            ("uprobe:/usr/bin/*:*", "uprobe:/usr/bin/x/y:1"),
            ("uprobe:/usr/bin/*:*", "uprobe:/usr/sbin/a:1"),
            ("c?u", "c/u"),
            ("a*", "ba"),
            ("a*b", "abc"),
        ] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!fits(&pattern, &"a".repeat(100_000)));
    }
}
