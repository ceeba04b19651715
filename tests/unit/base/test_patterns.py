"""Regular expressions of clients: whole strings, errors, and time that stays linear."""

import pytest

from tierlog.base.patterns import InvalidPattern, compile_pattern


def test_the_whole_string_must_match() -> None:
    matches = compile_pattern("orders-(eu|us)-[0-9]+")
    assert [matches(each) for each in ("orders-eu-1", "orders-eu-1x", "my-orders-us-2")] == [
        True,
        False,
        False,
    ]
    assert compile_pattern("größe.")("größe€")


@pytest.mark.parametrize("text", ["(", "[a", "*", r"(a)\1", "(?=a)", "a{1,2000}"])
def test_what_re2_does_not_know_is_invalid(text: str) -> None:
    with pytest.raises(InvalidPattern):
        compile_pattern(text)


def test_large_expressions_are_invalid() -> None:
    with pytest.raises(InvalidPattern, match="too large"):
        compile_pattern("(.*){1000}")


def test_expression_that_takes_exponential_time_elsewhere_ends() -> None:
    """Python's `re` would not end within the life of the universe."""
    assert not compile_pattern("(x+x+)+y")("x" * 10_000)


def test_expression_of_very_many_unicode_classes_is_refused_before_it_is_compiled() -> None:
    assert compile_pattern(r"\pN" * 3)("123")
    for text in (r"\pL" * 21, r"\PL" * 21):
        with pytest.raises(InvalidPattern, match="Unicode classes"):
            compile_pattern(text)


def test_expression_of_large_counted_repeats_is_refused_before_it_is_compiled() -> None:
    """RE2 would find it too large as well, after it has written the repeats out."""
    assert compile_pattern("[a-z]{1,100}-x{0,100}")("orders-xx")
    for text in ("x{0,1000}" * 2, "a{501}" * 2, "(b{500,}){1}" * 5):
        with pytest.raises(InvalidPattern, match="counted repeats"):
            compile_pattern(text)
