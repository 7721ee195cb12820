"""What a producer's error says."""

from __future__ import annotations

import pytest
from aiokafka.errors import InvalidProducerEpoch, KafkaError, KafkaTimeoutError, ProducerFenced

from delivery.adapters.kafka_producers import is_fenced


def wrapped(cause: Exception) -> Exception:
    """As the client's sender passes on what it did not expect."""
    error: Exception = KafkaError("Unexpected error during batch delivery")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [ProducerFenced("x"), InvalidProducerEpoch("x")], ids=lambda e: type(e).__name__)
def test_a_producer_that_another_one_has_replaced_is_fenced_however_the_client_says_it(error: Exception) -> None:
    assert is_fenced(error)
    assert is_fenced(wrapped(error))


@pytest.mark.parametrize("error", [KafkaError("x"), wrapped(KafkaTimeoutError("x")), TimeoutError()], ids=repr)
def test_another_error_says_nothing_of_that(error: Exception) -> None:
    assert not is_fenced(error)
