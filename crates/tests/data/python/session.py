"""A session of the Python client: lists, watches, patches, recovers from 410. Exits with 1 and a trace where it fails."""
import json
import ssl
import sys
import threading
import time
import urllib.request

import yaml
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

kubeconfig = sys.argv[1]
config.load_kube_config(kubeconfig)
core = client.CoreV1Api()
namespace = "python"


def fault(order):
    """Asks the embedded server to misbehave."""
    # Past the client library, which only knows paths of Kubernetes.
    configuration = client.Configuration.get_default_copy()
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    with open(kubeconfig) as file:
        token = yaml.safe_load(file)["users"][0]["user"]["token"]
    request = urllib.request.Request(
        configuration.host + "/nearhop/faults",
        data=json.dumps(order).encode(),
        headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"},
        method="POST",
    )
    urllib.request.urlopen(request, context=context).read()


def service(name):
    return client.V1Service(
        metadata=client.V1ObjectMeta(name=name),
        spec=client.V1ServiceSpec(
            selector={"app": "web"}, traffic_distribution="PreferSameZone", ports=[client.V1ServicePort(port=80)]
        ),
    )


# Create, read, list.
version = client.VersionApi().get_code()
assert int(version.minor.rstrip("+")) >= 30, version
core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))
made = core.create_namespaced_service(namespace, service("a"))
assert made.spec.cluster_ip.startswith("10.96."), made.spec
assert made.spec.traffic_distribution == "PreferSameZone"
listed = core.list_namespaced_service(namespace)
assert [s.metadata.name for s in listed.items] == ["a"]

# The same again is refused, and the error says why.
try:
    core.create_namespaced_service(namespace, service("a"))
    raise AssertionError("created twice")
except ApiException as error:
    assert error.status == 409 and json.loads(error.body)["reason"] == "AlreadyExists", error

# Patches: a dict is a strategic merge patch, a list a JSON patch.
patched = core.patch_namespaced_service("a", namespace, {"metadata": {"labels": {"touched": "yes"}}})
assert patched.metadata.labels == {"touched": "yes"}
patched = core.patch_namespaced_service(
    "a", namespace, [{"op": "replace", "path": "/spec/trafficDistribution", "value": "PreferSameNode"}]
)
assert patched.spec.traffic_distribution == "PreferSameNode"
assert core.patch_namespaced_service("a", namespace, {}).metadata.resource_version == patched.metadata.resource_version

# Watch while another thread writes.
events = []


def write():
    time.sleep(0.3)
    core.create_namespaced_service(namespace, service("b"))
    core.patch_namespaced_service("b", namespace, {"metadata": {"labels": {"x": "y"}}})
    core.delete_namespaced_service("b", namespace)


writer = threading.Thread(target=write)
writer.start()
for event in watch.Watch().stream(core.list_namespaced_service, namespace, timeout_seconds=10):
    events.append((event["type"], event["object"].metadata.name))
    if event["type"] == "DELETED":
        break
writer.join()
assert events == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "b")], events

# Recovery: the history is cut, the old version is gone, a new list goes on.
old = core.list_namespaced_service(namespace).metadata.resource_version
core.create_namespaced_service(namespace, service("c"))
fault({"compact": True})
try:
    for event in watch.Watch().stream(
        core.list_namespaced_service, namespace, resource_version=old, timeout_seconds=3
    ):
        raise AssertionError(f"an event from a history that is gone: {event['type']}")
    raise AssertionError("no 410")
except ApiException as error:
    assert error.status == 410, error
again = core.list_namespaced_service(namespace)
assert [s.metadata.name for s in again.items] == ["a", "c"]
core.delete_namespaced_service("c", namespace)
seen = []
for event in watch.Watch().stream(
    core.list_namespaced_service, namespace, resource_version=again.metadata.resource_version, timeout_seconds=5
):
    seen.append((event["type"], event["object"].metadata.name))
    break
assert seen == [("DELETED", "c")], seen

# Pages.
for number in range(5):
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name=f"m{number}")))
names, token = [], None
while True:
    page = core.list_namespaced_config_map(namespace, limit=2, _continue=token)
    names += [m.metadata.name for m in page.items]
    token = page.metadata._continue
    if not token:
        break
assert names == [f"m{number}" for number in range(5)], names

core.delete_namespaced_service("a", namespace)
try:
    core.read_namespaced_service("a", namespace)
    raise AssertionError("still there")
except ApiException as error:
    assert error.status == 404, error
core.delete_namespace(namespace)
print("ok")
