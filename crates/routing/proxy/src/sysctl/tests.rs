//! Tests on files instead of the kernel's.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::time::Instant;

use super::restore::restore_at;
use super::*;

fn limits(max_per_core: u32) -> ConntrackLimits {
    ConntrackLimits {
        max_per_core,
        min: 131_072,
        tcp_established: Duration::from_secs(86_400),
        tcp_close_wait: Duration::ZERO,
        tcp_be_liberal: false,
        udp: Duration::ZERO,
        udp_stream: Duration::from_secs(5),
    }
}

#[test]
fn the_limit_depends_on_the_cores_within_bounds() {
    let max = |per_core, cores| settings(&limits(per_core), cores)[0];
    assert_eq!(max(32_768, 2), (Setting::Max, 131_072));
    assert_eq!(max(32_768, 8), (Setting::Max, 262_144));
    assert_eq!(max(32_768, 64), (Setting::Max, 1_048_576));
}

#[test]
fn zero_keeps_the_value_of_the_kernel() {
    let set: Vec<Setting> = settings(&limits(0), 8).into_iter().map(|(one, _)| one).collect();
    assert_eq!(set, [Setting::TcpEstablished, Setting::UdpStream]);
}

/// A directory with the files of the kernel, and the proxies' state.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with_udp(value: u64) -> Self {
        let machine = Self::new();
        machine.put(Setting::Udp, value);
        machine
    }

    fn places(&self) -> Places {
        Places { root: self.0.path().to_owned(), hashsize: self.0.path().join("hashsize") }
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn put(&self, setting: Setting, value: u64) {
        fs::write(self.places().path(setting), value.to_string()).unwrap();
    }

    fn get(&self, setting: Setting) -> Option<u64> {
        read(&self.places().path(setting))
    }

    /// Starts the proxy of this table.
    fn apply(&self, table: &str, settings: &[(Setting, u64)]) {
        let sysctls = Sysctls {
            places: self.places(),
            settings: settings.to_vec(),
            state: self.state(),
            table: table.to_owned(),
        };
        sysctls.apply();
    }

    /// Runs `--cleanup` for this table.
    fn restore(&self, table: &str) -> Result<Vec<String>, RecordError> {
        let done = restore_at(&self.places(), &self.state(), table)?;
        let place = format!("{}/", self.0.path().display());
        let names =
            |one: &Restored| one.to_string().replace(&place, "").replace("nf_conntrack_", "");
        Ok(done.iter().map(names).collect())
    }

    /// The file with the changes.
    fn record(&self) -> PathBuf {
        let files = fs::read_dir(self.state()).unwrap();
        let mut paths = files.map(|file| file.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|it| it == "json")).expect("a record")
    }
}

#[test]
fn buckets_increase_with_the_limit_and_never_decrease() {
    let machine = Machine::new();
    machine.put(Setting::Max, 65_536);
    machine.put(Setting::Buckets, 16_384);
    machine.apply("nearhop", &[(Setting::Max, 262_144)]);
    let values = || (machine.get(Setting::Max), machine.get(Setting::Buckets));
    assert_eq!(values(), (Some(262_144), Some(65_536)));
    // The number of buckets is never lowered.
    machine.put(Setting::Buckets, 131_072);
    machine.apply("nearhop", &[(Setting::Max, 131_072)]);
    assert_eq!(values(), (Some(262_144), Some(131_072)));
    // Where the limit cannot be set, the buckets stay as they are.
    machine.put(Setting::Buckets, 16);
    let elsewhere = Sysctls {
        places: Places { root: machine.0.path().join("nowhere"), ..machine.places() },
        settings: vec![(Setting::Max, 131_072)],
        state: machine.state(),
        table: "nearhop".to_owned(),
    };
    elsewhere.apply();
    assert_eq!(machine.get(Setting::Buckets), Some(16));
}

#[test]
fn cleanup_restores_the_values_from_before_the_first_of_several_starts() {
    let machine = Machine::with_udp(30);
    for value in [120, 120, 90] {
        machine.apply("nearhop", &[(Setting::Udp, value)]);
    }
    assert_eq!(machine.restore("nearhop").unwrap(), ["restored udp_timeout from 90 to 30"]);
    assert_eq!(machine.get(Setting::Udp), Some(30));
    assert!(machine.restore("nearhop").unwrap().is_empty(), "it restores once");
}

#[test]
fn cleanup_keeps_and_names_a_value_that_was_changed_since() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    machine.put(Setting::Udp, 77);
    let wanted = "kept udp_timeout at 77: it was changed after nearhop set it to 120 (before: 30)";
    assert_eq!(machine.restore("nearhop").unwrap(), [wanted]);
    assert_eq!(machine.get(Setting::Udp), Some(77));
    // A start after that change restores that value.
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    machine.put(Setting::Udp, 55);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    assert_eq!(machine.restore("nearhop").unwrap(), ["restored udp_timeout from 120 to 55"]);
}

#[test]
fn the_last_of_several_tables_restores() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    machine.apply("mine", &[(Setting::Udp, 120)]);
    let first = machine.restore("nearhop").unwrap();
    assert_eq!(first, ["kept udp_timeout: the proxy of table mine has set it too"]);
    assert_eq!(machine.restore("mine").unwrap(), ["restored udp_timeout from 120 to 30"]);
}

#[test]
fn cleanup_keeps_a_limit_that_the_smaller_limit_of_another_table_needs() {
    let machine = Machine::new();
    machine.put(Setting::Max, 65_536);
    machine.put(Setting::Buckets, 16_384);
    machine.apply("large", &[(Setting::Max, 262_144)]);
    machine.apply("small", &[(Setting::Max, 131_072)]);
    let first = machine.restore("large").unwrap();
    let kept = |name| format!("kept {name}: the proxy of table small has set it too");
    assert_eq!(first, [kept("max"), kept("hashsize")]);
    assert_eq!(machine.get(Setting::Max), Some(262_144));
    let last = ["restored max from 262144 to 65536", "restored hashsize from 65536 to 16384"];
    assert_eq!(machine.restore("small").unwrap(), last);
}

#[test]
fn a_damaged_record_is_reported_and_not_overwritten() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    let record = machine.record();
    fs::write(&record, "{").unwrap();
    machine.apply("nearhop", &[(Setting::Udp, 90)]);
    assert_eq!(machine.get(Setting::Udp), Some(90));
    assert_eq!(fs::read_to_string(&record).unwrap(), "{");
    let error = machine.restore("nearhop").unwrap_err().to_string();
    assert!(error.contains("is damaged") && error.contains("delete the file"), "{error}");
    assert_eq!(machine.get(Setting::Udp), Some(90));
}

#[test]
fn cleanup_writes_to_no_file_that_a_record_names() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    let victim = machine.0.path().join("victim");
    fs::write(&victim, "1").unwrap();
    for name in [victim.display().to_string(), "../victim".to_owned(), "victim".to_owned()] {
        let changes = serde_json::json!({name: {"from": 2, "to": 1, "tables": ["nearhop"]}});
        fs::write(machine.record(), changes.to_string()).unwrap();
        let error = machine.restore("nearhop").unwrap_err().to_string();
        assert!(error.contains("is damaged"), "{error}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "1");
    }
}

#[test]
fn a_directory_that_other_users_can_write_to_is_refused() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    let mode = |mode| fs::set_permissions(machine.state(), Permissions::from_mode(mode)).unwrap();
    for open in [0o777, 0o1777, 0o770] {
        mode(open);
        let error = machine.restore("nearhop").unwrap_err().to_string();
        assert!(error.contains(&format!("has mode {open:o}")), "{error}");
        assert!(error.contains("chmod 700"), "{error}");
        assert_eq!(machine.get(Setting::Udp), Some(120));
    }
    mode(0o755);
    assert_eq!(machine.restore("nearhop").unwrap(), ["restored udp_timeout from 120 to 30"]);
    // The sysctls are set without a record.
    mode(0o777);
    machine.apply("nearhop", &[(Setting::Udp, 90)]);
    assert_eq!(machine.get(Setting::Udp), Some(90));
    mode(0o755);
    assert!(machine.restore("nearhop").unwrap().is_empty());
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let machine = Machine::new();
    fs::create_dir(machine.state()).unwrap();
    if chown(machine.state(), Some(1), None).is_err() {
        return nearhop_skip::skip("only root can change the owner of a directory");
    }
    let error = machine.restore("nearhop").unwrap_err().to_string();
    assert!(error.contains("belongs to the user with UID 1,"), "{error}");
}

#[test]
fn a_link_is_not_followed_and_the_record_is_private() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    let record = machine.record();
    let victim = machine.0.path().join("victim");
    fs::write(&victim, "1").unwrap();
    symlink(&victim, record.with_extension("json.new")).unwrap();
    machine.apply("nearhop", &[(Setting::Udp, 90)]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "1");
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&record), mode(&machine.state())), (0o600, 0o700));
    assert_eq!(mode(&machine.state().join("lock")), 0o600);
    // The directory itself may not be a link either.
    fs::rename(machine.state(), machine.0.path().join("real")).unwrap();
    symlink(machine.0.path().join("real"), machine.state()).unwrap();
    let error = machine.restore("nearhop").unwrap_err().to_string();
    assert!(error.contains("is a symbolic link"), "{error}");
}

/// All users that may read the directory can lock it.
#[test]
fn a_lock_on_the_directory_delays_nothing() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    let directory = fs::File::open(machine.state()).unwrap();
    directory.lock().unwrap();
    assert_eq!(machine.restore("nearhop").unwrap(), ["restored udp_timeout from 120 to 30"]);
}

#[test]
fn a_lock_that_is_not_released_is_an_error_after_seconds() {
    let machine = Machine::with_udp(30);
    machine.apply("nearhop", &[(Setting::Udp, 120)]);
    let lock = fs::File::open(machine.state().join("lock")).unwrap();
    lock.lock().unwrap();
    let began = Instant::now();
    let error = machine.restore("nearhop").unwrap_err().to_string();
    assert!(error.contains("another process has locked") && error.contains("fuser"), "{error}");
    assert!(began.elapsed() >= Duration::from_secs(3));
    drop(lock);
    assert_eq!(machine.restore("nearhop").unwrap(), ["restored udp_timeout from 120 to 30"]);
}
