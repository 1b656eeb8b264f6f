//! DNS questions of case files: the question of a row, the cluster, and the settings. `conform`
//! answers them; tests of the DNS server send them.

mod fixture;

use nearhop_core::World;
use nearhop_core::answer::{AskedName, Config, Question, RecordType, Synced};
use serde_json::Value;

use crate::check::Check;
use crate::read::{CaseError, Field, parse_file};

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// The cluster.
    pub world: World,
    /// The server's settings.
    pub config: Config,
    /// Serial of the zones.
    pub serial: u32,
    /// Whether the initial lists of the server are complete.
    pub synced: Synced,
    /// The question.
    pub question: Question,
    /// The type as text.
    pub record_type: String,
    /// The answer that nearhop must give.
    pub expect: Value,
}

/// Reads the rows of a file.
pub fn read_rows(bytes: &[u8]) -> Result<Vec<Row>, CaseError> {
    let file = parse_file(bytes)?;
    let file = Field::root(&file);
    file.get("cases")?.each(|row| Row::read(&file, row))
}

impl Row {
    /// Reads a row of a file.
    pub(crate) fn read(file: &Field<'_>, row: &Field<'_>) -> Result<Self, CaseError> {
        let fixture = file.get("fixture")?.required()?;
        let settings = fixture::Settings::read(&fixture.get("config")?, &row.get("config")?);
        let query = row.get("query")?.required()?;
        let synced = settings.flag_or("synced", true)?;
        Ok(Self {
            id: row.get("id")?.text()?.to_owned(),
            world: fixture::world(&fixture, &settings)?,
            config: settings.answers(&fixture)?,
            serial: fixture.get("serial")?.count_or(0, u32::MAX as usize)? as u32,
            synced: if synced { Synced::Yes } else { Synced::No },
            question: read_question(&query)?,
            record_type: query.get("type")?.text()?.to_owned(),
            expect: Check::new(row).expected(row)?.1,
        })
    }
}

/// Whether the resolver's replies are truncated in this row.
pub(crate) fn upstream_is_cut(file: &Field<'_>, row: &Field<'_>) -> Result<bool, CaseError> {
    let config = file.get("fixture")?.get("config")?;
    fixture::Settings::read(&config, &row.get("config")?).flag_or("upstream_tc", false)
}

fn read_question(query: &Field<'_>) -> Result<Question, CaseError> {
    let name = query.get("name")?;
    let asked = AskedName::parse(name.text()?).map_err(|error| name.error(error.to_string()))?;
    let field = query.get("type")?;
    let record_type = match field.text()? {
        "A" => RecordType::A,
        "AAAA" => RecordType::Aaaa,
        "SRV" => RecordType::Srv,
        "PTR" => RecordType::Ptr,
        "CNAME" => RecordType::Cname,
        "TXT" => RecordType::Txt,
        "SOA" => RecordType::Soa,
        "NS" => RecordType::Ns,
        "AXFR" | "IXFR" => RecordType::Transfer,
        "MX" | "HINFO" | "ANY" | "CAA" | "HTTPS" | "SVCB" | "NAPTR" | "DNSKEY" | "DS" | "NSEC"
        | "RRSIG" | "SPF" | "URI" | "TLSA" => RecordType::Other,
        _ => return Err(field.error("is not a record type that cases use")),
    };
    Ok(Question { name: asked, record_type })
}
