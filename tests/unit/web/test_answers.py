"""What the service answers to good requests and to every kind of bad one."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from served import NAMES, Client, picture, serving, wait_until

from captune.core.errors import InputError
from captune.web.prediction import MOST_FILES
from captune.web.server import Service

END = b"\r\n"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(max_bytes=100_000, timeout=5.0) as found:
        yield found


def form(*parts: tuple[str, bytes], boundary: str = "edge") -> bytes:
    body = b"".join(f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + END for head, content in parts)
    return body + f"--{boundary}--\r\n".encode()


def bomb(side: int = 30_000) -> bytes:
    """Return a PNG that announces very many pixels and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = side.to_bytes(4, "big") * 2
    header = chunk(b"IHDR", size + bytes([8, 2, 0, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_an_image_gets_labels_with_probabilities(client: Client) -> None:
    status, headers, answer = client.ask("/predict?top_k=2", picture((5, 200, 20)))
    assert status == 200
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert [entry["label"] for entry in answer["predictions"]] == ["green", "<script>alert('x')</script>"]
    assert answer["predictions"][0]["probability"] == pytest.approx(200 / 225 * 0.9, abs=1e-4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_every_known_format_is_read(client: Client, kind: str) -> None:
    answer = client.ask("/predict?top_k=1", picture((10, 20, 220), kind))[2]
    assert answer["predictions"][0]["label"] == "blue"


def test_top_k_is_five_unless_told_and_never_more_than_there_are(client: Client) -> None:
    assert len(client.ask("/predict", picture())[2]["predictions"]) == len(NAMES)
    assert len(client.ask("/predict?top_k=900", picture())[2]["predictions"]) == len(NAMES)
    assert len(client.ask("/predict?top_k=1", picture())[2]["predictions"]) == 1


def test_a_form_with_a_file_is_taken(client: Client) -> None:
    body = form(
        ('Content-Disposition: form-data; name="note"', b"hello"),
        ('Content-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png', picture()),
    )
    status, _, answer = client.ask("/predict", body, Content_Type="multipart/form-data; boundary=edge")
    assert (status, answer["predictions"][0]["label"]) == (200, "red")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form(('Content-Disposition: form-data; name="note"', b"hello")), "multipart/form-data; boundary=edge"),
        (form(("Content-Disposition: form-data; filename=x", b"hello")), "multipart/form-data"),
        (b"--edge\r\n" * 1000, "multipart/form-data; boundary=edge"),
        (b"--edge\r\n" + b"x" * 20_000, "multipart/form-data; boundary=edge"),
        (picture(), f"multipart/form-data; boundary={'e' * 71}"),
    ],
)
def test_a_form_without_a_file_is_refused(client: Client, body: bytes, kind: str) -> None:
    status, _, answer = client.ask("/predict", body, Content_Type=kind)
    assert status == 400
    assert "form" in answer["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"not an image",
        picture()[:40],
        b"\x00" * 500,
        b"GIF89a",
        picture(kind="JPEG")[:-200],
        b"<svg></svg>",
        b"%PDF-1.4",
    ],
)
def test_what_is_no_image_is_refused_with_a_sentence(client: Client, body: bytes) -> None:
    status, _, answer = client.ask("/predict", body)
    assert status == 422
    assert answer["error"]


def test_a_decompression_bomb_is_refused_before_it_is_decoded(client: Client) -> None:
    assert len(bomb()) < 1000
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(bomb()))
    status, _, answer = client.ask("/predict", bomb())
    assert status == 422
    assert "pixels" in answer["error"]
    assert client.ask("/predict", bomb(11_000))[0] == 422  # more than captune decodes, less than Pillow's own limit


@pytest.mark.parametrize("query", ["top_k=0", "top_k=-1", "top_k=x", "top_k=", "top_k=9999999"])
def test_a_wrong_query_is_told(client: Client, query: str) -> None:
    status, _, answer = client.ask(f"/predict?{query}", picture())
    assert status == 400
    assert "top_k" in answer["error"]


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/predict", "GET", 405),
        ("/", "POST", 405),
        ("/health", "POST", 405),
        ("/nowhere", "GET", 404),
        ("/../../etc/passwd", "GET", 404),
        ("/predict/", "POST", 404),
        ("/", "DELETE", 405),
        ("/predict", "OPTIONS", 405),
    ],
)
def test_other_places_and_methods_are_refused(client: Client, path: str, method: str, status: int) -> None:
    found, headers, answer = client.ask(path, picture() if method == "POST" else None, method=method)
    assert found == status
    assert answer["error"]
    assert (headers["Allow"] is not None) == (status == 405)


def test_probabilities_are_finite_or_the_request_fails(client: Client) -> None:
    status, _, answer = client.ask("/predict", picture((255, 255, 255)))
    assert (status, list(answer)) == (500, ["error"])
    wait_until(lambda: any("not finite" in line for line in client.said))


def test_metrics_are_what_prometheus_reads(client: Client) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def counted(route: str, status: str) -> float:
        families = text_string_to_metric_families(client.ask("/metrics")[2])
        samples = {
            (s.name, s.labels.get("route"), s.labels.get("status")): s.value for f in families for s in f.samples
        }
        return samples.get(("captune_requests_total", route, status), 0.0)

    before = counted("/predict", "200"), counted("/predict", "422"), counted("other", "404")
    client.ask("/predict", picture())
    client.ask("/predict", b"no image")
    client.ask("/secret/name-of-nothing")
    after = counted("/predict", "200"), counted("/predict", "422"), counted("other", "404")
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]
    assert "name-of-nothing" not in client.ask("/metrics")[2]


def test_requests_are_logged_without_their_query(client: Client) -> None:
    client.ask("/predict?top_k=2", picture())
    assert any("POST /predict 200" in line for line in client.logged)
    assert not any("top_k" in line for line in client.logged)


def test_the_routes_are_documented(client: Client) -> None:
    schema = client.ask("/openapi.json")[2]
    assert set(schema["paths"]) == {"/health", "/predict", "/predict/batch"}
    assert schema["paths"]["/predict"]["post"]["parameters"][0]["name"] == "top_k"
    assert "413" in schema["paths"]["/predict"]["post"]["responses"]


def test_health_says_how_things_stand(client: Client) -> None:
    status, _, answer = client.ask("/health")
    assert status == 200
    assert (answer["status"], answer["classes"]) == ("ok", len(NAMES))
    assert client.ask("/health", method="HEAD")[2] == ""


def test_the_page_escapes_names_and_may_run_nothing_else(client: Client) -> None:
    status, headers, page = client.ask("/")
    assert status == 200
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "captune: colors &amp; &lt;b&gt;" in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http://" not in page.replace("http://127.0.0.1:8000/", "")
    assert "https://" not in page


def test_every_answer_carries_the_safe_headers(client: Client) -> None:
    for path, body in (("/", None), ("/health", None), ("/nowhere", None), ("/predict", b"x")):
        headers = client.ask(path, body)[1]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Access-Control-Allow-Origin"] is None
        assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\n\r\n", b"411"),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", b"400"),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5x\r\n\r\n", b"400"),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"400"),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", b"400"),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", b"422"),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.0\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", b"400"),
    ],
)
def test_what_is_no_proper_request_is_refused(client: Client, request_text: bytes, status: bytes) -> None:
    head, _, body = client.raw(request_text).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert body
    assert b"aaaa" not in body
    assert client.ask("/health")[0] == 200


def test_a_broken_inside_is_not_shown(client: Client) -> None:
    status, _, answer = client.ask("/predict", picture((0, 0, 0)))
    assert status == 500
    assert list(answer) == ["error"]
    assert "secret" not in answer["error"]
    wait_until(lambda: any("secret words" in line for line in client.said))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1", "169.254.169.254"]
)
def test_a_name_that_was_rebound_to_loopback_is_refused(client: Client, host: str) -> None:
    assert client.ask("/", Host=host)[0] == 400
    assert client.ask("/predict", picture(), Host=host)[0] == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000"])
def test_names_of_this_machine_are_known(client: Client, host: str) -> None:
    assert client.ask("/health", Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example"])
def test_pages_of_other_sites_are_refused(client: Client, origin: str) -> None:
    assert client.ask("/predict", picture(), Origin=origin)[0] == 403


def test_its_own_page_may_ask(client: Client) -> None:
    own: Any = f"127.0.0.1:{client.port}"
    assert client.ask("/predict", picture(), Host=own, Origin=f"http://{own}")[0] == 200


def test_other_sites_may_ask_if_they_are_allowed() -> None:
    with serving(token="open5esame", origins=("https://shop.example",)) as client:
        head = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
        status, headers, _ = client.ask(
            "/predict", method="OPTIONS", **head, Access_Control_Request_Headers="authorization,content-type"
        )
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://shop.example")
        asked = {"Origin": "https://shop.example", "Authorization": "Bearer open5esame"}
        status, headers, _ = client.ask("/predict", picture(), **asked)
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://shop.example")
        assert client.ask("/predict", picture(), Origin="https://shop.example")[0] == 401
        assert client.ask("/predict", picture(), **(asked | {"Origin": "https://evil.example"}))[0] == 403
    with pytest.raises(InputError):
        Service("127.0.0.1", 0, origins=["shop.example"])


def test_a_batch_of_files_is_classified_with_a_token(client: Client) -> None:
    head = 'Content-Disposition: form-data; name="image"; filename="{}.png"\r\nContent-Type: image/png'
    colors = {"a": (200, 10, 10), "b": (10, 200, 10), "c": (10, 10, 200)}
    parts = [(head.format(name), picture(color)) for name, color in colors.items()]
    body, kind = form(*parts, (head.format("d"), b"no image")), "multipart/form-data; boundary=edge"
    assert client.ask("/predict/batch", body, Content_Type=kind)[0] == 403
    many = form(*[parts[0]] * (MOST_FILES + 1))
    with serving(token="open5esame", max_bytes=10_000) as other:
        asked = {"Content_Type": kind, "Authorization": "Bearer open5esame"}
        status, _, answer = other.ask("/predict/batch?top_k=1", body, **asked)
        assert status == 200
        assert [entry["file"] for entry in answer["files"]] == ["a.png", "b.png", "c.png", "d.png"]
        assert [[p["label"] for p in f["predictions"]] for f in answer["files"]] == [["red"], ["green"], ["blue"], []]
        assert [bool(entry["error"]) for entry in answer["files"]] == [False, False, False, True]
        assert other.ask("/predict/batch", many, **asked)[0] == 400
        assert other.ask("/predict/batch", bytes(80_001), **asked)[0] == 413
