"""A key that some database cannot store is refused, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from psched.keys import MAX_KEY_LENGTH, check_key, type_from_key


@pytest.mark.parametrize("key", ["a", "Sched-1.b", "ключ", "😀" * MAX_KEY_LENGTH, " ", "a\nb", "x" * MAX_KEY_LENGTH])
def test_any_text_up_to_255_characters_is_a_key(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "key must be non-empty text, got ''"),
        (None, "key must be non-empty text, got None"),
        (7, "key must be non-empty text, got 7"),
        (b"key", "key must be non-empty text, got b'key'"),
        ("x" * 256, "key has 256 characters, at most 255 can be stored; shorten it: 'xxxx"),
        ("a\0b", "contains a character that cannot be stored"),
        ("a\ud800b", "contains a character that cannot be stored"),
    ],
)
def test_what_cannot_be_a_key_is_refused_with_the_reason(key: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_key(key)


@pytest.mark.parametrize(
    ("key", "type_"), [("backup", "backup"), ("backup.web1", "backup"), ("backup.web1.daily", "backup"), (".x", "")]
)
def test_a_row_without_a_type_has_its_key_up_to_the_first_dot(key: str, type_: str) -> None:
    assert type_from_key(key) == type_
