"""Replays a recording of a published ACP agent: sends what it sent, each time the client sends what it sent then.

The recordings are made by `make test-agents`. Ids of the client's requests may differ from the recorded ones.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    numbers: dict[object, object] = {}
    for text in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()[1:]:
        one = json.loads(text)
        if one["from"] == "client":
            while True:
                line = sys.stdin.readline()
                if not line:
                    return
                message = json.loads(line)
                if message.get("method") == one.get("method"):
                    break
                if "method" in message and "id" in message:  # a request that the client did not make then
                    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}) + "\n")
                    sys.stdout.flush()
            numbers[one.get("id")] = message.get("id")
            continue
        sent = one.get("message", one.get("line"))
        if isinstance(sent, dict) and "method" not in sent:
            sent = {**sent, "id": numbers[sent["id"]]}
        sys.stdout.write(f"{sent.rstrip() if isinstance(sent, str) else json.dumps(sent)}\n")
        sys.stdout.flush()
    sys.stdin.read()


main()
