//! The settings that the proxy can change. The record names these and no paths, so that `--cleanup`,
//! which runs as root, writes to no other file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Directory of the conntrack sysctls.
const ROOT: &str = "/proc/sys/net/netfilter";
/// Writable only in the initial network namespace.
const HASHSIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// A setting of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Setting {
    /// Maximum number of flows.
    #[serde(rename = "nf_conntrack_max")]
    Max,
    /// Number of buckets of the conntrack table.
    #[serde(rename = "hashsize")]
    Buckets,
    /// Idle timeout of established TCP flows.
    #[serde(rename = "nf_conntrack_tcp_timeout_established")]
    TcpEstablished,
    /// Idle timeout of TCP flows in CLOSE_WAIT.
    #[serde(rename = "nf_conntrack_tcp_timeout_close_wait")]
    TcpCloseWait,
    /// Whether conntrack accepts TCP packets outside the window.
    #[serde(rename = "nf_conntrack_tcp_be_liberal")]
    TcpBeLiberal,
    /// Idle timeout of UDP flows without an answer.
    #[serde(rename = "nf_conntrack_udp_timeout")]
    Udp,
    /// Idle timeout of UDP flows with answers.
    #[serde(rename = "nf_conntrack_udp_timeout_stream")]
    UdpStream,
}

/// Where the kernel has the settings.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Directory of the sysctls.
    pub(super) root: PathBuf,
    /// File of the number of buckets.
    pub(super) hashsize: PathBuf,
}

impl Places {
    pub(super) fn kernel() -> Self {
        Self { root: ROOT.into(), hashsize: HASHSIZE.into() }
    }

    /// The file of a setting.
    pub(super) fn path(&self, setting: Setting) -> PathBuf {
        let name = match setting {
            Setting::Buckets => return self.hashsize.clone(),
            Setting::Max => "nf_conntrack_max",
            Setting::TcpEstablished => "nf_conntrack_tcp_timeout_established",
            Setting::TcpCloseWait => "nf_conntrack_tcp_timeout_close_wait",
            Setting::TcpBeLiberal => "nf_conntrack_tcp_be_liberal",
            Setting::Udp => "nf_conntrack_udp_timeout",
            Setting::UdpStream => "nf_conntrack_udp_timeout_stream",
        };
        self.root.join(name)
    }
}

/// The name as sysctl(8) has it; a module's parameter has only its path.
pub(super) fn name_of(path: &Path) -> String {
    match path.strip_prefix("/proc/sys") {
        Ok(name) => name.display().to_string().replace('/', "."),
        Err(_) => path.display().to_string(),
    }
}
