"""A small OpenAI-compatible server, run as a process: `python chat_server.py PLAN` prints its port and serves.

PLAN is JSON: {"key": bearer token that is demanded or "", "faults": what the first requests get instead of an answer,
"pick": "first" or "last" valid action, or a text}. A fault is a status, "hang", "drop", "garbage", "drip",
[status, wait], or an answer: an object, which may name another "status" than 200 and "headers", or other text.
Every request is appended to the file named by "log".
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PLAN: dict[str, Any] = {}
LOCK = threading.Lock()
BUSY = {"now": 0, "most": 0}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        with LOCK:
            BUSY["now"] += 1
            BUSY["most"] = max(BUSY.values())
        self._counted = True
        try:
            self._answer()
        finally:
            self._leave()

    def _leave(self) -> None:
        """No longer busy: before the answer is out, as its reader may ask again at once."""
        with LOCK:
            BUSY["now"] -= self._counted
            self._counted = False

    def _answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(PLAN.get("delay", 0))
        with LOCK:
            fault = PLAN["faults"].pop(0) if PLAN["faults"] else None
            entry = {
                "path": self.path,
                "key": self.headers.get("Authorization"),
                "body": body,
                "most": BUSY["most"],
                "time": time.monotonic(),
                "fault": fault,
            }
            with Path(PLAN["log"]).open("a") as file:
                file.write(json.dumps(entry) + "\n")
        if PLAN["key"] and entry["key"] != f"Bearer {PLAN['key']}":
            return self._send(401, {"error": {"message": f"told was {str(entry['key']).removeprefix('Bearer ')}"}})
        if fault == "hang":
            time.sleep(30)
            return None
        if fault == "drop":
            self.close_connection = True
            return None
        if fault == "garbage":
            return self._send(200, b"<html>busy</html>")
        if fault == "drip":
            return self._drip()
        if isinstance(fault, dict):
            return self._send(fault.pop("status", 200), fault, fault.pop("headers", None))
        if isinstance(fault, str):
            return self._send(200, fault.encode())
        if isinstance(fault, list):
            return self._send(fault[0], {"error": {}}, {"Retry-After": str(fault[1])})
        if isinstance(fault, int):
            return self._send(fault, {"error": {"message": "told to"}})
        shown = body["messages"][-1]["content"]
        actions = shown.partition("Valid actions:\n")[2].splitlines()
        pick = PLAN["pick"]
        text = {"first": actions[0], "last": actions[-1]}.get(pick, pick)
        usage = {"prompt_tokens": len(shown.split()), "completion_tokens": len(text.split())}
        return self._send(200, {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage})

    def _drip(self) -> None:
        """A byte now and then, as gateways send to keep a connection open."""
        self._leave()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(40):
            try:
                self.wfile.write(b" ")
                self.wfile.flush()
            except OSError:
                return
            time.sleep(0.3)

    def _send(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        payload = data if isinstance(data, bytes) else json.dumps(data).encode()
        self._leave()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(payload))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    PLAN.update(json.loads(sys.argv[1]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until the test closes it, or dies


if __name__ == "__main__":
    main()
