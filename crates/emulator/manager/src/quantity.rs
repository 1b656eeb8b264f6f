//! Amounts of resources, in thousandths. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by the name of the resource, in thousandths.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// An amount in thousandths, rounded up; none if it is no amount.
pub(crate) fn thousandths(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+'));
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (base, exponent): (i128, i32) = match suffix {
        "" => (10, 0),
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        _ => {
            (10, suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|e| (-18..=18).contains(e))?)
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let power = base.checked_pow(exponent.unsigned_abs())?;
    let thousandfold = digits.checked_mul(1000)?;
    if exponent >= 0 {
        Some(up(thousandfold.checked_mul(power)?, scale))
    } else {
        Some(up(thousandfold, scale.checked_mul(power)?))
    }
}

fn up(number: i128, by: i128) -> i128 {
    number.div_euclid(by).saturating_add(i128::from(number.rem_euclid(by) != 0))
}

/// What is listed, as amounts. What is no amount asks for more than any node has.
pub(crate) fn amounts(listed: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let all = listed.into_iter().flatten();
    all.map(|(name, q)| (name.clone(), thousandths(q).unwrap_or(i128::MAX / 4))).collect()
}

/// What a pod asks for: its containers together, or its hungriest initial step, and the overhead.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |c: &Container| amounts(c.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let mut total = Amounts::new();
    spec.containers.iter().for_each(|container| add(&mut total, &of(container)));
    let mut beside = Amounts::new();
    let mut peak = Amounts::new();
    for step in spec.init_containers.iter().flatten() {
        let mut at_once = beside.clone();
        add(&mut at_once, &of(step));
        if step.restart_policy.as_deref() == Some("Always") {
            beside.clone_from(&at_once);
        }
        raise(&mut peak, &at_once);
    }
    add(&mut total, &beside);
    raise(&mut total, &peak);
    let whole = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    total.extend(amounts(whole));
    add(&mut total, &amounts(spec.overhead.as_ref()));
    total
}

/// Adds what is asked for to a sum.
pub(crate) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let held = sum.entry(name.clone()).or_default();
        *held = held.saturating_add(*amount);
    }
}

fn raise(sum: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let held = sum.entry(name.clone()).or_default();
        *held = (*held).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("0.5", Some(500)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("64Mi", Some(67_108_864_000)),
            ("2k", Some(2_000_000)),
            ("1e3", Some(1_000_000)),
            ("1n", Some(1)),
            ("1e30", None),
            ("1e-2147483648", None),
            ("170141183460469231731687303715884105727", None),
            ("abc", None),
            ("", None),
            ("1Xi", None),
        ] {
            assert_eq!(thousandths(&Quantity(text.to_owned())), expected, "{text:?}");
        }
    }

    #[test]
    fn a_pod_asks_for_its_containers_or_its_hungriest_step() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {
                "containers": [
                    { "name": "a", "resources": { "requests": { "cpu": "1", "memory": "1k" } } },
                    { "name": "b", "resources": { "requests": { "cpu": "500m" } } },
                ],
                "initContainers": [
                    { "name": "i", "resources": { "requests": { "cpu": "1", "memory": "9k" } } },
                    { "name": "s", "restartPolicy": "Always",
                      "resources": { "requests": { "cpu": "100m" } } },
                ],
                "overhead": { "cpu": "10m" },
            },
        }))
        .unwrap();
        let asked = requests(&pod);
        assert_eq!((asked["cpu"], asked["memory"]), (1610, 9_000_000));
    }

    #[test]
    fn what_is_beyond_all_numbers_is_the_largest_one() {
        let container = |name: &str| serde_json::json!({ "name": name, "resources": { "requests": { "memory": "1e30" } } });
        let names = ["a", "b", "c", "d", "e", "f"];
        let containers: Vec<_> = names.into_iter().map(container).collect();
        let pod = serde_json::json!({ "spec": { "containers": containers } });
        let asked = requests(&serde_json::from_value(pod).unwrap());
        assert_eq!(asked["memory"], i128::MAX);
    }
}
