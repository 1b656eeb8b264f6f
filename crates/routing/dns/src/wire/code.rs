//! Response codes.

/// A response code, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rcode(pub u16);

impl Rcode {
    /// The question was answered, if only by saying that there is nothing.
    pub const NO_ERROR: Self = Self(0);
    /// The question could not be read.
    pub const FORM_ERR: Self = Self(1);
    /// It could not be answered.
    pub const SERV_FAIL: Self = Self(2);
    /// There is no such name.
    pub const NX_DOMAIN: Self = Self(3);
    /// That kind of message is not answered.
    pub const NOT_IMP: Self = Self(4);
    /// It will not be answered.
    pub const REFUSED: Self = Self(5);
    /// A version of EDNS that is not spoken here.
    pub const BAD_VERS: Self = Self(16);

    /// The four bits in the header.
    pub(super) fn low(self) -> u8 {
        (self.0 & 0x0f) as u8
    }

    /// The eight bits in the OPT record.
    pub(super) fn high(self) -> u8 {
        (self.0 >> 4) as u8
    }

    /// Whether it says that something went wrong. A name that is not there is no error: search
    /// lists live on it.
    pub fn is_error(self) -> bool {
        self != Self::NO_ERROR && self != Self::NX_DOMAIN
    }

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self.0 {
            0 => "NOERROR",
            1 => "FORMERR",
            2 => "SERVFAIL",
            3 => "NXDOMAIN",
            4 => "NOTIMP",
            5 => "REFUSED",
            6 => "YXDOMAIN",
            7 => "YXRRSET",
            8 => "NXRRSET",
            9 => "NOTAUTH",
            10 => "NOTZONE",
            16 => "BADVERS",
            _ => "other",
        }
    }
}
