"""The service as a client sees it, over a socket: what is answered, what is refused, and that it lives on."""

import json
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

import longtail
from testing.service import running
from testing.tiny import LABELS, label_id
from tests.service.conftest import LOCKED

pytestmark = pytest.mark.stage

TEXT = "small red box"


@pytest.fixture(scope="module")
def model(tiny_run):
    return longtail.load(tiny_run)


def as_sent(labels) -> list[dict]:
    return [{"id": one.id, "text": one.text, "probability": round(one.probability, 6)} for one in labels]


def predict(client, *texts, **more) -> list[dict]:
    answer = client.post("/predict", json={"texts": list(texts), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


def refused(answer: httpx.Response, status: int, *named: str) -> None:
    """It is refused with one sentence that names these."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.endswith(".") and "Traceback" not in error
    assert all(name in error for name in named), error


# --- predictions ------------------------------------------------------------------------------------------------------


def test_texts_get_the_labels_that_the_model_gives_them(client, model):
    texts = [TEXT, "large blue jar", "flat green lid"]
    found = predict(client, *texts, k=4)
    assert [one["labels"] for one in found] == [as_sent(labels) for labels in model.predict(texts, k=4)]
    assert all(one["known"] and one["id"] is None for one in found)


def test_ids_come_back(client):
    found = predict(client, {"id": "b", "text": TEXT}, TEXT, {"id": "a", "text": "cup"})
    assert [one["id"] for one in found] == ["b", None, "a"]
    assert found[0]["labels"] == found[1]["labels"] != found[2]["labels"]


def test_cut_offs_and_subsets_are_those_of_the_model(client, model):
    some = [label_id(3), label_id(1), label_id(20)]
    least = model.predict(TEXT)[2].probability
    precision = model.cutoffs.precision[-1]
    assert predict(client, TEXT, labels=some)[0]["labels"] == as_sent(model.predict(TEXT, among=some))
    assert predict(client, TEXT, threshold=least)[0]["labels"] == as_sent(model.predict(TEXT, threshold=least))
    assert predict(client, TEXT, precision=precision)[0]["labels"] == as_sent(model.predict(TEXT, precision=precision))


def test_a_text_of_unknown_words_gets_the_frequent_labels_and_says_so(client, model):
    (found,) = predict(client, "", k=3)
    assert not found["known"]
    assert found["labels"] == as_sent(model.predict("", k=3))


def test_many_texts_are_answered_as_each_is_by_itself(client):
    texts = [f"{LABELS[i % 40]} {LABELS[(7 * i) % 40]}" for i in range(150)]
    together = predict(client, *texts, k=3)
    assert together[:40] == [predict(client, text, k=3)[0] for text in texts[:40]]


def test_the_answers_of_many_clients_at_once_are_their_own(service, model):
    def one(number: int) -> tuple[list[dict], list[dict]]:
        text, k = f"{LABELS[number % 40]} {LABELS[(3 * number) % 40]}", 1 + number % 5
        with httpx.Client(base_url=service.address, timeout=60) as own:
            return predict(own, text, k=k)[0]["labels"], as_sent(model.predict(text, k=k))

    with ThreadPoolExecutor(16) as clients:
        for found, expected in clients.map(one, range(160)):
            assert found == expected


def test_the_other_model_is_asked_by_name(client, model):
    assert predict(client, TEXT, which="compare")[0]["labels"] == predict(client, TEXT)[0]["labels"]
    refused(client.post("/predict", json={"texts": [TEXT], "which": "third"}), 422, "third")


# --- explanations, labels ---------------------------------------------------------------------------------------------


def test_an_explanation_names_words_without_which_the_score_is_lower(client):
    first = predict(client, TEXT, k=1)[0]["labels"][0]
    found = client.post("/explain", json={"text": TEXT, "labels": [first["id"]]}).json()
    (label,) = found["labels"]
    assert found["known"] and label["id"] == first["id"]
    assert label["probability"] == pytest.approx(first["probability"], abs=1e-3)
    assert {word["text"] for word in label["words"]} == set(TEXT.split())
    for word in label["words"]:
        assert [TEXT[start:end] for start, end in word["places"]] == [word["text"]]
    assert not label["named"] or label["without"] < label["score"]
    assert all(document["text"] for document in label["documents"])


def test_labels_are_searched(client, model):
    found = client.get("/labels", params={"q": "red box", "limit": 2}).json()
    assert found["total"] == len(model.labels)
    assert [one["id"] for one in found["labels"]] == [one.id for one in model.labels.search("red box", 2)]


def test_a_label_has_frequency_results_and_neighbours(client, model):
    id = next(iter(model.labels)).id
    found = client.get(f"/labels/{id}").json()
    assert (found["id"], found["docs"]) == (id, model.labels.get(id).docs)
    assert found["results"]["test_docs"] >= 0
    assert [one["id"] for one in found["neighbours"]] == [one.id for one in model.labels.neighbours(id)]


# --- what is refused --------------------------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}
BODIES = {
    "no JSON": (b"texts=a", 400),
    "nothing": (b"", 400),
    "no UTF-8": (b'{"texts": ["\xff\xfe"]}', 400),
    "half a character": (b'{"texts": ["\\ud800"]}', 400),
    "deep": (b'{"texts": ' + b"[" * 90_000, 400),
    "a list": (b"[]", 422),
    "no texts": (b'{"texts": []}', 422),
    "a number": (b'{"texts": [1]}', 422),
    "unknown field": (b'{"texts": ["a"], "top": 3}', 422),
    "k of zero": (b'{"texts": ["a"], "k": 0}', 422),
    "k of a word": (b'{"texts": ["a"], "k": "3"}', 422),
    "no share": (b'{"texts": ["a"], "threshold": 1.5}', 422),
    "not a number": (b'{"texts": ["a"], "threshold": NaN}', 422),
    "two cut-offs": (b'{"texts": ["a"], "threshold": 0.5, "precision": 0.5}', 422),
    "unknown label": (b'{"texts": ["a"], "labels": ["nobody"]}', 422),
    "too many texts": (json.dumps({"texts": ["a"] * 1001}).encode(), 422),
    "too long a text": (json.dumps({"texts": ["a" * 20_001]}).encode(), 422),
    "too large": (b'{"texts": ["' + b"a" * 200_000 + b'"]}', 413),
    "ten megabytes": (b"a" * 10_000_000, 413),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be_answered_gets_a_sentence_and_the_service_lives(client, service, name):
    body, status = BODIES[name]
    before = set(service.workers())
    refused(client.post("/predict", content=body, headers=JSON), status)
    assert predict(client, TEXT, k=1)
    assert set(service.workers()) == before


def test_a_large_body_in_pieces_is_refused_too(client):
    pieces = (b"a" * 10_000 for _ in range(100))
    refused(client.post("/predict", content=pieces, headers=JSON), 413, "1,000,000")


def test_a_precision_that_is_out_of_reach_is_said(client, model):
    if max(model.cutoffs.precision) >= 1:
        pytest.skip("this model reaches every precision")
    refused(client.post("/predict", json={"texts": [TEXT], "precision": 1.0}), 422, "precision")


def test_what_is_no_json_by_its_type_is_refused(client):
    refused(client.post("/predict", content=b"{}", headers={"content-type": "text/plain"}), 415, "text/plain")
    refused(client.post("/predict", content=b"{}"), 415, "not stated")


def test_unknown_paths_methods_and_labels_are_said(client):
    refused(client.get("/nothing"), 404, "/nothing")
    refused(client.get("/static/../app.py"), 404)
    refused(client.get("/static/%2e%2e%2fapp.py"), 404)
    refused(client.put("/predict", json={}), 405, "PUT")
    refused(client.get("/labels/nobody"), 404, "nobody")
    refused(client.get("/labels", params={"limit": 0}), 422, "limit")


def test_bytes_that_are_no_http_get_no_answer_and_the_service_lives(client, service):
    place = urlsplit(service.address)
    with socket.create_connection((place.hostname, place.port)) as door:
        door.sendall(b"\x16\x03\x01\x00\xff" * 50 + b"\r\n\r\n")
        assert b"400" in door.recv(1000)
    assert client.get("/health").json() == {"status": "ok"}


def test_a_request_that_does_not_arrive_is_ended(tiny_run, tmp_path, monkeypatch):
    """The settings are those of `Settings`; fifteen seconds would be long for a test."""
    from longtail.service.app import create_app
    from longtail.service.settings import Settings

    app = create_app(Settings(tiny_run, read_time=0.2, answer_time=0.2))
    sent = []

    async def never():
        import anyio

        await anyio.sleep(30)

    async def send(message):
        sent.append(message)

    import anyio

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"content-type", b"application/json")]}
    anyio.run(app, scope, never, send)
    assert sent[0]["status"] == 408


# --- states -----------------------------------------------------------------------------------------------------------


def test_states(client, model):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}
    for path in ("/", "/health", "/ready"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
    version = client.get("/version").json()
    assert version["longtail"] == longtail.__version__
    assert (version["model"], version["labels"]) == (model.info["hash"], len(model.labels))


def numbers(client, name: str, **marks: str) -> float:
    """The sum of the samples of this name that have these marks."""
    found = 0.0
    for line in client.get("/metrics").text.splitlines():
        sample = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
        if sample and sample[1] == name:
            own = dict(re.findall(r'(\w+)="([^"]*)"', sample[2] or ""))
            found += float(sample[3]) if marks.items() <= own.items() else 0
    return found


def test_the_workers_count_together(service, client):
    marks = {"path": "/predict", "status": "200", "method": "POST"}
    requests = numbers(client, "longtail_requests_total", **marks)
    texts = numbers(client, "longtail_texts_total")

    def one(_: int) -> None:
        httpx.post(f"{service.address}/predict", json={"texts": [TEXT, TEXT]}, timeout=60)  # a connection of its own

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(one, range(40)))
    assert numbers(client, "longtail_requests_total", **marks) == requests + 40
    assert numbers(client, "longtail_texts_total") == texts + 80
    assert numbers(client, "longtail_request_seconds_count", path="/predict") >= requests + 40
    assert numbers(client, "longtail_labels") == len(LABELS)


def test_no_client_makes_up_names_that_are_counted(client):
    client.get("/made-up-name")
    text = client.get("/metrics").text
    assert "made-up-name" not in text and 'path="other"' in text


# --- changes of labels ------------------------------------------------------------------------------------------------

NEW = {"labels": [{"id": "new", "text": "round red marble", "examples": ["round marble", "round red ball"]}]}


def test_without_a_token_labels_cannot_be_changed(own_bundle, tmp_path):
    with running(tmp_path / "log", "--bundle", own_bundle, token=None) as service:
        refused(httpx.post(f"{service.address}/labels", json=NEW, headers=LOCKED), 403, "token")


def test_only_who_knows_the_token_changes_labels(client):
    refused(client.post("/labels", json=NEW), 401, "Bearer")
    refused(client.post("/labels", json=NEW, headers={"authorization": "Basic abc"}), 401)
    for wrong in ("Bearer wrong", "Bearer é", LOCKED["authorization"] + "x"):
        headers = {"authorization": wrong.encode()}
        refused(client.post("/labels", json=NEW, headers=headers), 403)
        refused(client.post("/labels/remove", json={"ids": ["x"]}, headers=headers), 403)
        refused(client.patch("/labels", json={"texts": {"x": "y"}}, headers=headers), 403)
        refused(client.post("/labels/undo", json={}, headers=headers), 403)
        refused(client.post("/labels/undo", headers=headers), 403)
    assert client.get("/labels/new").status_code == 404


def test_every_worker_follows_every_change_at_once(own_bundle, tmp_path):
    with running(tmp_path / "log", "--bundle", own_bundle, "--workers", 2) as service:

        def everywhere(check) -> None:
            """The check holds for answers over many connections, so of both workers."""
            for _ in range(12):
                with httpx.Client(base_url=service.address, timeout=60) as own:
                    check(own)

        def send(method: str, path: str = "/labels", **more) -> dict:
            answer = httpx.request(method, service.address + path, headers=LOCKED, timeout=60, **more)
            assert answer.status_code == 200, answer.text
            return answer.json()

        def best(own) -> str:
            return predict(own, "round red marble", labels=["new", label_id(0), label_id(1)])[0]["labels"][0]["text"]

        def same(one, other) -> None:
            assert one == other

        assert send("POST", json=NEW) == {"changed": 1, "total": len(LABELS) + 1}
        everywhere(lambda own: same(best(own), "round red marble"))
        everywhere(lambda own: same(own.get("/labels/new").json()["docs"], 2))
        refused(httpx.post(f"{service.address}/labels", json=NEW, headers=LOCKED), 422, "new")
        send("PATCH", json={"texts": {"new": "marble, round"}})
        everywhere(lambda own: same(own.get("/labels/new").json()["text"], "marble, round"))
        send("POST", "/labels/remove", json={"ids": ["new", label_id(0)]})
        everywhere(lambda own: same(own.get(f"/labels/{label_id(0)}").status_code, 404))
        assert "removed" in send("POST", "/labels/undo")["undone"]  # without a body
        everywhere(lambda own: same(own.get(f"/labels/{label_id(0)}").status_code, 200))
        longtail.load(own_bundle).add_labels([("elsewhere", "by another process")])
        everywhere(lambda own: same(own.get("/labels/elsewhere").status_code, 200))


def test_a_full_disk_refuses_a_change_and_loses_nothing(own_bundle, tmp_path):
    """A limit on the size of files stands for a disk that is full; it is above what the workers count with."""
    limit = 2 << 20
    large = {"labels": [{"id": f"large-{i}", "text": "small red box " * 1000} for i in range(160)]}
    with running(tmp_path / "log", "--bundle", own_bundle, limit=limit) as service:
        with httpx.Client(base_url=service.address, timeout=120, headers=LOCKED) as client:
            assert client.post("/labels", json=NEW).status_code == 200
            before = predict(client, TEXT, "round marble")
            refused(client.post("/labels", json=large), 507, "disk")
            assert predict(client, TEXT, "round marble") == before
            assert client.get("/labels/large-0").status_code == 404
            assert client.post("/labels", json={"labels": [{"id": "small", "text": "small"}]}).status_code == 200
    again = longtail.load(own_bundle)
    assert "new" in again.labels and "small" in again.labels and "large-0" not in again.labels


def test_a_label_of_blanks_is_refused(client):
    blank = {"labels": [{"id": "blank", "text": " \t"}]}
    refused(client.post("/labels", json=blank, headers=LOCKED), 422, "labels.0.text", "blank")
    refused(client.patch("/labels", json={"texts": {label_id(0): " "}}, headers=LOCKED), 422, "blank")


# --- ends, kills, new models ------------------------------------------------------------------------------------------


class Asking:
    """Clients that ask without a pause until the block ends; `wrong` is what was answered and is not right."""

    def __init__(self, address: str, expected: dict[str, list[dict]], clients: int = 4):
        self.address = address
        self.expected = expected
        self.right, self.broken = 0, 0
        self.wrong: list[str] = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> "Asking":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self.address, timeout=60) as client:
            while not self.over.is_set():
                for text, labels in self.expected.items():
                    try:
                        answer = client.post("/predict", json={"texts": [text], "k": 5})
                    except httpx.TransportError:
                        self.broken += 1
                        continue
                    if answer.status_code == 200 and answer.json()["predictions"][0]["labels"] == labels:
                        self.right += 1
                    else:
                        self.wrong.append(answer.text)

    def wait(self, more: int) -> None:
        """Until so many more were answered."""
        aim, end = self.right + more, time.monotonic() + 60
        while self.right < aim and time.monotonic() < end:
            time.sleep(0.01)
        assert self.right >= aim


@pytest.fixture(scope="module")
def expected(model) -> dict[str, list[dict]]:
    return {text: as_sent(model.predict(text, k=5)) for text in [*LABELS[:10], "flat cup", "green lid red jar"]}


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_answered_wrong(tiny_bundle, tmp_path, expected):
    with running(tmp_path / "log", "--bundle", tiny_bundle, "--workers", 2) as service:
        with Asking(service.address, expected) as asking:
            asking.wait(50)
            for place in (0, 1):
                victim = service.workers()[place]
                os.kill(victim, signal.SIGKILL)
                end = time.monotonic() + 60
                while time.monotonic() < end and (len(service.workers()) < 2 or victim in service.workers()):
                    time.sleep(0.05)
                assert len(service.workers()) == 2
                asking.wait(100)
        assert not asking.wrong
        assert asking.broken <= 2 * len(asking.threads)  # what the killed one was answering
        assert "has ended" in service.said()


def test_the_others_answer_where_a_worker_cannot_be_started_again(own_bundle, tmp_path, expected):
    """The bundle is damaged under a service of two workers, and one of them is killed; then the bundle is mended."""
    with running(tmp_path / "log", "--bundle", own_bundle, "--workers", 2) as service:
        first = service.workers()
        time.sleep(2)  # until both are known to be ready
        file = own_bundle / "frequency.npy"
        held = file.read_bytes()

        def put(content: bytes) -> None:
            file.with_suffix(".new").write_bytes(content)
            os.replace(file.with_suffix(".new"), file)

        def until(is_so) -> None:
            end = time.monotonic() + 60
            while not is_so() and time.monotonic() < end:
                time.sleep(0.05)
            assert is_so(), service.said()

        put(held[:-1] + bytes([held[-1] ^ 1]))
        os.kill(first[0], signal.SIGKILL)
        until(lambda: "could not be started" in service.said())
        for text, labels in [*expected.items()] * 2:  # each over a connection of its own
            answer = httpx.post(f"{service.address}/predict", json={"texts": [text], "k": 5}, timeout=5)
            assert answer.json()["predictions"][0]["labels"] == labels
        assert "error: " in service.said() and "frequency.npy is damaged" in service.said()
        assert "Traceback" not in service.said()
        put(held)

        def both_answer() -> bool:
            """Each listens at a door of its own."""
            doors = [psutil.Process(pid).net_connections("tcp") for pid in service.workers()]
            return [any(one.status == psutil.CONN_LISTEN for one in own) for own in doors] == [True, True]

        until(both_answer)
        assert first[1] in service.workers() and "Traceback" not in service.said()


def test_without_a_folder_for_numbers_each_worker_counts_its_own(tiny_bundle, tmp_path):
    """A limit on the size of files stands for a disk that is full."""
    with running(tmp_path / "log", "--bundle", tiny_bundle, limit=20_000) as service:
        with httpx.Client(base_url=service.address, timeout=60) as client:
            predict(client, TEXT)
            assert numbers(client, "longtail_texts_total") == 1
        assert "no folder for numbers can be written" in service.said()


def test_a_stop_finishes_what_is_running(tiny_bundle, tmp_path, expected):
    with running(tmp_path / "log", "--bundle", tiny_bundle, "--workers", 2) as service:
        answers = []

        def one() -> None:
            answers.append(httpx.post(f"{service.address}/predict", json={"texts": LABELS * 20, "k": 40}, timeout=60))

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 30
        while time.monotonic() < end and not numbers(httpx.Client(base_url=service.address), "longtail_running") > 1:
            if not any(thread.is_alive() for thread in threads):
                break
        assert service.stop() == 0
        for thread in threads:
            thread.join()
        assert [(answer.status_code, len(answer.json()["predictions"])) for answer in answers] == [(200, 800)] * 2
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{service.address}/health")
        assert service.said().endswith("stopped.\n")


@pytest.mark.parametrize("how", ["by its files", "by a signal"])
def test_a_new_bundle_is_taken_over_without_a_dropped_request(tiny_bundle, own_bundle, tmp_path, expected, how):
    """The new bundle is another one by its hash, and gives the same labels, so that every answer can be checked."""
    from longtail.bundling import write_bundle

    other = longtail.load(tiny_bundle).place
    with running(tmp_path / "log", "--bundle", own_bundle, "--workers", 2) as service:
        first = httpx.get(f"{service.address}/version").json()["model"]

        def everywhere() -> set[str]:
            return {httpx.get(f"{service.address}/version").json()["model"] for _ in range(8)}

        with Asking(service.address, expected, clients=2) as asking:
            asking.wait(20)
            write_bundle(other, own_bundle, with_documents=False)
            if how == "by a signal":
                service.signal(signal.SIGHUP)
            end = time.monotonic() + 60
            while first in everywhere() and time.monotonic() < end:
                time.sleep(0.1)
            asking.wait(20)
        second = longtail.load(own_bundle).info["hash"]
        assert everywhere() == {httpx.get(f"{service.address}/version").json()["model"]} and first not in everywhere()
        assert second and not asking.wrong and not asking.broken


def test_a_damaged_bundle_is_not_taken_over(own_bundle, tmp_path, expected):
    with running(tmp_path / "log", "--bundle", own_bundle) as service:
        file = own_bundle / "frequency.npy"
        held = file.read_bytes()
        file.with_suffix(".new").write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
        os.replace(file.with_suffix(".new"), file)
        end = time.monotonic() + 60
        while "stays as it was" not in service.said() and time.monotonic() < end:
            time.sleep(0.05)
        assert "frequency.npy is damaged" in service.said()
        text, labels = next(iter(expected.items()))
        assert predict(httpx.Client(base_url=service.address, timeout=60), text, k=5)[0]["labels"] == labels


def test_too_many_requests_are_refused_and_states_are_still_answered(tiny_bundle, tmp_path):
    with running(tmp_path / "log", "--bundle", tiny_bundle, "--max-running", 1) as service:
        seen = set()

        def one(_: int) -> int:
            answer = httpx.post(f"{service.address}/predict", json={"texts": LABELS * 5, "k": 40}, timeout=60)
            if answer.status_code == 503:
                refused(answer, 503, "1 requests")
                assert answer.headers["retry-after"] == "1"
            return answer.status_code

        with ThreadPoolExecutor(8) as clients:
            running_now = clients.map(one, range(40))
            assert httpx.get(f"{service.address}/health", timeout=60).status_code == 200
            seen = set(running_now)
        assert seen == {200, 503}


def test_what_cannot_be_served_is_said_before_a_worker_starts(tmp_path, tiny_bundle):
    from click.testing import CliRunner

    from longtail.commands.serve import serve

    result = CliRunner().invoke(serve, ["--bundle", str(tmp_path)])
    assert result.exit_code == 1 and "neither a bundle nor" in result.stderr
    result = CliRunner().invoke(serve, ["--bundle", str(tiny_bundle), "--token", "short"])
    assert result.exit_code == 1 and "fewer than 16" in result.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(serve, ["--bundle", str(tiny_bundle), "--port", str(port)])
    assert result.exit_code == 1 and f"{port} cannot be listened on" in result.stderr
