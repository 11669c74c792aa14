//! Abstract values: what is known of a register, or of some bytes of the stack.

use std::rc::Rc;

/// A set of maps, by their numbers in the analysis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MapSet(u64);

impl MapSet {
    /// The number of maps that an analysis can tell apart.
    pub const LIMIT: usize = 64;

    pub fn one(map: usize) -> Self {
        Self(1 << map)
    }

    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn has(self, map: usize) -> bool {
        self.0 >> map & 1 != 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::LIMIT).filter(move |&map| self.has(map))
    }
}

/// The origin of an unknown value.
///
/// Two values of one origin are equal: when an instruction runs again, what it made before becomes
/// [`Def::Stale`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Def {
    /// A register as a function found it.
    Entry(u8),
    /// The result of an instruction.
    Insn(usize),
    /// Memory that a helper filled.
    Buffer(usize),
    /// Different values met at an instruction, in the given place.
    Join(usize, Where),
    /// Unknown; equal to nothing.
    Stale,
}

/// A place for a value in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    Reg(u8),
    Slot(i32),
}

impl Def {
    /// Returns the instruction at which the value came into being; `None` if that is unknown.
    pub fn site(self) -> Option<Site> {
        match self {
            Self::Entry(_) => Some(Site::Entry),
            Self::Insn(at) | Self::Buffer(at) | Self::Join(at, _) => Some(Site::At(at)),
            Self::Stale => None,
        }
    }

    pub fn is(self, other: Self) -> bool {
        self == other && self != Self::Stale
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    Entry,
    At(usize),
}

/// A key's bytes, in pieces: offset, length and content of each.
pub(super) type Key = Rc<Vec<(i32, u32, Piece)>>;

/// The content of a piece of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Const(u64),
    Id(Id),
    /// A value of this origin, from its lowest byte on.
    Def(Def),
    /// None: the map has one value, which the program addresses directly.
    Direct,
}

/// The thread's or the process's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id {
    /// As `bpf_get_current_pid_tgid` returns both.
    Both,
    /// The one or the other alone, in 32 bits.
    One(OneId),
    /// The same in the high half of 64 bits, above zeros.
    High(OneId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OneId {
    Thread,
    Process,
}

/// An element of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub map: usize,
    /// The look-up that found it.
    pub site: Option<usize>,
    /// Its key.
    pub key: Option<Key>,
}

impl Place {
    /// Returns whether both are known to be the same element.
    pub fn is(&self, other: &Self) -> bool {
        self.map == other.map
            && (self.site.is_some() && self.site == other.site
                || self.key.is_some() && self.key == other.key)
    }

    /// Returns what is true of both.
    pub fn common(&self, other: &Self) -> Self {
        Self {
            map: self.map,
            site: self.site.filter(|_| self.site == other.site),
            key: self.key.clone().filter(|_| self.key == other.key),
        }
    }

    pub fn forget(&mut self, is_old: impl Fn(Def) -> bool) {
        if self.site.is_some_and(|site| is_old(Def::Insn(site))) {
            self.site = None;
        }
        let old =
            |(_, _, piece): &(i32, u32, Piece)| matches!(*piece, Piece::Def(def) if is_old(def));
        if self.key.as_ref().is_some_and(|key| key.iter().any(old)) {
            self.key = None;
        }
    }
}

/// A distance from the start of a map's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offset {
    At(i64),
    /// `base` and some multiple of `stride`.
    Some {
        base: i64,
        stride: u64,
        def: Def,
    },
}

/// A word of an element as it was when the program loaded it, and something added to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    pub place: Place,
    pub offset: Offset,
    /// 4 or 8; what is above so many bytes has no meaning.
    pub size: u8,
    pub plus: Addend,
    /// The origin of the value itself.
    pub def: Def,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addend {
    Const(u64),
    Def(Def),
}

impl Offset {
    pub fn is(self, other: Self) -> bool {
        match self {
            Self::At(_) => self == other,
            Self::Some { def, .. } => self == other && def != Def::Stale,
        }
    }
}

impl Sum {
    /// Returns its low half, as a value of this origin.
    pub fn named(&self, def: Def) -> Kind {
        Kind::Sum(Self {
            def,
            ..self.clone()
        })
    }

    fn is(&self, other: &Self) -> bool {
        let same_plus = match (self.plus, other.plus) {
            (Addend::Def(one), Addend::Def(two)) => one.is(two),
            (one, two) => one == two,
        };
        self.place.is(&other.place)
            && self.offset.is(other.offset)
            && self.size == other.size
            && same_plus
    }
}

/// The possibility that a pointer to an element is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Null {
    Never,
    /// Only if there was no room for the element.
    NoRoom,
    /// If there is no such element.
    Missing,
    /// If there was no such element. One may have been created since.
    WasMissing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Unknown(Def),
    Const(u64),
    Id(Id),
    /// The frame pointer, and so many bytes; `None` if they are unknown.
    Frame(Option<i32>),
    /// A map itself.
    Map(usize),
    /// A pointer into an element's value.
    Element {
        place: Place,
        offset: Offset,
        null: Null,
    },
    Sum(Sum),
    /// The result of an update that fails only if there is no room.
    Done {
        map: usize,
        site: usize,
    },
}

/// A value as far as it is known, and the maps that it depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub kind: Kind,
    /// The maps on whose contents it depends; for [`Kind::Sum`], apart from that word.
    pub taint: MapSet,
    /// The maps into whose elements it may point, if the kind does not say it.
    pub elements: MapSet,
    /// The maps that it may be, if the kind does not say it.
    pub handles: MapSet,
    /// The number of low bits that are zero, for [`Kind::Unknown`].
    pub zeros: u32,
}

impl Value {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            taint: MapSet::default(),
            elements: MapSet::default(),
            handles: MapSet::default(),
            zeros: 0,
        }
    }

    pub fn unknown(def: Def) -> Self {
        Self::new(Kind::Unknown(def))
    }

    pub fn constant(value: u64) -> Self {
        Self::new(Kind::Const(value))
    }

    pub fn as_const(&self) -> Option<u64> {
        match self.kind {
            Kind::Const(value) => Some(value),
            _ => None,
        }
    }

    /// Returns every map on whose contents it depends.
    pub fn all_taint(&self) -> MapSet {
        match &self.kind {
            Kind::Sum(sum) => self.taint.with(MapSet::one(sum.place.map)),
            _ => self.taint,
        }
    }

    pub fn all_elements(&self) -> MapSet {
        match &self.kind {
            Kind::Element { place, .. } => self.elements.with(MapSet::one(place.map)),
            _ => self.elements,
        }
    }

    pub fn all_handles(&self) -> MapSet {
        match self.kind {
            Kind::Map(map) => self.handles.with(MapSet::one(map)),
            _ => self.handles,
        }
    }

    /// Returns the origin, to compare values by.
    pub fn def(&self) -> Option<Def> {
        match &self.kind {
            Kind::Unknown(def) => Some(*def),
            Kind::Sum(sum) => Some(sum.def),
            Kind::Done { site, .. } => Some(Def::Insn(*site)),
            _ => None,
        }
    }

    /// Returns this value as a piece of a key.
    pub fn piece(&self) -> Option<Piece> {
        match (&self.kind, self.def()) {
            (_, Some(def)) => (def != Def::Stale).then_some(Piece::Def(def)),
            (Kind::Const(value), _) => Some(Piece::Const(*value)),
            (Kind::Id(id), _) => Some(Piece::Id(*id)),
            _ => None,
        }
    }

    /// Returns an unknown value that depends on this one and on another.
    pub fn mix(&self, other: &Self, def: Def) -> Self {
        Self {
            kind: Kind::Unknown(def),
            taint: self.all_taint().with(other.all_taint()),
            elements: self.all_elements().with(other.all_elements()),
            handles: self.all_handles().with(other.all_handles()),
            zeros: 0,
        }
    }

    /// Returns an unknown value that depends on this one.
    pub fn blurred(&self, def: Def) -> Self {
        self.mix(self, def)
    }

    pub fn low_zeros(&self) -> u32 {
        match self.kind {
            Kind::Const(value) => value.trailing_zeros(),
            Kind::Unknown(_) => self.zeros,
            _ => 0,
        }
    }

    /// Returns what is known if the value is one of two.
    pub fn join(&self, other: &Self, def: Def) -> Self {
        let mut joined = self.mix(other, def);
        joined.zeros = self.low_zeros().min(other.low_zeros());
        if self.kind == other.kind {
            joined.kind = self.kind.clone();
            joined.taint = self.taint.with(other.taint);
            joined.elements = self.elements.with(other.elements);
            joined.handles = self.handles.with(other.handles);
            return joined;
        }
        match (&self.kind, &other.kind) {
            (Kind::Frame(_), Kind::Frame(_)) => joined.kind = Kind::Frame(None),
            (
                Kind::Element {
                    place,
                    offset,
                    null,
                },
                Kind::Element {
                    place: place2,
                    offset: offset2,
                    null: null2,
                },
            ) if place.map == place2.map && offset == offset2 => {
                joined.kind = Kind::Element {
                    place: place.common(place2),
                    offset: *offset,
                    null: (*null).max(*null2),
                };
                joined.elements = self.elements.with(other.elements);
            }
            (Kind::Sum(sum), Kind::Sum(sum2)) if sum.is(sum2) => {
                joined.kind = Kind::Sum(Sum {
                    place: sum.place.common(&sum2.place),
                    def: if sum.def == sum2.def {
                        sum.def
                    } else {
                        Def::Stale
                    },
                    ..sum.clone()
                });
                joined.taint = self.taint.with(other.taint);
            }
            _ => {}
        }
        joined
    }

    /// Returns whether it makes no difference which of the two it is.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Sum(sum), Kind::Sum(sum2)) => sum.is(sum2),
            (
                Kind::Element {
                    place,
                    offset,
                    null,
                },
                Kind::Element {
                    place: place2,
                    offset: offset2,
                    null: null2,
                },
            ) => place.is(place2) && offset.is(*offset2) && null == null2,
            (kind, kind2) => kind == kind2,
        }
    }

    /// Makes origins stale.
    pub fn forget(&mut self, is_old: impl Fn(Def) -> bool + Copy) {
        let stale = |def: &mut Def| {
            if is_old(*def) {
                *def = Def::Stale;
            }
        };
        let stale_offset = |offset: &mut Offset| {
            if let Offset::Some { def, .. } = offset {
                stale(def);
            }
        };
        match &mut self.kind {
            Kind::Unknown(def) => stale(def),
            Kind::Done { site, .. } if is_old(Def::Insn(*site)) => {
                self.kind = Kind::Unknown(Def::Stale)
            }
            Kind::Element { place, offset, .. } => {
                place.forget(is_old);
                stale_offset(offset);
            }
            Kind::Sum(sum) => {
                sum.place.forget(is_old);
                stale_offset(&mut sum.offset);
                stale(&mut sum.def);
                if let Addend::Def(def) = &mut sum.plus {
                    stale(def);
                }
            }
            _ => {}
        }
    }

    /// Returns whether it came into being, or was chosen, at one of these instructions.
    ///
    /// `at` is the element whose existence was in question there.
    pub fn is_made(&self, within: impl Fn(Def) -> bool + Copy, at: &Place) -> bool {
        let other = |place: &Place| {
            let made_key = |key: &Key| {
                let made = |(_, _, piece): &(i32, u32, Piece)| matches!(*piece, Piece::Def(def) if within(def));
                key.iter().any(made)
            };
            let made = match (place.site, &place.key) {
                (Some(site), _) => within(Def::Insn(site)),
                (None, Some(key)) => made_key(key),
                (None, None) => true,
            };
            made && !place.is(at)
        };
        let chosen = |offset: &Offset| matches!(*offset, Offset::Some { def, .. } if within(def));
        match &self.kind {
            Kind::Unknown(def) => within(*def),
            Kind::Done { site, .. } => within(Def::Insn(*site)),
            Kind::Frame(to) => to.is_none(),
            Kind::Element { place, offset, .. } => other(place) || chosen(offset),
            Kind::Sum(sum) => {
                other(&sum.place)
                    || chosen(&sum.offset)
                    || matches!(sum.plus, Addend::Def(def) if within(def))
            }
            Kind::Const(_) | Kind::Id(_) | Kind::Map(_) => false,
        }
    }
}
