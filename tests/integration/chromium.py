"""A page in a headless Chromium, which is driven by the DevTools protocol.
Messages are JSON objects that end with a zero byte, and pass through the
descriptors 3 and 4.
"""
import json
import os
import select
import shutil
import subprocess
import time

LIMIT_S = 240
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}


def find():
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    def __init__(self, folder):
        down, self._out = os.pipe()
        self._in, up = os.pipe()
        # The pipes may have the numbers 3 and 4 themselves, so the shell moves
        # them.
        for fd in down, up:
            os.set_inheritable(fd, True)
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec 8<&{down} 9>&{up} 3<&8 4>&9; exec "$@"',
             "bash", find(), "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", f"--user-data-dir={folder}",
             "--remote-debugging-pipe", "about:blank"],
            pass_fds=(down, up), stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        self._text = b""
        self._n = 0
        self._session = {}
        self.errors = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call(
            "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.call("Runtime.enable")
        self.call("Log.enable")

    def _read(self):
        while b"\0" not in self._text:
            if not select.select([self._in], [], [], LIMIT_S)[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._in, 1 << 16)
            if not part:
                raise EOFError("Chromium has ended")
            self._text += part
        message, _, self._text = self._text.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"])
        if event.get("method") == "Log.entryAdded":
            self.errors.append(params["entry"])

    def call(self, method, **params):
        self._n += 1
        os.write(self._out, json.dumps(
            {"id": self._n, "method": method, "params": params,
             **self._session}).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") != self._n:
                self._note(reply)
                continue
            if "error" in reply:
                raise RuntimeError(f"{method}: {reply['error']}")
            return reply["result"]

    def open(self, address):
        self.call("Page.navigate", url=address)

    def js(self, text):
        done = self.call("Runtime.evaluate", expression=text, returnByValue=True,
                         awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"])
        return done["result"].get("value")

    def text(self):
        return self.js("document.body.innerText")

    def wait(self, text):
        """Wait until the expression is true."""
        end = time.monotonic() + LIMIT_S
        while not self.js(text):
            if time.monotonic() > end:
                raise TimeoutError(f"never: {text}; {self.text()}")
            time.sleep(0.05)

    def view(self, width, height=1000, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width,
                  height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key):
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=KEYS[key], **(
                          {"text": "\r"} if (key, kind) == ("Enter", "keyDown")
                          else {}))

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._in)
        os.close(self._out)
