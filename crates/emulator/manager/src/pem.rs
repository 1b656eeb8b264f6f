//! PEM encoding of the cluster CA. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Certificates as PEM; `None` if there are none.
#[must_use]
pub fn pem(certificates: &[Vec<u8>]) -> Option<String> {
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(certificate);
        for line in encoded.as_bytes().chunks(64) {
            text.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_wrapped_at_64_letters() {
        assert_eq!(pem(&[]), None);
        let text = pem(&[vec![0; 60], vec![1]]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7);
        assert_eq!((lines[1].len(), lines[2].len()), (64, 16));
        assert_eq!(lines[5], "AQ==");
    }
}
