"""The Kubernetes manifest, against the API's own field names and types; no cluster."""

import re

import pytest
import yaml

from tests.deploy.site import ROOT
from tests.deploy.test_files import fenced_lines

client = pytest.importorskip("kubernetes.client")
MANIFEST = ROOT / "docker" / "kubernetes" / "fleet.yaml"
OBJECTS = list(yaml.safe_load_all(MANIFEST.read_text()))
KINDS = {
    "DaemonSet": "V1DaemonSet",
    "Deployment": "V1Deployment",
    "Namespace": "V1Namespace",
    "PersistentVolumeClaim": "V1PersistentVolumeClaim",
    "Service": "V1Service",
}
PLAIN = {"str": str, "int": int, "bool": bool, "float": float}


def problems(value, kind, where):
    """Yield what the API would refuse in a value of a kind such as V1Container."""
    listed = re.fullmatch(r"[Ll]ist\[(.*)\]", kind)
    mapped = re.fullmatch(r"[Dd]ict[\[(](\w+), (.*)[\])]", kind)
    if listed:
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, entry in enumerate(value):
            yield from problems(entry, listed[1], f"{where}[{number}]")
    elif mapped:
        for key, entry in value.items():
            yield from problems(entry, mapped[2], f"{where}.{key}")
    elif kind in PLAIN:
        if type(value) is not PLAIN[kind]:
            yield f"{where} is {value!r}, not a {kind}"
    elif kind == "object":
        if not isinstance(value, str | int):
            yield f"{where} is {value!r}"
    else:
        model = getattr(client, kind)
        names = {json: name for name, json in model.attribute_map.items()}
        for key, entry in value.items():
            if key not in names:
                yield f"{where}.{key} does not exist"
            else:
                inner = model.openapi_types[names[key]]
                yield from problems(entry, inner, f"{where}.{key}")
        # The model's own rules, among them the fields that must be there.
        try:
            model(**{names[key]: entry for key, entry in value.items() if key in names})
        except ValueError as error:
            yield f"{where}: {error}"


def found(kind):
    (entry,) = [entry for entry in OBJECTS if entry["kind"] == kind]
    return entry


def pod(kind):
    return found(kind)["spec"]["template"]["spec"]


@pytest.mark.parametrize("entry", OBJECTS, ids=lambda entry: entry["kind"])
def test_the_api_knows_every_field(entry):
    assert list(problems(entry, KINDS[entry["kind"]], entry["kind"])) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"replica": 1}, "does not exist"),
        ({"replicas": "1"}, "not a int"),
        ({"selector": None}, "selector"),
    ],
)
def test_the_check_can_fail(change, told):
    spec = {**found("Deployment")["spec"], **change}
    spec = {key: value for key, value in spec.items() if value is not None}
    assert any(told in p for p in problems(spec, "V1DeploymentSpec", "spec"))


def test_selectors_labels_ports_and_volumes_fit_together():
    for kind in ("Deployment", "DaemonSet"):
        spec = found(kind)["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        volumes = {volume["name"] for volume in pod(kind)["volumes"]}
        everything = pod(kind)["containers"] + pod(kind).get("initContainers", [])
        mounted = {m["name"] for c in everything for m in c["volumeMounts"]}
        assert mounted == volumes
    service = found("Service")["spec"]
    template = found("Deployment")["spec"]["template"]
    assert service["selector"] == template["metadata"]["labels"]
    # The control port is in no Service.
    assert [port["port"] for port in service["ports"]] == [9092]


def test_nobody_is_root_and_nothing_can_be_changed():
    for kind in ("Deployment", "DaemonSet"):
        assert pod(kind)["securityContext"]["runAsNonRoot"] is True
        for entry in pod(kind)["containers"] + pod(kind).get("initContainers", []):
            rights = entry["securityContext"]
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False


def test_the_guide_makes_the_secrets_that_the_manifest_names():
    made = {}
    for line in fenced_lines("docker/README.md"):
        if match := re.search(r"create secret generic (\S+) --from-file=(\S+)", line):
            made[match[1]] = match[2]
    named = {
        volume["secret"]["secretName"]
        for kind in ("Deployment", "DaemonSet")
        for volume in pod(kind)["volumes"]
        if "secret" in volume
    }
    assert set(made) == named
    (prepare,) = pod("Deployment")["initContainers"]
    assert made["fedbnn-fleet"] in prepare["args"][0]
