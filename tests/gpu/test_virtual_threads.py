"""Virtual threads in the text that a GPU gets."""

from __future__ import annotations

import pytest
from tests.gpu.host_assembler import ARCH, needs_compiler
from tests.gpu.host_device import run
from tests.te.test_virtual_threads import arrays, assert_right, product

from renorm import te


@needs_compiler
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_product_of_blocks_virtual_threads_and_threads(is_ahead: bool) -> None:
    size = 21, 10, 13
    s, args = product(size, is_ahead=is_ahead)
    given = arrays(size)
    run(te.lower(s, args), given, target=f"cuda -arch={ARCH}")
    assert_right(given)
