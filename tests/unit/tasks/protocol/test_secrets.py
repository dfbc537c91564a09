"""References to secrets, and the same secrets taken out of text in every form in which programs
write it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import pytest

from unstuck.tasks.errors import Unrecoverable
from unstuck.tasks.protocol.secrets import Secrets, Stream, reference_in

KEY = "\n".join(
    [
        "-----BEGIN PRIVATE KEY-----",
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
        "MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDuictGeurT8jNbvJZHtCSuYEvu",
        "Qw==",
        "-----END PRIVATE KEY-----",
    ]
)
STRANGE = "pass\"word's\\slash\ttab/größe blank\x1bescape€+plus&=;%41end"


def secrets_of(*values: str) -> Secrets:
    """Secrets that were given out, named S0, S1 and so on."""
    environ = {f"S{n}": value for n, value in enumerate(values)}
    secrets = Secrets(environ)
    secrets.resolve([f"${{secret:{name}}}" for name in environ])
    return secrets


# -- references ------------------------------------------------------------------------------------


def test_references_are_resolved_and_secrets_masked_at_any_depth() -> None:
    secrets = Secrets({"PW": "hunter2!", "HOST": "db-host-1", "DEBUG": "true"})
    value = secrets.resolve(
        {"url": "jdbc://${env:HOST}/?p=${secret:PW}", "list": ["${secret:PW}", 3, "${env:DEBUG}"]}
    )
    assert value == {"url": "jdbc://db-host-1/?p=hunter2!", "list": ["hunter2!", 3, "true"]}
    assert (
        secrets.clean("login hunter2! at db-host-1, true")
        == "login ${secret:PW} at db-host-1, true"
    )
    assert secrets.clean_all({"hunter2!": ["hunter2!", 1]}) == {"${secret:PW}": ["${secret:PW}", 1]}
    assert secrets.values == {"PW": "hunter2!"}


@pytest.mark.parametrize("reference", ["${env:NOT_THERE}", "${secret:NOT_THERE}"])
def test_a_missing_variable_is_named(reference: str) -> None:
    with pytest.raises(Unrecoverable, match=r"NOT_THERE.* this worker"):
        Secrets({}).resolve([reference])


@pytest.mark.parametrize(
    "value",
    ["", "     ", "12345", " abcde ", "true", "String", "timestamp", "PRODUCTION", "password"],
)
def test_a_common_or_short_secret_is_refused_without_being_shown(
    value: str,
) -> None:
    secrets = Secrets({"WORD": value})
    with pytest.raises(
        Unrecoverable, match="what WORD holds on this worker can be no secret"
    ) as refused:
        secrets.resolve("${secret:WORD}")
    assert not value.strip() or value.strip() not in str(refused.value).replace(
        "shorter than 6", ""
    )
    assert secrets.resolve("${env:WORD}") == value


def test_a_secret_may_be_in_a_file_named_by_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_text("hunter2!\r\n")
    environ = {"PW_FILE": str(file)}
    assert Secrets(environ).resolve("${secret:PW}") == "hunter2!"
    with pytest.raises(Unrecoverable, match="PW is not set"):
        Secrets(environ).resolve("${env:PW}")
    with pytest.raises(Unrecoverable, match="this worker has both"):
        Secrets({**environ, "PW": "hunter2!"}).resolve("${secret:PW}")


@pytest.mark.parametrize("secret", ["hunter2!", "-----BEGIN-----\nabc\n-----END-----"])
@pytest.mark.parametrize("form", ["{}", "{}\n", "{}\r\n", "\ufeff{}", "\ufeff{}\n\n"])
def test_a_byte_order_mark_and_line_endings_are_not_part_of_a_secret(
    tmp_path: Path, secret: str, form: str
) -> None:
    file = tmp_path / "pw"
    written = form.format(secret)
    for text in (written, written.replace("\r", "").replace("\n", "\r\n")):
        file.write_bytes(text.encode())
        assert Secrets({"PW_FILE": str(file)}).resolve("${secret:PW}") == secret
        assert Secrets({"PW": text}).resolve("${secret:PW}") == secret


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "No such file"),
        (b"x" * 70_000, "more than 64 KB"),
        (b"hunter2\xff", "not UTF-8"),
        (b"", "no secret"),
    ],
)
def test_a_file_without_a_secret_is_refused_with_its_name(
    tmp_path: Path, data: bytes | None, why: str
) -> None:
    file = tmp_path / "pw"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(Unrecoverable, match=f"PW.*{why}") as refused:
        Secrets({"PW_FILE": str(file)}).resolve("${secret:PW}")
    assert "hunter2" not in str(refused.value)


def test_resolved_values_are_not_resolved_again_and_a_double_dollar_is_literal() -> None:
    secrets = Secrets({"A": "${secret:B}", "B": "hunter2!"})
    assert (
        secrets.resolve("${secret:A} $${secret:B} $$${env:B}")
        == "${secret:B} ${secret:B} $${env:B}"
    )
    assert secrets.values == {"A": "${secret:B}"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("x ${secret:HOME and more", "${secret:HOME"),
        ("${secret:}", "${secret:}"),
        ("${secret:1A}", "${secret:1A}"),
        ("${secret: HOME}", "${secret:"),
        ("${ENV:HOME}", "${ENV:HOME}"),
        ("${vault:x}", "${vault:x}"),
        ("${secret:A}/${aws.sm:x/y}", "${aws.sm:x/y}"),
    ],
)
def test_malformed_references_are_detected(text: str, wrong: str) -> None:
    assert reference_in(text, wrong=True) == wrong


@pytest.mark.parametrize(
    "text",
    [
        "${env:HOME}",
        "${secret:A}",
        "$${vault:x}",
        "${name}",
        "$5 {a: b}",
        "${}",
        "${env_name}",
        "a$",
    ],
)
def test_valid_references_and_plain_text_are_accepted(text: str) -> None:
    assert reference_in(text, wrong=True) is None


# -- cleaning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_masking_overlapping_secrets_leaves_no_remainder(order: int) -> None:
    secrets = secrets_of(*["hunter2", "hunter2-and-more", "my-hunter2-and"][::order])
    for text in ("hunter2-and-more", "(my-hunter2-and)", "hunter2"):
        cleaned = secrets.clean(text)
        assert cleaned.strip("()").startswith("${secret:S"), cleaned
        assert cleaned.strip("()").endswith("}"), cleaned
        assert cleaned.count("${secret:") == 1, cleaned


@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        ascii,
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: repr(value.encode()),
        lambda value: repr({"q": value + "'\""}),
        lambda value: json.dumps({"inner": json.dumps([value])}),
        lambda value: repr(json.dumps(value)),
        lambda value: repr(ValueError(repr(value))),
        quote,
        quote_plus,
        lambda value: quote(value, safe=""),
        lambda value: urlencode({"key": value}),
        lambda value: re.sub("%..", lambda code: code[0].lower(), quote(value)),
        lambda value: f"jdbc://user:{quote(value, safe='')}@host/",
    ],
)
@pytest.mark.parametrize(
    "value", ["hunter2!", KEY, STRANGE, "both ' and \"", "ends in a slash\\", KEY + "\n"]
)
def test_a_secret_is_detected_in_every_encoding(write: Callable[[str], str], value: str) -> None:
    written = write(value)
    cleaned = secrets_of(value).clean(f"before {written} after")
    assert cleaned.startswith("before "), cleaned
    assert cleaned.endswith(" after"), cleaned
    rest = cleaned.replace("${secret:S0}", "")
    for word in re.findall("[a-zA-Z0-9]{4,}", value):
        assert word not in rest
    assert "${secret:S0}" in cleaned


def test_a_multiline_key_is_masked_per_line_and_as_a_whole() -> None:
    secrets = secrets_of(KEY)
    for line in KEY.splitlines():
        assert secrets.clean(f"    {line}") == "    ${secret:S0}"
    assert "MII" not in secrets.clean(f"key:\n{KEY}\n")
    assert secrets_of("ab\ncd\nef").clean("ab\ncd\nef, ab, cd") == "${secret:S0}, ab, cd"


def test_data_is_checked_for_any_secret_and_names_only_for_whole_short_ones() -> None:
    secrets = secrets_of("hunter2!", "id_key", "a'secret\\b")
    assert secrets.in_data({"a": [1, {"b": "x hunter2! y"}]}) == "${secret:S0}"
    assert secrets.in_data({"a": {"hunter2!": None}}) == "${secret:S0}"
    assert secrets.in_data([repr("a'secret\\b")]) == "${secret:S2}"
    assert secrets.in_data(["ids_keys", 1, None]) is None
    assert (secrets.in_name("id_key"), secrets.in_name("valid_keys")) == ("${secret:S1}", None)
    assert secrets.in_name("my_hunter2!_and") == "${secret:S0}"


def test_a_long_value_is_masked_completely() -> None:
    value = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=50_000))
    assert secrets_of(value).clean(f"<{value}>").replace("${secret:S0}", "") in (
        "<>",
        f"<{value[-3:]}>",
    )


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_a_text_in_chunks_is_masked_as_a_whole(seed: int) -> None:
    dice = random.Random(seed)
    secrets = secrets_of("hunter2", "hunter2-and-more", "ababab", STRANGE, KEY)
    words = [
        "hunter2",
        "hunter2-and-more",
        "hunt",
        "abababab",
        "abab",
        KEY,
        repr(STRANGE),
        "\n",
        "plain ",
        "p",
        "-----BEG",
    ]
    text = "".join(dice.choice(words) for _ in range(40))
    stream, out, at = Stream(secrets), "", 0
    while at < len(text):
        step = dice.randrange(1, 20)
        out += stream.feed(text[at : at + step])
        at += step
    out += stream.finish()
    assert out.replace("${secret:S4}\n", "").replace("${secret:S4}", "") == secrets.clean(
        text
    ).replace("${secret:S4}\n", "").replace("${secret:S4}", "")


def test_a_stream_buffers_an_unfinished_line_only_up_to_the_length_of_a_secret() -> None:
    stream = Stream(secrets_of("hunter2"))
    assert stream.feed("line\n") == "line\n"
    shown = stream.feed("x" * 1000 + "hunt")
    assert (len(shown) > 900, "hunt" in shown) == (True, False)
    assert shown + stream.feed("er2 and\n") == "x" * 1000 + "${secret:S0} and\n"
    assert stream.feed("hu") == ""
    assert stream.finish() == "hu"
    assert Stream(Secrets({})).feed("anything") == "anything"
