//! Go structs that are embedded in others, without a field name in JSON. They appear in protobuf
//! messages and in Go's error messages, but not in JSON objects.

/// Outer struct, protobuf number, embedded struct. Sorted.
const EMBEDDED: [(&str, u32, &str); 17] = [
    (
        "admissionregistration.v1.NamedRuleWithOperations",
        2,
        "admissionregistration.v1.RuleWithOperations",
    ),
    ("admissionregistration.v1.RuleWithOperations", 2, "admissionregistration.v1.Rule"),
    ("core.v1.ConfigMapEnvSource", 1, "core.v1.LocalObjectReference"),
    ("core.v1.ConfigMapKeySelector", 1, "core.v1.LocalObjectReference"),
    ("core.v1.ConfigMapProjection", 1, "core.v1.LocalObjectReference"),
    ("core.v1.ConfigMapVolumeSource", 1, "core.v1.LocalObjectReference"),
    ("core.v1.EphemeralContainer", 1, "core.v1.EphemeralContainerCommon"),
    ("core.v1.PersistentVolumeSpec", 2, "core.v1.PersistentVolumeSource"),
    ("core.v1.Probe", 1, "core.v1.ProbeHandler"),
    ("core.v1.SecretEnvSource", 1, "core.v1.LocalObjectReference"),
    ("core.v1.SecretKeySelector", 1, "core.v1.LocalObjectReference"),
    ("core.v1.SecretProjection", 1, "core.v1.LocalObjectReference"),
    ("core.v1.Volume", 2, "core.v1.VolumeSource"),
    ("networking.v1.IngressRule", 2, "networking.v1.IngressRuleValue"),
    ("resource.v1.DeviceAllocationConfiguration", 3, "resource.v1.DeviceConfiguration"),
    ("resource.v1.DeviceClaimConfiguration", 2, "resource.v1.DeviceConfiguration"),
    ("resource.v1.DeviceClassConfiguration", 1, "resource.v1.DeviceConfiguration"),
];

/// The struct that is embedded in another, and its protobuf number.
pub(super) fn embedded_in(struct_name: &str) -> Option<(u32, &'static str)> {
    let at = EMBEDDED.binary_search_by(|(outer, ..)| (*outer).cmp(struct_name)).ok()?;
    EMBEDDED.get(at).map(|(_, number, inner)| (*number, *inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn the_table_is_sorted_and_its_structs_exist() {
        assert!(EMBEDDED.is_sorted());
        for (outer, number, inner) in EMBEDDED {
            assert_eq!(embedded_in(outer), Some((number, inner)));
            let outer = builtin::schema(outer).expect(outer);
            let inner = builtin::schema(inner).expect(inner);
            let outer = outer.node().as_struct().expect("a struct");
            for field in &inner.node().as_struct().expect("a struct").fields {
                let same = outer.field(&field.name).expect("flattened");
                assert_eq!((same.number, &same.shape), (0, &field.shape));
            }
        }
        assert_eq!(embedded_in("core.v1.Service"), None);
    }
}
