"""No test starts a service in `make test`: whoever starts one has the marker `services`."""

import pytest
from support.buckets import serving
from support.services import services, starts, starts_service


@pytest.fixture
@starts_service
def started() -> None:
    starts("a service")


def test_a_test_without_the_marker_starts_nothing() -> None:
    said = "test_a_test_without_the_marker_starts_nothing starts a bucket: it needs the marker"
    with pytest.raises(pytest.fail.Exception, match=said), serving():
        pass


@services
def test_a_test_with_the_marker_may_start_one() -> None:
    starts("a service")


def test_a_fixture_that_starts_one_marks_the_test(request: pytest.FixtureRequest, started: None) -> None:
    assert request.node.get_closest_marker("services")
