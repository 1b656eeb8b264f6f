//! `decode_protobuf` with bodies that kubectl sends, and with invalid input.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nearhop_object::decode::decode_protobuf;
use proptest::prelude::*;
use serde_json::{Value, json};

fn bodies() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("data/protobuf/bodies.json");
    let all: serde_json::Map<String, Value> = serde_json::from_str(text).expect("valid JSON");
    let decode = |body: &Value| STANDARD.decode(body.as_str().expect("text")).expect("base64");
    all.iter().map(|(name, body)| (name.clone(), decode(body))).collect()
}

/// A field with a length: a string or a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("short");
    assert!(length < 128);
    [&[number << 3 | 2, length], bytes].concat()
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let kind = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &kind), field(2, raw)].concat()
}

#[test]
fn bodies_of_kubectl_are_read() {
    let expected = [
        (
            "kubectl create ns pb1",
            json!({"apiVersion":"v1","kind":"Namespace","metadata":{"name":"pb1"},"spec":{},"status":{}}),
        ),
        (
            "kubectl create configmap c1",
            json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c1","namespace":"lab"},"data":{"a":"b"}}),
        ),
        (
            "kubectl create secret generic",
            json!({"apiVersion":"v1","kind":"Secret","metadata":{"name":"s1","namespace":"lab"},"data":{"a":"Yg=="}}),
        ),
        (
            "kubectl create service clusterip",
            json!({"apiVersion":"v1","kind":"Service","metadata":{"labels":{"app":"pbs"},"name":"pbs","namespace":"lab"},"spec":{"ports":[{"name":"80-8080","port":80,"protocol":"TCP","targetPort":8080}],"selector":{"app":"pbs"},"type":"ClusterIP"},"status":{"loadBalancer":{}}}),
        ),
        (
            "kubectl create service nodeport",
            json!({"apiVersion":"v1","kind":"Service","metadata":{"labels":{"app":"pbn"},"name":"pbn","namespace":"lab"},"spec":{"ports":[{"name":"80-8080","port":80,"protocol":"TCP","targetPort":8080}],"selector":{"app":"pbn"},"type":"NodePort"},"status":{"loadBalancer":{}}}),
        ),
        (
            "kubectl create deployment pbd",
            json!({"apiVersion":"apps/v1","kind":"Deployment","metadata":{"labels":{"app":"pbd"},"name":"pbd","namespace":"lab"},"spec":{"replicas":1,"selector":{"matchLabels":{"app":"pbd"}},"strategy":{},"template":{"metadata":{"labels":{"app":"pbd"}},"spec":{"containers":[{"image":"x","name":"x","resources":{}}]}}},"status":{}}),
        ),
        (
            "kubectl create serviceaccount sa",
            json!({"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa","namespace":"lab"}}),
        ),
        (
            "kubectl create job j",
            json!({"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j","namespace":"lab"},"spec":{"template":{"metadata":{},"spec":{"containers":[{"image":"x","name":"j","resources":{}}],"restartPolicy":"Never"}}},"status":{}}),
        ),
        (
            "kubectl create poddisruptionbudget pdb",
            json!({"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"pdb","namespace":"lab"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}},"status":{"currentHealthy":0,"desiredHealthy":0,"disruptionsAllowed":0,"expectedPods":0}}),
        ),
        (
            "kubectl create clusterrole cr",
            json!({"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"cr"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}),
        ),
        (
            "kubectl create quota q",
            json!({"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q","namespace":"lab"},"spec":{"hard":{"pods":"1"}},"status":{}}),
        ),
        (
            "kubectl create ingress i",
            json!({"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"i","namespace":"lab"},"spec":{"rules":[{"host":"a.b","http":{"paths":[{"backend":{"service":{"name":"s","port":{"number":80}}},"path":"/","pathType":"Exact"}]}}]},"status":{"loadBalancer":{}}}),
        ),
        (
            "kubectl auth can-i get",
            json!({"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","metadata":{},"spec":{"resourceAttributes":{"namespace":"default","resource":"pods","verb":"get"}},"status":{"allowed":false}}),
        ),
        (
            "kubectl auth whoami",
            json!({"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview","metadata":{},"status":{"userInfo":{}}}),
        ),
        (
            "kubectl autoscale deployment pbd",
            json!({"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"pbd"},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"pbd"}},"status":{"currentReplicas":0,"desiredReplicas":0}}),
        ),
    ];
    let bodies = bodies();
    assert_eq!(bodies.len(), expected.len());
    for (name, expected) in expected {
        let (_, body) = bodies.iter().find(|(found, _)| found == name).expect(name);
        let (api_version, kind, value) = decode_protobuf(body).expect(name);
        assert_eq!(value, expected, "{name}");
        assert_eq!(
            (json!(api_version), json!(kind)),
            (value["apiVersion"].clone(), value["kind"].clone())
        );
    }
}

#[test]
fn every_kind_of_value_is_read() {
    // An embedded message, a string in an int-or-string field, and an unknown field.
    let http_get = [field(1, b"/"), field(2, &[vec![8, 1], field(3, b"web")].concat())].concat();
    let probe = [field(1, &field(2, &http_get)), vec![16, 5], field(15, b"?")].concat();
    let container = [field(1, b"c"), field(10, &probe)].concat();
    let raw = field(2, &field(2, &container));
    let (_, _, pod) = decode_protobuf(&body("v1", "Pod", &raw)).expect("a pod");
    assert_eq!(
        pod["spec"]["containers"],
        json!([{"name":"c","resources":{},"livenessProbe":{"httpGet":{"path":"/","port":"web"},"initialDelaySeconds":5}}])
    );

    // A map of lists, which are separate messages; and a message in two parts.
    let extra = [field(1, b"k"), field(2, &[field(1, b"a"), field(1, b"b")].concat())].concat();
    let raw = [field(2, &field(5, &extra)), field(2, &field(3, b"u"))].concat();
    let (_, _, review) =
        decode_protobuf(&body("authorization.k8s.io/v1", "SubjectAccessReview", &raw))
            .expect("a review");
    assert_eq!(review["spec"], json!({"user":"u","extra":{"k":["a","b"]}}));

    // Times, with and without fractions; numbers, packed and not; raw JSON.
    let raw = field(2, &field(4, &[8, 1, 16, 0xc0, 0x84, 0x3d]));
    let (_, _, lease) =
        decode_protobuf(&body("coordination.k8s.io/v1", "Lease", &raw)).expect("a lease");
    assert_eq!(lease["spec"], json!({"renewTime":"1970-01-01T00:00:01.001000Z"}));
    let context = [field(4, &[1, 2]), vec![4 << 3, 3]].concat();
    let raw = [field(1, &field(8, &[8, 1])), field(2, &field(14, &context))].concat();
    let (_, _, pod) = decode_protobuf(&body("v1", "Pod", &raw)).expect("a pod");
    assert_eq!(pod["spec"]["securityContext"], json!({"supplementalGroups":[1,2,3]}));
    assert_eq!(pod["metadata"], json!({"creationTimestamp":"1970-01-01T00:00:01Z"}));
    let raw = field(2, &field(1, br#"{"a":[null]}"#));
    let (_, _, revision) =
        decode_protobuf(&body("apps/v1", "ControllerRevision", &raw)).expect("a revision");
    assert_eq!(revision["data"], json!({"a":[null]}));

    // The options of a request, in any group.
    let raw = [vec![8, 30], field(4, b"Background")].concat();
    let (_, _, options) =
        decode_protobuf(&body("apps/v1", "DeleteOptions", &raw)).expect("options");
    assert_eq!(options["gracePeriodSeconds"], json!(30));
    assert_eq!(options["propagationPolicy"], json!("Background"));
}

#[test]
fn other_bytes_are_refused() {
    for (bytes, problem) in [
        (vec![], "empty data"),
        (
            b"{}".to_vec(),
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ),
        (b"k8s\0".to_vec(), "empty body"),
        (body("v1", "Nothing", b""), "no kind \"Nothing\" is registered for version \"v1\""),
        (body("v1", "Pod", &[0x0a]), "unexpected EOF"),
        (body("v1", "Pod", &[0x08, 1]), "proto: wrong wireType for a field: 0"),
    ] {
        assert_eq!(
            decode_protobuf(&bytes).map_err(|error| error.to_string()),
            Err(problem.to_owned())
        );
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(raw in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_usize..15) {
        let _ = decode_protobuf(&raw);
        let _ = decode_protobuf(&[b"k8s\0".as_slice(), &raw].concat());
        let (_, known) = &bodies()[kind];
        let half = known.len() / 2;
        let _ = decode_protobuf(&[&known[..half], &raw].concat());
    }

    #[test]
    fn mutated_bodies_never_panic(which in 0_usize..15, at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let (_, mut body) = bodies().swap_remove(which);
        let at = at.index(body.len());
        body[at] = byte;
        let _ = decode_protobuf(&body);
    }
}
