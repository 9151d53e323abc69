"""The byte model against its closed forms."""

from __future__ import annotations

import pytest

from . import byte_model


@pytest.mark.parametrize("d", [1, 4, 9, 25])
def test_bytes_follow_the_closed_forms(d: int) -> None:
    assert byte_model.ema_bytes(d) == 4 * d * d + 8 * d
    assert byte_model.inverse_bytes(d) == 4 * d * d + 4 * d
    assert byte_model.step_bytes(d) == 2 * d * d + 22 * d
    assert byte_model.step_bytes(d, inverse_element_bytes=2) == d * d + 21 * d
    assert byte_model.adamw_bytes(d) == 28 * d
