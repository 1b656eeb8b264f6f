//! Response codes.

/// A response code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rcode(pub(crate) u16);

impl Rcode {
    pub(crate) const NO_ERROR: Self = Self(0);
    pub(crate) const FORM_ERR: Self = Self(1);
    pub(crate) const SERV_FAIL: Self = Self(2);
    pub(crate) const NX_DOMAIN: Self = Self(3);
    pub(crate) const NOT_IMP: Self = Self(4);
    pub(crate) const REFUSED: Self = Self(5);
    pub(crate) const BAD_VERS: Self = Self(16);

    /// The four bits in the header.
    pub(super) fn low(self) -> u8 {
        (self.0 & 0x0f) as u8
    }

    /// The eight bits in the OPT record.
    pub(super) fn high(self) -> u8 {
        (self.0 >> 4) as u8
    }

    /// NXDOMAIN is not an error: search lists cause it all the time.
    pub(crate) fn is_error(self) -> bool {
        self != Self::NO_ERROR && self != Self::NX_DOMAIN
    }

    /// The name in metrics.
    pub(crate) fn as_str(self) -> &'static str {
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
