use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

use super::*;

/// A user that is neither root nor the one that runs tests.
const OTHER: u32 = 12345;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Gives a file away, which only root can.
fn is_given_away(path: &Path) -> bool {
    lchown(path, Some(OTHER), None).is_ok()
}

fn why(error: io::Error) -> Distrust {
    let reason = Distrust::of(&error).cloned();
    reason.unwrap_or_else(|| panic!("{error:?}"))
}

#[test]
fn what_is_missing_is_made_for_this_user_alone() {
    let (_folder, path) = folder();
    let made = TrustedDir::create(&path.join("a/b")).unwrap();
    assert_eq!(made.path(), path.join("a/b"));
    for name in ["a", "a/b"] {
        let mode = fs::metadata(path.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }
    let missing = TrustedDir::open_shared(&path.join("none")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    fs::write(path.join("file"), "").unwrap();
    for below in ["file", "file/x"] {
        let refused = TrustedDir::create(&path.join(below)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotADirectory, "{below}");
    }
}

#[test]
fn others_may_write_only_a_sticky_directory() {
    let (_folder, path) = folder();
    let place = path.join("place");
    fs::create_dir(&place).unwrap();
    for mode in [0o770, 0o707, 0o777, 0o720] {
        set_mode(&place, mode);
        let refused = Distrust::Writable(place.clone(), mode);
        assert_eq!(why(TrustedDir::open_shared(&place).unwrap_err()), refused);
        let below = TrustedDir::create(&place.join("below")).unwrap_err();
        assert_eq!(why(below), refused);
    }
    set_mode(&place, 0o1777);
    TrustedDir::open_shared(&place).unwrap();
    TrustedDir::create(&place.join("below")).unwrap();
    let shared = TrustedDir::create(&place).unwrap_err();
    assert_eq!(why(shared), Distrust::Writable(place, 0o1777));
}

#[test]
fn a_directory_that_others_may_write_later_is_noticed() {
    let (_folder, path) = folder();
    let own = TrustedDir::create(&path.join("own")).unwrap();
    own.check_own().unwrap();
    set_mode(own.path(), 0o770);
    own.check_own().unwrap_err();
}

#[test]
fn another_users_directory_leads_nowhere() {
    let (_folder, path) = folder();
    let theirs = path.join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::create_dir(theirs.join("ours")).unwrap();
    if !is_given_away(&theirs) {
        return;
    }
    let refused = Distrust::Owner(theirs.clone(), OTHER);
    for below in ["", "ours", "ours/new", "new", "ours/../ours"] {
        let place = theirs.join(below);
        assert_eq!(why(TrustedDir::create(&place).unwrap_err()), refused);
    }
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
}

#[test]
fn only_trusted_links_are_followed() {
    let (_folder, path) = folder();
    fs::create_dir(path.join("real")).unwrap();
    for (target, link) in [
        (Path::new("real"), "relative"),
        (&path.join("real"), "absolute"),
        (Path::new("../real/../real"), "real/back"),
        (Path::new("relative"), "twice"),
    ] {
        symlink(target, path.join(link)).unwrap();
        let found = TrustedDir::open_shared(&path.join(link)).unwrap();
        assert_eq!(found.path(), path.join("real"), "{link}");
    }
    symlink("round", path.join("round")).unwrap();
    TrustedDir::open_shared(&path.join("round")).unwrap_err();
    let link = path.join("relative");
    if is_given_away(&link) {
        let refused = TrustedDir::open_shared(&path.join("twice")).unwrap_err();
        assert_eq!(why(refused), Distrust::Link(link, OTHER));
    }
}

#[test]
fn a_path_that_changes_has_no_effect_on_what_is_open() {
    let (_folder, path) = folder();
    let own = TrustedDir::create(&path.join("own")).unwrap();
    fs::rename(path.join("own"), path.join("away")).unwrap();
    symlink("/etc", path.join("own")).unwrap();
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(&own, "made", flags, Mode::RUSR).unwrap();
    assert!(path.join("away/made").exists());
}

#[test]
fn only_files_that_nobody_else_may_write_are_read() {
    let (_folder, path) = folder();
    let file = path.join("file");
    fs::write(&file, "text").unwrap();
    for mode in [0o664, 0o646, 0o622] {
        set_mode(&file, mode);
        let refused = why(read_file(&file).unwrap_err());
        assert_eq!(refused, Distrust::Writable(file.clone(), mode));
    }
    set_mode(&file, 0o644);
    symlink("file", path.join("link")).unwrap();
    for name in ["file", "link"] {
        assert_eq!(read_file(&path.join(name)).unwrap(), b"text");
    }
    assert_eq!(
        read_file(&path).unwrap_err().kind(),
        ErrorKind::IsADirectory
    );
    if is_given_away(&file) {
        let refused = why(read_file(&file).unwrap_err());
        assert_eq!(refused, Distrust::Owner(file, OTHER));
    }
}

#[test]
fn a_second_name_matters_where_others_can_make_one() {
    let (_folder, path) = folder();
    let (file, name) = (path.join("file"), path.join("name"));
    fs::write(&file, "text").unwrap();
    fs::hard_link(&file, &name).unwrap();
    read_file(&name).unwrap();
    set_mode(&path, 0o1777);
    assert_eq!(why(read_file(&name).unwrap_err()), Distrust::Names(name));
}

#[test]
fn a_pipe_is_no_file() {
    let (_folder, path) = folder();
    let pipe = path.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert_eq!(why(read_file(&pipe).unwrap_err()), Distrust::Kind(pipe));
}

#[test]
fn files_are_written_anew_and_nobody_elses() {
    let (_folder, path) = folder();
    let file = path.join("file");
    for text in ["a longer text", "short"] {
        write_anew(&file, check_file)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o022, 0);
    let link = path.join("link");
    symlink("file", &link).unwrap();
    write_anew(&link, check_name)
        .unwrap()
        .write_all(b"short")
        .unwrap();
    if is_given_away(&link) {
        let refused = why(write_anew(&link, check_name).unwrap_err());
        assert_eq!(refused, Distrust::Link(link, OTHER));
    }
    symlink("none", path.join("dangling")).unwrap();
    write_anew(&path.join("dangling"), check_name).unwrap_err();
    assert!(!path.join("none").exists());
    write_anew(Path::new("/dev/null"), check_file).unwrap();
    let name = path.join("name");
    fs::hard_link(&file, &name).unwrap();
    assert_eq!(
        why(write_anew(&name, check_name).unwrap_err()),
        Distrust::Names(name.clone())
    );
    fs::remove_file(&name).unwrap();
    if chown(&file, Some(OTHER), None).is_ok() {
        let refused = why(write_anew(&file, check_file).unwrap_err());
        assert_eq!(refused, Distrust::Owner(file.clone(), OTHER));
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "short");
}

#[test]
fn a_descriptors_link_leads_to_what_is_open() {
    let (_folder, path) = folder();
    let file = path.join("file");
    fs::write(&file, "text").unwrap();
    let open = File::open(&file).unwrap();
    let of_descriptor = |fd: i32| PathBuf::from(format!("/proc/self/fd/{fd}"));
    let link = of_descriptor(open.as_raw_fd());
    fs::rename(&file, path.join("away")).unwrap();
    assert_eq!(read_file(&link).unwrap(), b"text");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let pipe = of_descriptor(writer.as_raw_fd());
    write_anew(&pipe, check_file)
        .unwrap()
        .write_all(b"text")
        .unwrap();
    drop(writer);
    assert_eq!(std::io::read_to_string(&mut reader).unwrap(), "text");
    let behind = TrustedDir::open_shared(Path::new("/proc/self/root/tmp")).unwrap_err();
    assert_eq!(behind.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
}

#[test]
fn access_control_lists_count() {
    let (_folder, path) = folder();
    let place = path.join("place");
    fs::create_dir(&place).unwrap();
    set_mode(&place, 0o755);
    // Version 2; then the tag, the rights and the id of each entry.
    let mut list = 2u32.to_le_bytes().to_vec();
    const ANYONE: u32 = u32::MAX;
    for (tag, rights, id) in [
        (0x01u16, 7u16, ANYONE), // the owner
        (0x02, 7, OTHER),        // a user
        (0x04, 5, ANYONE),       // the group
        (0x10, 7, ANYONE),       // the mask
        (0x20, 5, ANYONE),       // others
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_access";
    match rustix::fs::setxattr(&place, name, &list, rustix::fs::XattrFlags::empty()) {
        Err(rustix::io::Errno::NOTSUP) => return,
        other => other.unwrap(),
    }
    let refused = why(TrustedDir::create(&place).unwrap_err());
    assert!(matches!(refused, Distrust::Writable(..)), "{refused}");
}

#[test]
fn no_more_is_read_of_a_file_than_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, [7; 100]).unwrap();
    assert_eq!(read_bounded(&file, 100).unwrap(), [7; 100]);
    for path in [&file, Path::new("/dev/zero")] {
        let error = read_bounded(path, 99).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
        assert!(error.to_string().contains("99 bytes"), "{error}");
    }
}
