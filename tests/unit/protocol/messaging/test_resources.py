"""Names of topics and groups with namespaces."""

import pytest

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.resources import full_name, resource_of


@pytest.mark.parametrize(
    ("namespace", "name", "full"),
    [
        ("", "orders", "orders"),
        ("shop", "orders", "shop%orders"),
        ("shop", "shop%orders", "shop%orders"),
        ("shop", "%RETRY%audit", "%RETRY%shop%audit"),
        ("shop", "%DLQ%audit", "%DLQ%shop%audit"),
        ("shop", "%DLQ%shop%audit", "%DLQ%shop%audit"),
        ("shop", "rmq_sys_x", "rmq_sys_x"),
        ("shop", "", ""),
    ],
)
def test_a_namespace_is_a_prefix(namespace: str, name: str, full: str) -> None:
    assert full_name(pb.Resource(resource_namespace=namespace, name=name)) == full


@pytest.mark.parametrize(
    ("full", "namespace", "name"),
    [
        ("orders", "", "orders"),
        ("shop%orders", "shop", "orders"),
        ("%RETRY%shop%audit", "shop", "%RETRY%audit"),
        ("%RETRY%audit", "", "%RETRY%audit"),
        ("%", "", "%"),
    ],
)
def test_the_namespace_of_a_name(full: str, namespace: str, name: str) -> None:
    resource = resource_of(full)
    assert (resource.resource_namespace, resource.name) == (namespace, name)
    assert full_name(resource) == full
