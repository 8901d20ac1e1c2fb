"""Collection of garbage is put off within the block only, whatever happens in it."""

from __future__ import annotations

import gc

import pytest

from renorm.core.collector import collection_put_off


def test_it_is_off_within_the_block_only() -> None:
    with collection_put_off():
        assert not gc.isenabled()
        with collection_put_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collection_put_off():
        raise KeyError
    assert gc.isenabled()


def test_where_a_user_has_it_off_it_stays_off() -> None:
    gc.disable()
    try:
        with collection_put_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
