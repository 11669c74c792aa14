//! Calls into the C library and libcrypto whose results depend on nothing but their arguments.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::fmt::Write;
use std::ptr::{null, null_mut};

unsafe extern "C" {
    fn ldiv(numerator: c_long, denominator: c_long) -> Quotient;
    fn strcspn(text: *const c_char, reject: *const c_char) -> usize;
    fn strspn(text: *const c_char, accept: *const c_char) -> usize;
    fn strpbrk(text: *const c_char, accept: *const c_char) -> *const c_char;
    fn strtok_r(
        text: *mut c_char,
        delimiters: *const c_char,
        save: *mut *mut c_char,
    ) -> *mut c_char;
    fn lfind(
        key: *const c_void,
        base: *const c_void,
        count: *mut usize,
        size: usize,
        order: Order,
    ) -> *const c_void;
    fn memfrob(data: *mut c_void, len: usize) -> *mut c_void;
    fn a64l(text: *const c_char) -> c_long;
    fn rand_r(seed: *mut u32) -> c_int;
    fn drand48() -> f64;
    fn srand48(seed: c_long);
    fn ecvt(value: f64, digits: c_int, point: *mut c_int, sign: *mut c_int) -> *const c_char;
    fn inet_pton(family: c_int, text: *const c_char, address: *mut c_void) -> c_int;
    fn frexp(value: f64, exponent: *mut c_int) -> f64;
}

/// `ldiv_t`.
#[repr(C)]
#[derive(Debug)]
struct Quotient {
    quotient: c_long,
    remainder: c_long,
}

type Order = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

unsafe extern "C" fn by_value(a: *const c_void, b: *const c_void) -> c_int {
    // SAFETY: called by the functions below on their arrays of `i32`.
    let (a, b) = unsafe { (*a.cast::<i32>(), *b.cast::<i32>()) };
    a.cmp(&b) as c_int
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "null".into();
    }
    // SAFETY: the C library's own strings, or ends of ours.
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned()
}

/// One line for each function of the C library.
pub fn libc_results() -> String {
    let mut out = String::new();
    strings(&mut out);
    buffers(&mut out);
    numbers(&mut out);
    formats(&mut out);
    lists(&mut out);
    out
}

macro_rules! line {
    ($out:expr, $name:expr, $value:expr) => {
        writeln!($out, "{:?}: {:?}", $name, $value).unwrap()
    };
}

fn strings(out: &mut String) {
    let (fox, dog) = (
        c"the quick brown fox, jumps over".as_ptr(),
        c"THE QUICK BROWN DOG".as_ptr(),
    );
    // SAFETY: all arguments are strings, and buffers are longer than what goes into them.
    unsafe {
        line!(out, "strlen", libc::strlen(fox));
        line!(out, "strnlen", libc::strnlen(fox, 7));
        line!(out, "strcmp", libc::strcmp(fox, dog).signum());
        line!(out, "strncmp", libc::strncmp(fox, dog, 0));
        line!(out, "strcasecmp", libc::strcasecmp(fox, dog).signum());
        line!(out, "strncasecmp", libc::strncasecmp(fox, dog, 16));
        line!(out, "strcoll", libc::strcoll(fox, dog).signum());
        line!(out, "strchr", text(libc::strchr(fox, i32::from(b'q'))));
        line!(out, "strrchr", text(libc::strrchr(fox, i32::from(b'o'))));
        line!(out, "strstr", text(libc::strstr(fox, c"fox".as_ptr())));
        line!(
            out,
            "strcasestr",
            text(libc::strcasestr(dog, c"brown".as_ptr()))
        );
        line!(out, "strcspn", strcspn(fox, c"xyz".as_ptr()));
        line!(out, "strspn", strspn(fox, c"eht ".as_ptr()));
        line!(out, "strpbrk", text(strpbrk(fox, c",".as_ptr())));
        let mut copy = [0; 64];
        line!(out, "strcpy", text(libc::strcpy(copy.as_mut_ptr(), fox)));
        line!(out, "strcat", text(libc::strcat(copy.as_mut_ptr(), dog)));
        line!(
            out,
            "strncpy",
            text(libc::strncpy(copy.as_mut_ptr(), dog, 5))
        );
        line!(
            out,
            "stpcpy",
            libc::stpcpy(copy.as_mut_ptr(), dog).offset_from(copy.as_ptr())
        );
        let (mut save, mut parts) = (null_mut(), Vec::new());
        let mut part = strtok_r(copy.as_mut_ptr(), c" ".as_ptr(), &mut save);
        while !part.is_null() {
            parts.push(text(part));
            part = strtok_r(null_mut(), c" ".as_ptr(), &mut save);
        }
        line!(out, "strtok_r", parts);
        let duplicate = libc::strdup(fox);
        line!(out, "strdup", text(duplicate));
        libc::free(duplicate.cast());
        line!(out, "strerror", text(libc::strerror(libc::ENOENT)));
        line!(out, "strsignal", text(libc::strsignal(libc::SIGSEGV)));
    }
}

fn buffers(out: &mut String) {
    for len in [0usize, 1, 15, 64, 300, 5000] {
        let source: Vec<u8> = (0..len).map(|i| (i * 7 + 3) as u8).collect();
        let mut buffer = vec![0u8; len + 32];
        let data = buffer.as_mut_ptr().cast::<c_void>();
        // SAFETY: `buffer` has room for `len` bytes and what they are moved by.
        unsafe {
            libc::memcpy(data, source.as_ptr().cast(), len);
            libc::memmove(data.add(9), data, len);
            line!(
                out,
                "memcmp",
                libc::memcmp(data.add(9), source.as_ptr().cast(), len)
            );
            line!(out, "memchr", !libc::memchr(data, 0xf0, len).is_null());
            line!(out, "memrchr", !libc::memrchr(data, 0xf0, len).is_null());
            memfrob(data, len);
            libc::memset(data.add(len / 2), 0x5a, 5);
            line!(
                out,
                "memmem",
                !libc::memmem(data, len, c"ZZ".as_ptr().cast(), 2).is_null()
            );
        }
        line!(
            out,
            "memory",
            buffer.iter().fold(0u64, |sum, byte| sum
                .wrapping_mul(31)
                .wrapping_add(u64::from(*byte)))
        );
    }
}

fn numbers(out: &mut String) {
    let (mut end, mut point, mut sign, mut exponent, mut seed) = (null_mut(), 0, 0, 0, 42);
    // SAFETY: strings, and places for what comes back.
    unsafe {
        line!(
            out,
            "strtol",
            libc::strtol(c"-123456789012rest".as_ptr(), &mut end, 10)
        );
        line!(out, "strtol's end", text(end));
        line!(
            out,
            "strtoul",
            libc::strtoul(c"0xdeadbeef".as_ptr(), null_mut(), 0)
        );
        line!(
            out,
            "strtod",
            libc::strtod(c"3.14159e10".as_ptr(), null_mut())
        );
        line!(out, "atoi", libc::atoi(c"77".as_ptr()));
        line!(out, "labs", libc::labs(-9));
        line!(out, "ldiv", ldiv(1_000_003, 17));
        line!(
            out,
            "toupper",
            (0..128).map(|c| libc::toupper(c)).collect::<Vec<_>>()
        );
        line!(
            out,
            "isalnum",
            (0..128).filter(|c| libc::isalnum(*c) != 0).count()
        );
        line!(out, "a64l", a64l(c"zzZ9".as_ptr()));
        line!(out, "rand_r", rand_r(&mut seed));
        srand48(7);
        line!(out, "drand48", drand48());
        line!(out, "ecvt", text(ecvt(1234.5678, 6, &mut point, &mut sign)));
        line!(out, "frexp", frexp(1e100, &mut exponent));
        line!(out, "htonl", libc::htonl(0x0102_0304));
    }
}

fn formats(out: &mut String) {
    let mut buffer = [0 as c_char; 200];
    let (mut number, mut word) = (0, [0 as c_char; 16]);
    // SAFETY: arguments match the formats, and the buffer is longer than the longest text.
    unsafe {
        let (format, name) = (c"%s %d %lx %.3f %10s|%-8c|%e %a".as_ptr(), c"bee".as_ptr());
        let len = libc::snprintf(
            buffer.as_mut_ptr(),
            200,
            format,
            name,
            -5,
            0xabcdefu64,
            2.0f64 / 3.0,
            name,
            65,
            1.5e-7f64,
            10.25f64,
        );
        line!(out, "snprintf", (len, text(buffer.as_ptr())));
        let read = libc::sscanf(
            c"19 lines".as_ptr(),
            c"%d %15s".as_ptr(),
            &mut number,
            word.as_mut_ptr(),
        );
        line!(out, "sscanf", (read, number, text(word.as_ptr())));
        let moment = 1_000_000_000;
        let mut date: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&moment, &mut date);
        libc::strftime(
            buffer.as_mut_ptr(),
            200,
            c"%A %Y-%m-%d %H:%M:%S %j".as_ptr(),
            &date,
        );
        line!(out, "strftime", text(buffer.as_ptr()));
        line!(out, "timegm", libc::timegm(&mut date));
        line!(
            out,
            "getenv",
            text(libc::getenv(c"NO_SUCH_VARIABLE".as_ptr()))
        );
        line!(
            out,
            "fnmatch",
            libc::fnmatch(c"*.r[a-z]".as_ptr(), c"hook.rs".as_ptr(), 0)
        );
    }
    regular_expression(out);
    let address = CString::new("192.168.10.255").unwrap();
    let mut raw = 0u32;
    // SAFETY: a place for four bytes.
    unsafe {
        line!(
            out,
            "inet_pton",
            (
                inet_pton(libc::AF_INET, address.as_ptr(), (&raw mut raw).cast()),
                raw
            )
        )
    };
}

fn regular_expression(out: &mut String) {
    // SAFETY: `regex_t` may be zero before it is compiled; one match fits one place.
    unsafe {
        let mut regex: libc::regex_t = std::mem::zeroed();
        let mut matched: libc::regmatch_t = std::mem::zeroed();
        libc::regcomp(
            &mut regex,
            c"([a-z]+)[0-9]{2,}x*$".as_ptr(),
            libc::REG_EXTENDED,
        );
        line!(
            out,
            "regexec",
            libc::regexec(&regex, c"--abc1234xx".as_ptr(), 1, &mut matched, 0)
        );
        line!(out, "match", (matched.rm_so, matched.rm_eo));
        libc::regfree(&mut regex);
    }
}

fn lists(out: &mut String) {
    let mut list: Vec<i32> = (0..500).map(|i| (i * 7919) % 1009).collect();
    let key = 500;
    let mut count = list.len();
    let key_pointer = (&raw const key).cast();
    // SAFETY: `count` elements of four bytes.
    unsafe {
        let found = lfind(key_pointer, list.as_ptr().cast(), &mut count, 4, by_value);
        line!(out, "lfind", found.is_null());
        libc::qsort(list.as_mut_ptr().cast(), list.len(), 4, Some(by_value));
        line!(
            out,
            "qsort",
            (list[0], list[250], list[499], list.is_sorted())
        );
        let found = libc::bsearch(key_pointer, list.as_ptr().cast(), count, 4, Some(by_value));
        line!(out, "bsearch", found.is_null());
        let block = libc::realloc(libc::calloc(100, 3), 70_000);
        line!(out, "realloc", block.cast::<u8>().add(299).read());
        libc::free(block);
    }
}

/// A loaded libcrypto.
pub struct Crypto(*mut c_void);

impl Crypto {
    pub fn load() -> Option<Self> {
        // SAFETY: loads a library that has no odd constructors.
        let library = unsafe { libc::dlopen(c"libcrypto.so.3".as_ptr(), libc::RTLD_NOW) };
        (!library.is_null()).then_some(Self(library))
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is never closed.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address
    }

    /// One line for each function called.
    pub fn results(&self) -> String {
        let mut out = String::new();
        self.digests(&mut out);
        self.big_numbers(&mut out);
        out
    }

    fn digests(&self, out: &mut String) {
        type Digest = extern "C" fn(*const u8, usize, *mut u8) -> *mut u8;
        type Method = extern "C" fn() -> *const c_void;
        type Hmac = extern "C" fn(
            *const c_void,
            *const u8,
            c_int,
            *const u8,
            usize,
            *mut u8,
            *mut u32,
        ) -> *mut u8;
        let data: Vec<u8> = (0..10_000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for name in [c"SHA1", c"SHA224", c"SHA256", c"SHA384", c"SHA512", c"MD5"] {
            let mut digest = [0; 64];
            // SAFETY: OpenSSL's one-shot digests have this signature.
            let function = unsafe { std::mem::transmute::<*mut c_void, Digest>(self.symbol(name)) };
            function(data.as_ptr(), data.len(), digest.as_mut_ptr());
            line!(out, name, digest);
        }
        for name in [c"EVP_sha256", c"EVP_sha3_512", c"EVP_blake2b512"] {
            let (mut code, mut len) = ([0; 64], 0);
            // SAFETY: OpenSSL's signatures.
            let (method, hmac) = unsafe {
                (
                    std::mem::transmute::<*mut c_void, Method>(self.symbol(name)),
                    std::mem::transmute::<*mut c_void, Hmac>(self.symbol(c"HMAC")),
                )
            };
            hmac(
                method(),
                c"key".as_ptr().cast(),
                3,
                data.as_ptr(),
                data.len(),
                code.as_mut_ptr(),
                &mut len,
            );
            line!(out, name, (len, code));
        }
    }

    fn big_numbers(&self, out: &mut String) {
        type New = extern "C" fn() -> *mut c_void;
        type Parse = extern "C" fn(*mut *mut c_void, *const c_char) -> c_int;
        type Power = extern "C" fn(
            *mut c_void,
            *const c_void,
            *const c_void,
            *const c_void,
            *mut c_void,
        ) -> c_int;
        type Print = extern "C" fn(*const c_void) -> *const c_char;
        // SAFETY: OpenSSL's signatures.
        let (new, context, parse, power, print) = unsafe {
            (
                std::mem::transmute::<*mut c_void, New>(self.symbol(c"BN_new")),
                std::mem::transmute::<*mut c_void, New>(self.symbol(c"BN_CTX_new")),
                std::mem::transmute::<*mut c_void, Parse>(self.symbol(c"BN_dec2bn")),
                std::mem::transmute::<*mut c_void, Power>(self.symbol(c"BN_mod_exp")),
                std::mem::transmute::<*mut c_void, Print>(self.symbol(c"BN_bn2hex")),
            )
        };
        let number = |digits: &CStr| {
            let mut number = null_mut();
            parse(&mut number, digits.as_ptr());
            number
        };
        let modulus = number(c"170141183460469231731687303715884105727618970019642690137449562111");
        let (base, exponent) = (
            number(c"65537000000000000000000000000000000001"),
            number(c"99999999999999999999977"),
        );
        let result = new();
        line!(
            out,
            "BN_mod_exp",
            power(result, base.cast_const(), exponent, modulus, context())
        );
        line!(out, "BN_bn2hex", text(print(result)));
        assert_ne!(result.cast_const(), null());
    }
}
