//! The user of a request: one of the server's own, or a ServiceAccount.

use serde_json::{Value, json};

use crate::api::Api;
use crate::identity::Role;
use crate::service_account::{Account, ISSUER, account_of};

#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) role: Role,
    account: Option<Account>,
}

impl User {
    /// The user of an Authorization header; `None` for an unknown token.
    pub(crate) fn authenticate(api: &Api, authorization: Option<&str>) -> Option<Self> {
        if let Some(role) = api.identity.role(authorization) {
            return Some(Self { role, account: None });
        }
        let token = authorization?.strip_prefix("Bearer ")?.trim();
        let account = account_of(api, token, &[ISSUER.to_owned()])?;
        Some(Self::of_account(account))
    }

    pub(crate) fn of_account(account: Account) -> Self {
        Self { role: Role::ServiceAccount, account: Some(account) }
    }

    /// The name in messages and reviews.
    pub(crate) fn name(&self) -> String {
        match &self.account {
            Some(account) => {
                format!("system:serviceaccount:{}:{}", account.namespace, account.name)
            }
            None => self.role.user().to_owned(),
        }
    }

    pub(crate) fn info(&self) -> Value {
        let Some(account) = &self.account else {
            return json!({"username": self.name(), "groups": self.role.groups()});
        };
        let of_namespace = format!("system:serviceaccounts:{}", account.namespace);
        json!({
            "username": self.name(), "uid": account.uid, "extra": account.extra,
            "groups": ["system:serviceaccounts", of_namespace, "system:authenticated"]
        })
    }
}
