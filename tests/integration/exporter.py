"""Tests fsdp-exporter with a real broker: its documents, its HTTP, and what it
does when the broker dies, does not reply, and is restarted. If there is a
headless Chromium, it opens the page. The argument is the build folder.
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import chromium
import prometheus

build = Path(sys.argv[1])
folder = Path(tempfile.mkdtemp())
os.environ.update(HOME=str(folder), FSDP_SOCKET=str(folder / "socket"))
processes = []
page = None


def check(what, holds, *said):
    print("ok:" if holds else "FAILED:", what, *(said if not holds else ()),
          flush=True)
    if not holds:
        sys.exit(1)


def start(*command):
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen([str(word) for word in command], stderr=log,
                                   stdout=log)
    processes.append(process)
    return process


def stop(process):
    """Kill a process and wait for its end."""
    process.kill()
    process.wait()


def until(what, holds, limit_s=60):
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            check(what, False)
        time.sleep(0.02)
    check(what, True)


def start_broker(*options):
    (folder / "socket").unlink(missing_ok=True)
    broker = start(build / "fsdpd", "--socket", folder / "socket", *options)
    until("the broker listens", (folder / "socket").exists)
    return broker


def start_exporter(*options):
    (folder / "port").unlink(missing_ok=True)
    exporter = start(build / "fsdp-exporter", "--port", 0, "--port-file",
                     folder / "port", *options)
    until("the exporter listens", lambda: (folder / "port").exists()
          and (folder / "port").read_text().endswith("\n"))
    return exporter, int((folder / "port").read_text())


def ctl(*words):
    subprocess.run([build / "fsdpctl", *words], check=True, timeout=60,
                   stdout=subprocess.DEVNULL)


def ask(path, method="GET", body=None, to=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", to or port, timeout=60)
    connection.request(method, path, body=body, headers=headers)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply, text


def status():
    return json.loads(ask("/status.json")[1])


def put(name, size):
    (folder / "x.raw").write_bytes(bytes(size))
    ctl("put", folder / "x.raw", "--name", name, "--dtype", "u8", "--shape",
        str(size), "--quiet")


# --- HTTP --------------------------------------------------------------------

def check_metrics():
    reply, text = ask("/metrics")
    metrics = prometheus.read(text.decode())
    prometheus.lint(text.decode())
    check("metrics have the type of the text format", reply.status == 200 and
          reply.getheader("Content-Type").startswith("text/plain; version=0.0.4"))
    check("metrics say that the broker is up",
          prometheus.value(metrics, "fsdpd_up") == 1)


def check_page():
    for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"),
                       ("/style.css", "text/css"), ("/icon.svg", "image/svg+xml")):
        reply, text = ask(path)
        check(f"{path} is there", reply.status == 200 and len(text) > 50 and
              reply.getheader("Content-Type").startswith(kind))
        policy = reply.getheader("Content-Security-Policy")
        check(f"{path} allows no inline code", "default-src 'none'" in policy
              and "unsafe" not in policy)
        words = re.sub(rb"http://www\.w3\.org/2000/svg", b"", text)
        check(f"{path} names no other site", not re.search(
            rb"https?:|[\"'(]//", words))
        check(f"{path} is asked for again", reply.getheader("Cache-Control") ==
              "no-cache")


def check_methods():
    reply, text = ask("/nothing")
    check("other paths are not found", reply.status == 404)
    for method in "POST", "PUT", "DELETE", "OPTIONS", "PATCH":
        reply, _ = ask("/metrics", method, body=b"x" * 100)
        check(f"{method} is refused", reply.status == 405 and
              reply.getheader("Allow") == "GET, HEAD")
    for path in "/", "/metrics", "/status.json", "/healthz":
        reply, text = ask(path, "HEAD")
        check(f"HEAD {path} has a length and no body", reply.status == 200 and
              int(reply.getheader("Content-Length")) > 0 and text == b"")
    reply, _ = ask("/metrics")
    check("documents are not stored",
          reply.getheader("Cache-Control") == "no-store")
    reply, _ = ask("/../../../etc/passwd")
    check("there are no files", reply.status == 404)


def canonical_name(name):
    try:
        return socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)[0][3]
    except socket.gaierror:
        return name


def check_hosts():
    own = socket.gethostname()
    for host in ("127.0.0.1", "localhost:1", "[::1]:80", own,
                 own.split(".")[0].upper(), canonical_name(own)):
        check(f"host {host}", ask("/metrics", Host=host)[0].status == 200)
    for host in ("evil.example", "127.0.0.1.evil.example",
                 f"{own}.evil.example", "localhost.evil.example", ""):
        check(f"host '{host}' is refused",
              ask("/metrics", Host=host)[0].status == 421)


def check_flood():
    """Check that idle connections beyond the limit do not keep others out for
    ever."""
    idle = []
    for _ in range(200):
        one = socket.socket()
        one.settimeout(5)
        try:
            one.connect(("127.0.0.1", port))
        except OSError:
            pass
        idle.append(one)
    for one in idle:
        one.close()

    def is_served():
        try:
            return ask("/healthz")[0].status == 200
        except OSError:
            return False

    until("after 200 idle connections it serves", is_served)
    garbage = socket.create_connection(("127.0.0.1", port), timeout=60)
    garbage.sendall(b"\0\1\2 garbage \r\n\r\n")
    garbage.recv(1000)
    garbage.close()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as long:
        try:
            long.sendall(b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n")
            long.recv(1000)
        except OSError:
            pass  # the exporter has closed it
    check("garbage and a long line do no harm", ask("/healthz")[0].status == 200)


# --- documents ---------------------------------------------------------------

def check_status():
    put("test/a", 4096)
    put("test/b", 65536)
    until("a new tensor is in the state", lambda: status()["tensors"]["n"] == 2)
    document = status()
    tensors = {t["name"]: t for t in document["tensors"]["items"]}
    check("tensors have their size", tensors["test/b"]["size"] == 65536)
    chunks = {c["chunk"]: c for c in document["chunks"]}
    chunk = chunks[tensors["test/b"]["chunk"]]
    check("a tensor lies in its chunk",
          tensors["test/b"]["offset"] + 65536 <= chunk["size"])
    check("chunks have what is used", sum(
        c["used"] for c in document["chunks"]) == 4096 + 65536)
    check("the exporter is one of the sessions", any(
        s["command"] == "fsdp-exporter" for s in document["sessions"]["items"]))
    check("the user is charged", document["users"][0]["bytes"] == 4096 + 65536)
    check("requests have a median", all(
        r["median_s"] > 0 for r in document["requests"] if r["count"]))
    check("there is a history", document["history"][-1]["up"])


def count_requests(kind):
    return next((r["count"] for r in status()["requests"] if r["kind"] == kind),
                0)


def check_scrapers():
    """Check that many scrapers at once make hardly more requests to the broker
    than one."""
    before = count_requests("memory")
    began = time.monotonic()
    replies = []
    threads = [threading.Thread(target=lambda: [replies.append(
        ask("/metrics")[0].status) for _ in range(20)]) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    check("all scrapers are served", replies == [200] * 320)
    asked = count_requests("memory") - before
    most = took_s / 0.25 + 4
    check("the broker is asked at most every 250 ms", asked <= most,
          f"{asked} requests in {took_s} s")


def load_many(n):
    """Load a bundle of `n` tensors of 64 bytes."""
    entries = {f"t{i:04}": {"dtype": "U8", "shape": [64],
                            "data_offsets": [64 * i, 64 * (i + 1)]}
               for i in range(n)}
    head = json.dumps(entries).encode()
    file = folder / "many.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(64 * n))
    ctl("load", file, "--prefix", "many/", "--quiet")


def check_bounded(page):
    before = status()["tensors"]["n"]
    load_many(1000)
    until("all tensors are counted",
          lambda: status()["tensors"]["n"] == before + 1000)
    check("the list of tensors has a bound",
          len(status()["tensors"]["items"]) == 512)
    if page:
        page.wait('document.body.innerText.includes'
                  f'("and {before + 1000 - 512} more tensors")')
        check("the page counts what it does not list", True)


# --- the page ----------------------------------------------------------------

# Find the texts that are hard to read, by WCAG 2.1: each with the contrast of
# its colour and the colour that is painted under it.
FAINT = """(() => {
	const parse = colour => {
		const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
		return {rgb: [r, g, b], a};
	};
	const light = rgb => {
		const [r, g, b] = rgb.map(c => c / 255 <= .04045 ? c / 255 / 12.92 : ((c / 255 + .055) / 1.055) ** 2.4);
		return .2126 * r + .7152 * g + .0722 * b;
	};
	const under = node => {
		for (; node; node = node.parentElement) {
			const colour = parse(getComputedStyle(node).backgroundColor);
			if (colour.a === 1)
				return colour.rgb;
		}
		return [255, 255, 255];
	};
	const faint = [];
	for (const node of document.querySelectorAll("body *")) {
		if (!node.checkVisibility() || ![...node.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
			continue;
		const a = light(parse(getComputedStyle(node).color).rgb), b = light(under(node));
		const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (contrast < 4.5)
			faint.push(`${node.tagName}.${node.className} "${node.textContent.slice(0, 30)}" ${contrast.toFixed(2)}`);
	}
	return faint;
})()"""
WIDE = """[...document.querySelectorAll("body *")].filter(node =>
	node.getBoundingClientRect().right > innerWidth + 1 && !node.closest(".scroll"))
	.map(node => `${node.tagName}.${node.className}#${node.id}`)"""
FOCUS = """(() => {
	const node = document.activeElement, box = node.getBoundingClientRect();
	return {tag: node.tagName, name: node.className, text: node.textContent, area: box.width * box.height,
		outline: getComputedStyle(node).outlineStyle};
})()"""
LONG = "a-long-name/" + "of-many-parts/" * 12 + "weight"


def add_kinds():
    """Add what the page has parts for: a name that is longer than its column, a
    channel with a consumer that waits, and a communicator that its ranks have
    left."""
    put(LONG, 1000)
    start(build / "trainer", "test/batches", 1)
    start(build / "mlp", "--world", 1, "--rank", 0, "--steps", 1, "--out",
          folder / "w.bin").wait(timeout=60)
    until("a channel and a communicator are in the state", lambda:
          status()["channels"]["n"] and status()["communicators"])
    check("the channel's consumer waits", any(
        c["name"] == "test/batches" and c["role"] == "consumer" and
        c["command"] == "trainer" and not c["ended"]
        for c in status()["channels"]["items"]))


def open_page():
    page = chromium.Page(folder / "chromium")
    page.view(1400)
    page.open(f"http://127.0.0.1:{port}/")
    return page


def check_others():
    """Check that a user who is not in admin_group sees only totals, and the
    reason."""
    other = folder / "other"
    other.mkdir()
    for path, mode in (folder, 0o711), (other, 0o777), (folder / "socket", 0o777):
        path.chmod(mode)
    exporter = start("setpriv", "--reuid", 65533, "--regid", 65534,
                     "--clear-groups", build / "fsdp-exporter", "--port", 0,
                     "--port-file", other / "port")
    until("another user's exporter listens", lambda:
          (other / "port").exists()
          and (other / "port").read_text().endswith("\n"))
    page = chromium.Page(folder / "chromium-other")
    try:
        page.open(f"http://127.0.0.1:{(other / 'port').read_text().strip()}/")
        page.wait('document.getElementById("tensors-more")?.textContent === '
                  '"2 tensors of other users"')
        check("the page says how to see others' memory",
              "1 chunk of other users: listed if fsdp-exporter has the group "
              "admin_group" in page.text())
    finally:
        page.close()
    stop(exporter)


def check_kinds(page):
    page.wait('document.getElementById("state")?.textContent === "up"')
    said = page.text()
    check("the page shows tensors", "test/b" in said and "64.0 KiB" in said)
    check("the page shows sessions", "fsdp-exporter (" in said)
    check("the page shows channels", "test/batches" in said and
          "trainer (" in said)
    check("the page shows communicators", "mlp" in page.js(
        'document.getElementById("comms").innerText'))
    check("the page draws the blocks", page.js(
        'document.querySelectorAll("#map rect").length') >= 2)
    check("shards of a communicator are not in limbo", page.js(
        '[".collective", ".limbo"].map(kind => document.querySelectorAll('
        '"#map " + kind).length > 0)') == [True, False])
    check("one is singular", not re.search(r"(?<![\d.,])1 (more )?[a-z]{3,}s\b",
                                           said), said)


def check_limbo(page):
    # A process holds this tensor, whose name was removed.
    put("test/held", 8)
    holder = subprocess.Popen([build / "hoard", "hold", "test/held"], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    processes.append(holder)
    check("a process holds a tensor", "holds" in holder.stdout.readline())
    ctl("rm", "test/held")

    def holders():
        return [(h["pid"], h["command"]) for t in status()["limbo"]["items"]
                for h in t["held_by"]]

    until("its holder is named in limbo", lambda:
          holders() == [(holder.pid, "hoard")])
    if page:
        page.wait('document.getElementById("limbo").innerText.includes('
                  f'"hoard ({holder.pid})")')
        check("the page names it, too", True)
    holder.stdin.close()
    check("the holder ends", holder.wait(timeout=60) == 0)
    until("limbo is empty", lambda: not status()["limbo"]["n"])


def check_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        print(f"skipped: IPv6: {error}", flush=True)
        return
    exporter, at = start_exporter("--address", "::1")
    connection = http.client.HTTPConnection("::1", at, timeout=60)
    connection.request("GET", "/icon.svg")
    check("an IPv6 address is served", connection.getresponse().status == 200)
    connection.close()
    until("it says where", lambda: f"listening at http://[::1]:{at}/\n" in
          (folder / "log").read_text())
    stop(exporter)


def check_sizes(page):
    for width in 1400, 760, 360:
        page.view(width)
        check(f"the page fits into {width} pixels", not page.js(WIDE),
              page.js(WIDE))
    for scheme in "light", "dark":
        page.view(1400, scheme=scheme)
        check(f"all text can be read, {scheme}", not page.js(FAINT),
              page.js(FAINT))


def check_keys(page):
    """Check all stops of the Tab key."""
    said = []
    for _ in range(200):
        page.press("Tab")
        stop = page.js(FOCUS)
        if stop["tag"] == "BODY":
            break
        said.append(stop)
        if stop["name"] == "chunk":
            page.press("ArrowRight")
            block = page.js('document.getElementById("detail").textContent')
            check("an arrow key goes to a block of the chunk", "uid" in block
                  and not block.startswith("Chunk"), block)
        if stop["text"] == "holders":
            page.press("Enter")
            check("the Enter key sorts", page.js(
                'document.querySelector("#tensors th[aria-sort=descending]")'
                '.textContent') == "holders")
    check("the Tab key comes to the end", stop["tag"] == "BODY")
    check("each stop is seen", all(
        stop["outline"] != "none" and stop["area"] > 0 for stop in said), said)


def check_away(page):
    page.wait('document.getElementById("state")?.textContent === "broker away"')
    check("the page says since when", "from" in page.js(
        'document.getElementById("alert").textContent'))


# --- the broker comes and goes -----------------------------------------------

def is_down(to=None):
    return prometheus.value(prometheus.read(ask("/metrics", to=to)[1].decode()),
                            "fsdpd_up") == 0


def filter_mode(pid):
    """Return "2" if a filter of system calls is on."""
    return re.search(r"Seccomp:\t(\d)", Path(f"/proc/{pid}/status").read_text())[1]


def check_sandbox():
    getppid = {"x86_64": 110, "aarch64": 173}[os.uname().machine]
    with open(folder / "sandbox", "ab") as log:
        tried = subprocess.Popen(
            [build / "fsdp-exporter", "--port", "0"], stderr=log,
            env={**os.environ, "FSDP_SANDBOX_TRY": str(getppid)})
    processes.append(tried)
    until("another exporter listens",
          lambda: "listening" in (folder / "sandbox").read_text())
    said = (folder / "sandbox").read_text()
    if "no sandbox" not in said:
        check("it refuses what is not on its list, and names it",
              f"refused the system call {getppid} (getppid)" in said and
              f"tried the system call {getppid}: Operation not" in said, said)
        check("a filter is on", filter_mode(tried.pid) == "2")
    stop(tried)
    free, _ = start_exporter("--no-sandbox")
    check("it can be left out",
          filter_mode(free.pid) == filter_mode(os.getpid()))
    stop(free)


def check_stopped(broker):
    broker.send_signal(signal.SIGSTOP)
    until("a broker that does not answer is down", is_down)
    document = status()
    check("the state says why", not document["up"] and "answer" in
          document["error"])
    check("pages are served meanwhile", ask("/")[0].status == 200)
    broker.send_signal(signal.SIGCONT)
    until("it is up when it goes on", lambda: not is_down())


def log():
    return (folder / "log").read_text(errors="replace")


def check_death(broker, page):
    size = len(log())
    stop(broker)
    until("a dead broker is down", is_down)
    check("health says so", ask("/healthz")[0].status == 503)
    check("the state says why", not status()["up"] and status()["error"])
    until("the log says why", lambda: "fsdp-exporter: " in log()[size:])
    if page:
        check_away(page)
    broker = start_broker()
    until("the exporter finds a new broker", lambda: not is_down())
    until("the log says so", lambda: "the broker answers again\n" in
          log()[size:])
    check("health says so", ask("/healthz")[0].status == 200)
    check("the state is that of the new one", status()["tensors"]["n"] == 0)
    return broker


def count_sessions():
    """Count the exporter's sessions."""
    listed = subprocess.run([build / "fsdpctl", "clients"], check=True,
                            timeout=60, capture_output=True, text=True)
    return listed.stdout.count("fsdp-exporter")


def check_outage():
    """Check that the exporter goes on with its session after an outage."""
    supervisor = start_broker("--supervised")
    until("it has a session of a supervised broker", lambda: not is_down()
          and count_sessions() == 1)
    broker = int(Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
                 .read_text())
    supervisor.send_signal(signal.SIGSTOP)
    try:
        os.kill(broker, signal.SIGKILL)
        until("a broker that is not started again is down", is_down)
        check("it still is", is_down())
        supervisor.send_signal(signal.SIGCONT)
        until("it is up when it was started again", lambda: not is_down())
        check("the exporter has one session", count_sessions() == 1)
    finally:
        supervisor.send_signal(signal.SIGCONT)
        supervisor.terminate()
        supervisor.wait(timeout=60)


def check_usual_place():
    """Check that an exporter in its sandbox finds a broker that begins later,
    where users have theirs."""
    usual = ("env", "-u", "FSDP_SOCKET", f"XDG_RUNTIME_DIR={folder}")
    (folder / "port").unlink(missing_ok=True)
    exporter = start(*usual, build / "fsdp-exporter", "--port", 0,
                     "--port-file", folder / "port")
    until("an exporter listens that was given no socket", lambda:
          (folder / "port").exists() and
          (folder / "port").read_text().endswith("\n"))
    broker = start(*usual, build / "fsdpd")
    until("it finds the broker of its user", lambda: not is_down(
        int((folder / "port").read_text())))
    stop(exporter)
    stop(broker)


def check_usage():
    for words, said in ((["--port", "70000"], "0 to 65535"),
                        (["--address", "localhost"], "IPv4"),
                        (["x"], "unexpected argument"), (["--nothing"], "--help")):
        done = subprocess.run([build / "fsdp-exporter", *words], text=True,
                              capture_output=True, timeout=60)
        check(f"{' '.join(words)} is wrong usage", done.returncode == 2 and
              said in done.stderr, done.stderr)
    done = subprocess.run([build / "fsdp-exporter", "--port", str(port)],
                          text=True, capture_output=True, timeout=60)
    check("a port in use is a failure", done.returncode == 1 and
          "cannot listen at 127.0.0.1: Address already in use; give another" in
          done.stderr, done.stderr)


try:
    broker = start_broker()
    exporter, port = start_exporter()
    until("it says where the page is", lambda:
          f"listening at http://127.0.0.1:{port}/\n" in
          (folder / "log").read_text())
    until("health is good", lambda: ask("/healthz")[0].status == 200)
    check_metrics()
    check_page()
    check_methods()
    check_hosts()
    check_status()
    check_scrapers()
    if chromium.find() and os.getuid() == 0 and shutil.which("setpriv"):
        check_others()
    add_kinds()
    page = open_page() if chromium.find() else None
    if page:
        check_kinds(page)
        check_sizes(page)
        check_keys(page)
    else:
        check("chromium is there; run scripts/setup test", os.getuid() != 0)
        print("skipped: the page, because there is no chromium", flush=True)
    check_limbo(page)
    check_bounded(page)
    check_flood()
    check_ipv6()
    check_usage()
    check_sandbox()
    check_usual_place()
    check_stopped(broker)
    broker = check_death(broker, page)
    stop(broker)
    check_outage()
    broker = start_broker()
    until("the exporter finds a new broker", lambda: not is_down())
    if page:
        check("the page logged no error", not page.errors, page.errors)
    broker.send_signal(signal.SIGSTOP)
    until("a broker that does not answer is down", is_down)
    exporter.send_signal(signal.SIGTERM)
    check("it ends when it is told to, even then",
          exporter.wait(timeout=60) == 0)
except BaseException:
    print((folder / "log").read_text(errors="replace"))
    raise
finally:
    if page:
        page.close()
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)
