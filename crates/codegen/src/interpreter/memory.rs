//! The memory that a program may reach: spans, found by address.

/// The bytes of stack of a function.
pub(super) const FRAME_BYTES: u64 = beeline_isa::STACK_BYTES.unsigned_abs() as u64;

/// Memory that exists while the program runs, or until [`Memory::forget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u64,
    pub bytes: u64,
    pub writable: bool,
    pub what: What,
}

/// The kind of memory in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Context,
    /// A value of the map with this handle.
    Value(u64),
    /// A record of a ring buffer that the program has reserved.
    Record,
    /// Memory of the dynptr at this address.
    Part(u64),
    /// Memory that a callback was given, so many frames deep.
    Given(usize),
}

impl Span {
    const NONE: Self = Self {
        start: 0,
        bytes: 0,
        writable: false,
        what: What::Context,
    };

    #[inline(always)]
    fn holds(&self, address: u64, bytes: u64) -> bool {
        let at = address.wrapping_sub(self.start);
        at < self.bytes && bytes <= self.bytes - at
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// The spans of one run.
#[derive(Debug)]
pub(super) struct Memory {
    /// The span from the bottom of the current function's frame to the top of the first one's.
    stack: Span,
    context: Span,
    /// The last used of the other spans.
    recent: Span,
    /// The other spans by their starts.
    others: Vec<Span>,
    /// The bytes of the longest of them that ever existed.
    longest: u64,
}

impl Memory {
    /// Returns the memory of a program with a stack that ends at `stack_top`, before it runs.
    pub fn new(stack_top: u64, context: u64, context_bytes: u64) -> Self {
        Self {
            stack: Span {
                start: stack_top.wrapping_sub(FRAME_BYTES),
                bytes: FRAME_BYTES,
                writable: true,
                ..Span::NONE
            },
            context: Span {
                start: context,
                bytes: context_bytes,
                writable: true,
                what: What::Context,
            },
            recent: Span::NONE,
            others: Vec::new(),
            longest: 0,
        }
    }

    /// Enters a function: its frame is the next one down.
    pub fn push_frame(&mut self) {
        self.stack.start = self.stack.start.wrapping_sub(FRAME_BYTES);
        self.stack.bytes += FRAME_BYTES;
    }

    /// Leaves a function.
    pub fn pop_frame(&mut self) {
        self.stack.start = self.stack.start.wrapping_add(FRAME_BYTES);
        self.stack.bytes -= FRAME_BYTES;
    }

    /// Returns the lowest address of the current frame.
    pub fn frame(&self) -> u64 {
        self.stack.start
    }

    /// Returns whether the program may access all of these bytes.
    #[inline(always)]
    pub fn allows<const WRITE: bool>(&mut self, address: u64, bytes: u64) -> bool {
        self.stack.holds(address, bytes)
            || self.context.holds(address, bytes)
            || (self.recent.holds(address, bytes) && (!WRITE || self.recent.writable))
            || self.allows_other::<WRITE>(address, bytes)
    }

    #[cold]
    fn allows_other<const WRITE: bool>(&mut self, address: u64, bytes: u64) -> bool {
        match self.span_of(address, bytes) {
            Some(span) => {
                self.recent = span;
                !WRITE || span.writable
            }
            None => false,
        }
    }

    /// Returns the span, other than stack and context, that contains these bytes.
    pub fn span_of(&self, address: u64, bytes: u64) -> Option<Span> {
        let behind = self.others.partition_point(|span| span.start <= address);
        self.others[..behind]
            .iter()
            .rev()
            .take_while(|span| span.start.saturating_add(self.longest) > address)
            .find(|span| span.holds(address, bytes))
            .copied()
    }

    /// Returns whether all of this is on the stack.
    pub fn is_stack(&self, address: u64, bytes: u64) -> bool {
        self.stack.holds(address, bytes)
    }

    /// Returns how many bytes may be read from an address on.
    pub fn readable_from(&mut self, address: u64) -> u64 {
        let span = [self.stack, self.context]
            .into_iter()
            .find(|span| span.holds(address, 1))
            .or_else(|| self.span_of(address, 1));
        span.map_or(0, |span| span.end() - address)
    }

    /// Lets the program reach more memory. A span that is added twice exists once.
    pub fn add(&mut self, span: Span) {
        if span.bytes == 0 {
            return;
        }
        self.longest = self.longest.max(span.bytes);
        let at = self
            .others
            .partition_point(|other| (other.start, other.bytes) < (span.start, span.bytes));
        match self.others.get_mut(at) {
            Some(other) if (other.start, other.bytes) == (span.start, span.bytes) => *other = span,
            _ => self.others.insert(at, span),
        }
        self.recent = span;
    }

    /// Removes the spans of this kind from the program's reach.
    pub fn forget(&mut self, is_gone: impl Fn(&Span) -> bool) {
        self.others.retain(|span| !is_gone(span));
        self.recent = Span::NONE;
    }
}
