//! Tokens of ServiceAccounts: JSON Web Tokens with the claims that Kubernetes gives them, signed by a
//! key of this server (ES256).
//!
//! A token is valid until it expires, and while its ServiceAccount and the Pod, Secret or Node that
//! it is bound to exist with the same uid.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use nearhop_kinds::Resource;
use nearhop_runtime::pki;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::api::Api;
use crate::builtin::{Builtin, NODES, PODS, SECRETS, SERVICE_ACCOUNTS};
use crate::identity::{IdentityError, keep_file};
use crate::store::Name;

/// The issuer of tokens, and their default audience.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const KEY_FILE: &str = "service-account.key";
/// The claim that has the ServiceAccount and the bound object.
const BOUNDS: &str = "kubernetes.io";
/// The kinds that a token can be bound to; the claim of each has its singular name.
pub(crate) static BOUND: [&Builtin; 3] = [&PODS, &SECRETS, &NODES];

pub(crate) struct TokenKey {
    pair: EcdsaKeyPair,
    /// The `kid` of each token.
    id: String,
}

/// The ServiceAccount of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The `extra` of a review.
    pub(crate) extra: Value,
    /// The requested audiences that the token is for.
    pub(crate) audiences: Vec<String>,
}

impl TokenKey {
    /// Makes a key, or loads it from a directory.
    pub(crate) fn load(keep: Option<&Path>) -> Result<Self, IdentityError> {
        let pem = match keep {
            None => pki::new_key()?,
            Some(directory) => keep_file(&directory.join(KEY_FILE), &|| Ok(pki::new_key()?))?,
        };
        let damaged = || IdentityError::Damaged(KEY_FILE.to_owned());
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| damaged())?;
        let pair = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            der.secret_pkcs8_der(),
            &SystemRandom::new(),
        )
        .map_err(|_| damaged())?;
        let id = URL_SAFE_NO_PAD.encode(digest(&SHA256, pair.public_key().as_ref()));
        Ok(Self { pair, id })
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": self.id});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(claims));
        let signature = self
            .pair
            .sign(&SystemRandom::new(), signed.as_bytes())
            .expect("the system gives random bytes");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// The claims of a token that this key signed.
    fn claims(&self, token: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let read = |part: &str| -> Option<Value> {
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
        };
        // Only this algorithm is accepted, whatever the header says.
        (read(header)?["alg"] == "ES256").then_some(())?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key());
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        public.verify(signed.as_bytes(), &signature).ok()?;
        read(claims)
    }
}

/// The account of a token, if it is valid now for one of these audiences.
pub(crate) fn account_of(api: &Api, token: &str, audiences: &[String]) -> Option<Account> {
    let claims = api.token_key.claims(token)?;
    let now = Timestamp::now().as_second();
    let time = |claim: &str| claims[claim].as_i64();
    (claims["iss"] == ISSUER && now < time("exp")? && now >= time("nbf")?).then_some(())?;
    let meant: Vec<&str> = claims["aud"].as_array()?.iter().filter_map(Value::as_str).collect();
    let audiences: Vec<String> =
        audiences.iter().filter(|asked| meant.contains(&asked.as_str())).cloned().collect();
    if audiences.is_empty() {
        return None;
    }
    let bounds = &claims[BOUNDS];
    let namespace = bounds["namespace"].as_str()?;
    let is_there = |resource: &Resource, bound: &Value| {
        let namespace = if resource.namespaced { namespace } else { "" };
        let name = Name::new(namespace, bound["name"].as_str().unwrap_or_default());
        let found = api.store.get(&resource.storage, &name);
        found.is_some_and(|found| bound["uid"].as_str() == Some(&found.content.uid))
    };
    let mut extra = json!({"authentication.kubernetes.io/credential-id": [format!("JTI={}", claims["jti"].as_str()?)]});
    for resource in BOUND {
        let kind = &*resource.singular;
        let Some(bound) = bounds.get(kind) else { continue };
        is_there(resource, bound).then_some(())?;
        for part in ["name", "uid"] {
            extra[format!("authentication.kubernetes.io/{kind}-{part}")] = json!([bound[part]]);
        }
    }
    let account = &bounds["serviceaccount"];
    is_there(&SERVICE_ACCOUNTS, account).then(|| Account {
        namespace: namespace.to_owned(),
        name: account["name"].as_str().unwrap_or_default().to_owned(),
        uid: account["uid"].as_str().unwrap_or_default().to_owned(),
        extra,
        audiences,
    })
}

pub(crate) fn new_claims(
    account: (&str, &str, &str),
    audiences: &Value,
    seconds: i64,
    bound: Option<(&str, Value)>,
    now: i64,
) -> Value {
    let (namespace, name, uid) = account;
    let mut bounds = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}});
    if let Some((kind, bound)) = bound {
        bounds[kind] = bound;
    }
    json!({
        "aud": audiences, "exp": now.saturating_add(seconds), "iat": now, "nbf": now,
        "iss": ISSUER, "jti": uuid::Uuid::new_v4().to_string(),
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
        BOUNDS: bounds
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_of_the_key_are_valid() {
        let (key, other) = (TokenKey::load(None).unwrap(), TokenKey::load(None).unwrap());
        let claims = new_claims(("a", "b", "u"), &json!([ISSUER]), 600, None, 1);
        let token = key.sign(&claims);
        assert_eq!(key.claims(&token), Some(claims.clone()));
        assert_eq!(other.claims(&token), None);
        let parts: Vec<&str> = token.split('.').collect();
        let mut more = claims;
        more["sub"] = "system:serviceaccount:kube-system:admin".into();
        let forged = URL_SAFE_NO_PAD.encode(more.to_string());
        let none = URL_SAFE_NO_PAD.encode(json!({"alg": "none"}).to_string());
        for bad in [
            format!("{}.{forged}.{}", parts[0], parts[2]),
            format!("{none}.{}.", parts[1]),
            format!("{}.{}", parts[0], parts[1]),
            "a.b.c".to_owned(),
            String::new(),
        ] {
            assert_eq!(key.claims(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_stored_key_is_loaded_again() {
        let scratch = tempfile::tempdir().unwrap();
        let token = TokenKey::load(Some(scratch.path())).unwrap().sign(&json!({"a": 1}));
        let again = TokenKey::load(Some(scratch.path())).unwrap();
        assert_eq!(again.claims(&token), Some(json!({"a": 1})));
        std::fs::write(scratch.path().join(KEY_FILE), "nonsense").unwrap();
        assert!(TokenKey::load(Some(scratch.path())).is_err());
    }
}
